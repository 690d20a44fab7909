"""The part of the composition root for claims of DRA: from the section [kubelet] to the running
desk, the driver's server and the published slices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.adapters.dra.ledger import SqliteClaims
from nodeagent.adapters.dra.marker import FileMarker
from nodeagent.adapters.dra.plugin import DraPlugin
from nodeagent.adapters.dra.wire import DraWire
from nodeagent.adapters.host.pcie import pcie_root
from nodeagent.assembly.ground import Ground
from nodeagent.core.dra.devices import DeviceRules
from nodeagent.core.metrics import catalogue as m
from nodeagent.ports.views import Finding, Samples
from nodeagent.settings.kubelet import KubeletConfig
from nodeagent.shell.gpus.cuts import Cuts
from nodeagent.shell.gpus.readings import Gpus
from nodeagent.shell.node import Endpoint
from nodeagent.shell.pods.allocation_modes import CLAIMS, AllocationModes
from nodeagent.shell.pods.deviceplugin.manager import DevicePluginManager
from nodeagent.shell.pods.dra.claim_status import ClaimStatusWriter
from nodeagent.shell.pods.dra.inventory import Excluded, Inventory
from nodeagent.shell.pods.dra.manager import ClaimManager, ClaimSettings
from nodeagent.shell.pods.dra.places import Places
from nodeagent.shell.pods.dra.publisher import COUNTLESS, Publisher
from nodeagent.shell.pods.pod_grants import PodGrants
from sluicecommon.background import BackgroundTasks

if TYPE_CHECKING:
    from nodeagent.adapters.dra.api import ApiSlices
    from nodeagent.adapters.kubelet.cluster import Cluster

LEDGER = "claims.sqlite"
MARKER = "door"


class Following:
    """Implements Endpoint: the watch of this node's slices."""

    def __init__(self, slices: ApiSlices, fatal: Callable[[BaseException], None]) -> None:
        self._slices = slices
        self._background = BackgroundTasks(fatal)

    async def start(self) -> None:
        self._background.spawn(self._slices.follower.run(), "watch of ResourceSlices")

    async def close(self) -> None:
        await self._background.close()


@dataclass(frozen=True, slots=True)
class DraSide:
    manager: ClaimManager
    modes: AllocationModes
    inventory: Inventory
    plugin: DraPlugin
    slices: ApiSlices | None = None
    publisher: Publisher | None = None
    claim_status: ClaimStatusWriter | None = None

    def before(self) -> list[Endpoint]:
        """Endpoints that start before the device plugin offers any device."""
        return [self.modes, self.manager]

    def after(self, fatal: Callable[[BaseException], None]) -> list[Endpoint]:
        served: list[Endpoint] = [self.plugin]
        if self.slices is not None and self.publisher is not None:
            served = [Following(self.slices, fatal), self.publisher, *served]
        if self.claim_status is not None:
            served.append(self.claim_status)
        return served

    def counters(self) -> Samples:
        """Figures for the metrics."""
        figures, publisher = self.manager.figures, self.publisher
        return {
            m.DRA_REGISTERED: float(self.plugin.registered),
            m.DRA_PUBLISHED: float(publisher is not None and not publisher.trouble),
            m.DRA_SLICE_WRITES: publisher.writes_total if publisher is not None else 0,
            m.DRA_CLAIMS: float(len(self.manager.book.rows)),
            m.DRA_PREPARED: figures.prepared,
            m.DRA_REFUSED: figures.refused,
            m.DRA_RELEASED: figures.released,
            m.DRA_READABLE: float(not figures.away),
        }

    def findings(self) -> list[Finding]:
        """Findings for `sluice doctor`."""
        finding = self.modes.finding()
        found = [finding] if finding is not None else []
        if self.modes.mode != CLAIMS:
            return found
        trouble = self.plugin.refusal
        if not self.plugin.registered:
            found.append(
                Finding(
                    "dra",
                    "missing",
                    "the kubelet has not registered the driver:"
                    f" {trouble or 'no request from it yet'}",
                    f"is {self.plugin.registry} the kubelet's, and Kubernetes 1.32 or later?",
                )
            )
        if self.slices is None or self.publisher is None or self.publisher.trouble:
            why = self.slices.trouble if self.slices is not None else "no API server"
            why = why or (self.publisher.trouble if self.publisher is not None else "")
            found.append(
                Finding(
                    "dra",
                    "missing",
                    f"this node's GPUs are not published: {why}",
                    "give the agent's service account the rights of the chart's ClusterRole"
                    " (resourceslices), with Kubernetes 1.34 or later",
                )
            )
        if self.inventory.countless:
            found.append(
                Finding(
                    "dra",
                    "missing",
                    f"no place for a MIG instance is published: {COUNTLESS}",
                    "set the gate and restart the agent, or cut the cards by hand"
                    ' (mig_geometry = "fixed")',
                )
            )
        if not found and self.publisher is not None:
            devices = sum(len(one.devices) for one in self.publisher.wanted())
            found.append(
                Finding(
                    "dra",
                    "ok",
                    f"{devices} devices published, {len(self.manager.book.rows)} claims prepared",
                )
            )
        return found


def wants_dra(config: KubeletConfig, ground: Ground) -> bool:
    """The setting says so, or the node did before and may have claims left."""
    return config.door == CLAIMS or (ground.state / LEDGER).exists()


def make_dra(
    config: KubeletConfig,
    node: str,
    ground: Ground,
    grants: PodGrants,
    gpus: Gpus,
    cluster: Cluster | None,
    no_access: str,
    pods: Callable[[], DevicePluginManager],
    cuts: Cuts | None,
    fatal: Callable[[BaseException], None],
) -> DraSide:
    """`pods` returns the device plugin's manager, which is made later. `cuts` creates MIG instances
    on request; None if that is off. Raises OSError, ValueError, LedgerLost, LedgerTooNew."""
    if config.door == CLAIMS and cluster is None:
        raise ValueError(
            f'door = "dra" needs the API server, which cannot be reached: {no_access}; give the'
            " daemon a service account (the chart does) or kubelet.kubeconfig"
        )
    keeper = grants.keeper
    claims = slices = None
    if cluster is not None:
        from nodeagent.adapters.dra.api import ApiClaims, ApiSlices

        known = cluster
        claims = ApiClaims(cluster.client, node)
        slices = ApiSlices(cluster.client, node, lambda: known.facts.uid if known.facts else "")
    manager: list[ClaimManager] = []
    modes = AllocationModes(
        config.door,
        FileMarker(ground.state / MARKER),
        claims,
        gpus,
        fatal,
        lambda: manager[0].held_gpus(),
        lambda: pods().allocated(),
        lambda: pods().look(),
    )
    inventory = Inventory(
        keeper, gpus, modes.for_claims, device_rules(config), excluded(config), pcie_root, cuts
    )
    manager.append(
        ClaimManager(
            ClaimSettings(
                config.cores_policy == "elastic", max(config.reconcile_s, 1.0), config.max_priority
            ),
            ground.boot,
            grants,
            gpus,
            ground.clock,
            SqliteClaims(ground.state / LEDGER),
            claims,
            node,
            modes.for_claims,
            Places(cuts, ground.clock),
            fatal,
        )
    )
    manager[0].remember()
    publisher = claim_status = None
    if slices is not None and claims is not None:
        publisher = Publisher(
            node, inventory, slices, lambda: modes.mode == CLAIMS, ground.clock, fatal
        )
        gpus.on_read.append(publisher.look_soon)
        manager[0].on_change.append(publisher.look_soon)
        if cuts is not None:
            cuts.on_change.append(publisher.look_soon)
        claim_status = ClaimStatusWriter(
            manager[0], keeper, claims, ground.clock, config.dra_status_s, fatal
        )
    plugin = DraPlugin(
        Path(config.directory), DraWire(ground.files.kubelet_descriptors), manager[0], fatal
    )
    return DraSide(manager[0], modes, inventory, plugin, slices, publisher, claim_status)


def device_rules(config: KubeletConfig) -> DeviceRules:
    return DeviceRules(
        whole=config.mode == "exclusive",
        default_memory_mib=config.default_memory_mib,
        default_cores_percent=config.default_cores_percent,
        evict=config.dra_sick == "evict",
    )


def excluded(config: KubeletConfig) -> Excluded:
    return Excluded(frozenset(config.exclude_uuids), frozenset(config.exclude_indexes))
