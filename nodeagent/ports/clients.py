"""Requests and answers of the local API's clients, and the service that answers them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from nodeagent.ports.processes import ProcessHandle
from nodeagent.ports.views import ContainedView, GrantView, NodeEvent, NodeView, TraceView
from nodeagent.units import (
    NO_CEILING,
    Bytes,
    GpuUuid,
    Ppm,
    SharePolicy,
)


@dataclass(frozen=True, slots=True)
class Peer:
    """The process at the other end of a local connection, identified by the kernel."""

    handle: ProcessHandle

    @property
    def uid(self) -> int:
        return self.handle.process.uid

    def duplicate(self) -> ProcessHandle:
        """A handle that outlives the connection, for the caller to close. Raises Refused if the
        connection has ended, which closes the peer's own."""
        try:
            return self.handle.duplicate()
        except OSError:
            text = "the process has closed its connection"
            raise Refused(RefusalKind.UNAVAILABLE, text) from None


@dataclass(frozen=True, slots=True)
class MemoryAsk:
    """Exactly one of the two: an amount, or a part of the chosen GPU."""

    amount_bytes: Bytes | None = None
    part_ppm: Ppm | None = None


@dataclass(frozen=True, slots=True)
class QueueAsk:
    """Options of a request through the queue controller; empty texts mean its configured
    defaults."""

    queue: str
    namespace: str = ""
    priority_class: str = ""
    preempted: str = ""
    """pause, checkpoint or stop."""
    max_execution_s: float = 0.0


@dataclass(frozen=True, slots=True)
class GrantAsk:
    gpus: int
    memory: MemoryAsk
    share_ppm: Ppm
    policy: SharePolicy
    name: str = ""
    gpu_uuids: tuple[GpuUuid, ...] = ()
    not_gpu_uuids: tuple[GpuUuid, ...] = ()
    """GPUs that must not be chosen."""
    request: MemoryAsk | None = None
    """Guaranteed part of `memory`; the rest is borrowed while it is free. None: all of it."""
    wait_s: float = 0.0
    queue: QueueAsk | None = None
    """Set for a request through the queue; None if this node decides alone."""
    driver_path: str = ""
    nvml_path: str = ""
    command: str = ""
    priority: int = 0
    amounts: tuple[Bytes | None, ...] = ()
    """Memory on each of `gpu_uuids` instead of `memory`, if it differs; None: all that one grant
    can have there. Empty: as `memory` says."""
    ceiling_ppm: Ppm = NO_CEILING
    """See GrantRecord."""
    gang: bool = False
    """See GrantRecord."""
    trusted_group: str = ""
    """The group's name in a request; with its owner, as in GrantRecord, once it is permitted."""


@dataclass(frozen=True, slots=True)
class ResizeAsk:
    memory: MemoryAsk | None = None
    share_ppm: Ppm | None = None
    policy: SharePolicy | None = None
    priority: int | None = None


@dataclass(frozen=True, slots=True)
class Granted:
    view: GrantView


@dataclass(frozen=True, slots=True)
class Waiting:
    position: int
    """1 is next; 0: not in the queue."""
    reason: str
    estimate_s: float | None = None
    """Seconds until it starts, estimated from the recent past."""
    waiting: int = 0
    """Number of requests in that queue; 0: unknown."""
    workload: str = ""
    """namespace/name of a request through the queue."""


class RefusalKind(StrEnum):
    INVALID = "invalid"
    """The request itself is invalid: waiting would not help."""
    EXHAUSTED = "exhausted"
    UNAVAILABLE = "unavailable"
    """The GPUs are not available now."""
    NOT_FOUND = "not_found"
    DENIED = "denied"


class Refused(Exception):
    """The request is refused; the text says what would have to change."""

    def __init__(self, kind: RefusalKind, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason


class NodeService(Protocol):
    """Operations of the local API; the daemon's shell implements it."""

    def create_grant(
        self, peer: Peer, ask: GrantAsk
    ) -> AsyncGenerator[Granted | Waiting, None]: ...
    def list_grants(self, peer: Peer) -> list[GrantView]: ...
    def resize_grant(self, peer: Peer, grant: str, ask: ResizeAsk) -> GrantView: ...
    def pause_grant(self, peer: Peer, grant: str) -> GrantView: ...
    async def resume_grant(self, peer: Peer, grant: str) -> GrantView: ...
    async def spill_grant(self, peer: Peer, grant: str) -> GrantView:
        """Pause the grant and move its memory to the host."""

    def release_grant(self, peer: Peer, grant: str) -> GrantView: ...
    def node_view(self, peer: Peer) -> NodeView: ...
    def dump_events(self, peer: Peer) -> str:
        """The flight recorder's JSON. Raises Refused."""

    def events(self, peer: Peer, after: int, follow: bool) -> AsyncGenerator[NodeEvent, None]:
        """Events that the peer may see."""

    def trace(self, peer: Peer, pid: int, interval_s: float) -> AsyncGenerator[TraceView, None]: ...
    def contained(self, peer: Peer) -> list[ContainedView]: ...
    def let_go(self, peer: Peer, numbers: Sequence[int], everything: bool) -> list[ContainedView]:
        """Release acts in force and return them. Raises Refused if one of them is not in force, or
        cannot be released."""
