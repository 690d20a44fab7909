"""Chooses the MIG instance for a request on a card that is partly used, and the idle instances that
have to be destroyed for it; and reconciles the rows of our own instances after an interruption.

An idle instance of ours stays until its space is needed, so the next request for its profile is
served at once. Instances that we did not create are used while they are idle, but never destroyed.
No instance is moved, and none that is in use is destroyed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from nodeagent.core.gpus.mig_geometry import compute_slices, spans_of
from nodeagent.ports.mig import Cut, CutState, MigInstance, MigPlace, MigProfile, MigState, Span
from nodeagent.units import GpuUuid


class NoRoom(Exception):
    """The card cannot give such an instance now; the text says why."""


class NoSuchProfile(NoRoom):
    """The card can never give such an instance."""


@dataclass(frozen=True, slots=True)
class Room:
    """Plan for one request."""

    place: MigPlace
    there: MigInstance | None = None
    """An existing free instance that serves the request; nothing has to be created."""
    remove: tuple[MigPlace, ...] = ()


def room_for(
    state: MigState,
    ours: Collection[MigPlace],
    held: Mapping[MigPlace, str],
    profile: str,
    spans: Sequence[Span] = (),
) -> Room:
    """Find the instance for a request.

    `ours` has the instances that we created and may destroy; `held` maps each instance that is in
    use to its user; `spans` lists the allowed placements in order of preference (empty: the best
    fit). Raises NoRoom.
    """
    known = {one.name: one for one in state.profiles}
    if not state.enabled:
        raise NoSuchProfile("it is not in MIG mode: `sluice mig set --gpu INDEX none`")
    if profile not in known:
        raise NoSuchProfile(
            f"no profile {profile} on this GPU, it offers: {', '.join(known) or 'none'}"
        )
    possible = spans_of(state.profiles)
    wanted = [one for one in (spans or possible[profile]) if one in possible[profile]]
    if not wanted:
        raise NoSuchProfile(f"{profile} cannot be at {', '.join(map(str, spans))} on this GPU")
    for span in wanted:
        for one in state.instances:
            if one.place == MigPlace(profile, span) and one.devices and one.place not in held:
                return Room(one.place, one)
    found: list[tuple[int, int, int, Room]] = []
    reasons: list[str] = []
    for order, span in enumerate(wanted):
        try:
            room = _cleared(state, known, ours, held, MigPlace(profile, span))
        except NoRoom as error:
            reasons.append(str(error))
            continue
        rest = [one for one in state.instances if one.place not in room.remove]
        taken = [*(one.place for one in rest), room.place]
        left = 0 if spans else -places_left(state.profiles, taken)
        found.append((len(room.remove), left, order if spans else -span.start, room))
    if not found:
        raise NoRoom(f"no room for {profile}: {'; '.join(dict.fromkeys(reasons))}")
    return min(found, key=lambda one: one[:3])[3]


def _cleared(
    state: MigState,
    known: Mapping[str, MigProfile],
    ours: Collection[MigPlace],
    held: Mapping[MigPlace, str],
    place: MigPlace,
) -> Room:
    """Clear a placement and destroy no more than necessary. Raises NoRoom."""
    there = [one.place for one in state.instances]
    half = [one.place for one in state.instances if not one.devices]
    if place in half and place in ours:
        there.remove(place)  # A half-made instance of ours is completed, not created.
    remove: list[MigPlace] = []
    for one in there:
        if one.span.overlaps(place.span):
            remove.append(_free(one, ours, held))
    kept = [one for one in there if one not in remove]
    idle = [one for one in kept if one in ours and one not in held]
    while (short := shortage(state.profiles, [*kept, place])) is not None:
        helpful = [one for one in idle if short.eased_by(known[one.profile])]
        if not helpful:
            raise NoRoom(str(short))
        one = min(helpful, key=lambda one: (known[one.profile].slices, one.span))
        for places in (idle, kept):
            places.remove(one)
        remove.append(one)
    return Room(place, None, tuple(remove))


def _free(one: MigPlace, ours: Collection[MigPlace], held: Mapping[MigPlace, str]) -> MigPlace:
    if one in held:
        raise NoRoom(f"{one} is held by {held[one]}")
    if one not in ours:
        raise NoRoom(f"{one} was not created by sluice, so it is not destroyed")
    return one


@dataclass(frozen=True, slots=True)
class Shortage:
    """A resource beside memory of which the instances need more than the card has."""

    attribute: str
    """The scarce engine; empty for compute slices."""
    wanted: int
    has: int

    def eased_by(self, profile: MigProfile) -> bool:
        return not self.attribute or attribute_of(profile.name) == self.attribute

    def __str__(self) -> str:
        what = f"instances with {self.attribute}" if self.attribute else "compute slices"
        return f"{self.wanted} {what} would be in use, this GPU has {self.has}"


def shortage(profiles: Sequence[MigProfile], places: Iterable[MigPlace]) -> Shortage | None:
    known = {one.name: one for one in profiles}
    names = [one.profile for one in places if one.profile in known]
    compute, wanted = compute_slices(profiles), sum(known[name].slices for name in names)
    if wanted > compute:
        return Shortage("", wanted, compute)
    for attribute, has in attributes(profiles).items():
        wanted = sum(attribute_of(name) == attribute for name in names)
        if wanted > has:
            return Shortage(attribute, wanted, has)
    return None


def attribute_of(profile: str) -> str:
    """The engine that a profile includes beside compute and memory: `me` of 1g.10gb+me; empty if
    none."""
    return profile.partition("+")[2]


def attributes(profiles: Sequence[MigProfile]) -> dict[str, int]:
    """Number of instances with each engine that the card can have."""
    found: dict[str, int] = {}
    for one in profiles:
        if attribute := attribute_of(one.name):
            found[attribute] = max(found.get(attribute, 0), one.most)
    return found


def free_spans(
    profiles: Sequence[MigProfile], taken: Collection[MigPlace], profile: str
) -> list[Span]:
    """Placements at which one more instance of this profile fits beside `taken`."""
    return [
        span
        for span in spans_of(profiles).get(profile, ())
        if not any(span.overlaps(one.span) for one in taken)
        and shortage(profiles, [*taken, MigPlace(profile, span)]) is None
    ]


def places_left(profiles: Sequence[MigProfile], taken: Collection[MigPlace]) -> int:
    """Number of placements left to all profiles together; keeping it high keeps large profiles
    possible."""
    return sum(len(free_spans(profiles, taken, one.name)) for one in profiles)


# --- reconciling our instances ----------------------------------------------------------------


def settled(rows: Iterable[Cut], state: MigState) -> tuple[list[Cut], list[Cut]]:
    """Reconcile the ledger's rows with a card that was just read: rows to write, rows to drop.

    The card's state wins over what we meant to do. Rows of other cards stay, and so do all rows if
    the card cannot be read.
    """
    if state.error:
        return [], []
    there = {one.place: one for one in state.instances}
    put: list[Cut] = []
    drop: list[Cut] = []
    for row in rows:
        if row.card != state.gpu:
            continue
        instance = there.get(row.place)
        if instance is None:
            drop.append(row)
            continue
        uuid: GpuUuid | None = instance.devices[0].uuid if len(instance.devices) == 1 else None
        now = replace(row, state=CutState.MADE, uuid=uuid)
        if now != row:
            put.append(now)
    return put, drop
