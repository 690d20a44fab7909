"""The kubelet's part of the composition root: from the section [kubelet] to the running desk and
the device plugin's server."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from nodeagent.adapters import container_toolkit, plugin_sockets
from nodeagent.adapters.allocations_sqlite import SqliteAllocations
from nodeagent.adapters.cdi_files import cdi_port
from nodeagent.adapters.cgroups import CgroupPods
from nodeagent.adapters.device_plugin import PluginServer
from nodeagent.adapters.grant_mounts import GrantMounter
from nodeagent.adapters.kubelet_records import KubeletFiles
from nodeagent.adapters.kubelet_wire import KubeletWire
from nodeagent.core import plugin_conflict
from nodeagent.core.kubelet_offers import OfferRules
from nodeagent.core.pod_limits import DefaultLimits, ResourceNames
from nodeagent.core.reload import Running
from nodeagent.kubelet_config import KubeletConfig
from nodeagent.kubelet_ports import KubeletAway, LimitsSource
from nodeagent.native import NativeFiles
from nodeagent.paths import library_dir
from nodeagent.ports import Clock, ContainerRef
from nodeagent.shell.gpus import Gpus
from nodeagent.shell.keeper import Keeper
from nodeagent.shell.kubelet import DeskSettings, KubeletDesk, Shelf
from nodeagent.shell.limits import NodeDefaults, PodLimits, QueueLimits
from nodeagent.shell.queue import QueueDesk
from nodeagent.shell.safety import SafetyLook, SafetyWatch
from nodeagent.units import GrantId

log = logging.getLogger(__name__)

CGROUPS = Path("/sys/fs/cgroup")


class PluginServers:
    """Implements Endpoint: a server for each resource, also for one that appears later."""

    def __init__(self, desk: KubeletDesk, make: Callable[[Shelf], PluginServer]) -> None:
        self.servers: list[PluginServer] = []
        self._desk = desk
        self._make = make
        self._starting: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        for shelf in self._desk.shelves.values():
            await self._add(shelf).start()
        self._desk.on_shelf.append(self._later)

    def _add(self, shelf: Shelf) -> PluginServer:
        server = self._make(shelf)
        self.servers.append(server)
        return server

    def _later(self, shelf: Shelf) -> None:
        task = asyncio.get_running_loop().create_task(self._add(shelf).start())
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def close(self) -> None:
        for server in self.servers:
            await server.close()


@dataclass(frozen=True, slots=True)
class KubeletSide:
    desk: KubeletDesk
    server: PluginServers
    safety: SafetyWatch
    queue: QueueDesk | None = None

    def configure(self, running: Running) -> None:
        """While the daemon runs."""
        config = running.kubelet
        self.desk.sources = limit_sources(config, self.queue)
        self.desk.configure(desk_settings(config, running.settings.grants.strategy))

    def counters(self) -> dict[str, float]:
        """For the metrics."""
        figures = self.desk.figures
        return {
            "kubelet_registered": float(all(one.registered for one in self.server.servers)),
            "kubelet_registrations": sum(one.registrations_total for one in self.server.servers),
            "kubelet_allocations": figures.allocations,
            "kubelet_starts": figures.starts,
            "kubelet_starts_refused": figures.starts_refused,
            "kubelet_releases": figures.releases,
            "kubelet_hint_mismatches": figures.hint_mismatches,
            "kubelet_records_readable": float(not figures.away),
            **self.safety.counters(),
        }


def make_kubelet(
    config: KubeletConfig,
    strategy: str,
    boot_id: str,
    directories: tuple[Path, Path],
    files: NativeFiles,
    environment: Mapping[str, str],
    keeper: Keeper,
    gpus: Gpus,
    clock: Clock,
    queue: QueueDesk | None,
    fatal: Callable[[BaseException], None],
) -> KubeletSide:
    """`strategy`: of placement, pack or spread. `directories`: runtime and state. Raises OSError,
    ValueError, LedgerLost, LedgerTooNew."""
    runtime, state = directories
    wire = KubeletWire(files.kubelet_descriptors)
    root = Path(config.directory)
    resources: set[str] = set()
    records = KubeletFiles(root, resources, wire)
    mounter = GrantMounter(
        files, environment, library_dir(environment), lambda: gpus.driver_version
    )
    cdi = cdi_port(
        config.strategy,
        runtime / "bindings",
        lambda: {gpu.uuid: gpu.index for gpu in gpus.sorted()},
        (Path("/etc/cdi"), Path(config.cdi_dir)),
    )

    def bound(workload: str, of: ContainerRef, grant: GrantId) -> None:
        work = queue.work_of_pod(of.namespace, of.pod) if queue is not None else None
        if queue is not None and work is not None:
            queue.bind(work.key, grant)

    desk = KubeletDesk(
        desk_settings(config, strategy),
        boot_id,
        keeper,
        gpus,
        clock,
        SqliteAllocations(state / "allocations.sqlite"),
        records,
        records,
        CgroupPods(CGROUPS),
        cdi,
        limit_sources(config, queue),
        mounter.mounts_of,
        mounter.files,
        fatal,
        decided=queue.decided_gpus if queue is not None else Counter,
        bound=bound,
    )
    desk.on_shelf.append(lambda shelf: resources.add(shelf.resource))
    plugins = root / "device-plugins"
    servers = PluginServers(
        desk, lambda shelf: PluginServer(shelf.resource, plugins, wire, shelf, fatal)
    )

    def look() -> SafetyLook:
        toolkit = container_toolkit.read()
        try:
            registered = records.checkpoint().registered
        except KubeletAway:
            registered = ()
        known = [gpu.uuid for gpu in gpus.capacities()]
        return SafetyLook(
            container_toolkit.finding(toolkit, config.strategy),
            toolkit.accepts,
            plugin_conflict.look(config.resource_count, registered, plugin_sockets.others(plugins)),
            cdi.finding(known) if known else None,
        )

    return KubeletSide(desk, servers, SafetyWatch(look, fatal), queue)


def desk_settings(config: KubeletConfig, strategy: str) -> DeskSettings:
    return DeskSettings(
        OfferRules(
            config.resource_count,
            config.slots_per_gpu,
            config.mig_strategy if config.mode == "mig" else "none",
            frozenset(config.exclude_uuids),
            frozenset(config.exclude_indexes),
        ),
        strategy,
        config.reconcile_s,
        numa_topology=config.numa_topology,
    )


def limit_sources(config: KubeletConfig, queue: QueueDesk | None) -> list[LimitsSource]:
    """In the order of kubelet.limits."""
    names = ResourceNames(
        count=config.resource_count,
        memory=config.resource_memory,
        memory_percent=config.resource_memory_percentage,
        cores=config.resource_cores,
        priority=config.resource_priority,
        memory_factor=config.memory_factor,
    )
    defaults = DefaultLimits(
        memory_mib=config.default_memory_mib,
        cores_percent=config.default_cores_percent,
        elastic=config.cores_policy == "elastic",
        alone=config.mode == "exclusive",
    )
    sources: list[LimitsSource] = []
    for name in config.limits:
        if name == "queue" and queue is not None:
            sources.append(QueueLimits(queue))
        elif name == "pod":
            sources.append(PodLimits(names, defaults))
        elif name == "defaults":
            sources.append(NodeDefaults(defaults))
    return sources
