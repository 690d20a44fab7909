"""The kubelet's part of the composition root: from [kubelet] to the running device plugin."""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.adapters.containers import toolkit as container_toolkit
from nodeagent.adapters.containers.cdi_files import cdi_port
from nodeagent.adapters.containers.grant_mounts import GrantMounter
from nodeagent.adapters.containers.hook_listener import SOCKET_NAME
from nodeagent.adapters.kubelet import plugin_sockets
from nodeagent.adapters.kubelet.allocations import SqliteAllocations
from nodeagent.adapters.kubelet.device_plugin import PluginServer
from nodeagent.adapters.kubelet.records import KubeletFiles
from nodeagent.adapters.kubelet.wire import KubeletWire
from nodeagent.adapters.processes.cgroups import CgroupPods
from nodeagent.assembly.cluster import (
    access_of,
    make_admissions,
    make_cluster,
    pods_without_api,
)
from nodeagent.assembly.dra import DraSide, device_rules, excluded, make_dra, wants_dra
from nodeagent.assembly.ground import Ground
from nodeagent.core.grants.placement import GpuCapacity
from nodeagent.core.kubelet import plugin_conflict
from nodeagent.core.kubelet import sums as kubelet_sums
from nodeagent.core.kubelet.cdi_mig import InstanceOf
from nodeagent.core.kubelet.offers import OfferRules
from nodeagent.core.kubelet.pod_limits import DefaultLimits
from nodeagent.core.metrics import catalogue as m
from nodeagent.core.reload import Running
from nodeagent.paths import library_dir
from nodeagent.ports.kubelet import (
    Admissions,
    ContainerLimits,
    KubeletAway,
    LimitsSource,
    PodIdentity,
    PodSource,
)
from nodeagent.ports.queue import WorkKey
from nodeagent.ports.views import Finding, Samples
from nodeagent.settings.kubelet import KubeletConfig
from nodeagent.shell.gpus.cuts import Cuts
from nodeagent.shell.gpus.readings import Gpus
from nodeagent.shell.grants.keeper import Keeper
from nodeagent.shell.node import Endpoint
from nodeagent.shell.pods.admitted import AdmittedPods
from nodeagent.shell.pods.allocation_modes import CLAIMS
from nodeagent.shell.pods.decommission import NodeDecommission
from nodeagent.shell.pods.deviceplugin.manager import (
    Beside,
    DevicePluginManager,
    DevicePluginSettings,
    Kept,
    PluginSources,
)
from nodeagent.shell.pods.deviceplugin.on_demand import OnDemand
from nodeagent.shell.pods.deviceplugin.served_resource import ServedResource
from nodeagent.shell.pods.foreign_words import ForeignWords
from nodeagent.shell.pods.limits import NodeDefaults, PlacedLimits, PodLimits, QueueLimits
from nodeagent.shell.pods.node_sums import NodeSums
from nodeagent.shell.pods.pod_grants import PodGrants
from nodeagent.shell.pods.pod_sources import PodSources
from nodeagent.shell.pods.resizer import Resizer, ResizeRules
from nodeagent.shell.pods.safety import SafetyLook, SafetyWatch
from nodeagent.shell.queue.manager import QueueManager
from nodeagent.units import GrantId
from sluicecommon.background import BackgroundTasks
from sluicecommon.hami.names import ResourceNames
from sluicecommon.kubernetes.credentials import NoAccess

if TYPE_CHECKING:
    from nodeagent.adapters.kubelet.cluster import Cluster

log = logging.getLogger(__name__)

CGROUPS = Path("/sys/fs/cgroup")
NOT_PLACED = (
    "no effect on this pod: only Sluice's scheduler chooses GPUs by annotations, in mode kubernetes"
    " (the chart's queue.mode)"
)
DEFAULTS_USED = "This pod's GPU requests could not be read: it has the node's default GPU limits"


class PluginServers:
    """Implements Endpoint: a server for each resource, also for one that appears later."""

    def __init__(
        self,
        manager: DevicePluginManager,
        make: Callable[[ServedResource], PluginServer],
        wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """`wanted`: whether the device plugin is to be there at all."""
        self.servers: list[PluginServer] = []
        self._manager = manager
        self._make = make
        self._wanted = wanted
        self._background = BackgroundTasks()

    async def start(self) -> None:
        if not self._wanted():
            return
        for served_resource in self._manager.served_resources.values():
            await self._add(served_resource).start()
        self._manager.on_shelf.append(self._later)

    def _add(self, served_resource: ServedResource) -> PluginServer:
        server = self._make(served_resource)
        self.servers.append(server)
        return server

    def _later(self, served_resource: ServedResource) -> None:
        server = self._add(served_resource)
        self._background.spawn(server.start(), "start of a device plugin server")

    async def close(self) -> None:
        for server in self.servers:
            await server.close()


@dataclass(frozen=True, slots=True)
class KubeletSide:
    manager: DevicePluginManager
    server: PluginServers
    safety: SafetyWatch
    records: KubeletFiles
    pods: PodSource
    cluster: Cluster | None = None
    sums: NodeSums | None = None
    queue: QueueManager | None = None
    admissions: Admissions | None = None
    no_access: str = ""
    """Why there is no API server."""
    on_config: tuple[Callable[[KubeletConfig], None], ...] = ()
    dra: DraSide | None = None

    def endpoints(self, fatal: Callable[[BaseException], None]) -> list[Endpoint]:
        """Endpoints in the order in which they start and end."""
        served: list[Endpoint] = [self.manager, self.server, self.safety]
        if self.dra is not None:
            served = [*self.dra.before(), *served, *self.dra.after(fatal)]
        if self.cluster is None or self.sums is None:
            return served
        decommission = NodeDecommission(
            self.cluster, self._registered, self.manager.stop_reconciling, self.queue
        )
        return [decommission, self.sums, self.cluster, *served, decommission.last]

    def _registered(self) -> list[str]:
        """Resources that the kubelet counts by us now."""
        return [one.resource for one in self.server.servers if one.registered]

    def configure(self, running: Running) -> None:
        """While the daemon runs."""
        config = running.kubelet
        self.manager.starting.sources = limit_sources(
            config, self.queue, self.pods, self.admissions
        )
        self.manager.configure(desk_settings(config, running.settings.grants.strategy))
        for call in self.on_config:
            call(config)
        if self.dra is not None:
            self.dra.inventory.rules = device_rules(config)
            self.dra.inventory.excluded = excluded(config)

    def counters(self) -> Samples:
        """Figures for the metrics."""
        figures = self.manager.figures
        return {
            m.KUBELET_REGISTERED: float(all(one.registered for one in self.server.servers)),
            m.KUBELET_REGISTRATIONS: sum(one.registrations_total for one in self.server.servers),
            m.KUBELET_ALLOCATIONS: figures.allocations,
            m.KUBELET_STARTS: figures.starts,
            m.KUBELET_REFUSED: figures.starts_refused,
            m.KUBELET_RELEASES: figures.releases,
            m.KUBELET_MISMATCHES: figures.hint_mismatches,
            m.KUBELET_READABLE: float(not figures.away),
            m.KUBELET_UNREAD: figures.unread,
            **({} if self.cluster is None else self._kubernetes(self.cluster)),
            **({} if self.dra is None else self.dra.counters()),
            **self.safety.counters(),
        }

    def _kubernetes(self, cluster: Cluster) -> Samples:
        sums = self.sums
        return {
            m.KUBERNETES_IN_SYNC: float(cluster.pods.synced and not cluster.pods.trouble),
            m.KUBERNETES_COUNTED: float(sums is not None and not sums.trouble),
        }

    def findings(self) -> list[Finding]:
        """Findings about the sources of limits, for `sluice doctor`."""
        last = self.manager.figures.unread_last
        if self.cluster is not None:
            found = [self.cluster.finding()]
            if self.sums is not None:
                found.append(self.sums.finding())
        else:
            found = [
                pods_without_api(
                    self.kubelet_has_requests(), self.no_access, self.queue is not None
                )
            ]
        if last:
            found.append(
                Finding(
                    "limits",
                    "warning",
                    f"{self.manager.figures.unread} containers have the node's defaults, because"
                    f" their requests could not be read; the last: {last}",
                    "fix what `pods` reports, then delete those pods, so that they are recreated",
                )
            )
        return found

    def all_findings(self) -> list[Finding]:
        claims = self.dra.findings() if self.dra is not None else []
        return [*self.safety.findings(), *self.findings(), *claims]

    def kubelet_has_requests(self) -> bool:
        """True if the kubelet serves its Pods API."""
        return self.records.pods_socket.exists()


def make_kubelet(
    config: KubeletConfig,
    node: str,
    strategy: str,
    walls: str,
    ground: Ground,
    keeper: Keeper,
    gpus: Gpus,
    queue: QueueManager | None,
    cuts: Cuts | None,
    fatal: Callable[[BaseException], None],
) -> KubeletSide:
    """`node`: its name in Kubernetes. `strategy`: of placement, pack or spread.
    `walls`: wall.enabled. Raises OSError, ValueError, LedgerLost, LedgerTooNew."""
    files, environment = ground.files, ground.environment
    wire = KubeletWire(files.kubelet_descriptors)
    root = Path(config.directory)
    resources: set[str] = set()
    records = KubeletFiles(root, resources, wire)
    mounter = GrantMounter(
        files,
        environment,
        library_dir(environment),
        lambda: gpus.driver_version,
        "" if walls == "off" else str(ground.runtime / SOCKET_NAME),
        walls == "on",
    )
    cdi = cdi_port(
        config.strategy,
        ground.runtime / "bindings",
        lambda: {gpu.uuid: gpu.index for gpu in gpus.sorted()},
        (Path("/etc/cdi"), Path(config.cdi_dir)),
        lambda: {
            one.uuid: InstanceOf(card.uuid, one.gpu_instance, one.compute_instance)
            for card in gpus.sorted()
            for one in card.mig or ()
        },
    )

    def bound(limits: ContainerLimits, grant: GrantId) -> None:
        if queue is not None:
            queue.bind(WorkKey(limits.workload, limits.replica), grant)

    access, no_access = access_of(config, environment)
    cluster = None
    if access is not None:
        try:
            cluster = make_cluster(access, node, fatal)
        except NoAccess as error:
            no_access = str(error)
    known: dict[str, PodSource] = {"kubelet": records}
    if cluster is not None:
        known["api"] = cluster
    admissions = make_admissions(cluster) if cluster is not None else None
    pods = PodSources([known[one] for one in config.pod_sources if one in known], no_access)
    grants = PodGrants(keeper, cdi, mounter.mounts_of)
    made: list[DevicePluginManager] = []
    dra = None
    if wants_dra(config, ground):
        dra = make_dra(
            config,
            node,
            ground,
            grants,
            gpus,
            cluster,
            no_access,
            lambda: made[0],
            cuts,
            fatal,
        )
    manager = DevicePluginManager(
        desk_settings(config, strategy),
        ground.boot,
        grants,
        gpus,
        ground.clock,
        SqliteAllocations(ground.state / "allocations.sqlite"),
        PluginSources(
            records, pods, CgroupPods(CGROUPS), limit_sources(config, queue, pods, admissions)
        ),
        mounter.files,
        fatal,
        Beside(
            decided=queue.decided_gpus if queue is not None else Counter,
            bound=bound,
            may_offer=dra.modes.for_plugin if dra is not None else lambda gpu: True,
            kept=functools.partial(kept, dra),
            on_demand=OnDemand(cuts, gpus) if cuts is not None and config.door != CLAIMS else None,
        ),
    )
    if cuts is not None:
        cuts.on_change.append(manager.look)
    manager.remember()
    made.append(manager)
    manager.on_shelf.append(lambda served_resource: resources.add(served_resource.resource))
    on_config: list[Callable[[KubeletConfig], None]] = []
    sums = None
    if cluster is not None:
        sums = NodeSums(cluster, functools.partial(counted, config, manager, gpus), fatal)
        gpus.on_read.append(sums.look_soon)
        cluster.on_gone.append(manager.pod_gone)
        if queue is not None:
            cluster.on_gone.append(queue.pod_gone)
        recorder = cluster

        async def record(pod: PodIdentity, why: str) -> None:
            await recorder.record_pod_event(
                pod.uid, "SluiceDefaultsUsed", f"{DEFAULTS_USED}: {why}"
            )

        running = [config]

        async def admitted(pod: PodIdentity) -> None:
            if "admission" in running[0].limits:
                requests = await recorder.pod(pod)
                await AdmittedPods(pods, admissions).limits(pod, "", requests, 0)

        if dra is not None:
            dra.manager.admitted = admitted

        async def record_unplaced(pod: PodIdentity, names: str) -> None:
            text = f"{names}: {NOT_PLACED}"
            await recorder.record_pod_event(pod.uid, "SluiceAnnotationIgnored", text)

        manager.starting.on_unread.append(record)
        manager.starting.on_unplaced.append(record_unplaced)

        def rules() -> ResizeRules:
            now = running[0]
            return ResizeRules(now.resize, resource_names(now), default_limits_of(now))

        def is_queued(grant: GrantId) -> bool:
            return queue is not None and bool(queue.workload_of(grant))

        resizer = Resizer(keeper, cluster.pods_here, is_queued, rules, cluster.record_pod_event)
        cluster.on_pod.append(resizer.changed)
        words = ForeignWords(cluster.record_pod_event, lambda: running[0].resource_count)
        cluster.on_pod.append(words.changed)
        cluster.on_node.append(functools.partial(follow_cordon, cluster, gpus))
        on_config.append(functools.partial(running.__setitem__, 0))
    plugins = root / "device-plugins"
    servers = PluginServers(
        manager,
        lambda served_resource: PluginServer(
            served_resource.resource, plugins, wire, served_resource, fatal
        ),
        # While pods that came by it are here their containers may start again.
        lambda: config.door != CLAIMS or bool(manager.book.rows),
    )

    def look() -> SafetyLook:
        toolkit = container_toolkit.read()
        try:
            registered = records.checkpoint().registered
        except KubeletAway:
            registered = ()
        there = [gpu.uuid for gpu in gpus.capacities()]
        return SafetyLook(
            container_toolkit.finding(toolkit, config.strategy),
            toolkit.accepts,
            plugin_conflict.look(config.resource_count, registered, plugin_sockets.others(plugins)),
            cdi.finding(there) if there else None,
        )

    return KubeletSide(
        manager,
        servers,
        SafetyWatch(look, fatal),
        records,
        pods,
        cluster,
        sums,
        queue,
        admissions,
        no_access,
        tuple(on_config),
        dra,
    )


def follow_cordon(cluster: Cluster, gpus: Gpus) -> None:
    """Take over the GPUs that the Node's annotation cordons, also while the API server is away."""
    if cluster.facts is not None:
        gpus.cordon(cluster.facts.cordoned)


def kept(dra: DraSide | None) -> Kept:
    """Claims' CDI files."""
    if dra is None:
        return Kept()
    return Kept(dra.manager.book.nonces(), dra.manager.book.drivers())


def counted(
    config: KubeletConfig, manager: DevicePluginManager, gpus: Gpus
) -> dict[str, int] | None:
    """Returns the sums that the Node's capacity should have; None before a GPU is known."""
    if not config.advertise_sums or config.door == CLAIMS:
        return {}
    served_resource = manager.served_resources.get(config.resource_count)
    if served_resource is None or not served_resource.shown:
        return None
    capacities: dict[str, GpuCapacity] = {gpu.uuid: gpu for gpu in gpus.capacities()}
    return kubelet_sums.sums(served_resource.shown, capacities, resource_names(config))


def desk_settings(config: KubeletConfig, strategy: str) -> DevicePluginSettings:
    return DevicePluginSettings(
        OfferRules(
            config.resource_count,
            config.slots_per_gpu,
            config.mig_strategy if config.mode == "mig" else "none",
            frozenset(config.exclude_uuids),
            frozenset(config.exclude_indexes),
            config.slots_of_cards,
        ),
        strategy,
        config.reconcile_s,
        numa_topology=config.numa_topology,
    )


def resource_names(config: KubeletConfig) -> ResourceNames:
    return ResourceNames(
        count=config.resource_count,
        memory=config.resource_memory,
        memory_percent=config.resource_memory_percentage,
        cores=config.resource_cores,
        priority=config.resource_priority,
        memory_factor=config.memory_factor,
    )


def default_limits_of(config: KubeletConfig) -> DefaultLimits:
    return DefaultLimits(
        memory_mib=config.default_memory_mib,
        cores_percent=config.default_cores_percent,
        elastic=config.cores_policy == "elastic",
        max_priority=config.max_priority,
        trusted_groups=config.trusted_groups,
        alone=config.mode == "exclusive",
    )


def limit_sources(
    config: KubeletConfig,
    queue: QueueManager | None,
    pods: PodSource,
    admissions: Admissions | None = None,
) -> list[LimitsSource]:
    """Sources of limits in the order of kubelet.limits."""
    names = resource_names(config)
    defaults = default_limits_of(config)
    sources: list[LimitsSource] = []
    for name in config.limits:
        if name == "queue" and queue is not None:
            sources.append(QueueLimits(queue, pods))
        elif name == "admission":
            sources.append(AdmittedPods(pods, admissions))
        elif name == "placement":
            sources.append(PlacedLimits(names, defaults))
        elif name == "pod":
            sources.append(PodLimits(names, defaults))
        elif name == "defaults":
            sources.append(NodeDefaults(defaults))
    return sources
