"""Wraps functions as gRPC handlers and maps errors to status codes, for both services.

Every call takes the same steps: authenticate the caller, wait for its turn, parse the message, and
then carry it out. A request can cause an error status, but never a traceback.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from typing import Any, Final, Protocol, TypeVar

import grpc

from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.server.api.wire import Method, Wire
from queuecontroller.server.callers.authenticator import (
    Authenticator,
    ReviewUnavailable,
    Unauthenticated,
)
from queuecontroller.server.callers.fair_calls import FairCalls
from queuecontroller.server.callers.listeners import Crowded, Listeners
from queuecontroller.state.access import Caller, Denied, Role
from queuecontroller.state.book import Book
from queuecontroller.state.nodes.sessions import StaleEpoch, Superseded, Unproven
from queuecontroller.state.objects.submission import Refused
from queuecontroller.state.records import Assignment, StoreLost
from queuecontroller.state.shell import TooFarBehind
from queuecontroller.state.status import Status
from sluicecommon.reader import ManifestError

log = logging.getLogger(__name__)
T = TypeVar("T")

MAX_DETAILS: Final = 4000
"""Characters of an error text, which is sent in a header that gRPC limits to 8 KiB."""
MAX_STREAMS: Final = {Role.USER: 16, Role.CHECK: 16, Role.NODE: 8, Role.ADMIN: 64}
"""Concurrent streams of one caller. A node has its decisions, and one stream for each process that
waits under `sluice run --queue`; those are counted separately."""
MAX_FOLLOWED: Final = 256
"""Workloads that a node follows, one for each process that waits there."""

_REFUSALS: Final = {
    "invalid": grpc.StatusCode.INVALID_ARGUMENT,
    "not_found": grpc.StatusCode.NOT_FOUND,
    "exists": grpc.StatusCode.ALREADY_EXISTS,
    "conflict": grpc.StatusCode.FAILED_PRECONDITION,
    "denied": grpc.StatusCode.PERMISSION_DENIED,
    "exhausted": grpc.StatusCode.RESOURCE_EXHAUSTED,
}

Unary = Callable[[Any, Caller], Any]
"""(request, caller) -> response."""
Streaming = Callable[[Any, Caller], AsyncGenerator[Any, None]]


def status_of(error: Exception) -> tuple[grpc.StatusCode, str] | None:
    """The gRPC status of an error; None if the error is a defect."""
    if isinstance(error, Refused):
        return _REFUSALS[error.kind], str(error)
    if isinstance(error, Denied):
        return grpc.StatusCode.PERMISSION_DENIED, str(error)
    if isinstance(error, Unauthenticated):
        return grpc.StatusCode.UNAUTHENTICATED, str(error)
    if isinstance(error, Crowded):
        return grpc.StatusCode.RESOURCE_EXHAUSTED, str(error)
    if isinstance(error, ManifestError):
        return grpc.StatusCode.INVALID_ARGUMENT, "\n".join(map(str, error.problems))
    if isinstance(error, StaleEpoch):
        return grpc.StatusCode.ABORTED, str(error)
    if isinstance(error, Unproven):
        return grpc.StatusCode.FAILED_PRECONDITION, str(error)
    if isinstance(error, TooFarBehind):
        return grpc.StatusCode.OUT_OF_RANGE, str(error)
    if isinstance(error, Superseded | StoreLost | ReviewUnavailable):
        return grpc.StatusCode.UNAVAILABLE, str(error)
    return None


class Deciding(Protocol):
    """The part of `state.shell.Shell` that calls and nodes use; in a cluster it is forwarded to the
    current leader's."""

    @property
    def why_not_ready(self) -> str: ...
    @property
    def book(self) -> Book: ...
    def step(self, label: str, call: Callable[[Book, int], T]) -> T: ...
    async def durable(self) -> None: ...
    def decisions(
        self, node: str, epoch: int, after_revision: int
    ) -> AsyncGenerator[list[Assignment], None]: ...
    def follow_waiting(
        self, node: str, epoch: int, keys: Iterable[WorkloadKey]
    ) -> AsyncGenerator[list[Status], None]: ...


class Calls:
    """State shared by all calls: authentication, turns and streams."""

    def __init__(
        self, shell: Deciding, keeper: Authenticator, listeners: Listeners, turns: FairCalls
    ) -> None:
        self._shell = shell
        self._keeper = keeper
        self._listeners = listeners
        self.turns = turns
        self._streams: Counter[str] = Counter()

    def handlers(
        self, wire: Wire, service: str, unary: dict[str, Unary], streaming: dict[str, Streaming]
    ) -> Any:
        """A generic handler for every method of the service."""
        made = {}
        make: Any
        call: Any
        for name, method in wire.methods(service).items():
            if method.streams:
                make = grpc.unary_stream_rpc_method_handler
                call = self._stream(f"{service}/{name}", method, streaming[name])
            else:
                make = grpc.unary_unary_rpc_method_handler
                call = self._answer(method, unary[name])
            # Messages arrive as bytes, so that they are parsed in their caller's turn.
            made[name] = make(call, response_serializer=method.response.SerializeToString)
        return grpc.method_handlers_generic_handler(service, made)

    def unknown(self) -> Any:
        """The handler of unknown methods, whose calls wait for their turn too."""
        return _Unknown(self._refuse_unknown)

    async def _refuse_unknown(self, raw: bytes, context: Any) -> Any:
        try:
            caller = await self._keeper.caller(context)
            await self._turn(caller, lambda: None)
        except Exception as error:
            await _abort(context, error)
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no such method")

    async def _turn(self, caller: Caller, call: Callable[[], Any]) -> Any:
        try:
            return await self.turns.run(caller, call)
        except Crowded:
            self._listeners.slow_down(caller)
            raise

    def _check_ready(self) -> None:
        if self._shell.why_not_ready:
            raise _NotReady(self._shell.why_not_ready)

    def _answer(self, method: Method, call: Unary) -> Callable[[bytes, Any], Awaitable[Any]]:
        async def answer(raw: bytes, context: Any) -> Any:
            try:
                self._check_ready()
                caller = await self._keeper.caller(context)
                try:
                    return await self._turn(caller, lambda: call(_read(method, raw), caller))
                finally:  # A refusal may also depend on changes that are not written yet.
                    await self._shell.durable()
            except Exception as error:  # Every error becomes a status; a defect is also logged.
                return await _abort(context, error)

        return answer

    def _stream(
        self, name: str, method: Method, call: Streaming
    ) -> Callable[[bytes, Any], AsyncGenerator[Any, None]]:
        async def stream(raw: bytes, context: Any) -> AsyncGenerator[Any, None]:
            try:
                self._check_ready()
                caller = await self._keeper.caller(context)
                request = await self._turn(caller, lambda: _read(method, raw))
                with self._counted(caller, name):
                    async with contextlib.aclosing(call(request, caller)) as messages:
                        async for message in messages:
                            await self._shell.durable()
                            yield message
            except Exception as error:
                await _abort(context, error)

        return stream

    @contextlib.contextmanager
    def _counted(self, caller: Caller, name: str) -> Iterator[None]:
        """Count a stream of the caller while the block runs. Raises Crowded."""
        most = max(MAX_STREAMS[role] for role in caller.roles) if caller.roles else 1
        key = caller.key
        if caller.nodes and name.endswith("/Follow"):
            key, most = f"{key} follows", MAX_FOLLOWED
        if self._streams[key] >= most:
            raise Crowded(f"{caller.shown}: too many streams (limit {most}): close one")
        self._streams[key] += 1
        try:
            yield
        finally:
            self._streams[key] -= 1
            if not self._streams[key]:
                del self._streams[key]


class _NotReady(Exception):
    pass


class _Unknown(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    def __init__(self, answer: Callable[[bytes, Any], Awaitable[Any]]) -> None:
        self._handler = grpc.unary_unary_rpc_method_handler(answer)

    def service(self, handler_call_details: Any) -> Any:
        return self._handler


def _read(method: Method, raw: bytes) -> Any:
    """The parsed request. Raises Refused."""
    try:
        return method.request.FromString(raw)
    except Exception as error:  # protobuf's DecodeError is not a stable name
        raise Refused("invalid", f"the message cannot be read: {error}"[:200]) from None


async def _abort(context: Any, error: Exception) -> None:
    if isinstance(error, _NotReady):
        found: tuple[grpc.StatusCode, str] | None = (grpc.StatusCode.UNAVAILABLE, str(error))
    else:
        found = status_of(error)
    if found is None:
        log.error("a call failed", exc_info=error)
        found = grpc.StatusCode.INTERNAL, f"{type(error).__name__}: see the controller's log"
    code, details = found
    safe = details[:MAX_DETAILS].encode(errors="replace").decode()
    await context.abort(code, safe)
