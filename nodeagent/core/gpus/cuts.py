"""Which instance somebody who asks for a profile gets on a card that is partly used, and what of
the card has to go for it; and what is true of our own instances after any interruption.

Instances of ours that nobody uses stay as they are until their room is wanted: the next one who
asks for that profile has it at once. Those that we did not make are used where they are idle, but
never destroyed. Nothing is moved, and nothing goes that somebody holds.
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
    """Nor ever."""


@dataclass(frozen=True, slots=True)
class Room:
    """What is to be done for one who asks."""

    place: MigPlace
    there: MigInstance | None = None
    """It is there, and free: nothing is to be done."""
    remove: tuple[MigPlace, ...] = ()


def room_for(
    state: MigState,
    ours: Collection[MigPlace],
    held: Mapping[MigPlace, str],
    profile: str,
    spans: Sequence[Span] = (),
) -> Room:
    """`ours`: what we made, and may destroy; `held`: by whom each instance that is not free is
    held; `spans`: where it may be, in this order of preference; empty: wherever it fits best.
    Raises NoRoom."""
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
    """With no more destroyed than has to be. Raises NoRoom."""
    there = [one.place for one in state.instances]
    half = [one.place for one in state.instances if not one.devices]
    if place in half and place in ours:
        there.remove(place)  # it is finished, not made
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
        raise NoRoom(f"{one} was not made by us, and stays")
    return one


@dataclass(frozen=True, slots=True)
class Shortage:
    """What instances side by side take too much of, beside memory."""

    attribute: str
    """Empty: compute slices."""
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
    """`me` of 1g.10gb+me: an engine of which a card has few."""
    return profile.partition("+")[2]


def attributes(profiles: Sequence[MigProfile]) -> dict[str, int]:
    """How many instances with each attribute a card can have."""
    found: dict[str, int] = {}
    for one in profiles:
        if attribute := attribute_of(one.name):
            found[attribute] = max(found.get(attribute, 0), one.most)
    return found


def free_spans(
    profiles: Sequence[MigProfile], taken: Collection[MigPlace], profile: str
) -> list[Span]:
    """Where one more of this profile could be made beside `taken`."""
    return [
        span
        for span in spans_of(profiles).get(profile, ())
        if not any(span.overlaps(one.span) for one in taken)
        and shortage(profiles, [*taken, MigPlace(profile, span)]) is None
    ]


def places_left(profiles: Sequence[MigProfile], taken: Collection[MigPlace]) -> int:
    """To all profiles together: what is to stay large so that large ones stay possible."""
    return sum(len(free_spans(profiles, taken, one.name)) for one in profiles)


# --- what is true of our instances ------------------------------------------------------------


def settled(rows: Iterable[Cut], state: MigState) -> tuple[list[Cut], list[Cut]]:
    """What the ledger should say of a card that was read just now: rows to write, rows to drop.
    The card is right, whatever we meant to do; nothing is said of other cards, or of one that
    cannot be read."""
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
