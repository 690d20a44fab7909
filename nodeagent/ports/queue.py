"""Values that the node and the queue controller exchange, and their ports.

Times on this side are CLOCK_BOOTTIME nanoseconds: it counts suspended time, so a lease that expired
while the machine slept is seen to have expired.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from nodeagent.ports.clients import GrantAsk
from nodeagent.units import WHOLE_PPM, Bytes, GpuUuid, GrantId, Ppm, SharePolicy

WHOLE: Final = Ppm(WHOLE_PPM)


class WorkKey(NamedTuple):
    workload: str
    """namespace/name."""
    pod: str = ""


class Desired(StrEnum):
    RUN = "run"
    PAUSE = "pause"
    """Launches held, memory stays."""
    CHECKPOINT = "checkpoint"
    """Launches held, memory moved to the host; stopped if that is impossible."""
    STOP = "stop"


class WorkState(StrEnum):
    OFFERED = "offered"
    """Decided, but no process has claimed it yet."""
    RUNNING = "running"
    PAUSED = "paused"
    SPILLING = "spilling"
    """Its memory is being moved to the host."""
    SPILLED = "spilled"
    """Paused, with its memory on the host."""
    RETURNING = "returning"
    """Its memory is being moved back."""
    STOPPING = "stopping"
    STOPPED = "stopped"
    """Stopped as decided; kept until the controller has acknowledged it."""
    FINISHED = "finished"
    """Ended by itself; kept until the controller has acknowledged it."""
    REFUSED = "refused"
    """Could not be started here; kept until the controller has acknowledged it."""


OVER = frozenset({WorkState.STOPPED, WorkState.FINISHED, WorkState.REFUSED})


@dataclass(frozen=True, slots=True)
class GivenShare:
    gpu: GpuUuid
    memory_bytes: Bytes
    share_ppm: Ppm
    mig_profile: str = ""
    """If set, this MIG instance, whole."""
    mig_start: int = 0
    mig_size: int = 0


@dataclass(frozen=True, slots=True)
class Decision:
    """The controller's decision for one pod on this node."""

    workload: str
    pod: str
    uid: str
    attempt: int
    revision: int
    desired: Desired
    policy: SharePolicy = SharePolicy.HARD
    gpus: tuple[GivenShare, ...] = ()
    cluster_queue: str = ""
    priority: int = 0
    reason: str = ""
    grace_s: float = 30.0
    record: str = ""
    """The controller's own row, stored for a controller that has lost it."""
    pause_when_lost: bool = False
    nodes: int = 0
    """Number of nodes on which the workload has GPUs; 0: not reported."""

    @property
    def key(self) -> WorkKey:
        return WorkKey(self.workload, self.pod)


@dataclass(frozen=True, slots=True)
class Work:
    """One pod's work on this node: the newest decision, and its state."""

    decision: Decision
    state: WorkState = WorkState.OFFERED
    grant: GrantId | None = None
    reason: str = ""
    started: bool = False
    """True if it has ever run here."""

    @property
    def key(self) -> WorkKey:
        return self.decision.key


@dataclass(frozen=True, slots=True)
class Fence:
    """The newest controller that this node has accepted; an older one is refused."""

    cluster_id: str = ""
    term: int = 0
    revision: int = 0
    epoch: int = 0
    proof: str = ""
    """The controller's own seal on term and revision, sent when connecting. Opaque."""


@dataclass(frozen=True, slots=True)
class Done:
    """Work that is over and acknowledged: a repeated decision about it starts nothing."""

    uid: str
    attempt: int
    state: WorkState


@dataclass(frozen=True, slots=True)
class Welcome:
    cluster_id: str
    term: int
    epoch: int
    revision: int
    lease_s: float
    report_s: float
    decisions: tuple[Decision, ...] = ()
    proof: str = ""


@dataclass(frozen=True, slots=True)
class ReportedGpu:
    uuid: GpuUuid
    index: int
    type: str
    memory_bytes: Bytes
    slots: int
    health: str
    share_ppm: Ppm = WHOLE
    numa_node: int | None = None
    pci_bus_id: str | None = None
    sm_count: int | None = None
    outside_memory_bytes: int = 0
    """Used by processes that the queue did not start."""
    outside_share_ppm: int = 0
    outside_slots: int = 0
    used_memory_bytes: int | None = None
    utilization_ratio: float | None = None
    nvlinks: Mapping[str, int] = field(default_factory=dict)
    mig_profile: str = ""
    """Profile of a MIG instance; empty: a whole card."""
    parent: GpuUuid | None = None
    """Card of a MIG instance."""
    mig_start: int = 0
    mig_size: int = 1
    """Its memory slices on the card."""
    health_reason: str = ""
    """Reason why it is not healthy, for people."""


@dataclass(frozen=True, slots=True)
class PodCheckpoint:
    """A pod's answer to the annotation that tells it to be checkpointed."""

    namespace: str
    pod: str
    told: str
    """The annotation's value."""
    state: str
    """moving, saved, restored or refused."""
    why: str = ""


@dataclass(frozen=True, slots=True)
class PodGpus:
    """GPUs of a pod that the kubelet started without a decision of the queue; they also count as
    outside use."""

    uid: str
    namespace: str
    pod: str
    shares: tuple[tuple[GpuUuid, int, int, bool], ...]
    """GPU, memory in bytes, promised time in ppm, and True if it is exclusive; without those whose
    memory is on the host."""
    checkpoint: PodCheckpoint | None = None


@dataclass(frozen=True, slots=True)
class Capacity:
    gpus: tuple[ReportedGpu, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[tuple[str, str, str], ...] = ()
    """Key, value, effect."""
    unschedulable: bool = False
    pods: tuple[PodGpus, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    workload: str
    attempt: int
    memory_bytes: int
    used_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class PodUsage:
    """Measured use of the GPUs of one pod that the kubelet started."""

    uid: str
    memory_bytes: int
    used_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Detection:
    """An event of this node that the queue's page shows."""

    number: int
    at_unix_s: float
    kind: str
    level: str
    text: str
    workload: str = ""
    """Workload of the grant that it is about."""
    evidence: str = "{}"
    """JSON."""


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A workload's position and phase in the queue."""

    workload: str
    uid: str
    phase: str
    position: int = 0
    waiting: int = 0
    reason: str = ""
    message: str = ""
    estimate_s: float | None = None

    @property
    def is_over(self) -> bool:
        return self.phase in ("Finished", "Deleted")


@dataclass(frozen=True, slots=True)
class Submission:
    namespace: str
    queue: str
    ask: GrantAsk
    user: str
    token: str
    priority_class: str = ""
    preempted: str = ""
    max_execution_s: float = 0.0
    name: str = ""


class LinkLost(Exception):
    """The controller does not answer, or the session is no longer ours: connect again."""


class QueueRefused(Exception):
    """The controller refuses; the text has the reason."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        """gRPC's name of the status."""


class NotOffered(Exception):
    """The controller's release does not have this call."""


MAX_NEWS: Final = 256
"""Works in one message."""
MAX_DETECTIONS: Final = 32
"""Detections in one report; the controller stores as many for a node."""


class QueueLink(Protocol):
    """The controller. Every call raises LinkLost; those for users also raise QueueRefused."""

    async def connect(
        self, fence: Fence, held: Sequence[Work], waiting: Sequence[str], capacity: Capacity
    ) -> Welcome: ...
    async def report(
        self,
        fence: Fence,
        sequence: int,
        capacity: Capacity,
        usage: Sequence[Usage | PodUsage],
        detections: Sequence[Detection],
        *,
        stopping: bool = False,
    ) -> Welcome:
        """Report the node's state; the answer's decisions are empty. `stopping`: no pod is to be
        bound to this node until the next daemon connects."""

    def watch(self, fence: Fence) -> AsyncIterator[tuple[int, int, Decision | None, str]]:
        """(Term, revision, decision or None for a keep-alive, proof of term and revision)."""

    async def report_works(self, fence: Fence, works: Sequence[Work]) -> list[bool]:
        """Report the states of works, at most MAX_NEWS; False for one that the controller
        does not have."""

    async def submit(self, ask: Submission) -> QueueStatus: ...
    def follow_waiting(
        self, fence: Fence, workloads: Sequence[str]
    ) -> AsyncIterator[list[QueueStatus]]:
        """Status of all workloads for which processes here wait; an empty list is a keep-alive.
        Raises NotOffered if the controller is of the release before."""

    def follow(self, workload: str, uid: str) -> AsyncIterator[QueueStatus]: ...
    async def withdraw(self, workload: str, uid: str) -> None:
        """Idempotent: a workload that does not exist counts as withdrawn."""

    async def close(self) -> None: ...


class QueueLedger(Protocol):
    """Stored state of the queue on this node; durable when a call returns. Raises LedgerLost or
    LedgerFull."""

    def load_queue(self) -> tuple[Fence, list[Work], list[Done]]: ...
    def store_fence(self, fence: Fence) -> None: ...
    def store_work(self, work: Work) -> None: ...
    def drop_work(self, key: WorkKey, done: Done | None) -> None: ...
