"""Placements of MIG instances as devices of the node's ResourceSlices: every placement of every
profile of each card in MIG mode, with the counters that keep the scheduler from allocating two that
overlap.

A card has one counter set: a counter for each memory slice (so that placements are distinct, not
only amounts), one for its compute slices, and one for each kind of engine that is scarce. What is
held by others than claims is subtracted from the card's counters, not removed from its devices, so
a claim keeps its device's name. Source: DRAPartitionableDevices (KEP-4815), on by default from
Kubernetes 1.36.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from nodeagent.core.gpus.cuts import attribute_of, attributes
from nodeagent.core.gpus.mig_geometry import compute_slices, spans_of
from nodeagent.ports.mig import MigPlace, MigProfile
from nodeagent.units import GpuUuid

MAX_SETS: Final = 8
"""Counter sets in one slice (ResourceSliceMaxSharedCounters and related limits, from 1.35 on)."""

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True, order=True)
class Partition:
    """One placement on one card."""

    card: GpuUuid
    place: MigPlace

    @property
    def name(self) -> str:
        """Device name such as gpu-<uuid>-1g-10gb-3: a DNS label of at most 63 characters."""
        profile = re.sub(r"[^a-z0-9]+", "-", self.place.profile.lower())
        return f"{self.card.lower()}-{profile}-{self.place.span.start}"


def partitions(card: GpuUuid, profiles: Sequence[MigProfile]) -> list[Partition]:
    """All placements that the card offers, one instance at a time."""
    return [
        Partition(card, MigPlace(profile, span))
        for profile, spans in spans_of(profiles).items()
        for span in spans
    ]


def counter_set(card: GpuUuid) -> str:
    return card.lower()


def counters(
    card: GpuUuid, profiles: Sequence[MigProfile], others: Collection[MigPlace]
) -> Document:
    """Counter set of a card: all of it, less the placements that others hold."""
    slices = max(
        (span.start + span.size for spans in spans_of(profiles).values() for span in spans),
        default=0,
    )
    has: dict[str, int] = {f"memory-slice-{at}": 1 for at in range(slices)}
    has["compute-slices"] = compute_slices(profiles)
    has |= {_engine(name): count for name, count in attributes(profiles).items()}
    known = {one.name: one for one in profiles}
    for place in others:
        if place.profile in known:
            for name, count in _taken(place, known[place.profile]).items():
                has[name] = max(0, has.get(name, 0) - count)
    return {"name": counter_set(card), "counters": _values(has)}


def consumed(partition: Partition, profile: MigProfile) -> list[Document]:
    return [
        {
            "counterSet": counter_set(partition.card),
            "counters": _values(_taken(partition.place, profile)),
        }
    ]


def _taken(place: MigPlace, profile: MigProfile) -> dict[str, int]:
    span = place.span
    found = {f"memory-slice-{at}": 1 for at in range(span.start, span.start + span.size)}
    found["compute-slices"] = profile.slices
    if attribute := attribute_of(place.profile):
        found[_engine(attribute)] = 1
    return found


def _engine(attribute: str) -> str:
    return "engine-" + re.sub(r"[^a-z0-9]+", "-", attribute.lower())


def _values(amounts: Mapping[str, int]) -> Document:
    return {name: {"value": str(amount)} for name, amount in amounts.items()}
