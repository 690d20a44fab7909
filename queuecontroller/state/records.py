"""Rows of the controller's database as frozen values, and the port of the database.

A row is written before its content is published. Times are nanoseconds since the epoch.
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
    """Guaranteed time; guarantees on one GPU never exceed it."""
    ELASTIC = "elastic"
    """Weight for time that is shared."""
    EXCLUSIVE = "exclusive"
    """Exclusive use of the GPU."""


class OnPreemption(StrEnum):
    """Treatment of a preempted workload's processes."""

    STOP = "stop"
    PAUSE = "pause"
    """Launches are held and memory is kept; the work continues there once it is admitted again."""
    CHECKPOINT = "checkpoint"
    """Like PAUSE, and memory moves to the node's host; stopped where that is impossible."""


class Consolidation(StrEnum):
    """Permission to move a running workload to other GPUs so that another one fits."""

    NEVER = "never"
    RESTART = "restart"
    """It is stopped and starts again elsewhere."""


@dataclass(frozen=True, slots=True)
class GpuAsk:
    """GPU request of one pod; amounts are per GPU."""

    gpus: int = 1
    memory_bytes: int | None = None
    memory_ppm: int | None = None
    """Fraction of the chosen GPU's memory; either this or `memory_bytes` is given."""
    share_ppm: int = 1_000_000
    policy: SharePolicy = SharePolicy.HARD
    gpu_uuids: tuple[str, ...] = ()
    """The GPUs to use, if given."""
    mig: tuple[str, ...] = ()
    """Profile of each requested MIG instance, instead of shares."""


share(Admission, GpuAsk, PodSet)


@dataclass(frozen=True, slots=True)
class GpuShare:
    uuid: str
    memory_bytes: int
    share_ppm: int
    mig: str = ""
    """Profile of the MIG instance; its position in memory slices follows."""
    mig_start: int = 0
    mig_size: int = 0


class Desired(StrEnum):
    RUN = "run"
    PAUSE = "pause"
    CHECKPOINT = "checkpoint"
    STOP = "stop"


class PodState(StrEnum):
    """State of a pod's work as the node last reported it."""

    DECIDED = "decided"
    """Not confirmed yet: the node may or may not have received it."""
    RUNNING = "running"
    PAUSED = "paused"


class PodKey(NamedTuple):
    workload: WorkloadKey
    pod: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """A decision about one pod on one node: the desired state there. It is deleted once the node
    reports the end of the work."""

    workload: WorkloadKey
    pod: str
    uid: str
    attempt: int
    node: str
    epoch: int
    """The node's epoch at the time of the decision."""
    revision: int
    desired: Desired
    ask: GpuAsk
    gpus: tuple[GpuShare, ...] = ()
    """Empty if the node chooses."""
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
    """A workload with all decisions about it."""

    workload: Workload
    revision: int = 0
    attempt: int = 0
    """Number of admissions so far."""
    asks: Mapping[str, GpuAsk] = field(default_factory=dict)
    """GPU requests by pod set; a pod set without one needs no GPU."""
    node: str = ""
    """The only node where it may run, because its process waits there."""
    user: str = ""
    command: str = ""
    token: str = ""
    on_preemption: OnPreemption | None = None
    """None: the ClusterQueue's policy applies."""
    consolidation: Consolidation | None = None
    """None: the ClusterQueue's permission applies."""
    moved_ns: int = 0
    """Time of its last move for another workload, ns since the epoch; 0: it was never moved."""
    deleting: bool = False
    kind: str = "Workload"
    """Kind of the submitted object."""
    manifest: str = ""
    """The submitted object as JSON."""

    @property
    def key(self) -> WorkloadKey:
        return self.workload.key


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """State of a node that survives a restart; capacity is reported with each connection."""

    name: str
    epoch: int
    boot_id: str = ""
    acked_revision: int = 0
    seen_ns: int = 0
    lost: bool = False


@dataclass(frozen=True, slots=True)
class ObjectRecord:
    """An applied object that is not a workload, as it was given."""

    kind: str
    namespace: str
    name: str
    revision: int
    body: str
    """JSON."""


@dataclass(frozen=True, slots=True)
class Event:
    """A line of the audit trail: a decision or its outcome."""

    revision: int
    at_ns: int
    kind: str
    subject: str
    """`Kind/namespace/name` or `Kind/name`."""
    text: str


ObjectId = tuple[str, str, str]
"""Kind, namespace, name."""


Gap = tuple[int, int]
"""Revisions above the first and up to the second were decided by a controller whose database was
lost. Work of such revisions may be adopted from nodes."""


@dataclass(slots=True)
class Change:
    """A transaction: rows to write; None deletes a row."""

    label: str
    """Labels of its steps joined by `+`; the fault tests stop the process before and after each of
    them."""
    revision: int = 0
    term: int = 0
    objects: dict[ObjectId, ObjectRecord | None] = field(default_factory=dict)
    workloads: dict[WorkloadKey, WorkloadRecord | None] = field(default_factory=dict)
    assignments: dict[PodKey, Assignment | None] = field(default_factory=dict)
    nodes: dict[str, NodeRecord | None] = field(default_factory=dict)
    usage: dict[str, UsageRecord | None] = field(default_factory=dict)
    """Usage by LocalQueue."""
    forgotten: tuple[Gap, ...] | None = None
    """None: unchanged."""
    events: list[Event] = field(default_factory=list)

    def __bool__(self) -> bool:
        rows = (self.objects, self.workloads, self.assignments, self.nodes, self.usage)
        return any(rows) or bool(self.events) or self.forgotten is not None


@dataclass(slots=True)
class Snapshot:
    """The whole content of the database."""

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
    """Key of the seals on data that nodes keep. It is stored beside the database, not in it."""


class StoreLost(Exception):
    """Raised if a transaction did not become durable. Memory is then ahead of the disk, so the
    process must end and restart from the disk; a failed fsync is never retried, because Linux has
    dropped the dirty pages by then."""


class Store(Protocol):
    def load(self) -> Snapshot: ...
    def stage(self, change: Change) -> None:
        """Hand over rows, which become visible with `sync`. Raises StoreLost."""

    def sync(self) -> None:
        """Make the staged rows durable; may run in another thread. Raises StoreLost."""

    def events(self, subject: str, limit: int) -> list[Event]:
        """Durable events of a subject, newest first."""

    def close(self) -> None: ...
