"""The daemon's composition root: reads the environment and the configuration, chooses the
adapters, serves.

`sluice serve` ends up here. Exit status: 0 stopped by a signal, 2 bad configuration, 69
something needed is missing or another daemon runs, 70 a defect, 75 the ledger cannot be written.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import pwd
import resource
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from nodeagent import metrics as m
from nodeagent import native
from nodeagent.adapters import ebpf_host
from nodeagent.adapters.cgroup_hold import CgroupRestrainer
from nodeagent.adapters.clock import SystemClock, boot_id
from nodeagent.adapters.config_files import DEFAULT_CONFIG, Loaded, load
from nodeagent.adapters.descriptor_room import FEWEST, DescriptorRoom
from nodeagent.adapters.ebpf import ChildKernelWatch, NoKernelWatch
from nodeagent.adapters.ebpf_known import known_libraries
from nodeagent.adapters.ebpf_pins import BPFFS, DenyPins, pins_of
from nodeagent.adapters.ebpf_watcher import Options
from nodeagent.adapters.hold_targets import SystemTargets
from nodeagent.adapters.host import host_findings
from nodeagent.adapters.host_figures import read_host
from nodeagent.adapters.instance_lock import InstanceLock, Taken
from nodeagent.adapters.ledger_sqlite import SqliteLedger
from nodeagent.adapters.library_identity import library_identity
from nodeagent.adapters.local_api import LocalApi
from nodeagent.adapters.metrics_http import Access, Certificate, MetricsServer
from nodeagent.adapters.mig import ChildMig
from nodeagent.adapters.nvml import ChildNvml
from nodeagent.adapters.pidfd import SystemProcesses
from nodeagent.adapters.proc_facts import ProcInspector
from nodeagent.adapters.queue_client import GrpcQueueLink
from nodeagent.adapters.region import RegionLibrary, TmpfsRegions
from nodeagent.adapters.region_mounts import region_mounts
from nodeagent.adapters.registration import SeqpacketDoorman
from nodeagent.adapters.sd_notify import SdNotify
from nodeagent.adapters.sqlite_file import LedgerTooNew
from nodeagent.adapters.uevents import Uevents
from nodeagent.adapters.web.probes import ProbeServer
from nodeagent.adapters.wire import Wire
from nodeagent.config import ConfigError, MetricsSettings, Settings, split_address
from nodeagent.core.health import HealthChange
from nodeagent.core.histogram import Histogram
from nodeagent.core.reload import Running
from nodeagent.kubelet_serving import make_kubelet
from nodeagent.paths import host_name, library_dir, longest_runtime_dir, runtime_dir, state_dir
from nodeagent.ports import Clock, Finding, LedgerFull, LedgerLost, NodeView, Nvml
from nodeagent.shell.capacity import CapacityReader
from nodeagent.shell.containment import Containment
from nodeagent.shell.devices import Devices
from nodeagent.shell.drivers import Drivers
from nodeagent.shell.gpus import Gpus, health_event
from nodeagent.shell.journal import Journal
from nodeagent.shell.keeper import Keeper
from nodeagent.shell.kernel import KernelDesk
from nodeagent.shell.kubelet import KubeletDesk
from nodeagent.shell.mig import MigDesk, MigNeighbours
from nodeagent.shell.node import EXIT_LEDGER_LOST, Endpoint, Node, rules_of
from nodeagent.shell.queue import QueueDesk
from nodeagent.shell.reload import Reloader
from nodeagent.shell.scrape import Scrape, dcgm_wanted
from nodeagent.shell.service import Service
from nodeagent.shell.turns import Turns
from nodeagent.shell.watch import Watch
from nodeagent.telemetry_ports import KernelWatch
from nodeagent.units import GrantId

log = logging.getLogger("nodeagent")

EXIT_USAGE: Final = 2
EXIT_UNAVAILABLE: Final = 69


def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    environment = dict(os.environ)

    def read() -> Loaded:
        # In a pod the host name is the pod's; the chart gives the node's.
        return load(options.config, host_name(environment))

    try:
        loaded = read()
        if loaded.refused:
            raise ConfigError(list(loaded.kubelet.problems))
    except ConfigError as error:
        for problem in error.problems:
            print(f"sluice serve: {problem}", file=sys.stderr)
        return EXIT_USAGE
    start_logging(loaded.settings.daemon.log_level)
    if loaded.kubelet.config.enabled:
        for warning in loaded.kubelet.warnings:
            log.warning("%s", warning)
    try:
        return serve(loaded, environment, read)
    except Unavailable as error:
        print(f"sluice serve: {error}", file=sys.stderr)
        return EXIT_UNAVAILABLE
    except (LedgerLost, LedgerFull) as error:
        log.critical(
            "the ledger cannot be written: %s; daemon.state_dir has to be writable and its disk to"
            " have room; jobs go on under their limits",
            error,
        )
        return EXIT_LEDGER_LOST


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sluice serve", description="Run the node's daemon.")
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help=f"settings, see docs/configuration.md (default: {DEFAULT_CONFIG} if it exists);"
        " `sluice config check` reads it without serving",
    )
    return parser


class Unavailable(Exception):
    """The daemon cannot run here now; the text says what to do."""


def serve(loaded: Loaded, environment: Mapping[str, str], read: Callable[[], Loaded]) -> int:
    """`read` reads the configuration again. Raises Unavailable, LedgerLost."""
    settings, kubelet = loaded.settings, loaded.kubelet.config
    runtime = runtime_dir(settings.daemon.runtime_dir, environment)
    state = state_dir(settings.daemon.state_dir, environment)
    if len(os.fsencode(runtime)) > longest_runtime_dir():
        raise Unavailable(
            f"daemon.runtime_dir: {runtime} is longer than {longest_runtime_dir()} bytes, too long"
            " for the sockets in it"
        )
    files = native.locate(settings.paths.native)
    locks = [
        take("daemon.runtime_dir", runtime, 0o755),
        # Two daemons with one ledger would each take the other's grants for lost.
        take("daemon.state_dir", state, 0o700),
    ]
    try:
        library = RegionLibrary(files.region_library)
        wire = Wire(files.wire_descriptors)
    except (OSError, ValueError) as error:
        text = said(error) if isinstance(error, OSError) else str(error)
        raise Unavailable(f"{text}; see `sluice doctor`") from error
    raise_descriptor_limit()
    boot = boot_id()
    mounts = region_mounts(runtime)
    mount_refusal = mounts.refusal(runtime) if os.geteuid() == 0 else "not root"
    if mount_refusal:
        log.warning("no tmpfs per grant: %s; regions share %s", mount_refusal, runtime)
    try:
        ledger = SqliteLedger(state / "ledger.sqlite", boot)
    except LedgerTooNew as error:
        raise Unavailable(str(error)) from error
    if ledger.was_rebuilt:
        log.error("the ledger was put aside; the regions say what lives")

    clock = SystemClock()
    notify = SdNotify(environment.get("NOTIFY_SOCKET"))
    regions = TmpfsRegions(runtime / "grants", library, boot, None if mount_refusal else mounts)
    gpus = Gpus(
        max(settings.grants.slots_per_gpu, kubelet.slots_per_gpu if kubelet.enabled else 1),
        settings.grants.memory_reserve_mib,
        kubelet.memory_scaling if kubelet.enabled else 1.0,
    )
    gpus.policy = loaded.health
    nvml = make_nvml(settings, clock)
    nodes: list[Node] = []

    def fatal(error: BaseException) -> None:
        nodes[0].fatal(error)

    keeper = Keeper(rules_of(settings, boot), clock, ledger, regions, SystemProcesses(), fatal)
    doorman = SeqpacketDoorman(keeper, clock)
    keeper.doorman = doorman
    turns = Turns(settings.planner, keeper, clock)
    service = Service(settings.grants, keeper, turns, gpus, clock, native.version())
    service.has_room = DescriptorRoom().for_grant
    service.operator_uids = frozenset({0, os.geteuid()})
    service.nvml_restarts = lambda: nvml.restarts_total
    counters: list[Callable[[], dict[str, float]]] = [
        lambda: {
            "tampers": keeper.tampers_total,
            "registrations_dropped": doorman.dropped_total,
            "config_valid": float(not reloader.figures.problems),
            "config_waiting": len(reloader.figures.waiting),
        }
    ]
    service.counters = lambda: {k: v for part in counters for k, v in part().items()}

    journal = Journal(clock, settings.detection.repeat_s)
    gpus.on_news.append(journal.tell)
    targets = SystemTargets(DenyPins(BPFFS / pins_of(runtime)))
    containment = Containment(
        keeper, keeper.processes, CgroupRestrainer(), ledger, targets, journal, clock
    )
    watch = Watch(settings.detection, keeper, ProcInspector(), containment, journal, clock)
    watch.place_of = lambda grant: place_of(service, grant)
    known = known_libraries(files, environment, library_dir(environment))
    watch.known_libraries = lambda: known() | driver_libraries(keeper)
    drivers = Drivers(ledger, library_identity)
    watch.former_libraries = drivers.seen
    service.journal, service.watch = journal, watch

    def tell_health(change: HealthChange) -> None:
        known = gpus.readings.get(change.uuid)
        level, text, evidence = health_event(change, known.index if known else None)
        journal.tell("gpu", level, text, evidence=evidence)

    gpus.on_health.append(tell_health)
    service.acts = lambda: dict(containment.acts)

    service.read_host = lambda: read_host(
        {"daemon": os.getpid(), "nvml": getattr(nvml, "pid", None)}
    )
    devices = Devices(journal, lambda: nodes[0].reread())

    def doctor() -> list[Finding]:
        found = host_findings(files, environment, runtime, settings.nvml.library)
        return [*found, *kernel.findings(), *(one for check in checks for one in check())]

    checks: list[Callable[[], list[Finding]]] = []

    endpoints: list[Endpoint] = [Uevents(devices.changed)]
    takers: list[Callable[[Running], None]] = []
    """Whoever takes over a changed configuration."""
    capacity: CapacityReader | None = None
    if settings.queue.server:
        node_name = loaded.node
        capacity = CapacityReader(settings.queue, node_name, keeper, gpus, clock.monotonic_ns)
        service.queue = QueueDesk(
            settings.queue,
            GrpcQueueLink(settings.queue, node_name, boot, native.version(), wire),
            ledger,
            keeper,
            capacity,
            boot_ns=lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME),
            unix_s=clock.unix_s,
            user_name=user_name,
            fatal=fatal,
        )
        endpoints.append(service.queue)
        containment.placers.append(service.queue.evict)
    pods: KubeletDesk | None = None
    if kubelet.enabled:
        try:
            side = make_kubelet(
                kubelet,
                loaded.node,
                settings.grants.strategy,
                boot,
                (runtime, state),
                files,
                environment,
                keeper,
                gpus,
                clock,
                service.queue,
                fatal,
            )
        except (OSError, ValueError, LedgerTooNew) as error:
            raise Unavailable(f"[kubelet]: {error}") from error
        pods = side.desk
        endpoints += side.endpoints()
        checks += [side.safety.findings, side.findings]
        counters.append(side.counters)
        takers.append(side.configure)
    kernel = make_kernel(settings, runtime, files.bpf_object, known, drivers, keeper, gpus)
    kernel.operator_uids = service.operator_uids
    service.kernel = kernel
    if settings.ebpf.enabled != "off":
        watch.attach(kernel.watch)
    endpoints.append(kernel)
    counters.append(kernel.counters)
    mig = MigDesk(
        ChildMig(settings.nvml.library, nvml.exclusive),
        keeper,
        gpus,
        ledger,
        journal,
        clock,
        MigNeighbours(
            lambda: nodes[0].read_gpus(),
            pods,
            service.queue.decided_gpus if service.queue is not None else Counter,
        ),
        service.operator_uids,
        fatal,
    )
    endpoints.append(mig)
    endpoints.append(LocalApi(runtime, wire, service, clock, doctor, mig))
    if settings.metrics.enabled:
        histograms = {m.GRANT_WAIT: service.wait_s, m.BINDING_DURATION: keeper.binding_s}
        endpoints.append(make_metrics(settings.metrics, service, histograms, clock))
    if settings.metrics.probes:
        endpoints.append(
            ProbeServer(
                split_address(settings.metrics.probes),
                service.loop_views,
                clock.unix_s,
            )
        )
    node = Node(settings, clock, keeper, turns, gpus, nvml, service, endpoints, notify.send)
    nodes.append(node)
    node.held_up_s = mig.held_up_s

    def changed(running: Running) -> None:
        now = running.settings
        logging.getLogger().setLevel(now.daemon.log_level.upper())
        keeper.book.rules = rules_of(now, boot)
        service.settings = now.grants
        node.settings = now
        gpus.policy = running.health
        if capacity is not None:
            capacity.settings = now.queue

    reloader = Reloader(read, loaded, [changed, *takers], fatal)
    endpoints.append(reloader)

    async def run() -> int:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, reloader.request)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, node.stop)
        return await node.run()

    try:
        return asyncio.run(run())
    except OSError as error:
        raise Unavailable(said(error)) from error
    finally:
        doorman.close_listeners()
        ledger.close()
        for lock in locks:
            lock.close()


def take(setting: str, directory: Path, mode: int) -> InstanceLock:
    """The directory is there and ours alone until the lock is closed. Raises Unavailable."""
    try:
        directory.mkdir(mode=mode, parents=True, exist_ok=True)
        return InstanceLock(directory, setting)
    except Taken as error:
        raise Unavailable(str(error)) from None
    except OSError as error:
        raise Unavailable(f"{setting}: {directory}: {error.strerror}") from error


def said(error: OSError) -> str:
    """Without Python's number."""
    text = error.strerror or str(error)
    return text if error.filename is None else f"{error.filename}: {text}"


def place_of(service: Service, grant: GrantId) -> tuple[str, str]:
    """(namespace, ClusterQueue) of work that came through the queue."""
    work = service.queue.book.work_of(grant) if service.queue is not None else None
    if work is None:
        return "", ""
    return work.decision.workload.partition("/")[0], work.decision.cluster_queue


def driver_libraries(keeper: Keeper) -> set[str]:
    """Those that grants were made with."""
    records = [held.record for held in keeper.book.grants.values()]
    return {record.driver_path for record in records if record.driver_path}


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def make_nvml(settings: Settings, clock: Clock) -> Nvml:
    """Replaced by tests that need a GPU with a mind of its own."""
    return ChildNvml(settings.nvml.library, settings.nvml.deadline_s, clock)


def make_kernel(
    settings: Settings,
    runtime: Path,
    prebuilt: Path,
    known: Callable[[], frozenset[str]],
    drivers: Drivers,
    keeper: Keeper,
    gpus: Gpus,
) -> KernelDesk:
    """Raises Unavailable where eBPF is demanded and not to be had."""
    ebpf = settings.ebpf
    missing = partial(ebpf_host.missing, ebpf.loader, prebuilt)
    if ebpf.enabled == "on" and (lacks := missing()):
        told = "; ".join(f"{finding.what}: {finding.remedy}" for finding in lacks)
        raise Unavailable(f'ebpf.enabled: is "on", but {told}')
    watch: KernelWatch = NoKernelWatch()
    if ebpf.enabled != "off":
        watch = ChildKernelWatch(
            Options(
                ebpf.devices,
                ebpf.audit_interval_s,
                ebpf.audit_window_ms / 1000,
                ebpf.audit_budget_percent / 100,
                ebpf.loader,
                str(prebuilt),
                pins=pins_of(runtime),
                owner=str(runtime),
            )
        )
    return KernelDesk(watch, keeper, gpus, known, drivers, missing)


def make_metrics(
    settings: MetricsSettings,
    service: Service,
    histograms: Mapping[m.Metric, Histogram],
    clock: Clock,
) -> MetricsServer:
    """Raises Unavailable when a file it names cannot be read."""

    def view() -> NodeView:
        return service.node_view(None)

    name = settings.node_name or socket.gethostname()
    certificate = None
    key = "tls_certificate"
    try:
        if settings.tls_certificate:
            certificate = Certificate(Path(settings.tls_certificate), Path(settings.tls_key))
        key = "bearer_token_file"
        token = secret(settings.bearer_token_file)
        key = "basic_password_file"
        password = secret(settings.basic_password_file)
    except (OSError, ValueError) as error:
        raise Unavailable(f"metrics.{key}: {error}") from error
    return MetricsServer(
        *split_address(settings.listen),
        view,
        Scrape(settings, view, histograms, name, dcgm_wanted(settings)),
        clock.unix_s,
        Access(token, f"{settings.basic_user}:{password}" if password else ""),
        certificate,
    )


def secret(path: str) -> str:
    """One line of a file. Raises OSError; ValueError when there is nothing in it."""
    if not path:
        return ""
    text = Path(path).read_text(encoding="utf-8").strip()
    if not text:
        raise ValueError(f"{path} is empty")
    return text


def raise_descriptor_limit() -> None:
    """A registered process costs two descriptors, a grant five: 80 grants of 256 processes need
    41,000."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard < FEWEST:
        log.warning(
            "only %d file descriptors are allowed: enough for about %d grants; raise LimitNOFILE=,"
            " or the container runtime's limit",
            hard,
            max(0, hard - 48) // 8,
        )


class _Format(logging.Formatter):
    """One line per record, control characters escaped: names in it come from users."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        text = record.getMessage()
        safe = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
        line = f"{stamp} {record.levelname.lower()} {safe}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def start_logging(level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Format())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for noisy in ("asyncio", "grpc"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


if __name__ == "__main__":
    sys.exit(main())
