"""The client of the local API, for `sluice` and the tests."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import grpc

from nodeagent.adapters.api import mig_wire
from nodeagent.adapters.api.wire import SERVICE, Wire
from nodeagent.ports.clients import GrantAsk, Granted, RefusalKind, Refused, ResizeAsk, Waiting
from nodeagent.ports.mig import MigAnswer, MigAsk, MigView
from nodeagent.ports.views import ContainedView, Finding, GrantView, NodeEvent, NodeView, TraceView

DEADLINE_S: Final = 10.0
"""Seconds, for calls that the daemon answers from memory."""
SPILL_DEADLINE_S: Final = 3600.0
"""Seconds. A grant's memory waits while that of others is moved; the daemon limits each move
(checkpoint.total_timeout_s) and completes it even if the client has gone."""
MIG_READ_DEADLINE_S: Final = 40.0
MIG_CHANGE_DEADLINE_S: Final = 150.0
"""Seconds; the daemon has its own timeouts for the driver."""

_KINDS: Final = {
    grpc.StatusCode.INVALID_ARGUMENT: RefusalKind.INVALID,
    grpc.StatusCode.RESOURCE_EXHAUSTED: RefusalKind.EXHAUSTED,
    grpc.StatusCode.FAILED_PRECONDITION: RefusalKind.UNAVAILABLE,
    grpc.StatusCode.NOT_FOUND: RefusalKind.NOT_FOUND,
    grpc.StatusCode.PERMISSION_DENIED: RefusalKind.DENIED,
}


class Unreachable(Exception):
    """No daemon answers; the text names the socket."""


class Ended(Unreachable):
    """The daemon ended while it handled the call: it may have carried it out."""


class Closed(Unreachable):
    """The daemon's socket exists, but this user may not connect to it."""


class Client:
    def __init__(self, socket: Path, wire: Wire) -> None:
        """Raises Unreachable if there is no socket, Closed if this user may not connect to it."""
        try:
            is_socket = stat.S_ISSOCK(socket.stat().st_mode)
        except PermissionError:
            raise Closed(f"{socket}: permission denied") from None
        except OSError:
            is_socket = False
        if not is_socket:
            raise Unreachable(f"no daemon at {socket}")
        if not os.access(socket, os.W_OK, effective_ids=True):
            raise Closed(f"{socket}: permission denied")
        self._socket = socket
        self._wire = wire
        self._channel = grpc.insecure_channel(
            f"unix:{socket.absolute()}",
            # A proxy setting in the environment must not send a Unix socket's authority elsewhere.
            options=[("grpc.enable_http_proxy", 0), ("grpc.default_authority", "localhost")],
        )

    def close(self) -> None:
        self._channel.close()

    def create_grant(self, ask: GrantAsk) -> Iterator[Granted | Waiting]:
        """Raises Refused, Unreachable."""
        request = self._wire.write_grant_request(ask)
        with self._errors():
            endless = ask.queue is not None and ask.wait_s == 0
            timeout = None if endless else ask.wait_s + DEADLINE_S
            for update in self._method("CreateGrant")(request, timeout=timeout):
                if update.HasField("granted"):
                    yield Granted(self._wire.read_grant(update.granted))
                    return
                yield self._wire.read_waiting(update.waiting)
        raise Unreachable(f"the daemon at {self._socket} closed the call without an answer")

    def list_grants(self) -> list[GrantView]:
        response = self._call("ListGrants", self._wire.message("ListGrantsRequest")())
        return [self._wire.read_grant(grant) for grant in response.grants]

    def resize_grant(self, grant: str, ask: ResizeAsk) -> GrantView:
        request = self._wire.write_resize_request(grant, ask)
        return self._wire.read_grant(self._call("ResizeGrant", request))

    def pause_grant(self, grant: str) -> GrantView:
        request = self._wire.message("GrantRef")(grant=grant)
        return self._wire.read_grant(self._call("PauseGrant", request))

    def resume_grant(self, grant: str) -> GrantView:
        request = self._wire.message("GrantRef")(grant=grant)
        return self._wire.read_grant(self._call("ResumeGrant", request, SPILL_DEADLINE_S))

    def spill_grant(self, grant: str) -> GrantView:
        """Pause a grant and move its memory to the host."""
        request = self._wire.message("GrantRef")(grant=grant)
        return self._wire.read_grant(self._call("SpillGrant", request, SPILL_DEADLINE_S))

    def release_grant(self, grant: str) -> GrantView:
        request = self._wire.message("GrantRef")(grant=grant)
        return self._wire.read_grant(self._call("ReleaseGrant", request))

    def node_info(self) -> NodeView:
        request = self._wire.message("GetNodeInfoRequest")()
        return self._wire.read_snapshot(self._call("GetNodeInfo", request))

    def watch(self, interval_s: float) -> Iterator[NodeView]:
        request = self._wire.message("WatchRequest")(interval_seconds=interval_s)
        with self._errors():
            for snapshot in self._method("Watch")(request):
                yield self._wire.read_snapshot(snapshot)

    def events(self, after: int = 0, follow: bool = False) -> Iterator[NodeEvent]:
        request = self._wire.message("WatchEventsRequest")(after=after, follow=follow)
        with self._errors():
            timeout = None if follow else DEADLINE_S
            for event in self._method("WatchEvents")(request, timeout=timeout):
                yield self._wire.read_event(event)

    def trace(self, pid: int, interval_s: float) -> Iterator[TraceView]:
        """Raises Refused, Unreachable."""
        request = self._wire.message("TraceRequest")(pid=pid, interval_seconds=interval_s)
        with self._errors():
            for update in self._method("Trace")(request):
                yield self._wire.read_trace(update)

    def contained(self) -> list[ContainedView]:
        response = self._call("ListContained", self._wire.message("ListContainedRequest")())
        return [self._wire.read_contained(one) for one in response.contained]

    def let_go(self, numbers: Sequence[int], everything: bool) -> list[ContainedView]:
        """Raises Refused, Unreachable."""
        request = self._wire.message("LetGoRequest")(numbers=list(numbers), all=everything)
        response = self._call("LetGo", request)
        return [self._wire.read_contained(one) for one in response.let_go]

    def dump_events(self) -> Iterator[bytes]:
        """The journal's events as JSON, in parts. Raises Refused, Unreachable."""
        with self._errors():
            request = self._wire.message("DumpEventsRequest")()
            for part in self._method("DumpEvents")(request, timeout=DEADLINE_S):
                yield part.json

    def open_page(self) -> tuple[str, float]:
        """A URL that one browser can open once, and the seconds that it is valid."""
        found = self._call("OpenPage", self._wire.message("NodePageRequest")())
        return found.url, found.valid_seconds

    def doctor(self) -> list[Finding]:
        response = self._call("Doctor", self._wire.message("DoctorRequest")())
        return [Finding(f.topic, f.level, f.what, f.remedy) for f in response.findings]

    def show_mig(self, gpu: str = "") -> list[MigView]:
        request = self._wire.message("ShowMigRequest")(gpu=gpu)
        return mig_wire.read_views(self._call("ShowMig", request, MIG_READ_DEADLINE_S))

    def set_mig(self, ask: MigAsk) -> MigAnswer:
        request = mig_wire.write_ask(self._wire, ask)
        return mig_wire.read_answer(self._call("SetMig", request, MIG_CHANGE_DEADLINE_S))

    def _call(self, name: str, request: Any, deadline_s: float = DEADLINE_S) -> Any:
        with self._errors():
            return self._method(name)(request, timeout=deadline_s)

    def _method(self, name: str) -> Any:
        request, response, stream = self._wire.methods()[name]
        make = self._channel.unary_stream if stream else self._channel.unary_unary
        return make(
            f"/{SERVICE}/{name}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except grpc.RpcError as error:
            code, details = error.code(), error.details()
            if code in _KINDS:
                raise Refused(_KINDS[code], details) from None
            if code is grpc.StatusCode.UNAVAILABLE and "Connection refused" in str(details):
                raise Unreachable(f"no daemon answers at {self._socket}") from None
            if code is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise Unreachable(f"the daemon at {self._socket} does not answer") from None
            raise Ended(f"the daemon at {self._socket}: {details}") from None
