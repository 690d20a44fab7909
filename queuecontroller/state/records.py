"""What the controller remembers: rows of its database as frozen values, and the database's port.

A row is written before anybody hears of what it says. Times are nanoseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

from queuecontroller.scheduler.model.objects import Admission, PodSet, Workload, WorkloadKey
from queuecontroller.scheduler.quota.usage_history import UsageRecord
from sluicecommon.plain import share


class SharePolicy(StrEnum):
    HARD = "hard"
    """A promise: promises on one GPU stay within it."""
    ELASTIC = "elastic"
    """A weight."""
    EXCLUSIVE = "exclusive"
    """The GPU for itself."""


class OnPreemption(StrEnum):
    """What becomes of the processes of a preempted workload."""

    STOP = "stop"
    PAUSE = "pause"
    """Launches are held, memory is kept; it goes on where it was once it is admitted again."""
    CHECKPOINT = "checkpoint"
    """As PAUSE, and its memory goes to its node's host; stopped where that cannot be."""


@dataclass(frozen=True, slots=True)
class GpuAsk:
    """What one pod wants of each of its GPUs."""

    gpus: int = 1
    memory_bytes: int | None = None
    memory_ppm: int | None = None
    """Of whatever GPU is chosen; one of the two is given."""
    share_ppm: int = 1_000_000
    policy: SharePolicy = SharePolicy.HARD
    gpu_uuids: tuple[str, ...] = ()
    """Exactly these."""
    mig: tuple[str, ...] = ()
    """The profile of each MIG instance wanted, instead of shares."""


share(Admission, GpuAsk, PodSet)


@dataclass(frozen=True, slots=True)
class GpuShare:
    uuid: str
    memory_bytes: int
    share_ppm: int
    mig: str = ""
    """The profile of the MIG instance it is, and where that is in memory slices."""
    mig_start: int = 0
    mig_size: int = 0


class Desired(StrEnum):
    RUN = "run"
    PAUSE = "pause"
    CHECKPOINT = "checkpoint"
    STOP = "stop"


class PodState(StrEnum):
    """What the node last said of a pod's work."""

    DECIDED = "decided"
    """Not yet confirmed: the node may or may not have it."""
    RUNNING = "running"
    PAUSED = "paused"


class PodKey(NamedTuple):
    workload: WorkloadKey
    pod: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """One pod on one node, and what the node shall do with it: a decision. Gone once the node says
    that the work is over there."""

    workload: WorkloadKey
    pod: str
    uid: str
    attempt: int
    node: str
    epoch: int
    """The node's when this was decided."""
    revision: int
    desired: Desired
    ask: GpuAsk
    gpus: tuple[GpuShare, ...] = ()
    """Empty: the node chooses."""
    state: PodState = PodState.DECIDED
    reason: str = ""
    cluster_queue: str = ""
    priority: int = 0
    changed_ns: int = 0

    @property
    def key(self) -> PodKey:
        return PodKey(self.workload, self.pod)


@dataclass(frozen=True, slots=True)
class WorkloadRecord:
    """One workload with all that was decided about it."""

    workload: Workload
    revision: int = 0
    attempt: int = 0
    """Admissions so far."""
    asks: Mapping[str, GpuAsk] = field(default_factory=dict)
    """By pod set; a pod set without one wants no GPU."""
    node: str = ""
    """Only there: the process waits on that node."""
    user: str = ""
    command: str = ""
    token: str = ""
    on_preemption: OnPreemption | None = None
    """None: as its ClusterQueue says."""
    deleting: bool = False
    kind: str = "Workload"
    """What the user submitted."""
    manifest: str = ""
    """That object, in JSON."""

    @property
    def key(self) -> WorkloadKey:
        return self.workload.key


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """What must survive a restart about a node; capacity comes anew with each connection."""

    name: str
    epoch: int
    boot_id: str = ""
    acked_revision: int = 0
    seen_ns: int = 0
    lost: bool = False


@dataclass(frozen=True, slots=True)
class ObjectRecord:
    """An applied object that is no workload, as it was given."""

    kind: str
    namespace: str
    name: str
    revision: int
    body: str
    """JSON."""


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the audit trail: something was decided or became of a decision."""

    revision: int
    at_ns: int
    kind: str
    subject: str
    """`Kind/namespace/name` or `Kind/name`."""
    text: str


ObjectId = tuple[str, str, str]
"""Kind, namespace, name."""


Gap = tuple[int, int]
"""Revisions above the first and up to the second: decided by a controller whose database was lost.
What a node brings of them may be taken over."""


@dataclass(slots=True)
class Change:
    """One transaction: rows to write, None to delete."""

    label: str
    """What it is for, of several steps joined by `+`: the fault tests stop the process before and
    after each of them."""
    revision: int = 0
    term: int = 0
    objects: dict[ObjectId, ObjectRecord | None] = field(default_factory=dict)
    workloads: dict[WorkloadKey, WorkloadRecord | None] = field(default_factory=dict)
    assignments: dict[PodKey, Assignment | None] = field(default_factory=dict)
    nodes: dict[str, NodeRecord | None] = field(default_factory=dict)
    usage: dict[str, UsageRecord | None] = field(default_factory=dict)
    """By LocalQueue: what it has used."""
    forgotten: tuple[Gap, ...] | None = None
    """None: as before."""
    events: list[Event] = field(default_factory=list)

    def __bool__(self) -> bool:
        rows = (self.objects, self.workloads, self.assignments, self.nodes, self.usage)
        return any(rows) or bool(self.events) or self.forgotten is not None


@dataclass(slots=True)
class Snapshot:
    """Everything the database holds."""

    cluster_id: str
    term: int
    revision: int
    objects: list[ObjectRecord] = field(default_factory=list)
    workloads: list[WorkloadRecord] = field(default_factory=list)
    assignments: list[Assignment] = field(default_factory=list)
    nodes: list[NodeRecord] = field(default_factory=list)
    usage: list[UsageRecord] = field(default_factory=list)
    forgotten: tuple[Gap, ...] = ()
    seal_key: bytes = b""
    """Of the seals on what nodes keep for us. It is kept beside the database, not in it."""


class StoreLost(Exception):
    """A transaction did not become durable. Memory is ahead of the disk now, so the process must
    end and start again from the disk; a failed fsync is never retried, because Linux has dropped
    the dirty pages by then."""


class Store(Protocol):
    def load(self) -> Snapshot: ...
    def stage(self, change: Change) -> None:
        """Hands its rows over; nothing of them is there for anybody before `sync`. Raises
        StoreLost."""

    def sync(self) -> None:
        """What was staged is durable when it returns; may run in another thread. Raises
        StoreLost."""

    def events(self, subject: str, limit: int) -> list[Event]:
        """The newest first, of what is durable."""

    def close(self) -> None: ...
