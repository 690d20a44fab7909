"""Report of the node to the queue: its GPUs, and the usage that the queue did not start."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from nodeagent.core.gpus.health import Health
from nodeagent.core.gpus.links import linked
from nodeagent.core.grants.placement import GpuCapacity, Load, load_of
from nodeagent.ports.ledger import GrantRecord, Spill
from nodeagent.ports.queue import (
    Capacity,
    PodCheckpoint,
    PodGpus,
    PodUsage,
    ReportedGpu,
    Usage,
    Work,
)
from nodeagent.settings.daemon import QueueSettings
from nodeagent.shell.gpus.readings import Gpus
from nodeagent.shell.grants.reading import Grants
from nodeagent.units import NS_PER_S, WHOLE_PPM, Bytes, GpuUuid, GrantId, PodUid, SharePolicy

CORDONED: Final = "cordoned"
"""The queue gives such a GPU no new work, as its own controller calls it in mode kubernetes."""
NONE: Final[Mapping[PodUid, PodCheckpoint]] = MappingProxyType({})
WORKS: Final = (Health.HEALTHY.value, Health.SUSPECT.value)


def pods_of(
    records: Iterable[GrantRecord], answers: Mapping[PodUid, PodCheckpoint] = NONE
) -> tuple[PodGpus, ...]:
    """GPUs of containers' grants, in the order of their pods' UIDs; also pods without a grant that
    were told to be checkpointed."""
    found: dict[str, PodGpus] = {
        uid: PodGpus(uid, one.namespace, one.pod, (), one) for uid, one in answers.items()
    }
    for record in records:
        ref = record.container
        if ref is None:
            continue
        hard = record.policy is SharePolicy.HARD and not record.lent
        shares = tuple(
            (
                one.gpu,
                int(one.memory_bytes),
                int(one.share_ppm) if hard else 0,
                record.policy is SharePolicy.EXCLUSIVE,
            )
            for one in (record.devices if record.spill is not Spill.SPILLED else ())
        )
        before = found.get(ref.pod_uid) or PodGpus(ref.pod_uid, ref.namespace, ref.pod, ())
        found[ref.pod_uid] = replace(before, shares=before.shares + shares)
    return tuple(found[uid] for uid in sorted(found))


def _for_queue(health: Health) -> str:
    """The queue has no state between suspect, which takes work, and unhealthy."""
    return Health.SUSPECT.value if health is Health.DEGRADED else health.value


def _taken_slots(gpu: GpuCapacity, load: Load | None) -> int:
    """All of them if the GPU is held exclusively or by a trusted group."""
    if load is None:
        return 0
    return gpu.slots if load.closed else load.grants


class CapacityReader:
    def __init__(
        self,
        settings: QueueSettings,
        node: str,
        grants: Grants,
        gpus: Gpus,
        monotonic_ns: Callable[[], int],
    ) -> None:
        self._grants = grants
        self._gpus = gpus
        self._monotonic_ns = monotonic_ns
        self._node = node
        self.settings = settings
        """May be replaced while the daemon runs; the next report has it."""
        self.queue_grants: frozenset[GrantId] = frozenset()
        """Grants that the queue itself gave."""
        self.checkpoints: Callable[[], Mapping[PodUid, PodCheckpoint]] = lambda: NONE
        """Answers of pods that are told to be checkpointed."""
        self._last: dict[GrantId, tuple[int, int]] = {}

    def capacity(self) -> Capacity:
        records = [
            held.record
            for grant, held in self._grants.live().items()
            if grant not in self.queue_grants
        ]
        outside = load_of(records)
        foreign = self._foreign_bytes()
        readings = {gpu.uuid: gpu for gpu in self._gpus.units()}
        links = linked(list(readings.values()))
        reported = []
        for gpu in self._gpus.capacities():
            reading, load = readings[gpu.uuid], outside.get(gpu.uuid)
            reported.append(
                ReportedGpu(
                    uuid=gpu.uuid,
                    index=gpu.index,
                    type=gpu.name,
                    memory_bytes=gpu.memory_bytes,
                    slots=gpu.slots,
                    health=self._health(gpu.uuid),
                    numa_node=reading.numa_node,
                    pci_bus_id=reading.pci_bus_id,
                    sm_count=reading.sm_count,
                    outside_memory_bytes=(load.memory_bytes if load else 0)
                    + foreign.get(gpu.uuid, 0),
                    outside_share_ppm=min(WHOLE_PPM, load.hard_ppm) if load else 0,
                    outside_slots=_taken_slots(gpu, load),
                    used_memory_bytes=reading.memory_used_bytes,
                    utilization_ratio=reading.utilization_ratio,
                    nvlinks=links.get(gpu.uuid, {}),
                    mig_profile=gpu.mig_profile,
                    parent=reading.mig_card,
                    mig_start=reading.mig_slice_start or 0,
                    mig_size=reading.mig_slices or 1,
                    health_reason=self._gpus.patient(gpu.uuid).reason,
                )
            )
        settings = self.settings
        labels = {"kubernetes.io/hostname": self._node, **settings.label_map()}
        return Capacity(
            tuple(reported),
            labels,
            settings.taint_list(),
            settings.unschedulable,
            pods_of(records, self.checkpoints()),
        )

    def _health(self, uuid: GpuUuid) -> str:
        """Health as the queue knows it; a cordoned GPU that works has a state of its own there."""
        health = self._gpus.health(uuid)
        if self._gpus.withheld(uuid):
            health = Health.RECOVERING
        told = _for_queue(health)
        return CORDONED if told in WORKS and self._gpus.is_cordoned(uuid) else told

    def _foreign_bytes(self) -> dict[GpuUuid, int]:
        """Memory of processes that are in no grant at all, by NVML."""
        ours = self._grants.tenant_pids()
        return {
            gpu.uuid: sum(
                process.memory_bytes or Bytes(0)
                for process in gpu.processes
                if process.pid not in ours
            )
            for gpu in self._gpus.units()
        }

    def usage(self, works: Iterable[Work]) -> list[Usage | PodUsage]:
        """Measured use by the queue's workloads and by the pods that the kubelet started."""
        seen: dict[GrantId, tuple[int, int]] = {}
        found: list[Usage | PodUsage] = []
        for work in works:
            measured = self._measure(work.grant, seen)
            if measured is not None:
                found.append(Usage(work.decision.workload, work.decision.attempt, *measured))
        pods: dict[str, PodUsage] = {}
        for grant, held in self._grants.live().items():
            ref = held.record.container
            measured = self._measure(grant, seen) if ref is not None else None
            if ref is None or measured is None:
                continue
            memory, ratio = measured
            before = pods.get(ref.pod_uid)
            if before is not None:
                memory += before.memory_bytes
                ratio = _sum_of(ratio, before.used_ratio)
            pods[ref.pod_uid] = PodUsage(ref.pod_uid, memory, ratio)
        self._last = seen
        return [*found, *pods.values()]

    def _measure(
        self, grant: GrantId | None, seen: dict[GrantId, tuple[int, int]]
    ) -> tuple[int, float | None] | None:
        """Memory bytes of a grant, and its GPU time over wall time since the last report; None if
        it cannot be read. Its consumed time is added to `seen`."""
        opened = self._grants.opened(grant)
        if opened is None or grant is None:
            return None
        now_ns = self._monotonic_ns()
        totals = [opened.account.total(i) for i in range(len(opened.account.physical_bytes))]
        consumed_ns = sum(one.consumed_ns for one in totals)
        before = self._last.get(grant)
        ratio = None
        if before is not None and now_ns - before[0] > NS_PER_S // 10:
            ratio = max(0, consumed_ns - before[1]) / (now_ns - before[0])
        seen[grant] = (now_ns, consumed_ns)
        return sum(one.charged_bytes for one in totals), ratio


def _sum_of(one: float | None, other: float | None) -> float | None:
    return one if other is None else other if one is None else one + other
