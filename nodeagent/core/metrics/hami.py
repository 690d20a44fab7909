"""This node's figures under the names of HAMi's monitor and scheduler, for existing dashboards.

Three things differ on purpose: every series of the host has the `node` label, `device_type` is the
same everywhere, and a container that ended has no series. A grant without a container is shown with
its name for the pod, in namespace `sluice`.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from nodeagent.core.gpus.mig import unit_of
from nodeagent.ports.gpus import ProcessReading
from nodeagent.ports.views import DeviceView, GrantView, NodeView
from sluicecommon.hami import metrics as m
from sluicecommon.hami.metrics import Family
from sluicecommon.prometheus import Exposition

OUTSIDE_NAMESPACE: Final = "sluice"


class Filler:
    def __init__(self, samples: Exposition, node: str, legacy: bool) -> None:
        self._samples = samples
        self._node = node
        self._legacy = legacy

    def fill(self, view: NodeView) -> None:
        for gpu in view.gpus:
            labels = (self._node, str(gpu.index), gpu.uuid, gpu.name)
            self._add(m.GPU_MEMORY_LIMIT, labels, gpu.memory_total_bytes)
            self._add(m.GPU_CORE_LIMIT, labels, 100)
            self._add(m.GPU_MEMORY_ALLOCATED, labels, gpu.memory_granted_bytes)
            self._add(m.GPU_CORE_ALLOCATED, labels, _percent(gpu.share_granted_ratio))
            self._add(m.GPU_SHARED, labels, gpu.grants)
            granted, total = gpu.memory_granted_bytes, gpu.memory_total_bytes
            self._add(m.NODE_OVERVIEW, (*labels, "100", str(total >> 20)), granted)
            if total:
                self._add(m.NODE_MEMORY_RATIO, labels[:3], round(granted / total, 4))
        by_pid: dict[tuple[str, int], ProcessReading] = {}
        for reading in view.readings:
            labels = (self._node, str(reading.index), reading.uuid, reading.name)
            self._add(m.HOST_MEMORY, labels, reading.memory_used_bytes)
            self._add(m.HOST_CORES, labels, _percent(reading.utilization_ratio))
            self._add(m.HOST_CONTROLLER, labels, _percent(reading.memory_utilization_ratio))
            by_pid |= {(unit_of(reading, one), one.pid): one for one in reading.processes}
            for mig in reading.mig or ():
                instances = (str(mig.gpu_instance), str(mig.compute_instance))
                where = (self._node, str(reading.index), reading.uuid)
                known = (*where, mig.uuid, mig.profile, *instances)
                self._add(m.MIG_INFO, known, 1)
                if mig.slice_start is not None and mig.slices is not None:
                    self._add(m.NODE_MIG, (*known, str(mig.slice_start), str(mig.slices)), 1)
        seen: Counter[str] = Counter()
        for grant in view.grants:
            self._grant(grant, by_pid, seen)

    def _grant(
        self, grant: GrantView, by_pid: dict[tuple[str, int], ProcessReading], seen: Counter[str]
    ) -> None:
        holder = grant.container
        if holder is not None:
            names = (holder.namespace, holder.pod, holder.container)
            container_index = str(seen[holder.pod_uid])
            seen[holder.pod_uid] += 1
        # The id distinguishes grants with the same name, because a series must not appear twice.
        else:
            name = f"{grant.name}-{grant.grant[:8]}" if grant.name else str(grant.grant)
            names, container_index = (OUTSIDE_NAMESPACE, name, ""), "0"
        for index, device in enumerate(grant.devices):
            labels = (*names, str(index), device.gpu)
            self._add(m.VGPU_USED, labels, device.memory_used_bytes)
            self._add(m.VGPU_LIMIT, labels, device.memory_limit_bytes)
            self._add(m.CONTAINER_MEMORY, labels, device.memory_used_bytes)
            self._add(m.CONTAINER_CORES, labels, _busy(grant, device, by_pid))
            allocated = (names[0], self._node, names[1], container_index, device.gpu)
            self._add(m.VGPU_MEMORY_ALLOCATED, allocated, device.memory_limit_bytes)
            self._add(m.VGPU_CORE_ALLOCATED, allocated, _percent(device.share_ratio))

    def _add(self, family: Family, labels: tuple[str, ...], value: float | None) -> None:
        self._samples.add(family.metric, labels, value)
        if self._legacy and family.legacy is not None:
            self._samples.add(family.legacy, labels, value)


def _busy(
    grant: GrantView, device: DeviceView, by_pid: dict[tuple[str, int], ProcessReading]
) -> float | None:
    """NVML's samples of its registered processes; our own figure if NVML has none."""
    samples = [
        one.sm_ratio
        for pid in grant.pids
        if (one := by_pid.get((device.gpu, pid))) is not None and one.sm_ratio is not None
    ]
    return _percent(sum(samples) if samples else device.used_ratio)


def _percent(value: float | None) -> float | None:
    return None if value is None else round(value * 100, 1)
