"""Decides under which resource each GPU is offered, and with how many slots.

Modes share and exclusive offer whole cards under one resource; cards in MIG mode are left to other
plugins. Mode mig offers each instance whole, to one container: with `single` under the same
resource, if all cards have instances of one profile; with `mixed` under `<domain>/mig-<profile>`,
beside whole cards, which are shared. The names are those of NVIDIA's device plugin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from nodeagent.core.grants.placement import GpuCapacity, card_slots
from nodeagent.units import GpuUuid


@dataclass(frozen=True, slots=True)
class OfferRules:
    resource: str
    slots_per_gpu: int
    """Slots of a card without an entry in `card_slots`."""
    mig_strategy: str = "none"
    """none, single or mixed; none unless the node's mode is mig."""
    exclude_uuids: frozenset[str] = frozenset()
    """UUIDs of GPUs and MIG instances that are not offered."""
    exclude_indexes: frozenset[int] = frozenset()
    """NVML indexes of cards that are not offered."""
    card_slots: Mapping[str, int] = field(default_factory=dict)
    """Slots by UUID or NVML index."""


class Offer(NamedTuple):
    """One GPU as it is reported to the kubelet."""

    gpu: GpuUuid
    healthy: bool
    numa_node: int | None
    slots: int
    first: int = 0
    """Number of its first slot."""


class Offers(NamedTuple):
    by_resource: dict[str, list[GpuCapacity]]
    problem: str = ""
    """The reason why an existing GPU is not offered, with the remedy; empty if all are."""


def offers(units: Sequence[GpuCapacity], rules: OfferRules) -> Offers:
    """Offers by resource. The configured resource is always included, even without any GPU."""
    known = [
        unit
        for unit in units
        if unit.uuid not in rules.exclude_uuids
        and unit.index not in rules.exclude_indexes
        and not unit.on_demand
    ]
    cards = [unit for unit in known if not unit.mig_profile]
    instances = [unit for unit in known if unit.mig_profile]
    if rules.mig_strategy == "single":
        profiles = sorted({unit.mig_profile for unit in instances})
        if len(profiles) > 1 or (profiles and cards):
            there = [*profiles, *(["whole cards"] if cards else [])]
            return Offers(
                {rules.resource: []},
                f"mig_strategy single needs one profile on all cards, there are"
                f" {', '.join(there)}: partition them alike, or use mixed",
            )
        return Offers({rules.resource: instances or cards})
    by_resource: dict[str, list[GpuCapacity]] = {rules.resource: cards}
    if rules.mig_strategy == "mixed":
        for unit in instances:
            by_resource.setdefault(mig_resource(rules.resource, unit.mig_profile), []).append(unit)
    elif instances:
        return Offers(
            by_resource,
            f'{len(instances)} MIG instances are not offered: set kubelet.mode = "mig" with'
            " mig_strategy single or mixed, or leave them to another plugin",
        )
    return Offers(by_resource)


def mig_resource(resource: str, profile: str) -> str:
    """Resource of a MIG profile, such as nvidia.com/mig-1g.10gb. NVIDIA writes `+me` for media
    extensions as `.me`."""
    return f"{resource.partition('/')[0]}/mig-{profile.replace('+', '.')}"


def slots_of(unit: GpuCapacity, rules: OfferRules) -> int:
    if unit.mig_profile:
        return 1
    return card_slots(rules.card_slots, unit.uuid, unit.index, rules.slots_per_gpu)
