"""Choice of the domains for the pods of a pod set: pure, integers only, deterministic.

1. Count: how many pods fit into each lowest domain, and into each wider one. Where pods come in
slices, whole slices count in a domain of a slice's level.

2. Find: required: one domain of that level that takes all. Preferred: the same, or else of the next
wider level, and at last several of the widest. Unconstrained: any.

3. Go down: at each level as few domains as possible, the largest first, and for the rest the
smallest that takes it.

A leader and its workers (a group of pod sets) count together: the leader is one pod, in one of the
domains of its workers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class Given:
    """Pod counts by lowest domain, in the order of the domains' values."""

    workers: tuple[tuple[Values, int], ...]
    leader: Values | None = None


@dataclass(frozen=True, slots=True)
class Unfit:
    reason: str
    misconfigured: bool = False
    by_topology: bool = True
    """True if the topology has no room; False if there are too few devices."""


@dataclass(slots=True, eq=False)
class Domain:
    values: Values
    below: dict[str, Domain] = field(default_factory=dict)
    pods: int = 0
    """Number of pods that fit, in whole slices."""
    with_leader: int | None = None
    """Number of pods that fit beside the leader; None: the leader does not fit."""


def choose(
    topology: str, levels: tuple[str, ...], leaves: Mapping[Values, Amounts], ask: Ask
) -> Given | Unfit:
    """Choose domains; `leaves` is what is free in each lowest domain that the pods may use."""
    wrong = _wrong(topology, levels, ask)
    if wrong is not None:
        return wrong
    root = _counted(levels, leaves, ask)
    if not ask.count and ask.leader is None:
        return Given(())
    start = _start(levels, root, ask)
    if start is None:
        return Unfit(_too_few(topology, levels, root, ask))
    counts: Counter[Values] = Counter()
    leader: list[Values] = []
    for domain, count, has_leader in start:
        _descend(domain, count, has_leader, counts, leader)
    workers = tuple(sorted((values, count) for values, count in counts.items() if count))
    return Given(workers, leader[0] if leader else None)


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
        if size % one.size:
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


def _less(free: Amounts, taken: Amounts) -> dict[str, int]:
    left = dict(free)
    for name, amount in taken.items():
        left[name] = left.get(name, 0) - amount
    return left


def _counted(levels: tuple[str, ...], leaves: Mapping[Values, Amounts], ask: Ask) -> Domain:
    root = Domain(())
    sizes = {levels.index(one.level): one.size for one in ask.layers}
    for values, free in leaves.items():
        domain = root
        for at in range(len(values)):
            domain = domain.below.setdefault(values[at], Domain(values[: at + 1]))
        domain.pods = pods_in(free, ask.each)
        if ask.leader is not None and pods_in(free, ask.leader):
            domain.with_leader = pods_in(_less(free, ask.leader), ask.each)
    _sum(root, -1, sizes)
    return root


def _sum(domain: Domain, level: int, sizes: Mapping[int, int]) -> None:
    if domain.below:
        below = domain.below.values()
        for one in below:
            _sum(one, level + 1, sizes)
        domain.pods = min(MOST, sum(one.pods for one in below))
        led = [
            domain.pods - one.pods + one.with_leader for one in below if one.with_leader is not None
        ]
        domain.with_leader = max(led, default=None)
    size = sizes.get(level, 1)
    domain.pods -= domain.pods % size
    if domain.with_leader is not None:
        domain.with_leader -= domain.with_leader % size


# -- finding --------------------------------------------------------------------------------------

_Taken = list[tuple[Domain, int, bool]]


def _room(domain: Domain, leader: bool) -> int:
    """Number of workers that fit; -1: not even the leader fits."""
    if not leader:
        return domain.pods
    return -1 if domain.with_leader is None else domain.with_leader


def _at(root: Domain, depth: int) -> list[Domain]:
    found = [root]
    for _ in range(depth):
        found = [one for domain in found for one in domain.below.values()]
    return found


def _start(levels: tuple[str, ...], root: Domain, ask: Ask) -> _Taken | None:
    """The widest domains that are used; None: the request does not fit."""
    leader = ask.leader is not None
    if ask.required is not None:
        one = _best(_at(root, levels.index(ask.required) + 1), ask.count, leader)
        return [(one, ask.count, leader)] if one is not None else None
    if ask.preferred is not None:
        wanted_level = levels.index(ask.preferred)
        for level in range(wanted_level, -1, -1):
            domains = _at(root, level + 1)
            one = _best(domains, ask.count, leader)
            if one is not None:
                if ask.balanced and level < wanted_level:
                    even = _evenly(_at(one, wanted_level - level), ask)
                    if even is not None:
                        return even
                return [(one, ask.count, leader)]
        if ask.balanced and (even := _evenly(_at(root, wanted_level + 1), ask)) is not None:
            return even
        return _split(_at(root, 1), ask.count, leader)
    if ask.layers:
        return _split(_at(root, 1), ask.count, leader)
    return _fill_up(_at(root, len(levels)), ask.count, leader)


def _best(domains: Iterable[Domain], count: int, leader: bool) -> Domain | None:
    """The smallest domain that takes all pods."""
    fitting = [one for one in domains if _room(one, leader) >= count]
    return min(fitting, key=lambda one: (_room(one, leader), one.values), default=None)


def _split(domains: Sequence[Domain], count: int, leader: bool) -> _Taken | None:
    """Split over as few domains as possible: the largest first, and the smallest that takes the
    rest."""
    left = list(domains)
    taken: _Taken = []
    if leader:
        first = _with_leader(left, count)
        if first is None:
            return None
        here = min(count, _room(first, True))
        taken.append((first, here, True))
        left.remove(first)
        count -= here
    # Sorted from the smallest; among equal ones the first in order comes last.
    left.sort(key=lambda one: one.values, reverse=True)
    left.sort(key=_pods)
    end = len(left)
    while count > 0:
        at = bisect_left(left, count, 0, end, key=_pods)
        if at < end:
            last = left[bisect_right(left, left[at].pods, at, end, key=_pods) - 1]
            taken.append((last, count, False))
            return taken
        end -= 1
        if end < 0 or not left[end].pods:
            return None
        taken.append((left[end], left[end].pods, False))
        count -= left[end].pods
    return taken


def _pods(domain: Domain) -> int:
    return domain.pods


def _with_leader(domains: Sequence[Domain], count: int) -> Domain | None:
    """The leader's domain: one that takes all pods, or else the one that takes most while others
    take the rest."""
    one = _best(domains, count, True)
    if one is not None:
        return one
    total = sum(each.pods for each in domains)
    able = [
        each
        for each in domains
        if each.with_leader is not None and total - each.pods + each.with_leader >= count
    ]
    return max(able, key=lambda each: (_room(each, True), each.values), default=None)


def _fill_up(domains: Sequence[Domain], count: int, leader: bool) -> _Taken | None:
    """Unconstrained: fill the fullest domains first, so that large ones stay whole."""
    left = sorted(domains, key=lambda one: (one.pods, one.values))
    taken: _Taken = []
    if leader:
        first = _with_leader(left, count)
        if first is None:
            return None
        here = min(count, _room(first, True))
        taken.append((first, here, True))
        left.remove(first)
        count -= here
    for one in left:
        here = min(count, one.pods)
        if here:
            taken.append((one, here, False))
            count -= here
    return taken if not count else None


def _evenly(domains: Sequence[Domain], ask: Ask) -> _Taken | None:
    """Spread over as few domains as possible, with as many pods as possible in the emptiest of
    them."""
    leader, size = ask.leader is not None, ask.layers[0].size if ask.layers else 1
    taken = _split(domains, ask.count, leader)
    if taken is None:
        return None
    room = {id(one): _room(one, led) for one, _, led in taken}
    counts = {id(one): 0 for one, _, _ in taken}
    left = ask.count
    while left > 0:  # One slice per round: a pod set has at most some thousands.
        open_ = [one for one, _, _ in taken if room[id(one)] - counts[id(one)] >= size]
        if not open_:
            return None
        least = min(counts[id(one)] for one in open_)
        for one in open_:
            if counts[id(one)] == least and left > 0:
                counts[id(one)] += size
                left -= size
    return [(one, counts[id(one)], led) for one, _, led in taken]


# -- going down -----------------------------------------------------------------------------------


def _descend(
    domain: Domain, count: int, leader: bool, counts: Counter[Values], led: list[Values]
) -> None:
    if not domain.below:
        counts[domain.values] += count
        if leader:
            led.append(domain.values)
        return
    # Within a slice's domain its parts are counted exactly, so no part gets what was rounded away
    # above.
    taken = _split(list(domain.below.values()), count, leader)
    assert taken is not None, "a domain holds what its parts do"
    for one, here, has_leader in taken:
        _descend(one, here, has_leader, counts, led)


def _too_few(topology: str, levels: tuple[str, ...], root: Domain, ask: Ask) -> str:
    depth = levels.index(ask.required) + 1 if ask.required is not None else 0
    leader = ask.leader is not None
    most = max((_room(one, leader) for one in _at(root, depth)), default=0)
    if most < 0:
        return f'topology "{topology}" doesn\'t allow to fit the leader {ask.leader_name}'
    if most == 0:
        return f'topology "{topology}" doesn\'t allow to fit any of {ask.count} pod(s)'
    return f'topology "{topology}" allows to fit only {most} out of {ask.count} pod(s)'
