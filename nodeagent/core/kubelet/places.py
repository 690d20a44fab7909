"""Placements of MIG instances as device ids of the kubelet: one id for each placement of each
profile. An id whose placement overlaps an existing instance is reported as unhealthy.

The kubelet counts each resource alone and knows no placements, so two pods that request different
profiles at one moment may both be admitted where one fits: the second then waits.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from nodeagent.core.gpus.cuts import attribute_of, attributes, free_spans, places_left
from nodeagent.core.gpus.mig_geometry import spans_of
from nodeagent.core.kubelet.offers import Offer
from nodeagent.ports.kubelet import FIRST_PLACE
from nodeagent.ports.mig import MigPlace, MigProfile
from nodeagent.units import GpuUuid


def numbers(profiles: Sequence[MigProfile]) -> dict[int, MigPlace]:
    """All placements of a card by the number in their device ids. The number is derived from the
    profile, so that it stays the same when a driver offers more profiles."""
    engines = {name: at for at, name in enumerate(("", *sorted(attributes(profiles))))}
    known = {one.name: one for one in profiles}
    found: dict[int, MigPlace] = {}
    for name, spans in spans_of(profiles).items():
        for span in spans:
            number = (
                FIRST_PLACE * known[name].slices
                + 100 * (span.size.bit_length() - 1)
                + 10 * engines[attribute_of(name)]
                + span.start
            )
            found.setdefault(number, MigPlace(name, span))
    return found


def place_offers(
    card: GpuUuid,
    numa_node: int | None,
    profiles: Sequence[MigProfile],
    well: bool,
    answered: Collection[MigPlace],
    taken: Collection[MigPlace],
) -> dict[str, list[Offer]]:
    """Offers by profile. `answered` has the placements that the kubelet was given; `taken` has
    those where nothing else can be created now."""
    free = {
        MigPlace(one.name, span)
        for one in profiles
        for span in free_spans(profiles, taken, one.name)
    }
    found: dict[str, list[Offer]] = {}
    for number, place in numbers(profiles).items():
        healthy = well and (place in answered or place in free)
        found.setdefault(place.profile, []).append(Offer(card, healthy, numa_node, 1, number))
    return found


def best_first(
    profiles: Sequence[MigProfile], there: Collection[MigPlace], taken: Collection[MigPlace]
) -> Mapping[MigPlace, int]:
    """Rank of each placement, lowest first: where an unused instance exists, then where most
    placements are left to all profiles; among equal ones the last placement first."""
    order = sorted(
        numbers(profiles).values(),
        key=lambda place: (
            place not in there,
            -places_left(profiles, [*taken, place]),
            -place.span.start,
        ),
    )
    return {place: at for at, place in enumerate(order)}
