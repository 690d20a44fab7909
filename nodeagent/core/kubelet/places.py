"""Places for MIG instances as device ids of the kubelet: one id for each place of each profile, of
which those that overlap something taken are told to be unhealthy.

The kubelet counts resources one by one and knows nothing of places, so two pods that ask for
different profiles at one moment may both be admitted where one has room: the second then waits.
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
    """All places of a card by the number that their device ids end in: told by what the profile
    is, so that it stays when a driver offers more of them."""
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
    """By profile. `answered`: places that the kubelet was given; `taken`: where nothing else can
    be made now."""
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
    """The order in which places are to be taken: where an instance is that nobody uses, else where
    most places are left to all profiles; of equal ones the last."""
    order = sorted(
        numbers(profiles).values(),
        key=lambda place: (
            place not in there,
            -places_left(profiles, [*taken, place]),
            -place.span.start,
        ),
    )
    return {place: at for at, place in enumerate(order)}
