"""The world as the daemon needs it: one Protocol per outside thing, and the plain values that
cross them.

Adapters give these, `nodeagent.testing` gives fakes that behave, the core sees only the values.
`None` always means "not reported".
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Final, Protocol

from nodeagent.units import (
    Bytes,
    GpuUuid,
    GrantId,
    Nanoseconds,
    Ppm,
    SharePolicy,
    SlotIndex,
)

NO_PPM: Final = Ppm(0)
NO_TIME: Final = Nanoseconds(0)
FIRST_SLOT: Final = SlotIndex(0)

# --- processes --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Process:
    """One process for ever: a pid alone is reused, a pid with its start time is not."""

    pid: int
    starttime_ticks: int
    """Field 22 of /proc/PID/stat: clock ticks after boot."""
    uid: int
    gid: int
    ns_pid: int = 0
    """As the process sees itself in its own pid namespace; shown to people only."""


class ProcessHandle(Protocol):
    """Keeps one process identified (a pidfd), whatever becomes of its pid."""

    @property
    def process(self) -> Process: ...
    def alive(self) -> bool: ...
    def on_exit(self, call: Callable[[], None]) -> None:
        """Call once when the process has exited; at once if it already has."""

    def signal(self, number: int) -> bool:
        """Send it a signal; False when it is gone, or not ours to signal."""

    def duplicate(self) -> ProcessHandle: ...
    def close(self) -> None: ...


class Processes(Protocol):
    def find(self, pid: int, starttime_ticks: int) -> ProcessHandle | None:
        """The process, or None when it is gone or another one has its pid. Raises OSError when that
        cannot be told: no file descriptor is left."""

    def find_claimants(
        self, claims: Mapping[SlotIndex, tuple[int, int]]
    ) -> dict[SlotIndex, ProcessHandle]:
        """Who claimed these slots: (pid as the process knows itself, start time in ticks), both
        as a tenant wrote them. Claims with nobody behind them are absent. Costs at most one
        pass over /proc."""

    def users_of(self, grant: GrantId, uid: int, pod_uid: str) -> list[ProcessHandle]:
        """Who has a region of this grant mapped whose files may be gone: processes of the user,
        or of the pod where one is named. Costs one pass over /proc."""

    def maps_file(self, pid: int, device: int, inode: int) -> bool | None:
        """Has this process the file mapped? None: may not look."""

    def image_of(self, pid: int) -> int:
        """A number that another program in the same process has differently. 0: not known."""


@dataclass(frozen=True, slots=True)
class LibraryIdentity:
    """One file for ever, as far as a file system tells: inodes are used again, so there is more to
    it than a number."""

    device: int
    inode: int
    generation: int
    """FS_IOC_GETVERSION: another one each time the inode is used; 0: this file system has none."""
    size_bytes: int
    modified_ns: int
    uid: int


# --- regions ----------------------------------------------------------------------------------


class TurnMode(IntEnum):
    """enum sluice_turn_mode."""

    OFF = 0
    CAP = 1
    LEASE = 2


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """Line A of a device in policy.shm."""

    gpu: GpuUuid
    memory_limit_bytes: Bytes
    physical_bytes: Bytes
    burst_ns: Nanoseconds
    inflight_ns: Nanoseconds
    chunk_ns: Nanoseconds
    share_ppm: Ppm
    """0 = uncapped."""
    enforce_memory: bool = True
    enforce_sm: bool = True
    paused: bool = False
    revoked: bool = False
    managed_beyond: bool = False
    """Managed memory may be larger than what is left of the grant; docs/memory.md says what that
    promises."""


@dataclass(frozen=True, slots=True)
class DeviceTurn:
    """Line B of a device in policy.shm."""

    mode: TurnMode
    plan_ppm: Ppm = NO_PPM
    active_grants: int = 0
    lease_origin_ns: Nanoseconds = NO_TIME
    lease_period_ns: Nanoseconds = NO_TIME
    lease_quantum_ns: Nanoseconds = NO_TIME
    contention_epoch: int = 0


@dataclass(frozen=True, slots=True)
class SlotOwner:
    """One odd entry of policy.dir[]: written by the daemon, so believed."""

    slot: SlotIndex
    generation: int
    pid: int
    starttime_ticks: int
    ns_pid: int


@dataclass(frozen=True, slots=True)
class DeviceCounters:
    """One usage line, exactly as a tenant wrote it: unsigned 64-bit words, nothing believed yet."""

    charged_bytes: int = 0
    consumed_ns: int = 0
    completed_ns: int = 0
    launches: int = 0
    allocs: int = 0
    denied: int = 0
    peak_bytes: int = 0
    throttled_ns: int = 0


@dataclass(frozen=True, slots=True)
class SlotUsage:
    """One usage slot, exactly as a tenant wrote it."""

    generation_seen: int
    heartbeat_ns: int
    hook_mask: int
    unknown_symbols: int
    unknown_tables: int
    self_claim: int
    claim_starttime: int
    devices: tuple[DeviceCounters, ...]


class UsageDamage(StrEnum):
    """What a tenant did to usage.shm as a whole."""

    TRUNCATED = "truncated"
    HEADER = "header"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class UsageImage:
    """One reading of usage.shm: the slots asked for, or what is wrong with the file."""

    slots: Mapping[SlotIndex, SlotUsage]
    claim_high: int = 0
    """Self-claimed slots lie below; already clipped to the slot count."""
    damage: UsageDamage | None = None


class RegionDamaged(Exception):
    """A region that is not, or no longer, one of ours: version, boot or contents."""


class SlotClaimed(Exception):
    """A tenant claimed the slot for itself while it was being given away."""


class Region(Protocol):
    """One grant's region. The daemon is its only writer, apart from the tenant's usage words."""

    @property
    def directory(self) -> str: ...
    def set_limits(self, device: int, limits: DeviceLimits) -> None: ...
    def set_turn(self, device: int, turn: DeviceTurn, wake: bool) -> None: ...
    def heartbeat(self, now_ns: Nanoseconds) -> None: ...
    def set_population(self, live_slots: int, slot_high: int) -> None: ...
    def own_slot(self, slot: SlotIndex, process: Process, adopted: bool = False) -> int:
        """Publish the owner; returns the odd generation. The slot's usage is zero, or `adopted`:
        then it is the process's own and only the claim word is cleared. Raises SlotClaimed."""

    def clear_slot(self, slot: SlotIndex) -> None:
        """Zero the slot's usage, then mark it free."""

    def owners(self) -> list[SlotOwner]: ...
    def read_usage(self, slots: Sequence[SlotIndex]) -> UsageImage: ...
    def self_claims(self) -> dict[SlotIndex, tuple[int, int]]:
        """Slots claimed without the daemon: (pid as the process sees itself, start time in
        ticks)."""

    def image_in(self, slot: SlotIndex) -> int:
        """Which program the slot's process was when it took it, by its own word and as
        Processes.image_of has it. 0: not said."""

    def drop_claim(self, slot: SlotIndex) -> None:
        """Zero the whole slot: whoever claimed it is gone."""

    def repair_usage(self) -> None:
        """Give a truncated usage.shm its size and header back."""

    def usage_file(self) -> tuple[int, int]:
        """(device, inode) of usage.shm, to find it among a process's mappings."""

    def close(self) -> None: ...


class RegionStore(Protocol):
    """Makes, finds and removes region directories."""

    def create(self, record: GrantRecord, limits: Sequence[DeviceLimits]) -> Region: ...
    def open(self, record: GrantRecord, limits: Sequence[DeviceLimits]) -> Region:
        """Take over a region after a restart. Raises RegionDamaged."""

    def remove(self, grant: GrantId) -> None:
        """Idempotent; a region that is not there is removed."""

    def present(self) -> list[GrantId]: ...
    def write_record(self, record: GrantRecord) -> None: ...
    def read_record(self, grant: GrantId) -> GrantRecord | None:
        """The copy of the ledger row kept beside the region, for a ledger that was lost."""


# --- the ledger -------------------------------------------------------------------------------


class GrantState(StrEnum):
    PREPARING = "preparing"
    """Intent written, region not made yet."""
    ACTIVE = "active"
    DRAINING = "draining"
    """Released: nothing new may start, registered processes are still there."""
    ENDING = "ending"
    """Nobody is left; the region is being removed."""
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """What a grant holds on one GPU."""

    gpu: GpuUuid
    memory_bytes: Bytes
    physical_bytes: Bytes
    share_ppm: Ppm


@dataclass(frozen=True, slots=True)
class ContainerRef:
    """The container a grant was made for, by the kubelet's word."""

    pod_uid: str
    container: str
    device_ids: tuple[str, ...]
    """The kubelet's, sorted: what it counts, not where the grant is."""
    namespace: str = ""
    pod: str = ""


@dataclass(frozen=True, slots=True)
class GrantRecord:
    """One grant as the ledger keeps it."""

    grant: GrantId
    name: str
    policy: SharePolicy
    devices: tuple[DeviceShare, ...]
    owner: Process
    created_unix_s: float
    boot_id: str
    state: GrantState = GrantState.PREPARING
    paused: bool = False
    lent: bool = False
    """Paused, and its share of the time given to others meanwhile; its memory is not."""
    driver_path: str = ""
    nvml_path: str = ""
    command: str = ""
    priority: int = 0
    """A higher one goes first on a GPU both are active on."""
    container: ContainerRef | None = None
    """Held for a container until it is released; `owner` is then nobody."""


class LedgerLost(Exception):
    """The ledger could not be made durable. Retrying is wrong: after a failed fsync Linux drops
    the dirty pages."""


class LedgerFull(Exception):
    """No space left: the row was not written, nothing else is harmed."""


class Ledger(Protocol):
    def load(self) -> list[GrantRecord]: ...
    def ended(self) -> frozenset[GrantId]:
        """Of this boot, as far as they are kept."""

    def store(self, record: GrantRecord) -> None:
        """Durable when it returns. Raises LedgerLost, LedgerFull."""

    @property
    def was_rebuilt(self) -> bool:
        """The file was damaged and put aside."""

    def close(self) -> None: ...


# --- the GPUs ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """One process with a context on one GPU."""

    pid: int
    memory_bytes: Bytes | None = None
    sm_ratio: float | None = None
    """Part of its last sample period in which a kernel of it ran."""
    memory_ratio: float | None = None
    """The same for the memory controller."""
    encoder_ratio: float | None = None
    decoder_ratio: float | None = None
    gpu_instance: int | None = None
    """Of a card in MIG mode; None: on no instance, or the driver does not say."""
    compute_instance: int | None = None


@dataclass(frozen=True, slots=True)
class MigReading:
    """One MIG device of a GPU."""

    uuid: GpuUuid
    profile: str
    """As NVIDIA writes it: 1g.10gb."""
    gpu_instance: int
    compute_instance: int
    memory_total_bytes: Bytes | None = None
    memory_used_bytes: Bytes | None = None
    slice_start: int | None = None
    """The memory slice of the card it begins at, and how many it has."""
    slices: int | None = None


@dataclass(frozen=True, slots=True)
class ProfileReading:
    """NVML's GPU performance monitoring (GPM): averages between two sweeps. Hopper and later."""

    graphics_active_ratio: float | None = None
    sm_active_ratio: float | None = None
    sm_occupancy_ratio: float | None = None
    tensor_active_ratio: float | None = None
    dram_active_ratio: float | None = None
    pcie_tx_bytes_per_s: float | None = None
    pcie_rx_bytes_per_s: float | None = None
    nvlink_tx_bytes_per_s: float | None = None
    nvlink_rx_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """What NVML says about one GPU; a field this card or driver does not report is None."""

    uuid: GpuUuid
    index: int
    name: str
    memory_total_bytes: Bytes
    memory_used_bytes: Bytes | None = None
    sm_count: int | None = None
    pci_bus_id: str | None = None
    numa_node: int | None = None
    utilization_ratio: float | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None
    processes: tuple[ProcessReading, ...] = ()
    recovery_action: str | None = None
    """NVML's own verdict, where it gives one: none, reset, reboot, drain."""
    error: str | None = None
    """This GPU could not be read: NVML's name for the reason."""
    memory_reserved_bytes: Bytes | None = None
    """The driver's own part, not in memory_total_bytes."""
    memory_utilization_ratio: float | None = None
    """Part of the time in which the memory was read or written."""
    encoder_ratio: float | None = None
    decoder_ratio: float | None = None
    memory_temperature_celsius: float | None = None
    sm_clock_hz: int | None = None
    memory_clock_hz: int | None = None
    power_limit_watts: float | None = None
    energy_joules_total: float | None = None
    """Since the driver was loaded."""
    throttle_reasons: tuple[str, ...] | None = None
    """Why the clocks are below what was asked, by NVML's names in lower case, sorted:
    hw_slowdown, hw_thermal_slowdown, hw_power_brake, sw_power_cap, sw_thermal_slowdown,
    sync_boost. Idleness and clocks set by people are not in it; empty: nothing slows it."""
    ecc_corrected_total: int | None = None
    """Since the driver was loaded; resets with it."""
    ecc_uncorrected_total: int | None = None
    """Since the driver was loaded; resets with it."""
    row_remap_correctable_total: int | None = None
    """Rows replaced for good, in the card's life."""
    row_remap_uncorrectable_total: int | None = None
    row_remap_pending: bool | None = None
    """A row waits to be replaced: happens at the next reset."""
    row_remap_failed: bool | None = None
    """No spare row was left: the card is to be replaced."""
    pcie_replay_total: int | None = None
    nvlink_tx_bytes_total: int | None = None
    """Data over all links together."""
    nvlink_rx_bytes_total: int | None = None
    nvlinks_active: int | None = None
    vgpu_licensed: bool | None = None
    mig: tuple[MigReading, ...] | None = None
    """Its MIG devices; None: the card has no MIG, or it is off."""
    mig_profile: str = ""
    """This is no card but an instance of one; see core/mig.py."""
    mig_card: GpuUuid | None = None
    """Of an instance: its card, and where it is there."""
    mig_slice_start: int | None = None
    mig_slices: int | None = None
    profile: ProfileReading | None = None


@dataclass(frozen=True, slots=True)
class NodeReading:
    """One pass over all GPUs, or why there was none."""

    gpus: tuple[GpuReading, ...] = ()
    driver_version: str | None = None
    nvml_version: str | None = None
    xid_events: tuple[tuple[GpuUuid, int], ...] = ()
    error: str | None = None


class Nvml(Protocol):
    """NVML, in a process of its own that can be killed when the driver hangs."""

    restarts_total: int
    """Times that process missed its deadline or ended."""

    async def read(self) -> NodeReading:
        """At most the deadline long; a failure is a reading with `error` set."""

    async def refresh(self) -> None:
        """GPUs came or went: the next reading starts from nothing."""

    def exclusive(self) -> AbstractAsyncContextManager[None]:
        """While it is held nothing is read and that process is not there; the next reading then
        starts from nothing."""

    async def close(self) -> None: ...


# --- time -------------------------------------------------------------------------------------


class Clock(Protocol):
    def monotonic_ns(self) -> Nanoseconds:
        """CLOCK_MONOTONIC: the tenants' scale."""

    def unix_s(self) -> float: ...


# --- what clients ask -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end of a local connection, by the kernel's word."""

    handle: ProcessHandle

    @property
    def uid(self) -> int:
        return self.handle.process.uid


@dataclass(frozen=True, slots=True)
class MemoryAsk:
    """Exactly one of the two: an amount, or a part of whatever GPU is chosen."""

    amount_bytes: Bytes | None = None
    part_ppm: Ppm | None = None


@dataclass(frozen=True, slots=True)
class QueueAsk:
    """Through the queue controller; empty texts: as it is configured there."""

    queue: str
    namespace: str = ""
    priority_class: str = ""
    preempted: str = ""
    """pause or stop."""
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
    """Never on these."""
    wait_s: float = 0.0
    queue: QueueAsk | None = None
    """None: given away by this node alone."""
    driver_path: str = ""
    nvml_path: str = ""
    command: str = ""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class ResizeAsk:
    memory: MemoryAsk | None = None
    share_ppm: Ppm | None = None
    policy: SharePolicy | None = None
    priority: int | None = None


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
    """GPU time over wall time, from the tenant's counters, over the last second or so."""
    busy_seconds_total: float
    throttled_seconds_total: float
    launches_total: int
    allocations_total: int
    denied_total: int
    turn: str


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
    """namespace/name, of one that came through the queue."""
    priority: int = 0
    container: ContainerRef | None = None
    pids: tuple[int, ...] = ()
    """Of the registered processes."""


@dataclass(frozen=True, slots=True)
class GpuView:
    uuid: GpuUuid
    index: int
    name: str
    memory_total_bytes: int
    memory_used_bytes: int | None
    memory_granted_bytes: int
    share_granted_ratio: float
    grants: int
    slots: int
    utilization_ratio: float | None
    temperature_celsius: float | None
    power_watts: float | None
    sm_count: int | None
    pci_bus_id: str | None
    numa_node: int | None
    health: str
    health_reason: str = ""
    """Why it is not healthy."""
    health_changes_total: int = 0


@dataclass(frozen=True, slots=True)
class ProcessView:
    """One process on one GPU, by NVML."""

    pid: int
    gpu: GpuUuid
    gpu_index: int
    memory_bytes: int | None
    sm_ratio: float | None
    grant: GrantId | None
    """None: it is registered in none."""


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
    """Over one minute."""
    processes: tuple[OwnProcess, ...] = ()


@dataclass(frozen=True, slots=True)
class LoopView:
    name: str
    last_ok_unix_s: float


@dataclass(frozen=True, slots=True)
class QueueView:
    """How the node stands with its queue controller."""

    connected: bool
    session_s: float | None
    """Since it connected; None without a session."""
    silent_s: float | None
    """Since the controller last said anything that counts; None when it never did."""
    lease_left_s: float
    """Until nothing new is started any more."""
    works: Mapping[str, int]
    """Decisions held, by state; each state is there."""
    waiting: int
    """Processes that wait for their turn."""
    term: int
    """The highest fencing term obeyed."""
    revision: int
    sessions_total: int
    fenced_total: int
    """Messages of a controller that has a successor, or an old database: not obeyed."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """Everything a screen or a scrape needs, from memory alone."""

    gpus: tuple[GpuView, ...]
    grants: tuple[GrantView, ...]
    loops: tuple[LoopView, ...]
    waiting: int
    reading_age_s: float | None
    driver_version: str | None
    nvml_error: str | None
    nvml_restarts_total: int
    version: str
    counters: Mapping[str, float] = field(default_factory=dict)
    readings: tuple[GpuReading, ...] = ()
    """What NVML said, as long ago as `reading_age_s`; in the order of `gpus`."""
    xids: Mapping[GpuUuid, Mapping[int, int]] = field(default_factory=dict)
    """How often each code was reported since the daemon started."""
    last_xid: Mapping[GpuUuid, int] = field(default_factory=dict)
    nvml_version: str | None = None
    queue: QueueView | None = None
    """None where the node takes no work from a queue."""
    processes: tuple[ProcessView, ...] = ()
    host: HostFigures | None = None
    detections: Mapping[str, int] = field(default_factory=dict)
    """Suspicions raised since the daemon started, by rule."""
    suspicions: Mapping[str, int] = field(default_factory=dict)
    """Those that stand now, by rule."""
    acts: Mapping[str, int] = field(default_factory=dict)
    """Steps taken since the daemon started, by step."""
    held: Mapping[str, int] = field(default_factory=dict)
    """Steps in force now, by step."""


@dataclass(frozen=True, slots=True)
class Granted:
    view: GrantView


@dataclass(frozen=True, slots=True)
class Waiting:
    position: int
    """1 is next; 0: not in line."""
    reason: str
    estimate_s: float | None = None
    """Until it starts, if things go on as they did lately."""
    waiting: int = 0
    """How many stand in that line; 0: not known."""
    workload: str = ""
    """namespace/name, of one that came through the queue."""


class RefusalKind(StrEnum):
    INVALID = "invalid"
    """The request itself is wrong: no wait would help."""
    EXHAUSTED = "exhausted"
    UNAVAILABLE = "unavailable"
    """The GPUs are not known right now."""
    NOT_FOUND = "not_found"
    DENIED = "denied"


class Refused(Exception):
    """The answer is no; the text says what would have to change."""

    def __init__(self, kind: RefusalKind, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `sluice doctor`."""

    topic: str
    level: str
    """ok, warning (works, but less well) or missing."""
    what: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """One thing that happened on the node."""

    number: int
    """Counts up from 1 while the daemon runs."""
    at_unix_s: float
    kind: str
    """A detection rule, act, gpu, driver or device."""
    level: str
    """info, warning or critical."""
    text: str
    uid: int | None = None
    """Whose grant or process it is about; None: for operators alone."""
    grant: GrantId | None = None
    pid: int = 0
    evidence: str = "{}"
    """JSON: the figures behind it."""


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
    """Of the container that is held; empty: none."""
    evidence: str
    """JSON."""


@dataclass(frozen=True, slots=True)
class TracedDevice:
    """Launches of one process on one GPU of its grant since it was first traced. All but the
    launches, copies and gaps is what the tenant says of itself."""

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
    """Of the grant."""
    probe_ns: int | None = None
    """What the probe costs a launch on this machine."""


class NodeService(Protocol):
    """What the local API offers; the daemon's shell implements it."""

    def create_grant(
        self, peer: Peer, ask: GrantAsk
    ) -> AsyncGenerator[Granted | Waiting, None]: ...
    def list_grants(self, peer: Peer) -> list[GrantView]: ...
    def resize_grant(self, peer: Peer, grant: str, ask: ResizeAsk) -> GrantView: ...
    def pause_grant(self, peer: Peer, grant: str, paused: bool) -> GrantView: ...
    def release_grant(self, peer: Peer, grant: str) -> GrantView: ...
    def node_view(self, peer: Peer | None) -> NodeView: ...
    def events(self, peer: Peer, after: int, follow: bool) -> AsyncGenerator[NodeEvent, None]:
        """Those the peer may see."""

    def trace(self, peer: Peer, pid: int, interval_s: float) -> AsyncGenerator[TraceView, None]: ...
    def contained(self, peer: Peer) -> list[ContainedView]: ...
    def let_go(self, peer: Peer, numbers: Sequence[int], everything: bool) -> list[ContainedView]:
        """What was let go. Raises Refused when one of them is not held, or cannot be let go."""


# --- registration -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RegisterAnswer:
    error: int = 0
    """0, or a positive errno as register.h lists them."""
    slot: SlotIndex = FIRST_SLOT
    generation: int = 0


class Registrar(Protocol):
    """Answers a tenant process; the daemon's shell implements it."""

    def register(
        self, grant: GrantId, handle: ProcessHandle, claimed_slot: SlotIndex | None
    ) -> RegisterAnswer: ...
    def hung_up(self, grant: GrantId, slot: SlotIndex, generation: int) -> None:
        """The tenant's end of the socket closed: a hint, not a proof, that the process is gone."""


class Doorman(Protocol):
    """Listens on the registration sockets of grants."""

    def open(self, grant: GrantId, directory: str, uid: int, pod_uid: str = "") -> None:
        """Lets in processes of `uid`; with a pod, any user's that are not of another pod."""

    def shut(self, grant: GrantId) -> None: ...


# --- containers -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DriverLibrary:
    """One library of the NVIDIA driver on the host that ours must lie over in the container."""

    name: str
    """As the loader looks for it: libcuda.so.1, libnvidia-ml.so.1."""
    host_path: str
    """The real file, links resolved: libcuda.so.570.86.15."""
    found_as: tuple[str, ...]
    """Every real file on the host that is found by a name like it; `host_path` is one."""
    shim_path: str
    """Ours, on the host."""
    kept_path: str
    """Where the container finds the real one: below /run/sluice/driver."""


@dataclass(frozen=True, slots=True)
class GivenFiles:
    """What of ours every container is given, whichever grant it runs in. Paths are the host's."""

    preload_path: str
    """Our library for /etc/ld.so.preload."""
    hook_path: str = ""
    """Our program that a runtime starts while it makes the container: it adds our line to the
    image's own /etc/ld.so.preload. Empty: there is none, `preload_list_path` replaces the file."""
    preload_list_path: str = ""
    """A file with that one line."""
    libraries: tuple[DriverLibrary, ...] = ()


@dataclass(frozen=True, slots=True)
class GrantMounts:
    """What one container must be given so that it runs inside its grant. Paths are the host's
    unless they say otherwise; nothing here is a limit, limits are in the region alone."""

    grant: GrantId
    gpus: tuple[GpuUuid, ...]
    """The devices to show, as the ledger has them; `nvidia.com/gpu=<uuid>` of the installed CDI
    specification has their nodes and libraries."""
    region_dir: str
    """The grant's own directory: policy.shm, usage.shm and the registration socket. Mount the
    directory, because the daemon makes the socket anew when it restarts."""
    policy_path: str
    """Read-only in the container."""
    usage_path: str
    """Read-write in the container."""
    socket_path: str
    container_dir: str
    """Where the container sees `region_dir`: /run/sluice/grant, the interposer's fixed place."""
    files: GivenFiles
    counted_gpus: tuple[GpuUuid, ...] = ()
    """Those that Allocate was asked for; the grant may be on others."""
    pod_uid: str = ""
    namespace: str = ""
    pod: str = ""
    container: str = ""
    """Whose it is: for annotations of the specification, shown to people only."""


@dataclass(frozen=True, slots=True)
class ContainerMount:
    container_path: str
    host_path: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class ContainerNode:
    container_path: str
    host_path: str
    permissions: str = "rw"


@dataclass(frozen=True, slots=True)
class ContainerAnswer:
    """What Allocate says to the kubelet about one container; it is repeated for every restart of
    the container, so nothing in it may depend on which pod it is."""

    cdi_devices: tuple[str, ...] = ()
    """sluice.dev/driver=<generation>, where there is one, and sluice.dev/grant=<nonce>."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[ContainerMount, ...] = ()
    nodes: tuple[ContainerNode, ...] = ()


class CdiPort(Protocol):
    """The runtime's way to a grant. A nonce is 32 lower-case hexadecimal digits, used once; so is
    a driver's generation, which names what all containers have in common."""

    fixes_gpus: bool
    """The answer to Allocate decides the GPUs: a grant on others cannot be written."""
    driver: str
    """The generation to name in new answers; empty: there is none, a grant's own file has all."""

    def renew_driver(self, files: GivenFiles) -> None:
        """Writes what is installed now for all containers and sets `driver`; under a new name
        where it differs from before. Raises OSError, or ValueError where nothing can be shared
        and `driver` is empty."""

    def answer(self, nonce: str, gpus: Sequence[GpuUuid], driver: str) -> ContainerAnswer:
        """By the configured strategy; `gpus` are those of the device ids, a hint. No I/O."""

    def write(self, nonce: str, edits: GrantMounts, driver: str) -> float:
        """What the answer with this nonce and this driver names. Durable when it returns, and
        visible to the runtime after that many seconds; 0.0: it was there already, word for word,
        for long enough. Raises OSError, or ValueError for what cannot be written."""

    def keep_drivers(self, drivers: AbstractSet[str]) -> None:
        """Removes every other generation but the one in `driver`."""

    def remove(self, nonce: str) -> None:
        """Idempotent."""

    def names(self) -> list[str]:
        """The nonces that have a file now; leftovers of an interrupted writing are removed."""

    def finding(self, gpus: Sequence[GpuUuid]) -> Finding:
        """Whether containers could be given these GPUs now."""
