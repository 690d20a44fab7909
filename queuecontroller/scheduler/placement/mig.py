"""Places of MIG instances on a GPU.

A GPU's memory consists of slices (8 on A100 and H100 class cards, 4 on A30), and an instance of a
profile takes a run of them that may begin only at certain places; instances never overlap. The
places of each profile are NVML's possible placements; the tables are those of NVIDIA's MIG user
guide, for reports that name a profile without its placements.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

RESOURCE: Final = "nvidia.com/mig-"
"""Prefix of a profile in a resource name; a `+` in the profile is written as a dot (`1g.10gb+me` is
`nvidia.com/mig-1g.10gb.me`), as in NVIDIA's device plugin."""
_PROFILE: Final = re.compile(r"(\d+)g\.(\d+)gb(?:\+[\w.]*)?")
_MAX_STEPS: Final = 2_000
"""Limit of one search for places on a node; far more than a pod of one profile needs."""


class Span(NamedTuple):
    """A run of memory slices."""

    start: int
    size: int

    def overlaps(self, other: Span) -> bool:
        return self.start < other.start + other.size and other.start < self.start + self.size


_SEVEN: Final[Mapping[int, tuple[Span, ...]]] = {
    1: tuple(Span(at, 1) for at in range(7)),
    2: tuple(Span(at, 2) for at in (0, 2, 4)),
    3: tuple(Span(at, 4) for at in (0, 4)),
    4: (Span(0, 4),),
    7: (Span(0, 8),),
}
"""Places by compute slices of the profile."""
_FOUR: Final[Mapping[int, tuple[Span, ...]]] = {
    1: tuple(Span(at, 1) for at in range(4)),
    2: tuple(Span(at, 2) for at in (0, 2)),
    4: (Span(0, 4),),
}


def profile_of(resource: str) -> str | None:
    """The profile that a resource name requests; None if it is not a MIG resource."""
    if not resource.startswith(RESOURCE):
        return None
    compute, _, rest = resource.removeprefix(RESOURCE).partition(".")
    memory, _, attributes = rest.partition(".")
    return f"{compute}.{memory}" + (f"+{attributes}" if attributes else "")


def resource_of(profile: str) -> str:
    return RESOURCE + profile.replace("+", ".")


def compute_slices(profile: str) -> int:
    """Compute slices, out of seven or four; 0 for an unknown name."""
    found = _PROFILE.fullmatch(profile)
    return int(found[1]) if found else 0


def known_spans(profile: str, others: Iterable[str]) -> tuple[Span, ...]:
    """Places of the profile on a card that offers it and `others`; empty for an unknown name."""
    parsed = {name: _PROFILE.fullmatch(name) for name in (profile, *others)}
    mine = parsed[profile]
    if mine is None:
        return ()
    slices = {name: int(found[1]) for name, found in parsed.items() if found}
    sizes = {name: int(found[2]) for name, found in parsed.items() if found}
    table = _SEVEN if {3, 7}.intersection(slices.values()) else _FOUR
    compute = slices[profile]
    least = min((size for name, size in sizes.items() if slices[name] == compute), default=0)
    if table is _SEVEN and compute == 1 and sizes[profile] > 3 * least // 2:
        return tuple(Span(at, 2) for at in (0, 2, 4, 6))  # 1g with twice the memory, or nearly
    return table.get(compute, ())


def free_spans(spans: Sequence[Span], taken: Sequence[Span]) -> list[Span]:
    return [span for span in spans if not any(span.overlaps(other) for other in taken)]


def most(spans: Sequence[Span], taken: Sequence[Span]) -> int:
    """Maximum number of instances of one profile that still fit. Always taking the place that ends
    first is optimal for intervals."""
    count, end = 0, -1
    for span in sorted(free_spans(spans, taken), key=lambda one: (one.start + one.size, one.start)):
        if span.start >= end:
            count, end = count + 1, span.start + span.size
    return count


def best_first(
    spans: Sequence[Span], taken: Sequence[Span], profiles: Iterable[Sequence[Span]]
) -> list[Span]:
    """The free places, first those that leave most places to all profiles, so that large profiles
    stay possible; equal ones from the last to the first."""
    every = list(profiles)

    def left(span: Span) -> int:
        after = [*taken, span]
        return sum(len(free_spans(one, after)) for one in every)

    free = free_spans(spans, taken)
    return sorted(free, key=lambda span: (left(span), span.start), reverse=True)


class Card(NamedTuple):
    """A GPU in MIG mode as the search represents it."""

    profiles: Mapping[str, Sequence[Span]]
    taken: Sequence[Span]


def arrange(cards: Sequence[Card], wanted: Sequence[str]) -> list[tuple[int, Span]] | None:
    """A card and a place for each requested profile, the first cards first; None if they do not all
    fit. Large profiles are placed before small ones, and a placement is undone where it leaves no
    place for a later one; the search is given up after `_MAX_STEPS`, which only a pod with a
    mixture of many profiles reaches."""
    sizes = {
        name: max((s.size for card in cards for s in card.profiles.get(name, ())), default=0)
        for name in wanted
    }
    order = sorted(range(len(wanted)), key=lambda at: (-sizes[wanted[at]], wanted[at]))
    taken = [list(card.taken) for card in cards]
    found: dict[int, tuple[int, Span]] = {}
    steps = 0

    def places(name: str) -> Iterator[tuple[int, Span]]:
        for at, card in enumerate(cards):
            spans = card.profiles.get(name, ())
            for span in best_first(spans, taken[at], card.profiles.values()):
                yield at, span

    def place_from(position: int) -> bool:
        nonlocal steps
        if position == len(order):
            return True
        for at, span in places(wanted[order[position]]):
            steps += 1
            if steps > _MAX_STEPS:
                return False
            taken[at].append(span)
            found[order[position]] = (at, span)
            if place_from(position + 1):
                return True
            taken[at].pop()
        return False

    return [found[at] for at in range(len(wanted))] if place_from(0) else None
