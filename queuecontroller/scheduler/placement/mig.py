"""Where MIG instances can go on a GPU.

A GPU's memory comes in slices (8 on A100 and H100 class cards, 4 on A30), and an instance of a
profile takes a run of them that may begin only at certain places; instances never overlap. Where
each profile may begin is what NVML's possible placements say; the tables are those of NVIDIA's MIG
user guide, for reports that name a profile without its placements.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

RESOURCE: Final = "nvidia.com/mig-"
"""What comes before a profile in a resource name; there a `+` is a dot (`1g.10gb+me` is
`nvidia.com/mig-1g.10gb.me`), as NVIDIA's device plugin has it."""
_PROFILE: Final = re.compile(r"(\d+)g\.(\d+)gb(?:\+[\w.]*)?")
_MOST_STEPS: Final = 2_000
"""Of one search for places on a node; far more than a pod of one profile needs."""


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
"""By compute slices of the profile."""
_FOUR: Final[Mapping[int, tuple[Span, ...]]] = {
    1: tuple(Span(at, 1) for at in range(4)),
    2: tuple(Span(at, 2) for at in (0, 2)),
    4: (Span(0, 4),),
}


def profile_of(resource: str) -> str | None:
    """The profile a resource name asks for; None for one that is no MIG resource."""
    if not resource.startswith(RESOURCE):
        return None
    compute, _, rest = resource.removeprefix(RESOURCE).partition(".")
    memory, _, attributes = rest.partition(".")
    return f"{compute}.{memory}" + (f"+{attributes}" if attributes else "")


def resource_of(profile: str) -> str:
    return RESOURCE + profile.replace("+", ".")


def compute_slices(profile: str) -> int:
    """Of seven, or of four; 0 for an unknown name."""
    found = _PROFILE.fullmatch(profile)
    return int(found[1]) if found else 0


def known_spans(profile: str, others: Iterable[str]) -> tuple[Span, ...]:
    """Where the profile may be on a card that offers it and `others`; empty for an unknown name."""
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
    """How many instances of one profile still fit: from the front, the earliest end first, which
    is the most for spans of one size."""
    count, end = 0, -1
    for span in sorted(free_spans(spans, taken), key=lambda one: (one.start + one.size, one.start)):
        if span.start >= end:
            count, end = count + 1, span.start + span.size
    return count


def best_first(
    spans: Sequence[Span], taken: Sequence[Span], profiles: Iterable[Sequence[Span]]
) -> list[Span]:
    """The places that are free, those first that leave most places to all profiles, so that large
    ones stay possible; of equal ones the last."""
    every = list(profiles)

    def left(span: Span) -> int:
        after = [*taken, span]
        return sum(len(free_spans(one, after)) for one in every)

    free = free_spans(spans, taken)
    return sorted(free, key=lambda span: (left(span), span.start), reverse=True)


class Card(NamedTuple):
    """A GPU in MIG mode, as a search sees it."""

    profiles: Mapping[str, Sequence[Span]]
    taken: Sequence[Span]


def arrange(cards: Sequence[Card], wanted: Sequence[str]) -> list[tuple[int, Span]] | None:
    """A card and a place for each profile wanted, the first cards first; None where they cannot
    all be. Large ones are set before small ones, and what was set is taken back where it leaves a
    later one nothing; the search is given up after `_MOST_STEPS`, which takes a pod with a mixture
    of many profiles."""
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

    def settle(position: int) -> bool:
        nonlocal steps
        if position == len(order):
            return True
        for at, span in places(wanted[order[position]]):
            steps += 1
            if steps > _MOST_STEPS:
                return False
            taken[at].append(span)
            found[order[position]] = (at, span)
            if settle(position + 1):
                return True
            taken[at].pop()
        return False

    return [found[at] for at in range(len(wanted))] if settle(0) else None
