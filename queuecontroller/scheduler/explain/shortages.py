"""What a workload lacks: per pod set and resource group the flavor that is nearest, what is missing
of it, and why the other flavors are further away.

What is missing is given to a scratch tree and the engine is asked again, until it says that the
workload fits: so what is found here is enough, by the engine's own word.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from queuecontroller.scheduler.explain.limits import Limit, limits
from queuecontroller.scheduler.explain.scratch import Scratch
from queuecontroller.scheduler.flavors import grouped
from queuecontroller.scheduler.model.assignment import Assignment, Mode
from queuecontroller.scheduler.model.flavor_resources import Fr
from queuecontroller.scheduler.model.settings import EngineSettings
from queuecontroller.scheduler.model.workload_info import WorkloadInfo
from queuecontroller.scheduler.quota.cluster_queue import (
    ClusterQueueState,
    FlavorChoice,
    GroupChoices,
)
from queuecontroller.scheduler.quota.tree import QuotaNode


@dataclass(frozen=True, slots=True)
class Shortage:
    """One resource of one flavor that is not there. Amounts in the engine's integers."""

    flavor: str
    resource: str
    fr: Fr
    asked: int
    """With what the pod sets before take of it."""
    available: int
    """Now, with what may be borrowed; negative where quotas shrank below what is in use."""
    potential: int
    """If nobody else used anything."""
    limits: tuple[Limit, ...]

    @property
    def missing(self) -> int:
        return self.asked - self.available

    @property
    def hopeless(self) -> bool:
        return self.asked > self.potential


@dataclass(frozen=True, slots=True)
class Candidate:
    """One flavor as one pod set finds it."""

    pod_set: str
    flavor: str
    refusal: str | None = None
    """Why its pods cannot run there however much quota there is."""
    shortages: tuple[Shortage, ...] = ()

    @property
    def distance(self) -> tuple[bool, bool, int]:
        """Never before later, then by how much of what is asked is missing."""
        worst = max((s.missing * 1_000_000 // max(1, s.asked) for s in self.shortages), default=0)
        return self.refusal is not None, any(s.hopeless for s in self.shortages), worst


@dataclass(slots=True)
class Needs:
    """Everything between a workload and its quota."""

    counts: Sequence[int] | None = None
    """The pod counts this is about, where the workload may start with fewer than it asks for."""
    candidates: list[Candidate] = field(default_factory=list)
    """Every flavor that was looked at for a pod set that does not fit."""
    shortages: list[Shortage] = field(default_factory=list)
    """Those of the nearest flavors: given all of these, it fits."""
    uncovered: list[str] = field(default_factory=list)
    """Resources no group of the ClusterQueue covers."""
    refused: str = ""
    """The pod set no flavor takes, however much quota there is."""


def least_counts(info: WorkloadInfo, settings: EngineSettings) -> list[int] | None:
    """The fewest pods it may start with; None where that is all of them."""
    if not settings.partial_admission or not info.can_be_partially_admitted:
        return None
    return [
        min(one.count, given.min_count) if given.min_count is not None else one.count
        for one, given in zip(info.pod_sets, info.workload.pod_sets, strict=True)
    ]


def needs(live: ClusterQueueState, info: WorkloadInfo, settings: EngineSettings) -> Needs:
    counts = least_counts(info, settings)
    found = Needs(counts)
    asked = (name for one in info.pod_sets for name, amount in one.requests.items() if amount)
    found.uncovered = sorted({name for name in asked if name not in live.group_of})
    if found.uncovered:
        return found
    scratch, as_is = Scratch(live, settings), Scratch(live, settings)
    lacking: dict[Fr, Shortage] = {}
    fits = False
    # Every round settles a pod set, or makes it fit on one more flavor it would rather have.
    flavors = sum(len(group.flavors) for group in live.groups)
    for _ in range(1 + len(info.pod_sets) * max(1, flavors)):
        result = scratch.assign(info, counts)
        fits = result.mode is Mode.FIT
        if fits:
            break
        lacks = _next_lack(scratch, as_is, info, result, found)
        for one in lacks:
            lacking[one.fr] = _seen_from(as_is, one, one.asked)
            scratch.give(one.fr, one.missing)
        if found.refused or not lacks:
            break
    if fits and len(info.pod_sets) > 1:
        _take_back(live, info, settings, lacking, counts)
    found.shortages = list(lacking.values())
    return found


def _seen_from(as_is: Scratch, one: Shortage, asked: int) -> Shortage:
    """The shortage as things are, without what the scratch was given before."""
    available = as_is.node.available(one.fr)
    where = tuple(limits(as_is.node, one.fr, asked))
    return replace(one, asked=asked, available=available, limits=where)


def _take_back(
    live: ClusterQueueState,
    info: WorkloadInfo,
    settings: EngineSettings,
    lacking: dict[Fr, Shortage],
    counts: Sequence[int] | None,
) -> None:
    """Less will do where a pod set moves to what was given for another: the least is found by
    bisection, one shortage after the other."""
    as_is = Scratch(live, settings)
    for fr, one in list(lacking.items()):
        low, high = 0, one.missing  # it does not fit with low, and does with high
        while high - low > 1:
            middle = (low + high) // 2
            scratch = Scratch(live, settings)
            for other in lacking.values():
                scratch.give(other.fr, middle if other.fr == fr else other.missing)
            if scratch.assign(info, counts).mode is Mode.FIT:
                high = middle
            else:
                low = middle
        lacking[fr] = _seen_from(as_is, one, one.available + high)


def _next_lack(
    scratch: Scratch, as_is: Scratch, info: WorkloadInfo, result: Assignment, found: Needs
) -> list[Shortage]:
    """What the first pod set that does not fit lacks of the flavors nearest to it."""
    taken: dict[Fr, int] = {}
    by_name = {one.name: one for one in result.pod_sets}
    for group in grouped(info.pod_sets):
        mine = [by_name[info.pod_sets[i].name] for i in group]
        requests: dict[str, int] = {}
        for one, i in zip(mine, group, strict=True):
            before = info.replaces[i].requests if info.replaces else {}
            for resource, amount in one.requests.items():
                requests[resource] = requests.get(resource, 0) + amount - before.get(resource, 0)
        if all(one.mode is Mode.FIT for one in mine):
            for resource, amount in requests.items():
                got = mine[0].flavors.get(resource)  # one flavor for all of a group
                if got is not None and got.fr is not None:
                    taken[got.fr] = taken.get(got.fr, 0) + amount
            continue
        lacks: list[Shortage] = []
        for choices in scratch.queue.groups:
            wanted = {r: n for r, n in requests.items() if r in choices.covered and n > 0}
            rather = {one.flavors[r].flavor for one in mine for r in wanted if r in one.flavors}
            asks = _Asks(group, "+".join(one.name for one in mine), wanted, taken, rather)
            lacks += _nearest(scratch, as_is, info, choices, asks, found) if wanted else ()
        return lacks
    return []


@dataclass(frozen=True, slots=True)
class _Asks:
    """What a group of pod sets asks of one resource group."""

    group: Sequence[int]
    pod_set: str
    wanted: Mapping[str, int]
    taken: Mapping[Fr, int]
    rather: Collection[str]
    """The flavor the engine would take, although it does not fit now."""


def _nearest(
    scratch: Scratch,
    as_is: Scratch,
    info: WorkloadInfo,
    choices: GroupChoices,
    asks: _Asks,
    found: Needs,
) -> Sequence[Shortage]:
    assigner = scratch.assigner
    candidates, shown_as = [], []
    for choice in choices.flavors:
        refusal = assigner.refusal(info, asks.group, choices, choice)
        if refusal is None and not assigner.omitted_is_unlimited:
            left_out = [resource for resource in asks.wanted if resource not in choice.frs]
            if left_out:
                refusal = f"flavor {choice.name} does not provide resource {left_out[0]}"
        lacks = () if refusal else _lacks(scratch.node, choice, asks)
        candidates.append(Candidate(asks.pod_set, choice.name, refusal, lacks))
        shown = () if refusal else _lacks(as_is.node, choice, asks)
        shown_as.append(Candidate(asks.pod_set, choice.name, refusal, shown))
    best = min(candidates, key=lambda one: one.distance, default=None)
    if best is not None and best.refusal is None and not best.shortages:
        # Where borrowing is worse than preempting, it would rather wait for another flavor.
        preferred = [c for c in candidates if c.flavor in asks.rather and c.shortages]
        if not preferred:
            return ()  # this group is not what is in the way
        best = preferred[0]
    found.candidates += shown_as
    if best is None or best.refusal is not None:
        found.refused = asks.pod_set
        return ()
    return best.shortages


def _lacks(node: QuotaNode, choice: FlavorChoice, asks: _Asks) -> tuple[Shortage, ...]:
    lacks = []
    for resource, amount in sorted(asks.wanted.items()):
        fr = choice.frs.get(resource)
        if fr is None:
            continue  # left out: unlimited
        asked = asks.taken.get(fr, 0) + amount
        available = node.available(fr)
        if asked > max(0, available):
            most = max(0, node.potential_available(fr))
            where = tuple(limits(node, fr, asked))
            lacks.append(Shortage(choice.name, resource, fr, asked, available, most, where))
    return tuple(lacks)
