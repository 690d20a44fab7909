"""Checks whether a card can be partitioned as requested, as a whole, before anything changes.

A card's memory comes in slices (8 on A100 and H100 class cards, 4 on A30), its compute in 7 or 4.
An instance takes a run of memory slices that may begin only where its profile allows, and instances
never overlap. NVML reports the possible placements while MIG is on. Source: NVIDIA's MIG user
guide, "Partitioning" and the tables of profiles.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from nodeagent.ports.mig import MigInstance, MigPlace, MigProfile, MigState, Span

NONE: Final = "none"
MAX_INSTANCES: Final = 64
"""Instances in one request; no card takes more than 7."""
_TERM: Final = re.compile(r"(?:(\d{1,2})x)?(\d+g\.\d+gb(?:\+[a-z.]+)?)")


class GeometryError(Exception):
    """A card cannot be partitioned as requested; the text has the reason and what the card
    offers."""


def parse_geometry(text: str) -> tuple[str, ...]:
    """Parse `1g.10gb,1g.10gb,3g.40gb`, `7x1g.10gb` or `none`. Raises GeometryError."""
    if text.strip().lower() == NONE:
        return ()
    wanted: list[str] = []
    for part in text.split(","):
        found = _TERM.fullmatch(part.strip().lower())
        if found is None:
            raise GeometryError(
                f"{part.strip()!r} is not a profile: write for example 1g.10gb,1g.10gb,3g.40gb,"
                f" 7x1g.10gb, or {NONE}; `sluice mig show` lists what a GPU offers"
            )
        count = int(found[1] or 1)
        wanted += [found[2]] * count
        if count == 0 or len(wanted) > MAX_INSTANCES:
            raise GeometryError(f"{part.strip()!r}: 1 to {MAX_INSTANCES} instances in total")
    return tuple(wanted)


def in_words(wanted: Sequence[str]) -> str:
    """Inverse of `parse_geometry`, in its shortest form."""
    counts = Counter(wanted)
    return ",".join(f"{n}x{name}" if n > 1 else name for name, n in counts.items()) or NONE


def assumed_spans(profile: MigProfile, profiles: Sequence[MigProfile]) -> tuple[Span, ...]:
    """Placements of a profile on a card whose driver does not report them: multiples of its size,
    with all its compute slices on the card. A slice is the size of the smallest profile."""
    slice_bytes = min(one.memory_bytes for one in profiles)
    # An instance's memory is slightly more or less than a multiple of the smallest one's.
    size = max(s for s in (1, 2, 4, 8) if s * slice_bytes <= profile.memory_bytes * 1.1)
    compute = compute_slices(profiles)
    return tuple(
        Span(at, size) for at in range(0, compute + 1, size) if at + profile.slices <= compute
    )


def compute_slices(profiles: Sequence[MigProfile]) -> int:
    """Compute slices of the card: as many as its largest profile has."""
    return max((one.slices for one in profiles), default=0)


def spans_of(profiles: Sequence[MigProfile]) -> dict[str, tuple[Span, ...]]:
    return {one.name: one.spans or assumed_spans(one, profiles) for one in profiles}


def plan(profiles: Sequence[MigProfile], wanted: Sequence[str]) -> tuple[MigPlace, ...]:
    """A placement for each wanted instance on the empty card, in the order of creation. Raises
    GeometryError."""
    known = {one.name: one for one in profiles}
    offered = ", ".join(known) or "none"
    unknown = [name for name in dict.fromkeys(wanted) if name not in known]
    if unknown:
        raise GeometryError(f"no profile {', '.join(unknown)} on this GPU, it offers: {offered}")
    compute = compute_slices(profiles)
    needed = sum(known[name].slices for name in wanted)
    for name, count in Counter(wanted).items():
        if count > known[name].most:
            raise GeometryError(f"{count} of {name}: this GPU takes {known[name].most} at most")
    if needed > compute:
        raise GeometryError(
            f"{in_words(wanted)} needs {needed} compute slices, this GPU has {compute}"
        )
    spans = spans_of(profiles)
    # Large profiles have the fewest placements.
    order = sorted(wanted, key=lambda name: (-spans[name][0].size, -known[name].slices, name))
    found = _settle(order, spans, [])
    if found is None:
        has = max(span.start + span.size for every in spans.values() for span in every)
        takes = sum(spans[name][0].size for name in wanted)
        raise GeometryError(
            f"{in_words(wanted)} does not fit: together they take {takes} of {has}"
            f" memory slices, and may begin only at {_starts(wanted, spans)}"
        )
    return tuple(MigPlace(name, span) for name, span in zip(order, found, strict=True))


def _settle(
    order: Sequence[str], spans: Mapping[str, Sequence[Span]], taken: list[Span]
) -> list[Span] | None:
    """Find placements by backtracking, at most 7 deep, because a card has no more compute slices.
    The last placements are tried first: 4g and larger profiles fit only at the first."""
    if len(taken) == len(order):
        return taken
    name = order[len(taken)]
    for span in reversed(spans[name]):
        if any(span.overlaps(other) for other in taken):
            continue
        # Equal profiles are placed in order; any other order is the same partition.
        if taken and order[len(taken) - 1] == name and span.start > taken[-1].start:
            continue
        found = _settle(order, spans, [*taken, span])
        if found is not None:
            return found
    return None


def _starts(wanted: Sequence[str], spans: Mapping[str, Sequence[Span]]) -> str:
    return "; ".join(
        f"{', '.join(str(span.start) for span in spans[name])} ({name}, {spans[name][0].size} wide)"
        for name in dict.fromkeys(wanted)
    )


def is_cut_so(state: MigState, wanted: Sequence[str] | None) -> bool:
    """True if nothing has to be done: the mode is as requested, and so are the instances, all of
    them usable. `wanted` None means MIG off."""
    if wanted is None:
        return not state.enabled and not state.pending
    return (
        state.enabled
        and state.pending
        and Counter(one.profile for one in state.instances) == Counter(wanted)
        and all(len(one.devices) == 1 for one in state.instances)
    )


def geometry(state: MigState) -> str:
    """Describe a card's partition for people."""
    if not state.enabled:
        return "MIG off" + (", on after the next reset" if state.pending else "")
    instances = ", ".join(_instance(one) for one in state.instances) or "no instance"
    return f"MIG on, {instances}" + ("" if state.pending else ", off after the next reset")


def _instance(one: MigInstance) -> str:
    return f"{one.profile} at {one.span}" + ("" if one.devices else " (without compute instance)")
