"""Settings: frozen dataclasses, one per TOML section, each field with its unit, its default and the
reason for it.

`parse` reports every mistake at once, because a daemon that is restarted once per typing error
wastes an evening. Nothing here reads a file or the environment; `nodeagent.__main__` does.

This file is longer than usual: it has all sections in the order of docs/reference/configuration.md,
which is generated from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, get_type_hints

from nodeagent.settings.kubelet import KubeletConfig, KubeletSection, parse_section
from sluicecommon.page.settings import PageSettings, check_page
from sluicecommon.settings import ConfigError, check_table, nearest
from sluicecommon.settings import absolute_path as _absolute_path
from sluicecommon.settings import choice as _choice
from sluicecommon.settings import flag as _flag
from sluicecommon.settings import number as _number
from sluicecommon.settings import text as _text

__all__ = ["ConfigError", "Settings", "parse", "split_address"]


@dataclass(frozen=True, slots=True)
class DaemonSettings:
    """[daemon]: directories and logging of the daemon."""

    runtime_dir: str = _absolute_path()
    """Sockets and regions; lost at reboot. Default: /run/sluice as root, else
    $XDG_RUNTIME_DIR/sluice."""
    state_dir: str = _absolute_path()
    """The ledger. Default: /var/lib/sluice as root, else $XDG_STATE_HOME/sluice."""
    log_level: str = _choice("info", "debug", "info", "warning", "error", live=True)
    """Lowest level written to stderr."""


@dataclass(frozen=True, slots=True)
class GrantSettings:
    """[grants]: how GPUs are divided into grants."""

    slots_per_gpu: int = _number(10, 1, 256)
    """Grants that may share one GPU. 10 as in HAMi; more tenants mean longer turns."""
    strategy: str = _choice("pack", "pack", "spread", live=True)
    """pack: fill the fullest GPU that fits, so that whole GPUs stay free; spread: use the
    emptiest."""
    memory_reserve_mib: int = _number(0, 0, 1_000_000)
    """Memory of each GPU that is never granted. 0: contexts are charged to the tenant."""
    managed_oversubscription: bool = _flag(False)
    """Allow a grant more managed memory (cudaMallocManaged) than it has left, uncharged:
    docs/node/memory.md."""
    trusted_groups: bool = _flag(False, live=True)
    """Permit `sluice run --trusted-group`: grants of one user under one MPS server, without windows
    and without isolation from each other's faults. docs/node/trusted-groups.md."""
    lending_pause_s: float = _number(60.0, 0.0, 3600.0)
    """How long after a process joined a grant no memory is lent to it or taken back: inference
    servers refuse to start when free memory grows. 0: at any time."""
    max_wait_s: float = _number(86_400.0, 0.0, 31_536_000.0, live=True)
    """Longest `sluice run --wait`."""
    max_waiting: int = _number(256, 1, 10_000, live=True)
    """Requests that may wait at once, for all users together."""
    max_grants_per_uid: int = _number(256, 1, 100_000, live=True)
    """Live grants of one user; each costs the daemon about 0.1 MiB and a mount."""
    max_slots_percent_per_uid: float = _number(50.0, 1.0, 100.0, live=True)
    """Part of this node's slots that the grants of one user may hold, at least one slot. Root, pods
    and queued work are exempt. 50: two users can share a node; 100: a node of one user."""
    max_user_priority: int = _number(0, -1000, 1000, live=True)
    """Highest priority that a user other than root may request. 0: users may only lower theirs."""


@dataclass(frozen=True, slots=True)
class ThrottleSettings:
    """[throttle]: parameters of the tenants' throttling, written into each region."""

    burst_ms: float = _number(20.0, 1.0, 1000.0)
    """How far a tenant's virtual clock may run ahead of wall time. 20: two default periods."""
    inflight_ms: float = _number(4.0, 0.5, 1000.0)
    """Estimated GPU time that a grant may have outstanding; other grants wait at most that long for
    a turn."""
    chunk_us: float = _number(200.0, 10.0, 10_000.0)
    """GPU time that a thread draws at once. 200: the shared word is touched every few hundred
    launches only."""


@dataclass(frozen=True, slots=True)
class PlannerSettings:
    """[planner]: how grants on one GPU take turns."""

    period_ms: float = _number(10.0, 2.0, 1000.0)
    """Shortest round of turns."""
    longest_period_ms: float = _number(100.0, 2.0, 10_000.0)
    """The round grows up to this so that changes of contexts cost little and the smallest share
    still gets its quantum."""
    smallest_quantum_ms: float = _number(2.0, 0.1, 1000.0)
    """Shortest turn."""
    switch_us: float = _number(200.0, 0.0, 5000.0)
    """Time that a GPU needs to change from one process to another, used until two grants have
    measured it. Rounds are long enough that this costs at most 0.75 % of the GPU. A value 2.5 times
    off costs one percent."""
    slice_us: float = _number(2000.0, 100.0, 100_000.0)
    """The hardware's time slice where several processes have work. The share of a grant of a gang
    (`sluice run --gang`) is reduced by what slices of this length cost. Not measured on a card
    yet."""
    contended_tick_ms: float = _number(5.0, 1.0, 1000.0)
    """Planning interval while two or more grants are active on one GPU."""
    bursty_tick_ms: float = _number(2.0, 1.0, 1000.0)
    """The same while one of them rested within the last second: others get what it leaves that
    soon. 2 takes about 6 % of a core more than 5."""
    active_tick_ms: float = _number(50.0, 1.0, 1000.0)
    """Planning interval while grants are active, but no two on one GPU."""
    idle_tick_ms: float = _number(100.0, 1.0, 1000.0)
    """Planning interval while nothing runs, at least 400 while no grant has a process; the first
    process is planned at once. 100: under 1 % of a core with 80 grants."""
    priority_floor_percent: float = _number(5.0, 1.0, 20.0)
    """Share of GPU time that a grant keeps while one of higher priority could use all of it; at
    most 20 for all such grants together. To stop a job use `sluice pause`."""
    active_hold_ms: float = _number(50.0, 1.0, 10_000.0)
    """A grant with an older interposer counts as active this long after its last sign of work, so
    that waiting for a turn is not idleness. Newer ones publish that they wait."""


@dataclass(frozen=True, slots=True)
class NvmlSettings:
    """[nvml]: how the GPUs are read."""

    library: str = ""
    """Path or file name of libnvidia-ml.so.1. Default: what the loader finds."""
    deadline_s: float = _number(3.0, 0.1, 60.0)
    """A reading that takes longer means a hung driver: the reader process is restarted."""
    interval_s: float = _number(1.0, 0.1, 60.0, live=True)
    """Time between readings while grants exist. NVML takes a driver lock that launches also
    take."""
    idle_interval_s: float = _number(1.0, 0.1, 300.0, live=True)
    """Time between readings without grants. 1: a process without a grant is detected within two
    seconds."""
    burst_interval_s: float = _number(0.1, 0.05, 60.0, live=True)
    """Time between readings shortly after a new process or a jump of memory or load."""


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """[health]: when a GPU is offered, and when it is withdrawn. The meaning of each XID, error and
    verdict of NVML is a table of its own, see docs/node/health.md."""

    policy: str = _absolute_path("", live=True)
    """A TOML file with the differences from the shipped table, nodeagent/data/xid.toml."""
    good_s: float = _number(60.0, 1.0, 3600.0, live=True)
    """How long a GPU must be fit before it is offered again."""
    unread_s: float = _number(30.0, 1.0, 3600.0, live=True)
    """How long a GPU may be unreadable (suspect) before it is unhealthy. 30: drivers that load
    firmware and restarted readers are back by then."""
    strain_s: float = _number(60.0, 1.0, 3600.0, live=True)
    """How long thermal or power throttling must last before a GPU is degraded."""
    falls_per_hour: int = _number(3, 1, 100, live=True)
    """A GPU withdrawn more often than this within an hour is left out for flap_hold_s."""
    flap_hold_s: float = _number(3600.0, 60.0, 86_400.0, live=True)
    """How long such a GPU must be fit."""


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """[metrics]: the Prometheus endpoint."""

    enabled: bool = True
    """Serve /metrics and /healthz."""
    listen: str = "127.0.0.1:9464"
    """Address and port. Loopback by default: labels name users' jobs."""
    probes: str = ""
    """Address and port of a listener for /healthz and /readyz alone, for a pod's probes. Empty:
    none."""
    dcgm: str = _choice("off", "off", "on", "auto")
    """Also serve dcgm-exporter's default counters under its names. auto: only if nothing answers at
    127.0.0.1:9400 at the start."""
    dcgm_hostname_label: str = _choice("Hostname", "Hostname", "hostname", "both")
    """Spelling of the label with the node's name; dcgm-exporter renamed it in May 2026."""
    hami: str = _choice("off", "off", "on", "legacy")
    """Also serve the names of HAMi's monitor and scheduler; legacy: those before HAMi 2.9, too."""
    node_name: str = ""
    """Node name in the labels of both. Default: the host name."""
    max_series: int = _number(50_000, 100, 10_000_000)
    """Most series in one scrape; dropped ones are counted. 50,000: sixteen full GPUs."""
    tls_certificate: str = _absolute_path()
    """PEM chain; with tls_key the endpoint speaks HTTPS. A new file is used without a restart."""
    tls_key: str = _absolute_path()
    """PEM of its key."""
    bearer_token_file: str = _absolute_path()
    """File with a token that a scrape must send."""
    basic_user: str = ""
    """User name that a scrape may send instead."""
    basic_password_file: str = _absolute_path()
    """Its password, on one line."""


DETECTION_RULES: Final = frozenset(
    {
        "unregistered_gpu_user",
        "unallocated_opener",
        "memory_under_reported",
        "time_under_reported",
        "tampered_region",
        "foreign_libcuda",
        "hook_gap",
        "launches_unaccounted",
        "runaway_kernel",
    }
)
"""Names of the rules, which lie in a layer above; a test compares both."""


@dataclass(frozen=True, slots=True)
class DetectionSettings:
    """[detection]: use of GPUs around the interposer, and the response to it. observe: report;
    contain: also pause, deny opens, freeze; kill: also kill. See docs/node/telemetry.md."""

    enabled: bool = True
    """Enable detection."""
    grants: str = _choice("contain", "observe", "contain", "kill")
    """Level for processes in grants, and in pods."""
    bare_metal: str = _choice("observe", "observe", "contain", "kill")
    """Level for all other processes of the host."""
    policies: str = ""
    """Exceptions: `namespace/NAME=LEVEL, queue/NAME=LEVEL`; the namespace's wins."""
    rules: str = ""
    """Levels by rule, `RULE=LEVEL`, whatever the subject's. Default: memory_under_reported,
    time_under_reported and runaway_kernel observe, because honest programs can raise them."""
    exempt: str = (
        "/usr/bin/nvidia-smi, /usr/bin/nvidia-persistenced, /usr/bin/nv-hostengine,"
        " /usr/bin/dcgm-exporter, /usr/bin/nvidia-cuda-mps-server, /usr/lib/xorg/Xorg"
    )
    """Programs of the host, by full path, that may use a GPU without a grant; never in a pod."""
    grace_s: float = _number(0.4, 0.0, 600.0)
    """How long a process may be on a GPU before it must have registered: the time between two
    readings."""
    memory_slack_mib: int = _number(256, 0, 1_000_000)
    """GPU memory that NVML may see beyond what a grant accounts for, or memory_slack_percent if
    more: drivers take memory for code, accounted at the next launch."""
    memory_slack_percent: float = _number(5.0, 0.0, 100.0)
    """Percentage of the memory NVML sees."""
    time_slack_percent: float = _number(10.0, 0.0, 100.0)
    """Percentage points by which NVML's coarse busy time may exceed a grant's own."""
    time_window_s: float = _number(30.0, 1.0, 3600.0)
    """Window over which busy time is compared."""
    runaway_kernel_s: float = _number(1800.0, 0.0, 604_800.0)
    """Work on the GPU without progress for this long is a runaway. 0: never, for kernels that run
    for ever by design."""
    repeat_s: float = _number(600.0, 0.0, 86_400.0)
    """The same suspicion of the same grant or program is reported again after this long."""

    def exempt_paths(self) -> frozenset[str]:
        return frozenset(one.strip() for one in self.exempt.split(",") if one.strip())

    def rule_levels(self) -> dict[str, str]:
        """RULE to LEVEL."""
        pairs = (one.partition("=") for one in self.rules.split(",") if one.strip())
        return {rule.strip(): level.strip() for rule, _, level in pairs}

    def policy_map(self, kind: str) -> dict[str, str]:
        """NAME to LEVEL of the exceptions of one kind."""
        found = {}
        for one in self.policies.split(","):
            what, _, level = one.strip().partition("=")
            prefix, _, name = what.partition("/")
            if prefix == kind:
                found[name] = level
        return found


@dataclass(frozen=True, slots=True)
class WallSettings:
    """[wall]: the driver's own memory limits, as a second limit around each grant. Drivers have
    them from release 615 on, but not for MIG instances. See docs/security.md."""

    enabled: str = _choice("auto", "auto", "on", "off")
    """auto: if the driver has them; a program starts even if its limit could not be set, with an
    event. on: no program and no container starts without its limit. off: not used."""
    headroom_mib: int = _number(64, 0, 100_000)
    """How far above the grant the limit is, so that the exact interposer refuses first: small
    blocks and context tables may exceed what is charged a little."""
    run_cgroups: bool = _flag(False)
    """Also limit programs of `sluice run`: they leave their session's cgroup, with its limits and
    counters, for one of their own. Containers have a cgroup anyway."""


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """[checkpoint]: a paused grant's GPU memory may be moved to the host's memory, if the driver
    can (release 570 and later, on x86-64). See docs/node/checkpoint.md."""

    enabled: bool = _flag(True)
    """Allow it: `sluice pause --spill`, and queued work that asks for it."""
    host_memory_percent: float = _number(50.0, 0.1, 100.0)
    """Part of the host's memory that all spilled grants may use together."""
    spare_host_memory_mib: int = _number(2048, 0, 100_000_000)
    """Host memory that must remain available beside what is spilled."""
    lock_timeout_s: float = _number(10.0, 0.1, 3600.0)
    """How long each process may take to finish submitted work; longer kernels are not waited
    for."""
    copy_timeout_s: float = _number(120.0, 1.0, 86_400.0)
    """How long the copy of each process may take, in either direction. 120: 80 GiB at less than 1
    GiB/s."""
    total_timeout_s: float = _number(300.0, 1.0, 86_400.0)
    """How long all processes of a grant may take together, in either direction."""
    longest_s: float = _number(86_400.0, 0.0, 31_536_000.0)
    """How long queued work may stay in host memory until it is stopped. 0: no limit. A grant
    spilled by hand stays."""
    library: str = ""
    """Path or file name of the driver's libcuda.so.1. Default: what the loader finds."""


@dataclass(frozen=True, slots=True)
class PathSettings:
    """[paths]: location of our own files."""

    native: str = _absolute_path()
    """Directory with shim/, preload/, proto/ and libsluice_region.so. Default: beside the
    package."""


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """[queue]: the queue controller from which this node takes work."""

    server: str = ""
    """`sluice-queue serve`: ADDRESS:PORT, or unix:/run/sluice-queue/queue.sock. Empty: no queue."""
    node_name: str = ""
    """This node's name, also for [kubelet] and HAMi's files. Default: $NODE_NAME, else the host
    name. With mutual TLS the certificate must identify it by the URI sluice:node:NAME, or by its
    name and the controller's tls.nodes."""
    namespace: str = "default"
    """Namespace of LocalQueues in `sluice run --queue NAME`."""
    ca: str = _absolute_path()
    """PEM of the controller's certificate authority, for TCP."""
    certificate: str = _absolute_path()
    """PEM of this node's own certificate, for mutual TLS."""
    key: str = _absolute_path()
    """PEM of its key."""
    token: str = _absolute_path()
    """File of a Kubernetes token for the controller's audience, instead of a certificate; read at
    every call."""
    server_name: str = ""
    """The name in the controller's certificate, if that is not the address."""
    labels: str = _text("", live=True)
    """Node labels for flavors and selectors: `name=value, name=value`."""
    taints: str = _text("", live=True)
    """Node taints: `name=value:NoSchedule, …`."""
    unschedulable: bool = _flag(False, live=True)
    """Take no new work from the queue; running work continues."""

    def label_map(self) -> dict[str, str]:
        pairs = [one.strip().partition("=") for one in self.labels.split(",") if one.strip()]
        return {name: value for name, _, value in pairs}

    def taint_list(self) -> tuple[tuple[str, str, str], ...]:
        """(Name, value, effect) of each taint."""
        found = []
        for one in self.taints.split(","):
            text, _, effect = one.strip().rpartition(":")
            name, _, value = text.partition("=")
            if name:
                found.append((name, value, effect))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class EbpfSettings:
    """[ebpf]: the kernel's events about GPU use; see docs/node/telemetry.md."""

    enabled: str = _choice("auto", "auto", "on", "off")
    """auto: if this host can, else `sluice doctor` gives the reason; on: the daemon refuses to
    start without it; off: not used."""
    loader: str = _choice("auto", "auto", "prebuilt", "bcc")
    """prebuilt: shipped programs, loaded by libbpf; bcc: compiled here, needs bcc and kernel
    headers; auto: prebuilt if they load, else bcc."""
    devices: str = ""
    """Device nodes whose opens are reported: `MAJOR:MINOR, MAJOR:*`. Default: nvidia's majors."""
    audit_interval_s: float = _number(10.0, 0.0, 3600.0)
    """Time between two audit windows at the driver's launch entry points. 0: none."""
    audit_window_ms: float = _number(100.0, 1.0, 1000.0)
    """Longest audit window. 100 in 10 s sees 1 % of the launches."""
    audit_budget_percent: float = _number(1.0, 0.01, 10.0)
    """Part of the busiest process's time that audit windows may take; they end early to keep it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The whole configuration file."""

    daemon: DaemonSettings = field(default_factory=DaemonSettings)
    grants: GrantSettings = field(default_factory=GrantSettings)
    throttle: ThrottleSettings = field(default_factory=ThrottleSettings)
    planner: PlannerSettings = field(default_factory=PlannerSettings)
    nvml: NvmlSettings = field(default_factory=NvmlSettings)
    health: HealthSettings = field(default_factory=HealthSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    detection: DetectionSettings = field(default_factory=DetectionSettings)
    queue: QueueSettings = field(default_factory=QueueSettings)
    kubelet: KubeletSection = field(default_factory=KubeletSection)
    ebpf: EbpfSettings = field(default_factory=EbpfSettings)
    wall: WallSettings = field(default_factory=WallSettings)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    paths: PathSettings = field(default_factory=PathSettings)
    page: PageSettings = field(default_factory=PageSettings)


SECTIONS: Mapping[str, type[Any]] = {**get_type_hints(Settings), "kubelet": KubeletConfig}
"""Sections by name; that of [kubelet] has the keys of one node."""

T = TypeVar("T")


def parse(document: Mapping[str, object]) -> Settings:
    """Build the settings from a parsed TOML document. Raises ConfigError with all mistakes."""
    problems: list[str] = []
    parsed: dict[str, Any] = {}
    for name, table in document.items():
        if name not in SECTIONS:
            problems.append(f"[{name}]: no such section{nearest(name, SECTIONS)}")
        elif not isinstance(table, Mapping):
            problems.append(f"{name}: must be a section, [{name}]")
        elif name == "kubelet":
            parsed[name] = parse_section(table, problems)
        else:
            parsed[name] = _parse_section(SECTIONS[name], name, table, problems)
    if problems:
        raise ConfigError(problems)
    settings = Settings(**parsed)
    problems = _check_together(settings)
    if problems:
        raise ConfigError(problems)
    return settings


def split_address(address: str) -> tuple[str, int]:
    """Split `host:port` or `[v6]:port`. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise ValueError(f"{address!r} is not ADDRESS:PORT, as in 127.0.0.1:9464")
    return host, int(port)


def _parse_section(
    kind: type[T], section: str, table: Mapping[str, object], problems: list[str]
) -> T | None:
    values = check_table(kind, section, table, problems)
    return kind(**values) if not problems else None


def _check_together(settings: Settings) -> list[str]:
    problems = []
    planner = settings.planner
    if planner.longest_period_ms < planner.period_ms:
        problems.append(
            f"planner.longest_period_ms: {planner.longest_period_ms:g} is below planner.period_ms"
            f" ({planner.period_ms:g})"
        )
    if planner.smallest_quantum_ms * 2 > planner.period_ms:
        problems.append(
            f"planner.smallest_quantum_ms: two turns of {planner.smallest_quantum_ms:g} ms do not"
            f" fit into planner.period_ms ({planner.period_ms:g})"
        )
    addresses = {"listen": settings.metrics.listen, "probes": settings.metrics.probes}
    for name, address in addresses.items():
        try:
            if address or name == "listen":
                split_address(address)
        except ValueError as error:
            problems.append(f"metrics.{name}: {error}")
    problems += check_page(settings.page, split_address)
    return (
        problems
        + _check_metrics(settings.metrics)
        + _check_detection(settings.detection)
        + _check_queue(settings.queue)
        + _check_ebpf(settings.ebpf)
    )


def _check_detection(detection: DetectionSettings) -> list[str]:
    problems = []
    for one in (text.strip() for text in detection.policies.split(",")):
        what, _, level = one.partition("=")
        kind, _, name = what.partition("/")
        if one and (
            kind not in ("namespace", "queue")
            or not name
            or level not in ("observe", "contain", "kill")
        ):
            problems.append(
                f"detection.policies: {one!r} is not namespace/NAME=LEVEL or queue/NAME=LEVEL"
                " (observe, contain, kill)"
            )
    for rule, level in detection.rule_levels().items():
        if rule not in DETECTION_RULES or level not in ("observe", "contain", "kill"):
            problems.append(
                f"detection.rules: {rule}={level} is not RULE=LEVEL, with a rule of"
                " docs/node/telemetry.md and observe, contain or kill"
            )
    for path in sorted(detection.exempt_paths()):
        if not path.startswith("/"):
            problems.append(f"detection.exempt: {path!r} is not an absolute path")
    return problems


def device_numbers(spelled: str) -> tuple[tuple[int, int | None], ...]:
    """Parse `MAJOR:MINOR, MAJOR:*` into (major, minor), with minor None for any. Raises
    ValueError."""
    found: list[tuple[int, int | None]] = []
    for one in (part.strip() for part in spelled.split(",")):
        if not one:
            continue
        major, colon, minor = one.partition(":")
        if not colon or not major.isdecimal() or not (minor == "*" or minor.isdecimal()):
            raise ValueError(f"{one!r} is not MAJOR:MINOR or MAJOR:*, as in 195:*")
        found.append((int(major), None if minor == "*" else int(minor)))
    return tuple(found)


def _check_ebpf(ebpf: EbpfSettings) -> list[str]:
    problems = []
    try:
        device_numbers(ebpf.devices)
    except ValueError as error:
        problems.append(f"ebpf.devices: {error}")
    if 0 < ebpf.audit_interval_s * 1000 < 2 * ebpf.audit_window_ms:
        problems.append(
            f"ebpf.audit_window_ms: {ebpf.audit_window_ms:g} is more than half of"
            f" ebpf.audit_interval_s ({ebpf.audit_interval_s:g} s)"
        )
    return problems


def _check_metrics(metrics: MetricsSettings) -> list[str]:
    problems = []
    for one, other in (
        ("tls_certificate", "tls_key"),
        ("basic_user", "basic_password_file"),
    ):
        if bool(getattr(metrics, one)) != bool(getattr(metrics, other)):
            lacking = other if getattr(metrics, one) else one
            problems.append(f"metrics.{lacking}: is missing; {one} and {other} belong together")
    return problems


_TAINT_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def _check_queue(queue: QueueSettings) -> list[str]:
    problems = []
    if queue.server.startswith("unix:"):
        if not queue.server.startswith("unix:/"):
            problems.append(f"queue.server: {queue.server!r}: must be unix: and an absolute path")
        if queue.ca or queue.token:
            problems.append("queue.ca, queue.token: a Unix socket needs neither")
    elif queue.server:
        try:
            split_address(queue.server)
        except ValueError as error:
            problems.append(f"queue.server: {error}, nor unix:/PATH")
        else:
            if not queue.ca:
                problems.append(
                    f"queue.server: {queue.server} is TCP, which needs TLS: set queue.ca, and"
                    " queue.certificate with queue.key or queue.token; on the controller's own"
                    ' machine use its socket, server = "unix:/run/sluice-queue/queue.sock"'
                )
    if bool(queue.certificate) != bool(queue.key):
        lacking = "key" if queue.certificate else "certificate"
        problems.append(f"queue.{lacking}: is missing; certificate and key belong together")
    for one in queue.labels.split(","):
        if one.strip() and "=" not in one:
            problems.append(f"queue.labels: {one.strip()!r} is not name=value")
    for one in queue.taints.split(","):
        text, _, effect = one.strip().rpartition(":")
        if one.strip() and (not text or effect not in _TAINT_EFFECTS):
            known = ", ".join(_TAINT_EFFECTS)
            problems.append(f"queue.taints: {one.strip()!r} is not name=value:EFFECT ({known})")
    return problems
