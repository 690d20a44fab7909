"""Views for people: grants, GPUs, processes and the daemon itself, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from nodeagent.ports.gpus import GpuFigures, GpuReading
from nodeagent.ports.ledger import ContainerRef
from nodeagent.units import (
    GpuUuid,
    GrantId,
    Nanoseconds,
    SharePolicy,
)
from sluicecommon.metric import Metric

Samples = Mapping[Metric, float | Mapping[str, float]]
"""Figures by metric; for a metric with a label, a figure for each value of it. Unknown figures are
absent."""


@dataclass(frozen=True, slots=True)
class DeviceView:
    """One (grant, GPU) as shown to people."""

    gpu: GpuUuid
    gpu_index: int | None
    memory_limit_bytes: int
    memory_used_bytes: int
    memory_peak_bytes: int
    share_ratio: float
    used_ratio: float | None
    """GPU time over wall time, from the tenant's counters, over about the last second."""
    busy_seconds_total: float
    throttled_seconds_total: float
    launches_total: int
    allocations_total: int
    denied_total: int
    turn: str
    wall_bytes: int | None = None
    """The driver's own limit; None: it has set none."""
    memory_request_bytes: int | None = None
    """Guarantee and maximum of a grant that may borrow; memory_limit_bytes is what it has now."""
    memory_most_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class GrantView:
    grant: GrantId
    name: str
    uid: int
    pid: int
    command: str
    policy: SharePolicy
    state: str
    created_unix_s: float
    processes: int
    tamper_events_total: int
    directory: str
    devices: tuple[DeviceView, ...]
    workload: str = ""
    """namespace/name of a grant through the queue."""
    priority: int = 0
    container: ContainerRef | None = None
    pids: tuple[int, ...] = ()
    """Pids of the registered processes."""
    held: str = ""
    """Rules and steps of the detection that holds its programs; empty if none does."""
    gang: bool = False
    """True for ranks of a job on several nodes, which take no windows."""
    trusted_group: str = ""
    """Its trusted group with the group's owner; empty: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuView(GpuFigures):
    """A GPU or MIG instance that grants are placed on, with what they have of it."""

    memory_granted_bytes: int
    share_granted_ratio: float
    grants: int
    slots: int
    health: str
    health_reason: str = ""
    """The reason why it is not healthy."""
    health_changes_total: int = 0
    context_switch_s: float | None = None
    """Time of a change of contexts that turns are planned with; None: not learned yet, and the
    setting is used."""


@dataclass(frozen=True, slots=True)
class ProcessView:
    """One process on one GPU, from NVML."""

    pid: int
    gpu: GpuUuid
    gpu_index: int
    memory_bytes: int | None
    sm_ratio: float | None
    grant: GrantId | None
    """Grant in which it is registered; None if in none."""


@dataclass(frozen=True, slots=True)
class OwnProcess:
    """One of the daemon's processes."""

    name: str
    resident_bytes: int
    cpu_seconds_total: float


@dataclass(frozen=True, slots=True)
class HostFigures:
    memory_bytes: int
    memory_available_bytes: int
    cpus: int
    load_average: float
    """Load average over one minute."""
    processes: tuple[OwnProcess, ...] = ()


@dataclass(frozen=True, slots=True)
class LoopView:
    name: str
    last_ok_unix_s: float


@dataclass(frozen=True, slots=True)
class QueueView:
    """State of the connection to the queue controller."""

    connected: bool
    session_s: float | None
    """Seconds since it connected; None without a session."""
    silent_s: float | None
    """Seconds since the controller's last valid message; None if there was none."""
    lease_left_s: float
    """Seconds until nothing new is started any more."""
    works: Mapping[str, int]
    """Decisions held, by state; each state is present."""
    waiting: int
    """Processes that wait for a decision."""
    term: int
    """The highest fencing term accepted."""
    revision: int
    sessions_total: int
    fenced_total: int
    """Messages of a controller that has a successor, or of an old database: rejected."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """Everything that a screen or a scrape needs, from memory alone."""

    gpus: tuple[GpuView, ...]
    grants: tuple[GrantView, ...]
    loops: tuple[LoopView, ...]
    waiting: int
    reading_age_s: float | None
    driver_version: str | None
    nvml_error: str | None
    nvml_restarts_total: int
    version: str
    counters: Samples = field(default_factory=dict)
    readings: tuple[GpuReading, ...] = ()
    """NVML's readings, `reading_age_s` old, in the order of `gpus`."""
    xids: Mapping[GpuUuid, Mapping[int, int]] = field(default_factory=dict)
    """How often each code was reported since the daemon started."""
    last_xid: Mapping[GpuUuid, int] = field(default_factory=dict)
    nvml_version: str | None = None
    queue: QueueView | None = None
    """None if the node takes no work from a queue."""
    processes: tuple[ProcessView, ...] = ()
    host: HostFigures | None = None
    detections: Mapping[str, int] = field(default_factory=dict)
    """Suspicions raised since the daemon started, by rule."""
    suspicions: Mapping[str, int] = field(default_factory=dict)
    """Suspicions that are active now, by rule."""
    acts: Mapping[str, int] = field(default_factory=dict)
    """Steps taken since the daemon started, by step."""
    held: Mapping[str, int] = field(default_factory=dict)
    """Steps in force now, by step."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `sluice doctor`."""

    topic: str
    level: str
    """ok, warning (works with a limitation) or missing."""
    what: str
    remedy: str = ""


class EventKind(StrEnum):
    """Kinds of events beside the detection rules, each of which is a kind as well."""

    ACT = "act"
    """A response to a detection, its end, or a command of an operator."""
    CHECKPOINT = "checkpoint"
    """A grant's memory was moved to the host or back, or could not be."""
    DEVICE = "device"
    """The kernel reported a change of GPU devices or of their driver."""
    DRIVER = "driver"
    """GPUs cannot be read, are read again, or have another driver than before."""
    GPU = "gpu"
    """Health of a GPU or change of its MIG geometry."""
    WALL = "wall"
    """A memory limit of the driver's was not built, or could not be lowered."""


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """An event of the node."""

    number: int
    """Counts up from 1 while the daemon runs."""
    at_unix_s: float
    kind: str
    """A detection rule or an EventKind."""
    level: str
    """info, warning or critical."""
    text: str
    uid: int | None = None
    """Owner of the grant or process that it is about; None: for operators only."""
    grant: GrantId | None = None
    pid: int = 0
    evidence: str = "{}"
    """JSON with the figures."""


@dataclass(frozen=True, slots=True)
class ContainedView:
    """One act of ours that is in force."""

    number: int
    since_unix_s: float
    step: str
    """throttle, deny_opens or freeze."""
    rule: str
    level: str
    whom: str
    grant: str
    """Empty: none."""
    pid: int
    """0: the whole grant."""
    uid: int
    cgroup: str
    """Cgroup of the container that is held; empty: none."""
    evidence: str
    """JSON."""


@dataclass(frozen=True, slots=True)
class TracedDevice:
    """Launches of one process on one GPU of its grant since it was first traced. All fields except
    launches, copies and gaps are written by the tenant."""

    device: int
    launches: int
    copies: int
    cost_ns: int
    waited_ns: int
    wait_histogram: tuple[int, ...]
    """Bucket i: 2^i up to 2^(i+1) ns."""
    gap_histogram: tuple[int, ...]
    ended: bool = False


@dataclass(frozen=True, slots=True)
class TraceView:
    at_ns: Nanoseconds
    """CLOCK_MONOTONIC."""
    devices: tuple[TracedDevice, ...]
    grant: str = ""
    name: str = ""
    """The grant's name."""
    probe_ns: int | None = None
    """Cost of the probe per launch on this machine."""
