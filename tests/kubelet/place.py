"""A daemon's kubelet side in this process, against a kubelet over real sockets: the real desk, server, ledgers and
regions; NVML, CDI and the clock are made to order."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from nodeagent import native
from nodeagent.adapters.kubelet.allocations import SqliteAllocations
from nodeagent.adapters.kubelet.device_plugin import PluginServer
from nodeagent.adapters.kubelet.records import KubeletFiles
from nodeagent.adapters.kubelet.wire import KubeletWire, nonce_of
from nodeagent.adapters.ledger.sqlite import SqliteLedger
from nodeagent.adapters.processes.cgroups import CgroupPods
from nodeagent.adapters.processes.pidfd import SystemProcesses
from nodeagent.adapters.region.store import RegionLibrary, TmpfsRegions
from nodeagent.assembly.kubelet import PluginServers
from nodeagent.core.kubelet.offers import OfferRules
from nodeagent.core.kubelet.pod_limits import DefaultLimits
from nodeagent.ports.containers import ContainerAnswer, GivenFiles, GrantMounts
from nodeagent.ports.gpus import NodeReading
from nodeagent.ports.kubelet import Allocation, LimitsSource
from nodeagent.ports.ledger import GrantRecord
from nodeagent.settings.daemon import Settings
from nodeagent.shell.gpus.readings import Gpus
from nodeagent.shell.grants.keeper import Keeper
from nodeagent.shell.node import rules_of
from nodeagent.shell.pods.deviceplugin.manager import (
    DevicePluginManager,
    DevicePluginSettings,
    PluginSources,
)
from nodeagent.shell.pods.limits import NodeDefaults, PodLimits
from nodeagent.shell.pods.pod_grants import PodGrants
from sluicecommon.hami.names import ResourceNames
from tests.kit.clock import ManualClock
from tests.kit.fakes.cdi import FakeCdi
from tests.kit.fakes.kubelet import FakeKubelet, Pod
from tests.kit.fakes.nvml import gpu_reading

RESOURCE = "nvidia.com/gpu"
FILES = GivenFiles("/preload")
BOOT = "11111111-2222-3333-4444-555555555555"


class NoDoor:
    """Fake without registrations: the processes are in the tests of the whole node."""

    def open(self, grant: str, directory: str, uid: int, pod_uid: str = "") -> None: ...

    def shut(self, grant: str) -> None: ...


class Crashed(BaseException):
    """The daemon was killed at this point."""


class CrashingAllocations(SqliteAllocations):
    """Kills the daemon at a given commit, before or after the row is durable."""

    crash_in = -1
    after = False

    async def commit(self, rows: Any) -> None:
        if self.crash_in == 0:
            self.crash_in = -1
            if self.after:
                await super().commit(rows)
            raise Crashed
        self.crash_in -= 1
        await super().commit(rows)


class Daemon:
    """One life of the daemon."""

    def __init__(self, place: Place) -> None:
        self.place = place
        place.daemons += 1
        self.gpus = Gpus(place.slots, 0, card_slots=place.card_slots)
        self.gpus.take(
            NodeReading(tuple(place.readings), "999.1", "12.999"), place.clock.monotonic_ns()
        )
        self.ledger = SqliteLedger(place.directory / "ledger.sqlite", BOOT)
        self.keeper = Keeper(
            rules_of(Settings(), BOOT),
            place.clock,
            self.ledger,
            TmpfsRegions(place.directory / "grants", place.library, BOOT, mounts=None),
            SystemProcesses(),
            lambda registrar: NoDoor(),
            fatal=self.fatal,
        )
        self.errors: list[BaseException] = []
        self.allocations = CrashingAllocations(place.directory / "allocations.sqlite")
        resources: set[str] = set()
        records = KubeletFiles(place.kubelet.root, resources, place.wire)
        self.manager = DevicePluginManager(
            DevicePluginSettings(
                OfferRules(
                    RESOURCE,
                    place.slots,
                    place.mig_strategy,
                    place.hidden,
                    card_slots=place.card_slots,
                ),
                "pack",
                3600.0,
                60.0,
            ),
            BOOT,
            PodGrants(self.keeper, place.cdi, mounts),
            self.gpus,
            place.clock,
            self.allocations,
            PluginSources(records, records, CgroupPods(place.directory / "cgroup"), place.sources),
            lambda: FILES,
            fatal=self.fatal,
        )
        self.manager.on_shelf.append(
            lambda served_resource: resources.add(served_resource.resource)
        )
        self.servers = PluginServers(
            self.manager,
            lambda served_resource: PluginServer(
                served_resource.resource,
                place.kubelet.plugins_dir,
                place.wire,
                served_resource,
                self.fatal,
            ),
        )

    @property
    def server(self) -> PluginServer:
        """Plugin server of the one resource there is in most tests."""
        return self.servers.servers[0]

    def fatal(self, error: BaseException) -> None:
        self.errors.append(error)

    async def start(self) -> None:
        self.keeper.restore()
        self.keeper.apply(self.gpus.seen())
        await self.manager.start()
        await self.servers.start()

    async def close(self) -> None:
        await self.servers.close()
        await self.manager.close()
        self.keeper.close()
        self.ledger.close()

    def read_gpus(self) -> None:
        self.gpus.take(
            NodeReading(tuple(self.place.readings), "999.1", "12.999"),
            self.place.clock.monotonic_ns(),
        )
        self.keeper.apply(self.gpus.seen())

    async def look(self) -> None:
        """One look at the kubelet's records, long after the one before."""
        self.place.clock.advance(3600)
        await self.manager.reconcile()

    def rows(self) -> list[Allocation]:
        return self.allocations.load()


def mounts(record: GrantRecord, region: str, container: str) -> GrantMounts:
    assert record.container is not None
    return GrantMounts(
        grant=record.grant,
        gpus=tuple(one.gpu for one in record.devices),
        region_dir=region,
        policy_path=f"{region}/policy.shm",
        usage_path=f"{region}/usage.shm",
        socket_path=f"{region}/register.sock",
        container_dir="/run/sluice/grant",
        files=FILES,
        pod_uid=record.container.pod_uid,
        container=container,
    )


class Place:
    def __init__(self, directory: Path, gpus: int, slots: int) -> None:
        self.directory = directory
        self.slots = slots
        self.readings = [gpu_reading(index) for index in range(gpus)]
        self.clock = ManualClock()
        self.library = RegionLibrary(native.locate().region_library)
        self.wire = KubeletWire(native.locate().kubelet_descriptors)
        self.kubelet = FakeKubelet(directory / "kubelet", self.wire)
        self.kubelet.pods_api = True
        self.cdi = FakeCdi(directory / "cdi")
        names = ResourceNames()
        self.sources: list[LimitsSource] = [
            PodLimits(names, DefaultLimits()),
            NodeDefaults(DefaultLimits()),
        ]
        self.daemons = 0
        self.hidden: frozenset[str] = frozenset()
        self.card_slots: dict[str, int] = {}
        """Slots by UUID or index, where they are not `slots`."""
        self.mig_strategy = "none"
        self.daemon: Daemon | None = None
        (directory / "cgroup").mkdir(exist_ok=True)

    async def start_daemon(self) -> Daemon:
        self.daemon = Daemon(self)
        registered = self.kubelet.registered_total
        await self.daemon.start()
        await self.kubelet.until(
            lambda: (
                self.kubelet.registered_total > registered
                and any(self.kubelet.allocatable(name) for name in self.kubelet.endpoints)
            )
        )
        return self.daemon

    async def restart_daemon(self) -> Daemon:
        assert self.daemon is not None
        await self.daemon.close()
        return await self.start_daemon()

    async def restart_kubelet(self) -> None:
        await self.kubelet.restart()
        await self.kubelet.until(lambda: self.kubelet.allocatable(RESOURCE))

    async def run(self, pod: Pod) -> dict[str, Any]:
        """Admits the pod and starts its container `main`; what its CDI file says."""
        await self.kubelet.admit(pod, RESOURCE)
        return self.cdi_of(await self.kubelet.start_container(pod.uid, "main"))

    def cdi_of(self, answer: ContainerAnswer) -> dict[str, Any]:
        nonce = nonce_of(answer)
        assert nonce is not None
        return self.cdi.read(nonce)

    def has_cdi(self, answer: ContainerAnswer) -> bool:
        return nonce_of(answer) in self.cdi.names()

    def make_cgroup(self, pod: str) -> None:
        (self.directory / "cgroup" / "systemd" / "kubepods" / f"pod{pod}").mkdir(parents=True)


def limits(**asked: int) -> dict[str, str]:
    """gpumem in MiB, gpucores in percent."""
    return {f"nvidia.com/{name}": str(amount) for name, amount in asked.items()}


@contextlib.asynccontextmanager
async def place(gpus: int = 2, slots: int = 10, start: bool = True) -> AsyncIterator[Place]:
    missing = native.locate().missing()
    if missing:
        pytest.skip(f"not built: {missing[0]}; `make build`")
    with tempfile.TemporaryDirectory(prefix="sl-", dir="/tmp") as directory:
        made = Place(Path(directory), gpus, slots)
        if start:
            await made.kubelet.start()
            await made.start_daemon()
        try:
            yield made
        finally:
            if made.daemon is not None:
                await made.daemon.close()
            await made.kubelet.stop()


def with_place(**options: Any) -> Callable[[Callable[[Place], Any]], Callable[[], None]]:
    """Runs an asynchronous test in a place of its own."""

    def wrap(test: Callable[[Place], Any]) -> Callable[[], None]:
        def run() -> None:
            async def inside() -> None:
                async with place(**options) as made:
                    await test(made)
                    if made.daemon is not None:
                        assert made.daemon.errors == []

            asyncio.run(inside())

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        return run

    return wrap
