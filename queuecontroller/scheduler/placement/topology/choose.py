"""Choice of the domains for the pods of a pod set: pure, integers only, deterministic.

1. Count: how many pods fit into each lowest domain, and into each wider one. Where pods come in
slices, whole slices count in a domain of a slice's level.

2. Find: required: one domain of that level that takes all. Preferred: the same, or else of the next
wider level, and at last several of the widest. Unconstrained: any.

3. Go down: at each level as few domains as possible, the largest first, and for the rest the
smallest that takes it.

A leader and its workers (a group of pod sets) count together: the leader is one pod, in one of the
domains of its workers. Where the pods are not a whole number of slices, the last slice is smaller:
it is counted beside the whole slices like the leader, and its domain is the last one that is given.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import nlargest
from typing import Final

from queuecontroller.scheduler.placement.topology.ground import Amounts, Values

MOST: Final = 1 << 31
"""Limit of the pods of one pod set."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A level and a slice size: pods of one slice are in one domain of the level."""

    level: str
    size: int


@dataclass(frozen=True, slots=True)
class Ask:
    """Request of one pod set, or of one with its leader."""

    name: str
    count: int
    each: Amounts
    required: str | None = None
    preferred: str | None = None
    layers: tuple[Layer, ...] = ()
    """Layers, the widest level first."""
    leader: Amounts | None = None
    """Requests of the leader's pod; None without a leader."""
    leader_name: str = ""
    balanced: bool = False
    """True if preferred placement is spread as evenly as possible over its domains."""
    partial: bool = True
    """True if the last slice may be smaller."""

    @property
    def rest(self) -> int:
        """Number of pods in the last slice, where it is smaller; 0: all slices are whole."""
        return self.count % self.layers[0].size if len(self.layers) == 1 else 0


@dataclass(frozen=True, slots=True)
class Given:
    """Pod counts by lowest domain, in the order of the domains' values; a smaller slice's last."""

    workers: tuple[tuple[Values, int], ...]
    leader: Values | None = None


@dataclass(frozen=True, slots=True)
class Unfit:
    reason: str
    misconfigured: bool = False
    by_topology: bool = True
    """True if the topology has no room; False if there are too few devices."""


Limits = Mapping[Values, tuple[int, int]]
"""Number of pods that the nodes of a lowest domain take one by one, and of those that they take
beside the leader (-1: none takes the leader)."""

_LEADER: Final = 1
_REST: Final = 2
"""Bits for what a domain takes besides whole slices: the leader, and the smaller last slice."""


@dataclass(slots=True, eq=False)
class Domain:
    values: Values
    below: dict[str, Domain] = field(default_factory=dict)
    room: list[int] = field(default_factory=lambda: [0, -1, -1, -1])
    """Number of pods that fit, in whole slices: alone, and beside the leader, the smaller slice, or
    both; -1: these do not fit."""


def choose(
    topology: str,
    levels: tuple[str, ...],
    leaves: Mapping[Values, Amounts],
    ask: Ask,
    limits: Limits | None = None,
) -> Given | Unfit:
    """Choose domains; `leaves` is what is free in each lowest domain that the pods may use, where
    no more fit than `limits`."""
    wrong = _wrong(topology, levels, ask)
    if wrong is not None:
        return wrong
    root = _counted(levels, leaves, ask, limits or {})
    if not ask.count and ask.leader is None:
        return Given(())
    start = _start(levels, root, ask)
    if start is None:
        return Unfit(_too_few(topology, levels, root, ask))
    way = _Descent(ask.rest, levels.index(ask.layers[0].level) + 1 if ask.rest else 0)
    for domain, count, needs in start:
        way.down(domain, count, needs)
    found = sorted((values, count) for values, count in way.counts.items() if count)
    if ask.rest:
        found.sort(key=lambda one: one[0][: way.depth] == way.last)
    return Given(tuple(found), way.leader)


def _wrong(topology: str, levels: tuple[str, ...], ask: Ask) -> Unfit | None:
    named = [ask.required or ask.preferred, *(one.level for one in ask.layers)]
    for level in named:
        if level is not None and level not in levels:
            what = f'topology "{topology}" has no level {level}: it has {", ".join(levels)}'
            return Unfit(f"pod set {ask.name}: {what}", misconfigured=True)
    at = levels.index(named[0]) if named[0] is not None else 0
    size = ask.count
    for one in ask.layers:
        mine = levels.index(one.level)
        if mine < at:
            what = f"a slice's level {one.level} is wider than {levels[at]}: name one within it"
            return Unfit(f"pod set {ask.name}: {what}", misconfigured=True)
        if size % one.size and not (ask.partial and len(ask.layers) == 1):
            what = f"{size} pods are not a whole number of slices of {one.size}"
            return Unfit(f"pod set {ask.name}: {what}", misconfigured=True)
        at, size = mine, one.size
    return None


# -- counting -------------------------------------------------------------------------------------


def pods_in(free: Amounts, each: Amounts) -> int:
    """Number of times `each` fits; a resource that is missing in `free` counts as 0."""
    found = MOST
    for name, amount in each.items():
        if amount > 0:
            found = min(found, max(0, free.get(name, 0)) // amount)
    return found


def pods_beside(free: Amounts, leader: Amounts, each: Amounts) -> int:
    """Number of times `each` fits beside the leader; -1: the leader does not fit."""
    if not pods_in(free, leader):
        return -1
    left = dict(free)
    for name, amount in leader.items():
        left[name] = left.get(name, 0) - amount
    return pods_in(left, each)


def _counted(
    levels: tuple[str, ...], leaves: Mapping[Values, Amounts], ask: Ask, limits: Limits
) -> Domain:
    root = Domain(())
    sizes = {levels.index(one.level): one.size for one in ask.layers}
    for values, free in leaves.items():
        domain = root
        for at in range(len(values)):
            below = domain.below.get(values[at])
            if below is None:
                below = domain.below[values[at]] = Domain(values[: at + 1])
            domain = below
        domain.room[0] = pods_in(free, ask.each)
        if ask.leader is not None:
            domain.room[_LEADER] = pods_beside(free, ask.leader, ask.each)
        if values in limits:
            alone, beside = limits[values]
            domain.room[0] = min(domain.room[0], alone)
            domain.room[_LEADER] = min(domain.room[_LEADER], beside)
    needs = _needs(ask)
    kinds = tuple(one for one in (_LEADER, _REST, _LEADER | _REST) if one & needs == one)
    _sum(root, -1, sizes, ask.rest, kinds)
    return root


def _sum(
    domain: Domain, level: int, sizes: Mapping[int, int], rest: int, kinds: tuple[int, ...]
) -> None:
    """Count the pods that fit into a domain. `kinds` are the combinations of leader and smaller
    slice that it may take besides."""
    room = domain.room
    if domain.below:
        below = list(domain.below.values())
        for one in below:
            _sum(one, level + 1, sizes, rest, kinds)
        room[0] = min(MOST, sum(one.room[0] for one in below))
        for needs in kinds:
            more = [one.room[needs] - one.room[0] for one in below if one.room[needs] >= 0]
            if more:
                room[needs] = room[0] + max(more)
        if len(kinds) > 1 and (apart := _apart(below)) is not None:
            room[_LEADER | _REST] = max(room[_LEADER | _REST], room[0] + apart)
    size = sizes.get(level, 1)
    if size == 1:
        return
    for needs in (0, _LEADER):
        exact = room[needs]
        if exact >= 0:
            room[needs] = exact - exact % size
        if rest and exact >= rest:
            room[needs | _REST] = (exact - rest) // size * size


def _apart(domains: Sequence[Domain]) -> int | None:
    """Change in the number of pods that fit if one domain takes the leader and another the smaller
    slice; None: there are no two."""
    able = [
        nlargest(2, (one for one in domains if one.room[needs] >= 0), key=partial(_change, needs))
        for needs in (_LEADER, _REST)
    ]
    sums = (
        _change(_LEADER, first) + _change(_REST, other)
        for first in able[0]
        for other in able[1]
        if first is not other
    )
    return max(sums, default=None)


def _change(needs: int, domain: Domain) -> int:
    return domain.room[needs] - domain.room[0]


# -- finding --------------------------------------------------------------------------------------

_Taken = list[tuple[Domain, int, int]]
"""Domains, the pods in whole slices of each, and what it takes besides (bits)."""


def _at(root: Domain, depth: int) -> list[Domain]:
    found = [root]
    for _ in range(depth):
        found = [one for domain in found for one in domain.below.values()]
    return found


def _needs(ask: Ask) -> int:
    return (_LEADER if ask.leader is not None else 0) | (_REST if ask.rest else 0)


def _start(levels: tuple[str, ...], root: Domain, ask: Ask) -> _Taken | None:
    """The widest domains that are used; None: the request does not fit."""
    count, needs = ask.count - ask.rest, _needs(ask)
    if ask.required is not None:
        one = _best(_at(root, levels.index(ask.required) + 1), count, needs)
        return [(one, count, needs)] if one is not None else None
    if ask.preferred is not None:
        wanted_level = levels.index(ask.preferred)
        for level in range(wanted_level, -1, -1):
            domains = _at(root, level + 1)
            one = _best(domains, count, needs)
            if one is not None:
                if ask.balanced and level < wanted_level:
                    even = _evenly(_at(one, wanted_level - level), ask)
                    if even is not None:
                        return even
                return [(one, count, needs)]
        if ask.balanced and (even := _evenly(_at(root, wanted_level + 1), ask)) is not None:
            return even
        return _split(_at(root, 1), count, needs)
    if ask.layers:
        return _split(_at(root, 1), count, needs)
    return _fill_up(_at(root, len(levels)), count, needs)


def _best(domains: Iterable[Domain], count: int, needs: int) -> Domain | None:
    """The smallest domain that takes all pods."""
    fitting = [one for one in domains if one.room[needs] >= count]
    return min(fitting, key=lambda one: (one.room[needs], one.values), default=None)


def _split(domains: Sequence[Domain], count: int, needs: int) -> _Taken | None:
    """Split over as few domains as possible: the largest first, and the smallest that takes the
    rest."""
    left = list(domains)
    taken: _Taken = []
    if needs & _LEADER:
        first = _with_leader(left, count, needs)
        if first is None:
            return None
        taken.append(first)
        left.remove(first[0])
        count -= first[1]
        needs &= ~first[2]
    # Sorted from the smallest; among equal ones the first in order comes last.
    left.sort(key=lambda one: one.values, reverse=True)
    left.sort(key=_pods)
    while count > 0:
        at = bisect_left(left, count, key=_pods)
        if at < len(left):
            last = _best(left[at:], count, needs) if needs else None
            if last is not None:
                return [*taken, (last, count, needs)]
            at = bisect_right(left, _pods(left[at]), at, key=_pods) - 1
            taken.append((left.pop(at), count, 0))
            break
        if not left or not _pods(left[-1]):
            return None
        largest = left.pop()
        taken.append((largest, _pods(largest), 0))
        count -= _pods(largest)
    return _with_rest(taken, left) if needs else taken


def _with_rest(taken: _Taken, left: Sequence[Domain]) -> _Taken | None:
    """Add the smaller slice: to a domain that takes it besides its pods, or else to another one."""
    for at, (domain, count, needs) in enumerate(taken):
        if domain.room[needs | _REST] >= count:
            taken[at] = (domain, count, needs | _REST)
            return taken
    other = _best(left, 0, _REST)
    return [*taken, (other, 0, _REST)] if other is not None else None


def _pods(domain: Domain) -> int:
    return domain.room[0]


def _with_leader(
    domains: Sequence[Domain], count: int, needs: int
) -> tuple[Domain, int, int] | None:
    """The leader's domain, its pods and what it takes besides: one that takes all, or else the one
    that takes most while others take the rest."""
    one = _best(domains, count, needs)
    if one is not None:
        return one, count, needs
    able: list[tuple[int, Values, Domain, int]] = []
    total = sum(map(_pods, domains))
    hosts = nlargest(2, (one for one in domains if one.room[_REST] >= 0), partial(_change, _REST))
    for each in domains:
        others = total - _pods(each)
        alone = min(count, each.room[_LEADER])
        beside: int | None = others
        if needs & _REST:
            changes = [_change(_REST, one) for one in hosts if one is not each]
            beside = others + changes[0] if changes else None
        fits = alone >= 0 and beside is not None and alone + beside >= count
        if needs & _REST:
            both = min(count, each.room[needs])
            if both >= 0 and both + others >= count and (both == alone or not fits):
                able.append((both, each.values, each, needs))
                continue
        if fits:
            able.append((alone, each.values, each, _LEADER))
    if not able:
        return None
    here, _, domain, besides = max(able, key=lambda found: found[:2])
    return domain, here, besides


def _fill_up(domains: Sequence[Domain], count: int, needs: int) -> _Taken | None:
    """Unconstrained: fill the fullest domains first, so that large ones stay whole."""
    left = sorted(domains, key=lambda one: (_pods(one), one.values))
    taken: _Taken = []
    if needs:
        first = _with_leader(left, count, needs)
        if first is None:
            return None
        taken.append(first)
        left.remove(first[0])
        count -= first[1]
    for one in left:
        here = min(count, _pods(one))
        if here:
            taken.append((one, here, 0))
            count -= here
    return taken if not count else None


def _evenly(domains: Sequence[Domain], ask: Ask) -> _Taken | None:
    """Spread over as few domains as possible, with as many pods as possible in the emptiest of
    them."""
    size = ask.layers[0].size if ask.layers else 1
    taken = _split(domains, ask.count - ask.rest, _needs(ask))
    if taken is None:
        return None
    room = {id(one): one.room[needs] for one, _, needs in taken}
    counts = {id(one): 0 for one, _, _ in taken}
    left = ask.count - ask.rest
    while left > 0:  # One slice per round: a pod set has at most some thousands.
        open_ = [one for one, _, _ in taken if room[id(one)] - counts[id(one)] >= size]
        if not open_:
            return None
        least = min(counts[id(one)] for one in open_)
        for one in open_:
            if counts[id(one)] == least and left > 0:
                counts[id(one)] += size
                left -= size
    return [(one, counts[id(one)], needs) for one, _, needs in taken]


# -- going down -----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Descent:
    """Distribution of the pods from the widest domains down to the lowest ones."""

    rest: int
    """Number of pods in the smaller slice; 0: there is none."""
    depth: int
    """Depth of the domains that have whole slices, where one is smaller."""
    counts: Counter[Values] = field(default_factory=Counter)
    leader: Values | None = None
    last: Values = ()
    """Domain of the smaller slice."""

    def down(self, domain: Domain, count: int, needs: int) -> None:
        if needs & _REST and len(domain.values) == self.depth:
            # From here on its parts are counted exactly, as those of any other slice.
            self.last = domain.values
            count, needs = count + self.rest, needs & ~_REST
        if not domain.below:
            self.counts[domain.values] += count
            if needs & _LEADER:
                self.leader = domain.values
            return
        # Within a slice's domain its parts are counted exactly, so no part gets what was rounded
        # away above.
        taken = _split(list(domain.below.values()), count, needs)
        assert taken is not None, "a domain holds what its parts do"
        for one, here, besides in taken:
            self.down(one, here, besides)


def _too_few(topology: str, levels: tuple[str, ...], root: Domain, ask: Ask) -> str:
    depth = levels.index(ask.required) + 1 if ask.required is not None else 0
    needs = _needs(ask) & _LEADER
    most = max((one.room[needs] for one in _at(root, depth)), default=0)
    if most < 0:
        return f'topology "{topology}" doesn\'t allow to fit the leader {ask.leader_name}'
    if most == 0:
        return f'topology "{topology}" doesn\'t allow to fit any of {ask.count} pod(s)'
    return f'topology "{topology}" allows to fit only {most} out of {ask.count} pod(s)'
