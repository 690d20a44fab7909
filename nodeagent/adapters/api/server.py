"""The local gRPC API on a Unix socket. The kernel identifies the callers; `listener` accepts them,
and `guests` limits their calls.

Messages arrive as bytes and are parsed here, so that a malformed one is refused to its sender and
leaves no traceback in the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import math
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from nodeagent.adapters.api import mig_wire
from nodeagent.adapters.api.guests import Guest
from nodeagent.adapters.api.listener import ApiListener
from nodeagent.adapters.api.wire import SERVICE, Wire
from nodeagent.adapters.host.descriptor_room import is_short
from nodeagent.ports.clients import Granted, NodeService, Peer, RefusalKind, Refused
from nodeagent.ports.clock import Clock
from nodeagent.ports.ledger import LedgerFull
from nodeagent.ports.mig import MigService
from nodeagent.ports.views import Finding
from nodeagent.shell.rate_limited_log import RateLimitFilter

log = logging.getLogger(__name__)

LARGEST_REQUEST_BYTES: Final = 64 << 10
WATCH_INTERVALS_S: Final = (0.2, 60.0)
DOCTOR_EVERY_S: Final = 2.0
"""Seconds that doctor's findings are cached; checking the host takes 2 ms and many files."""

DUMP_PART_BYTES: Final = 1 << 20
"""Bytes; gRPC's limit for a message is 4 MiB."""

_STATUS: Final = {
    RefusalKind.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    RefusalKind.EXHAUSTED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    RefusalKind.UNAVAILABLE: grpc.StatusCode.FAILED_PRECONDITION,
    RefusalKind.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    RefusalKind.DENIED: grpc.StatusCode.PERMISSION_DENIED,
}


OpenPage = Callable[[int], tuple[str, float]]
"""Returns a URL for the user with this UID, and the seconds that it is valid. Raises Refused."""


def no_page(uid: int) -> tuple[str, float]:
    raise Refused(RefusalKind.UNAVAILABLE, "the page is off: page.listen is empty")


class LocalApi:
    def __init__(
        self,
        runtime_dir: Path,
        wire: Wire,
        service: NodeService,
        clock: Clock,
        doctor: Callable[[], Awaitable[list[Finding]]],
        mig: MigService,
        open_page: OpenPage = no_page,
    ) -> None:
        self._public = runtime_dir / "sluice.sock"
        self._private_dir = runtime_dir / "api"
        self._private = self._private_dir / "grpc.sock"
        self._wire = wire
        self._service = service
        self._clock = clock
        self._doctor = doctor
        self._mig = mig
        self._open_page = open_page
        self._grpc: Any = None
        self._listener: ApiListener | None = None
        self._findings: tuple[float, list[Finding]] | None = None

    async def start(self) -> None:
        """Raises OSError if a socket cannot be created."""
        self._private_dir.mkdir(mode=0o700, exist_ok=True)
        os.chmod(self._private_dir, 0o700)
        self._private.unlink(missing_ok=True)
        self._grpc = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", LARGEST_REQUEST_BYTES),
                ("grpc.max_concurrent_streams", 100),
            ]
        )
        self._grpc.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, self._handlers()),)
        )
        self._grpc.add_insecure_port(f"unix:{self._private}")
        await self._grpc.start()
        # gRPC's own log lines are about its clients.
        logging.getLogger("grpc").addFilter(RateLimitFilter())
        logging.getLogger("grpc._cython.cygrpc").addFilter(RateLimitFilter())
        self._listener = ApiListener(self._public, self._private)
        self._listener.start()

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        if self._grpc is not None:
            await self._grpc.stop(0)

    # --- the service ---

    def _handlers(self) -> dict[str, Any]:
        unary: dict[str, Callable[[Peer, Any], Any]] = {
            "ListGrants": self._list,
            "ResizeGrant": self._resize,
            "PauseGrant": self._pause,
            "ResumeGrant": self._resume,
            "SpillGrant": self._spill,
            "ReleaseGrant": self._release,
            "GetNodeInfo": self._info,
            "Doctor": self._report,
            "ListContained": self._contained,
            "LetGo": self._let_go,
            "ShowMig": self._show_mig,
            "SetMig": self._set_mig,
            "OpenPage": self._page,
        }
        streams: dict[str, Callable[[Peer, Any], AsyncGenerator[Any, None]]] = {
            "CreateGrant": self._create,
            "Watch": self._watch,
            "WatchEvents": self._events,
            "Trace": self._trace,
            "DumpEvents": self._dump,
        }
        handlers = {}
        call: Any
        for name, (request, response, _stream) in self._wire.methods().items():
            kind, call = (
                (
                    grpc.unary_stream_rpc_method_handler,
                    self._streaming(name, request, streams[name]),
                )
                if name in streams
                else (
                    grpc.unary_unary_rpc_method_handler,
                    self._answering(name, request, unary[name]),
                )
            )
            handlers[name] = kind(call, response_serializer=response.SerializeToString)
        return handlers

    def _answering(
        self, name: str, kind: Any, call: Callable[[Peer, Any], Any]
    ) -> Callable[[bytes, Any], Awaitable[Any]]:
        async def answer(raw: bytes, context: Any) -> Any:
            async with self._with_status(context), self._admitted(name, context) as peer:
                response = call(peer, _read(kind, raw))
                return await response if inspect.isawaitable(response) else response

        return answer

    def _streaming(
        self, name: str, kind: Any, call: Callable[[Peer, Any], AsyncGenerator[Any, None]]
    ) -> Callable[[bytes, Any], AsyncGenerator[Any, None]]:
        async def stream(raw: bytes, context: Any) -> AsyncGenerator[Any, None]:
            async with (
                self._with_status(context),
                self._admitted(name, context) as peer,
                contextlib.aclosing(call(peer, _read(kind, raw))) as messages,
            ):
                async for message in messages:
                    yield message

        return stream

    @contextlib.asynccontextmanager
    async def _with_status(self, context: Any) -> AsyncIterator[None]:
        """Turn expected errors into gRPC statuses instead of tracebacks."""
        try:
            yield
        except Refused as refused:
            await context.abort(_STATUS[refused.kind], refused.reason)
        except LedgerFull as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        except OSError as error:
            if not is_short(error):
                raise
            text = f"the daemon reached a limit of this machine: {error.strerror}"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)

    @contextlib.asynccontextmanager
    async def _admitted(self, name: str, context: Any) -> AsyncIterator[Peer]:
        """The caller, within its limits. Raises Refused."""
        assert self._listener is not None
        guests = self._listener.guests
        _, guest = self._known(context)
        delay_s = guests.begin(guest, name, time.monotonic())
        try:
            if delay_s > 0:
                await asyncio.sleep(delay_s)
            yield self._known(context)[0]  # It may have disconnected.
        finally:
            guests.end(guest, name, time.monotonic())

    def _known(self, context: Any) -> tuple[Peer, Guest]:
        found = self._listener.known(context.peer()) if self._listener is not None else None
        if found is None:
            raise Refused(RefusalKind.DENIED, "the caller cannot be identified")
        return found

    async def _create(self, peer: Peer, request: Any) -> AsyncGenerator[Any, None]:
        update = self._wire.message("CreateGrantUpdate")
        ask = self._wire.read_grant_ask(request)
        async with contextlib.aclosing(self._service.create_grant(peer, ask)) as progress:
            async for step in progress:
                if isinstance(step, Granted):
                    yield update(granted=self._wire.write_grant(step.view))
                else:
                    yield update(waiting=self._wire.write_waiting(step))

    async def _watch(self, peer: Peer, request: Any) -> AsyncGenerator[Any, None]:
        low, high = WATCH_INTERVALS_S
        interval_s = min(high, max(low, request.interval_seconds or 1.0))
        while True:
            yield self._snapshot(peer)
            await asyncio.sleep(interval_s)

    async def _events(self, peer: Peer, request: Any) -> AsyncGenerator[Any, None]:
        events = self._service.events(peer, request.after, request.follow)
        async with contextlib.aclosing(events) as found:
            async for event in found:
                yield self._wire.write_event(event)

    async def _trace(self, peer: Peer, request: Any) -> AsyncGenerator[Any, None]:
        interval_s = request.interval_seconds or 1.0
        if not math.isfinite(interval_s):
            raise Refused(RefusalKind.INVALID, "expected a number of seconds for the interval")
        traced = self._service.trace(peer, request.pid, interval_s)
        async with contextlib.aclosing(traced) as views:
            async for view in views:
                yield self._wire.write_trace(view)

    async def _dump(self, peer: Peer, request: Any) -> AsyncGenerator[Any, None]:
        text = self._service.dump_events(peer).encode()
        part = self._wire.message("DumpPart")
        for start in range(0, len(text), DUMP_PART_BYTES):
            yield part(json=text[start : start + DUMP_PART_BYTES])

    def _snapshot(self, peer: Peer) -> Any:
        return self._wire.write_snapshot(self._service.node_view(peer), self._clock.unix_s())

    def _list(self, peer: Peer, request: Any) -> Any:
        grants = [self._wire.write_grant(view) for view in self._service.list_grants(peer)]
        return self._wire.message("ListGrantsResponse")(grants=grants)

    def _resize(self, peer: Peer, request: Any) -> Any:
        ask = self._wire.read_resize_ask(request)
        return self._wire.write_grant(self._service.resize_grant(peer, request.grant, ask))

    def _pause(self, peer: Peer, request: Any) -> Any:
        return self._wire.write_grant(self._service.pause_grant(peer, request.grant))

    async def _resume(self, peer: Peer, request: Any) -> Any:
        return self._wire.write_grant(await self._service.resume_grant(peer, request.grant))

    async def _spill(self, peer: Peer, request: Any) -> Any:
        return self._wire.write_grant(await self._service.spill_grant(peer, request.grant))

    def _release(self, peer: Peer, request: Any) -> Any:
        return self._wire.write_grant(self._service.release_grant(peer, request.grant))

    def _contained(self, peer: Peer, request: Any) -> Any:
        found = [self._wire.write_contained(view) for view in self._service.contained(peer)]
        return self._wire.message("ListContainedResponse")(contained=found)

    def _let_go(self, peer: Peer, request: Any) -> Any:
        views = self._service.let_go(peer, tuple(request.numbers), request.all)
        found = [self._wire.write_contained(view) for view in views]
        return self._wire.message("LetGoResponse")(let_go=found)

    def _info(self, peer: Peer, request: Any) -> Any:
        return self._snapshot(peer)

    async def _show_mig(self, peer: Peer, request: Any) -> Any:
        views = await self._mig.show(peer, request.gpu)
        return mig_wire.write_views(self._wire, views)

    async def _set_mig(self, peer: Peer, request: Any) -> Any:
        answer = await self._mig.set(peer, mig_wire.read_ask(request))
        return mig_wire.write_answer(self._wire, answer)

    def _page(self, peer: Peer, request: Any) -> Any:
        url, valid_s = self._open_page(peer.uid)
        return self._wire.message("NodePageUrl")(url=url, valid_seconds=valid_s)

    async def _report(self, peer: Peer, request: Any) -> Any:
        finding = self._wire.message("Finding")
        now_s = time.monotonic()
        if self._findings is None or now_s - self._findings[0] > DOCTOR_EVERY_S:
            self._findings = (now_s, await self._doctor())
        found = [
            finding(topic=f.topic, level=f.level, what=f.what, remedy=f.remedy)
            for f in self._findings[1]
        ]
        return self._wire.message("DoctorReport")(findings=found)


def _read(kind: Any, raw: bytes) -> Any:
    """The parsed request. Raises Refused."""
    try:
        return kind.FromString(raw)
    except DecodeError:
        raise Refused(RefusalKind.INVALID, "malformed request") from None
