"""Extended resources that a node advertises for Kubernetes' own scheduler: sums over its GPUs.

The scheduler has one number for each extended resource of a node, so a pod that requests `gpumem`
and `gpucores` fits if the sums have room. A sum cannot express fragmentation (two cards with 20 GiB
each are not 40 GiB), that a pod with two GPUs requests the amount on each, or that a percentage and
an amount are the same memory. The node checks these and reports them when the container starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from nodeagent.core.grants.placement import GpuCapacity
from nodeagent.core.kubelet.offers import Offer
from nodeagent.units import MIB
from sluicecommon.hami.names import ResourceNames

WHOLE_PERCENT: Final = 100
ANNOTATION: Final = "sluice.dev/counted"
"""Annotation on the Node with the names of the resources that we advertise, so that they can be
removed."""


def sums(
    offered: Iterable[Offer], capacities: Mapping[str, GpuCapacity], names: ResourceNames
) -> dict[str, int]:
    """Sums by resource. An unhealthy card counts like a healthy one: its slots are gone already,
    and a sum below what runs there would say nothing more."""
    units = [(one, capacities[one.gpu]) for one in offered if one.gpu in capacities]
    unit_bytes = names.memory_factor * MIB
    return {
        names.memory: sum(int(gpu.memory_bytes // unit_bytes) for _, gpu in units),
        names.memory_percent: WHOLE_PERCENT * len(units),
        names.cores: WHOLE_PERCENT * len(units),
        names.priority: sum(offer.slots for offer, _ in units),  # HAMi's 0 or 1, for each pod
    }


def patch(
    wanted: Mapping[str, int], counted: Iterable[str], capacity: Mapping[str, str]
) -> dict[str, str | None]:
    """Changes to a node's capacity; empty if it is up to date.

    `counted` has the names that we advertised before; those that are no longer wanted are removed.
    """
    changes: dict[str, str | None] = {
        name: str(amount) for name, amount in wanted.items() if capacity.get(name) != str(amount)
    }
    changes |= {name: None for name in counted if name not in wanted and name in capacity}
    return changes
