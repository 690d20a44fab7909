"""What a node counts for Kubernetes' own scheduler: sums over its GPUs.

The scheduler knows a node's extended resources as one number each, so a pod that asks for
`gpumem` and `gpucores` fits when the sums have room. What a sum cannot know: that the room is in
pieces (two cards with 20 GiB each are no 40 GiB), that a pod with two GPUs asks for the amount on
each, and that a percentage and an amount are the same memory. The node knows, and says so when
the container starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from nodeagent.core.grants.placement import GpuCapacity
from nodeagent.core.kubelet.offers import Offer
from nodeagent.core.kubelet.pod_limits import ResourceNames
from nodeagent.units import MIB

WHOLE_PERCENT: Final = 100
ANNOTATION: Final = "sluice.dev/counted"
"""On the Node: the names of what we count there, to be taken away again."""


def sums(
    offered: Iterable[Offer], capacities: Mapping[str, GpuCapacity], names: ResourceNames
) -> dict[str, int]:
    """By resource. A sick card counts like a healthy one: its slots are gone already, and a sum
    that falls below what runs there would say nothing more."""
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
    """What has to change in a node's capacity; empty: nothing. `counted` are the names that were
    ours before: those that are not any more go."""
    changes: dict[str, str | None] = {
        name: str(amount) for name, amount in wanted.items() if capacity.get(name) != str(amount)
    }
    changes |= {name: None for name in counted if name not in wanted and name in capacity}
    return changes
