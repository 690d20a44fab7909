"""Agents of nodes that are only objects: cards to order, and what the agent's own code says of their health, of the pods that are
bound to the node and of what these use."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from nodeagent import native
from nodeagent.adapters.api.wire import Wire
from nodeagent.adapters.host.config_files import load_health
from nodeagent.adapters.queue.wire import write_capacity, write_pod_usage
from nodeagent.ports.gpus import GpuReading, MigReading, NodeReading, ProcessReading
from nodeagent.ports.ledger import ContainerRef, DeviceShare, GrantRecord
from nodeagent.ports.processes import Process
from nodeagent.ports.queue import PodUsage
from nodeagent.settings.daemon import HealthSettings, QueueSettings
from nodeagent.shell.gpus.readings import Gpus
from nodeagent.shell.queue.capacity import CapacityReader
from nodeagent.units import MIB, WHOLE_PPM, Bytes, GpuUuid, GrantId, Ppm, SharePolicy
from sluicecommon.pod_annotations import PLACEMENT
from tests.cluster.scheduling import placement
from tests.queue.server.callers import WIRE

SLOTS = 10
MEMORY = 81_559 * MIB
"""Memory of an H100 by its NVML."""
DRIVERS_OWN = 520 * MIB
MIG = "nvidia.com/mig-"
PROFILES = {"3g.40gb": (0, 4), "2g.20gb": (4, 2), "1g.10gb": (6, 1)}
"""Instances of a card in MIG mode: first memory slice and number of slices."""
CALM = ("jupyter", "sweep")
"""Beginnings of the names of pods that use little of what they hold."""
_THEIRS = Wire(native.locate().wire_descriptors)


def card(node: str, index: int, mig: bool = False) -> GpuReading:
    return GpuReading(
        GpuUuid(f"GPU-{node}-{index}"),
        index,
        "NVIDIA H100 80GB HBM3",
        Bytes(MEMORY),
        Bytes(DRIVERS_OWN),
        sm_count=132,
        pci_bus_id=f"00000000:{0x19 + 0x12 * index:02X}:00.0",
        numa_node=index // 4,
        utilization_ratio=0.0,
        mig=tuple(_instance(node, index, *one) for one in PROFILES.items()) if mig else None,
    )


def _instance(node: str, index: int, profile: str, span: tuple[int, int]) -> MigReading:
    start, slices = span
    return MigReading(
        GpuUuid(f"MIG-{node}-{index}-{profile}"),
        profile,
        gpu_instance=start,
        compute_instance=0,
        memory_total_bytes=Bytes(slices * MEMORY // 8),
        memory_used_bytes=Bytes(0),
        slice_start=start,
        slices=slices,
    )


def busy(pod: str) -> float:
    """Part of its share that a pod uses, by its name."""
    part = zlib.crc32(pod.encode()) % 1000 / 1000
    return 0.03 + 0.2 * part if pod.startswith(CALM) else 0.72 + 0.25 * math.sqrt(part)


@dataclass
class Grants:
    """The agent's grants: records, and what their regions counted."""

    records: dict[GrantId, GrantRecord] = field(default_factory=dict)
    consumed_ns: dict[GrantId, float] = field(default_factory=dict)

    def live(self) -> Mapping[GrantId, Any]:
        return {name: SimpleNamespace(record=one) for name, one in self.records.items()}

    def tenant_pids(self) -> set[int]:
        return {_pid(name) for name in self.records}

    def opened(self, grant: GrantId | None) -> Any:
        record = self.records.get(grant) if grant is not None else None
        if grant is None or record is None:
            return None
        spent, charged = int(self.consumed_ns.get(grant, 0)), charged_bytes(record)
        # Each device's part of both is the same: pods of these scenes use their cards alike.
        count = len(record.devices)
        total = SimpleNamespace(consumed_ns=spent // count, charged_bytes=charged // count)
        account = SimpleNamespace(physical_bytes=(0,) * count, total=lambda index: total)
        return SimpleNamespace(account=account)


def charged_bytes(record: GrantRecord) -> int:
    return sum(_used(record, one) for one in record.devices)


def _used(record: GrantRecord, device: DeviceShare) -> int:
    return int(device.memory_bytes * (0.15 + 0.8 * busy(record.name)))


def _active(record: GrantRecord, device: DeviceShare) -> float:
    """Part of the card's time; of a weight, as if it had a tenth."""
    return (device.share_ppm / WHOLE_PPM or 0.1) * busy(record.name)


def _pid(grant: GrantId) -> int:
    return 1000 + zlib.crc32(grant.encode()) % 4_000_000


class Agent:
    """One node's agent. `strangers` are bytes that programs in no grant use, by card."""

    def __init__(self, node: str, cards: Iterable[GpuReading]) -> None:
        self.cards = {one.uuid: one for one in cards}
        self.strangers: dict[GpuUuid, int] = {}
        self.xids: list[tuple[GpuUuid, int]] = []
        self.gone: set[GpuUuid] = set()
        """Cards that no longer answer."""
        self.gpus = Gpus(SLOTS, 0, policy=load_health(HealthSettings()))
        self.gpus.on_news.append(lambda kind, level, text: None)
        self.grants = Grants()
        grants: Any = self.grants
        self._reader = CapacityReader(QueueSettings(), node, grants, self.gpus, time.monotonic_ns)
        self._swept_ns = time.monotonic_ns()
        self.sweep()

    def hold(self, pods: Iterable[Mapping[str, Any]]) -> None:
        """These pods run now, and no others."""
        records = {}
        for pod in pods:
            grant = GrantId(f"pod-{pod['metadata']['uid']}")
            record = self.grants.records.get(grant) or self._record(grant, pod)
            if record is not None:
                records[grant] = record
        self.grants.records = records

    def _record(self, grant: GrantId, pod: Mapping[str, Any]) -> GrantRecord | None:
        head = pod["metadata"]
        if PLACEMENT in (head.get("annotations") or {}):
            given = [one for each in placement(dict(pod))["containers"].values() for one in each]
            devices = tuple(
                _share(
                    one["uuid"],
                    one["memory_bytes"],
                    WHOLE_PPM if one.get("alone") else one["share_ppm"],
                )
                for one in given
            )
            hard = any(one["share_ppm"] for one in given)
            policy = SharePolicy.HARD if hard else SharePolicy.ELASTIC
            if any(one.get("alone") for one in given):
                policy = SharePolicy.EXCLUSIVE
        else:
            devices = tuple(self._instances(pod))
            policy = SharePolicy.EXCLUSIVE
        if not devices:
            return None
        ref = ContainerRef(head["uid"], "main", (), head["namespace"], head["name"])
        owner, now_s = Process(1, 0, 0, 0), time.time()
        return GrantRecord(grant, head["name"], policy, devices, owner, now_s, "b", container=ref)

    def _instances(self, pod: Mapping[str, Any]) -> Iterable[DeviceShare]:
        """Free instances of the profiles that it asks for, as the kubelet and the device plugin choose them."""
        held = {one.gpu for record in self.grants.records.values() for one in record.devices}
        free = [
            one for each in self.cards.values() for one in each.mig or () if one.uuid not in held
        ]
        for name, count in pod["spec"]["containers"][0]["resources"]["limits"].items():
            fitting = [one for one in free if name == MIG + one.profile]
            for one in fitting[: int(count)]:
                yield _share(one.uuid, int(one.memory_total_bytes or 0), WHOLE_PPM)

    def sweep(self) -> None:
        """Read the cards, as the agent does every second."""
        now_ns = time.monotonic_ns()
        passed_ns, self._swept_ns = now_ns - self._swept_ns, now_ns
        for grant, record in self.grants.records.items():
            spent = sum(_active(record, one) for one in record.devices)
            self.grants.consumed_ns[grant] = (
                self.grants.consumed_ns.get(grant, 0) + passed_ns * spent
            )
        readings = tuple(
            replace(one, error="GPU is lost") if one.uuid in self.gone else self._read(one)
            for one in self.cards.values()
        )
        reading = NodeReading(readings, "580.95.05", "13.580.95.05", tuple(self.xids))
        self.xids = []
        self.gpus.take(reading, now_ns, time.time())

    def _read(self, plain: GpuReading) -> GpuReading:
        places = {one.uuid: (one.gpu_instance, one.compute_instance) for one in plain.mig or ()}
        users = []
        active = 0.0
        for grant, record in self.grants.records.items():
            for one in record.devices:
                if one.gpu == plain.uuid or one.gpu in places:
                    place = places.get(one.gpu, (None, None))
                    users.append(
                        ProcessReading(
                            _pid(grant), Bytes(_used(record, one)), None, None, None, None, *place
                        )
                    )
                    active += _active(record, one)
        if plain.uuid in self.strangers:
            users.append(ProcessReading(77, Bytes(self.strangers[plain.uuid])))
        used = sum(one.memory_bytes or 0 for one in users)
        mig = tuple(
            replace(
                one,
                memory_used_bytes=Bytes(
                    sum(
                        user.memory_bytes or 0
                        for user in users
                        if user.gpu_instance == one.gpu_instance
                    )
                ),
            )
            for one in plain.mig or ()
        )
        return replace(
            plain,
            memory_used_bytes=Bytes(DRIVERS_OWN + used),
            utilization_ratio=None if plain.mig else min(1.0, round(active, 3)),
            processes=tuple(users),
            mig=mig or None,
        )

    def capacity(self) -> Any:
        made = write_capacity(_THEIRS, self._reader.capacity())
        return WIRE.NodeCapacity.FromString(made.SerializeToString())

    def usage(self) -> list[Any]:
        found = [one for one in self._reader.usage(()) if isinstance(one, PodUsage)]
        written = [write_pod_usage(_THEIRS, one) for one in found]
        return [WIRE.PodUsage.FromString(one.SerializeToString()) for one in written]


def _share(uuid: str, memory: int, ppm: int) -> DeviceShare:
    return DeviceShare(GpuUuid(uuid), Bytes(memory), Bytes(MEMORY), Ppm(ppm))
