"""What the node and the queue controller say to each other, as values, and the ports behind it.

Times on this side are CLOCK_BOOTTIME nanoseconds: it counts suspended time, so a lease that ran out
while the machine slept is seen to have run out.
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
    """Launches held, memory kept."""
    CHECKPOINT = "checkpoint"
    """Launches held, memory on the host; stopped where that cannot be."""
    STOP = "stop"


class WorkState(StrEnum):
    OFFERED = "offered"
    """Decided, nobody has claimed it yet."""
    RUNNING = "running"
    PAUSED = "paused"
    SPILLING = "spilling"
    """Its memory is on its way to the host."""
    SPILLED = "spilled"
    """Paused, its memory on the host."""
    RETURNING = "returning"
    """Its memory is on its way back."""
    STOPPING = "stopping"
    STOPPED = "stopped"
    """Over as it was told; kept until the controller knows."""
    FINISHED = "finished"
    """Over by itself; kept until the controller knows."""
    REFUSED = "refused"
    """Could not be started here; kept until the controller knows."""


OVER = frozenset({WorkState.STOPPED, WorkState.FINISHED, WorkState.REFUSED})


@dataclass(frozen=True, slots=True)
class GivenShare:
    gpu: GpuUuid
    memory_bytes: Bytes
    share_ppm: Ppm
    mig_profile: str = ""
    """Not empty: that MIG instance, whole."""
    mig_start: int = 0
    mig_size: int = 0


@dataclass(frozen=True, slots=True)
class Decision:
    """What the controller wants of this node for one pod."""

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
    """The controller's own row, kept for one that has lost it."""
    pause_when_lost: bool = False

    @property
    def key(self) -> WorkKey:
        return WorkKey(self.workload, self.pod)


@dataclass(frozen=True, slots=True)
class Work:
    """One pod's work on this node: the newest decision acted on, and what became of it."""

    decision: Decision
    state: WorkState = WorkState.OFFERED
    grant: GrantId | None = None
    reason: str = ""
    started: bool = False
    """It ran here at some time."""

    @property
    def key(self) -> WorkKey:
        return self.decision.key


@dataclass(frozen=True, slots=True)
class Fence:
    """The newest controller this node has obeyed; whoever has less is refused."""

    cluster_id: str = ""
    term: int = 0
    revision: int = 0
    epoch: int = 0
    proof: str = ""
    """The controller's own seal on term and revision, to be shown when connecting. Opaque."""


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
    """In use by what the queue did not start."""
    outside_share_ppm: int = 0
    outside_slots: int = 0
    used_memory_bytes: int | None = None
    utilization_ratio: float | None = None
    nvlinks: Mapping[str, int] = field(default_factory=dict)
    mig_profile: str = ""
    """Of a MIG instance; empty: a whole card."""
    parent: GpuUuid | None = None
    """Its card."""
    mig_start: int = 0
    mig_size: int = 1
    """Its memory slices on the card."""


@dataclass(frozen=True, slots=True)
class PodGpus:
    """What a pod has that the kubelet started, and no decision of the queue's; it counts as in use
    outside, too."""

    uid: str
    namespace: str
    pod: str
    shares: tuple[tuple[GpuUuid, int, int, bool], ...]
    """GPU, memory in bytes, promised time in ppm, and whether it is alone there."""


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
class Detection:
    """An event of this node that the queue's page shows."""

    number: int
    at_unix_s: float
    kind: str
    level: str
    text: str
    workload: str = ""
    """Whose grant it is about."""
    evidence: str = "{}"
    """JSON."""


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """Where a workload stands in the queue."""

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
    """The controller does not answer, or the session is not ours any more: connect again."""


class QueueRefused(Exception):
    """The controller says no; the text says why."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        """gRPC's name of the status."""


class NotOffered(Exception):
    """The controller is of a release that has no such call."""


MOST_NEWS: Final = 256
"""Told in one message."""
MOST_DETECTIONS: Final = 32
"""Told in one report; the controller keeps as many of a node."""


class QueueLink(Protocol):
    """The controller. Every call raises LinkLost, those for users QueueRefused too."""

    async def connect(
        self, fence: Fence, held: Sequence[Work], waiting: Sequence[str], capacity: Capacity
    ) -> Welcome: ...
    async def report(
        self,
        fence: Fence,
        sequence: int,
        capacity: Capacity,
        usage: Sequence[Usage],
        detections: Sequence[Detection],
    ) -> Welcome:
        """The answer's decisions are empty."""

    def watch(self, fence: Fence) -> AsyncIterator[tuple[int, int, Decision | None, str]]:
        """(term, revision, decision or None for a sign of life, proof of term and revision)."""

    async def tell(self, fence: Fence, works: Sequence[Work]) -> list[bool]:
        """What became of them, at most MOST_NEWS; False: the controller does not know of it."""

    async def submit(self, ask: Submission) -> QueueStatus: ...
    def follow_waiting(
        self, fence: Fence, workloads: Sequence[str]
    ) -> AsyncIterator[list[QueueStatus]]:
        """Of all that processes here wait for; none: a sign of life. Raises NotOffered by a
        controller of the release before."""

    def follow(self, workload: str, uid: str) -> AsyncIterator[QueueStatus]: ...
    async def withdraw(self, workload: str, uid: str) -> None:
        """Idempotent: what is not there is withdrawn."""

    async def close(self) -> None: ...


class QueueLedger(Protocol):
    """The node's memory of the queue; durable when a call returns. Raises LedgerLost,
    LedgerFull."""

    def load_queue(self) -> tuple[Fence, list[Work], list[Done]]: ...
    def store_fence(self, fence: Fence) -> None: ...
    def store_work(self, work: Work) -> None: ...
    def drop_work(self, key: WorkKey, done: Done | None) -> None: ...
