"""The daemon, built in order: ground, grants, GPUs, queue, kernel, watch, kubelet, MIG, metrics
and page, listeners, and last the node that runs them. Each part is complete when it is made; parts
report to the whole through `Signals`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nodeagent import native
from nodeagent.adapters.api.server import LocalApi
from nodeagent.adapters.checkpoint.driver import ChildCheckpoints
from nodeagent.adapters.checkpoint.host_room import SystemHostRoom
from nodeagent.adapters.checks import host_findings, program_name
from nodeagent.adapters.containers.hook_listener import HookListener
from nodeagent.adapters.ebpf.known import known_libraries
from nodeagent.adapters.ebpf.pins import BPFFS, DenyPins, pins_of
from nodeagent.adapters.host.descriptor_room import DescriptorRoom
from nodeagent.adapters.host.figures import read_host
from nodeagent.adapters.host.inotify import watch_contents
from nodeagent.adapters.host.library_identity import library_identity
from nodeagent.adapters.ledger.cuts import SqliteCuts
from nodeagent.adapters.ledger.sqlite import SqliteLedger
from nodeagent.adapters.ledger.sqlite_file import LedgerTooNew
from nodeagent.adapters.nvml.mig import ChildMig
from nodeagent.adapters.nvml.reader import ChildNvml
from nodeagent.adapters.nvml.uevents import Uevents
from nodeagent.adapters.nvml.walls import ChildWalls
from nodeagent.adapters.processes.cgroup_hold import CgroupRestrainer
from nodeagent.adapters.processes.hold_targets import SystemTargets
from nodeagent.adapters.processes.pidfd import SystemProcesses
from nodeagent.adapters.processes.proc_facts import ProcInspector
from nodeagent.adapters.processes.wall_places import CgroupPlaces, cgroup_name
from nodeagent.adapters.region.registration import SeqpacketListener
from nodeagent.assembly.ground import Ground, Unavailable, lay_ground, os_error_text
from nodeagent.assembly.kernel import make_kernel
from nodeagent.assembly.page import make_page
from nodeagent.assembly.web import make_web
from nodeagent.core import flight
from nodeagent.core.gpus import outside
from nodeagent.core.gpus.health import HealthChange
from nodeagent.core.metrics import catalogue as m
from nodeagent.core.reload import Loaded, Running
from nodeagent.paths import library_dir
from nodeagent.ports.clock import Clock
from nodeagent.ports.gpus import GpuReading, Nvml
from nodeagent.ports.processes import Processes
from nodeagent.ports.registration import Registrar
from nodeagent.ports.views import EventKind, Finding, Samples
from nodeagent.settings.daemon import Settings
from nodeagent.shell.api.service import Service
from nodeagent.shell.api.views import Figures, Views
from nodeagent.shell.gpus.cuts import Cuts
from nodeagent.shell.gpus.devices import Devices
from nodeagent.shell.gpus.drivers import Drivers
from nodeagent.shell.gpus.holders import Holders
from nodeagent.shell.gpus.mig_manager import MigManager
from nodeagent.shell.gpus.readings import Gpus, health_event
from nodeagent.shell.grants.keeper import Keeper
from nodeagent.shell.grants.lender import Lender
from nodeagent.shell.grants.reading import Grants
from nodeagent.shell.grants.spills import RESULTS, SpillManager
from nodeagent.shell.grants.walls import WallManager
from nodeagent.shell.journal import Journal
from nodeagent.shell.node import Endpoint, Node, rules_of
from nodeagent.shell.queue.none import NoQueue
from nodeagent.shell.reload import Reloader
from nodeagent.shell.signals import Signals
from nodeagent.shell.turns import Turns
from nodeagent.shell.watch.containment import Containment
from nodeagent.shell.watch.kernel import KernelWatchManager
from nodeagent.shell.watch.watch import Watch
from sluicecommon.sd_notify import SdNotify

if TYPE_CHECKING:  # a quarter of all there is to load: a node that has no use for it does without
    from nodeagent.assembly.kubelet import KubeletSide
    from nodeagent.assembly.queue import QueueSide

CUTS = "cuts.sqlite"
"""Ledger of the MIG instances that the daemon makes, in the state directory."""


def make_nvml(settings: Settings, clock: Clock) -> Nvml:
    return ChildNvml(settings.nvml.library, settings.nvml.deadline_s, clock)


@dataclass(frozen=True, slots=True)
class Makers:
    """Factories that tests replace: a GPU with its own behaviour, a disk that fails."""

    nvml: Callable[[Settings, Clock], Nvml] = make_nvml
    ledger: Callable[[Path, str], SqliteLedger] = SqliteLedger


def serve(
    loaded: Loaded,
    environment: Mapping[str, str],
    read: Callable[[], Loaded],
    makers: Makers = Makers(),  # frozen
) -> int:
    """Runs the daemon until it is stopped and returns its exit status. `read` reads the
    configuration again. Raises Unavailable, LedgerLost."""
    with ExitStack() as ends:
        ground = lay_ground(loaded.settings, environment, makers.ledger, ends)
        node, reloader = build(loaded, ground, read, makers.nvml, ends)

        async def run() -> int:
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGHUP, reloader.request)
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, node.stop)
            return await node.run()

        try:
            return asyncio.run(run())
        except OSError as error:
            raise Unavailable(os_error_text(error)) from error


def build(
    loaded: Loaded,
    ground: Ground,
    read: Callable[[], Loaded],
    nvml_of: Callable[[Settings, Clock], Nvml],
    ends: ExitStack,
) -> tuple[Node, Reloader]:
    """Raises Unavailable, LedgerLost."""
    settings, clock, signals = loaded.settings, ground.clock, Signals()
    nvml = nvml_of(settings, clock)
    reloader = Reloader(read, loaded, signals.fatal, watch_contents)
    journal = Journal(clock, settings.detection.repeat_s)
    gpus = make_gpus(loaded, journal)
    processes = SystemProcesses()
    keeper, registration_listener = make_keeper(settings, ground, processes, signals, ends)
    turns = Turns(settings.planner, keeper, clock)
    spills = make_spills(settings, clock, keeper, gpus, journal, signals)
    queue = make_queued(loaded, ground, keeper, gpus, journal, spills, signals)
    asked = queue.manager if queue is not None else NoQueue()
    known = known_libraries(ground.files, ground.environment, library_dir(ground.environment))
    drivers = Drivers(ground.ledger, library_identity)
    kernel = make_kernel(settings.ebpf, ground, known, drivers, keeper, gpus)
    watch = make_watch(
        settings,
        ground,
        keeper,
        processes,
        journal,
        kernel,
        queue,
        known=lambda: known() | driver_libraries(keeper),
        drivers=drivers,
    )
    walls = make_walls(settings, ground, keeper, gpus, nvml, journal, signals)
    cutter, geometry = ChildMig(settings.nvml.library, nvml.exclusive), asyncio.Lock()
    holders = Holders(keeper, asked.decided_gpus)
    cuts = None
    if not loaded.kubelet.config.makes_instances:
        for suffix in ("", "-wal", "-shm"):  # what is cut is the operator's from now on
            (ground.state / f"{CUTS}{suffix}").unlink(missing_ok=True)
    else:
        cuts = Cuts(
            cutter,
            SqliteCuts(ground.state / CUTS),
            keeper,
            gpus,
            holders,
            journal,
            clock,
            geometry,
            signals.read_gpus,
            signals.fatal,
        )
        cuts.remember()
    pods = make_pods(loaded, ground, keeper, gpus, queue, cuts, signals)
    if pods is not None and pods.cluster is not None and queue is not None:
        from nodeagent.assembly.cluster import follow_checkpoints

        follow_checkpoints(pods.cluster, pods.sums, queue.capacity, keeper, spills, signals.fatal)
    if pods is not None:
        holders.pods = pods.manager
        if pods.cluster is not None:
            watch.on_pod.append(pods.cluster.record_pod_event)
    mig = MigManager(
        cutter,
        keeper,
        gpus,
        ground.ledger,
        journal,
        clock,
        holders,
        signals.read_gpus,
        geometry,
        cuts,
        ground.operator_uids,
        signals.fatal,
    )

    tapes: dict[str, flight.Tape[Any]] = {"grants": keeper.tape}
    if queue is not None:
        tapes["queue"] = queue.manager.tape
    if pods is not None:
        tapes["kubelet"] = pods.manager.tape
        if pods.dra is not None:
            tapes["dra"] = pods.dra.manager.tape

    def counters() -> Samples:
        return {
            m.TAMPERS: keeper.tampers_total,
            m.REGISTRATIONS_DROPPED: registration_listener.dropped_total,
            m.SPILLED_BYTES: spills.spilled_bytes(),
            m.SPILLS: {result: spills.results[result] for result in RESULTS},
            **reloader.counters(),
            **(pods.counters() if pods is not None else {}),
            **kernel.counters(),
        }

    figures = Figures(
        native.version(),
        lambda: read_host({"daemon": os.getpid(), "nvml": getattr(nvml, "pid", None)}),
        lambda: nvml.restarts_total,
        counters,
        walls.standing,
    )
    views = Views(keeper, turns, gpus, clock, asked, watch, figures)
    service = Service(
        settings.grants,
        keeper,
        views,
        asked,
        watch,
        kernel,
        journal,
        clock,
        ground.operator_uids,
        DescriptorRoom().for_grant,
        lambda: flight.dump(tapes, native.version()),
        walls.enclose_program,
        spills,
    )

    async def doctor() -> list[Finding]:
        host = host_findings(
            ground.files, ground.environment, ground.runtime, settings.nvml.library
        )
        instances = sum(len(card.mig or ()) for card in gpus.sorted())
        return [
            *host,
            walls.finding(instances),
            await spills.finding(),
            *gpus.findings(),
            *kernel.findings(),
            *outside.findings(gpus.sorted(), program_name, keeper.loads()),
            *(pods.all_findings() if pods is not None else []),
        ]

    opener, page = make_page(settings.page, loaded.node, ground, service, journal)
    histograms = {m.GRANT_WAIT: service.wait_s, m.BINDING_DURATION: keeper.binding_s}
    endpoints: list[Endpoint] = [
        Uevents(Devices(journal, signals.reread).changed),
        *([cuts] if cuts is not None else []),
        *([queue.manager] if queue is not None else []),
        *(pods.endpoints(signals.fatal) if pods is not None else []),
        kernel,
        mig,
        walls,
        spills,
        Lender(keeper, gpus.capacities, signals.fatal, clock, settings.grants.lending_pause_s),
        HookListener(ground.runtime, os.geteuid(), walls.enclose_container),
        *([page] if page is not None else []),
        LocalApi(ground.runtime, ground.wire, service, clock, doctor, mig, opener),
        *make_web(settings.metrics, views, histograms, clock),
        reloader,
    ]
    node = Node(
        lambda: reloader.running.settings,
        clock,
        keeper,
        turns,
        gpus,
        nvml,
        watch,
        views,
        endpoints,
        SdNotify(ground.environment.get("NOTIFY_SOCKET")).send,
        lambda: max(mig.held_up_s(), cuts.held_up_s() if cuts is not None else 0.0),
    )
    signals.listen(node)

    def changed(running: Running) -> None:
        now = running.settings
        logging.getLogger().setLevel(now.daemon.log_level.upper())
        keeper.configure(rules_of(now, ground.boot))
        service.configure(now.grants)
        gpus.policy = running.health
        if queue is not None:
            queue.capacity.settings = now.queue
        if pods is not None:
            pods.configure(running)

    reloader.on_change.append(changed)
    return node, reloader


def make_gpus(loaded: Loaded, journal: Journal) -> Gpus:
    """The GPUs; changes of their state are recorded in the journal."""
    grants, kubelet = loaded.settings.grants, loaded.kubelet.config
    gpus = Gpus(
        max(grants.slots_per_gpu, kubelet.slots_per_gpu if kubelet.enabled else 1),
        grants.memory_reserve_mib,
        kubelet.memory_scaling if kubelet.enabled else 1.0,
        loaded.health,
        kubelet.slots_of_cards if kubelet.enabled else {},
    )

    def record_health(change: HealthChange) -> None:
        known = gpus.readings.get(change.uuid)
        level, text, evidence = health_event(change, known.index if known else None)
        journal.record(EventKind.GPU, level, text, evidence=evidence)

    gpus.on_news.append(journal.record)
    gpus.on_health.append(record_health)
    return gpus


def make_keeper(
    settings: Settings,
    ground: Ground,
    processes: Processes,
    signals: Signals,
    ends: ExitStack,
) -> tuple[Keeper, SeqpacketListener]:
    listeners: list[SeqpacketListener] = []

    def registration_listener(registrar: Registrar) -> SeqpacketListener:
        listeners.append(SeqpacketListener(registrar, ground.clock))
        ends.callback(listeners[0].close_listeners)
        return listeners[0]

    keeper = Keeper(
        rules_of(settings, ground.boot),
        ground.clock,
        ground.ledger,
        ground.regions,
        processes,
        registration_listener,
        signals.fatal,
    )
    return keeper, listeners[0]


def make_walls(
    settings: Settings,
    ground: Ground,
    keeper: Keeper,
    gpus: Gpus,
    nvml: Nvml,
    journal: Journal,
    signals: Signals,
) -> WallManager:
    walls = WallManager(
        settings.wall,
        keeper,
        ChildWalls(settings.nvml.library, nvml.together),
        CgroupPlaces(cgroup_name(ground.runtime)),
        ground.ledger,
        journal,
        lambda: [card.uuid for card in gpus.sorted() if card.mig is None],
        signals.fatal,
    )
    gpus.on_driver.append(walls.forget_drivers)
    return walls


def make_spills(
    settings: Settings, clock: Clock, keeper: Keeper, gpus: Gpus, journal: Journal, signals: Signals
) -> SpillManager:
    def cards() -> Sequence[GpuReading]:
        return gpus.units() if gpus.error is None else ()

    async def cards_now() -> Sequence[GpuReading]:
        await signals.read_gpus()
        return cards()

    spills = SpillManager(
        settings.checkpoint,
        keeper,
        ChildCheckpoints(settings.checkpoint.library),
        SystemHostRoom(),
        cards,
        cards_now,
        journal,
        clock,
        signals.fatal,
    )
    gpus.on_driver.append(spills.forget_driver)
    return spills


def make_watch(
    settings: Settings,
    ground: Ground,
    keeper: Keeper,
    processes: Processes,
    journal: Journal,
    kernel: KernelWatchManager,
    queue: QueueSide | None,
    known: Callable[[], set[str] | frozenset[str]],
    drivers: Drivers,
) -> Watch:
    ledger, clock = ground.ledger, ground.clock
    containment = Containment(
        keeper,
        processes,
        CgroupRestrainer(),
        ledger,
        SystemTargets(DenyPins(BPFFS / pins_of(ground.runtime))),
        journal,
        clock,
        kernel.watch,
        settings.ebpf.enabled != "off",
        [queue.manager.evict] if queue is not None else [],
    )
    return Watch(
        settings.detection,
        keeper,
        processes,
        ProcInspector(),
        containment,
        journal,
        clock,
        kernel.watch,
        queue.manager.place_of if queue is not None else NoQueue().place_of,
        known,
        drivers.seen,
    )


def make_queued(
    loaded: Loaded,
    ground: Ground,
    keeper: Keeper,
    gpus: Gpus,
    journal: Journal,
    spills: SpillManager,
    signals: Signals,
) -> QueueSide | None:
    """Build the queue's part; None if this node takes no work from a queue."""
    settings = loaded.settings.queue
    if not settings.server:
        return None
    from nodeagent.assembly.queue import make_queue

    return make_queue(
        settings, loaded.node, ground, keeper, gpus, journal.after, spills, signals.fatal
    )


def make_pods(
    loaded: Loaded,
    ground: Ground,
    keeper: Keeper,
    gpus: Gpus,
    queue: QueueSide | None,
    cuts: Cuts | None,
    signals: Signals,
) -> KubeletSide | None:
    """Build the kubelet's part; None if the kubelet is not served. Raises Unavailable."""
    if not loaded.kubelet.config.enabled:
        return None
    from nodeagent.assembly.kubelet import make_kubelet

    try:
        return make_kubelet(
            loaded.kubelet.config,
            loaded.node,
            loaded.settings.grants.strategy,
            loaded.settings.wall.enabled,
            ground,
            keeper,
            gpus,
            queue.manager if queue is not None else None,
            cuts,
            signals.fatal,
        )
    except (OSError, ValueError, LedgerTooNew) as error:
        raise Unavailable(f"[kubelet]: {error}") from error


def driver_libraries(grants: Grants) -> frozenset[str]:
    """Paths of the driver libraries that the grants were made with."""
    records = [held.record for held in grants.live().values()]
    return frozenset(record.driver_path for record in records if record.driver_path)
