"""Capacity that nodes report for the queue, in the resource names of quotas.

Shares of a GPU are counted as HAMi does: `nvidia.com/gpu` in slots, `gpumem` in MiB, `gpucores` in
percent; a `total-` before the last two is the same, for Configurations that multiply requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from queuecontroller.scheduler.model.objects import ResourceGroup, ResourceQuota
from queuecontroller.scheduler.placement.capacity import TAKES_WORK, GpuCapacity, NodeCapacity

MIB: Final = 1 << 20
PPM_PER_PERCENT: Final = 10_000


def reported(nodes: Iterable[NodeCapacity], labels: Mapping[str, str], resource: str) -> int:
    """Sum over the nodes with these labels: capacity less use outside the queue, in the scheduler's
    integers."""
    total = 0
    for node in nodes:
        if node.unschedulable or any(node.labels.get(k) != v for k, v in labels.items()):
            continue
        short = resource.removeprefix("nvidia.com/").removeprefix("total-")
        if resource.startswith("nvidia.com/") and short in ("gpu", "gpumem", "gpucores"):
            total += sum(_of_gpu(gpu, short) for gpu in node.gpus if gpu.health in TAKES_WORK)
        else:
            total += node.other.get(resource, 0)
    return total


def followed(
    group: ResourceGroup, nodes: Sequence[NodeCapacity], labels: Mapping[str, Mapping[str, str]]
) -> ResourceGroup:
    """The group with every `nominalQuota: auto` set to what these nodes report; `labels` are those
    of the flavors."""

    def now(quota: ResourceQuota, flavor: str) -> ResourceQuota:
        if not quota.auto:
            return quota
        return replace(quota, nominal=reported(nodes, labels.get(flavor, {}), quota.resource))

    return replace(
        group,
        flavors=tuple(
            replace(one, resources=tuple(now(quota, one.flavor) for quota in one.resources))
            for one in group.flavors
        ),
    )


def _of_gpu(gpu: GpuCapacity, what: str) -> int:
    if what == "gpu":
        return max(0, gpu.slots - gpu.outside_slots)
    if what == "gpumem":
        return max(0, gpu.memory_bytes - gpu.outside_memory_bytes) // MIB
    return max(0, gpu.share_ppm - gpu.outside_share_ppm) // PPM_PER_PERCENT
