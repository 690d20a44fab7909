"""Shortages of a workload: for each pod set and resource group the nearest flavor, what it lacks,
and why the other flavors are further away.

The missing quota is added to a scratch tree and the scheduler evaluates the workload again until it
fits: so the shortages found are sufficient by the scheduler's own decision.
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
    """A shortage of one resource in one flavor. Amounts are the scheduler's integers."""

    flavor: str
    resource: str
    fr: Fr
    asked: int
    """Requested amount, with what the pod sets before this one take."""
    available: int
    """Available now, borrowing included; negative where quotas were lowered below the usage."""
    potential: int
    """Available if nothing else used the quota."""
    limits: tuple[Limit, ...]

    @property
    def missing(self) -> int:
        return self.asked - self.available

    @property
    def hopeless(self) -> bool:
        return self.asked > self.potential


@dataclass(frozen=True, slots=True)
class Candidate:
    """One flavor as evaluated for one pod set."""

    pod_set: str
    flavor: str
    refusal: str | None = None
    """Reason why its pods cannot run on the flavor with any amount of quota."""
    shortages: tuple[Shortage, ...] = ()

    @property
    def distance(self) -> tuple[bool, bool, int]:
        """Sort key: a flavor that can never fit comes last, then by the missing part of the
        request."""
        worst = max((s.missing * 1_000_000 // max(1, s.asked) for s in self.shortages), default=0)
        return self.refusal is not None, any(s.hopeless for s in self.shortages), worst


@dataclass(slots=True)
class Needs:
    """All that a workload lacks to get its quota."""

    counts: Sequence[int] | None = None
    """Pod counts that were evaluated, where the workload may start with fewer pods than requested.
    """
    candidates: list[Candidate] = field(default_factory=list)
    """Every flavor that was evaluated for a pod set that does not fit."""
    shortages: list[Shortage] = field(default_factory=list)
    """Shortages of the nearest flavors; the workload fits once all of them are resolved."""
    uncovered: list[str] = field(default_factory=list)
    """Resources no group of the ClusterQueue covers."""
    refused: str = ""
    """Message of the pod set that no flavor fits, with any amount of quota."""


def least_counts(info: WorkloadInfo, settings: EngineSettings) -> list[int] | None:
    """The fewest pods the workload may start with; None if it needs all of them."""
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
    # Every round completes a pod set, or makes it fit on one more flavor that it prefers.
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
    """The shortage in the live state, without what was added to the scratch tree before."""
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
    """Reduce the shortages to the least that is needed, by bisection one after the other: a pod set
    may use what was added for another."""
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
    """Shortages of the nearest flavors of the first pod set that does not fit."""
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
            asks = _GroupRequest(group, "+".join(one.name for one in mine), wanted, taken, rather)
            lacks += _nearest(scratch, as_is, info, choices, asks, found) if wanted else ()
        return lacks
    return []


@dataclass(frozen=True, slots=True)
class _GroupRequest:
    """Requests of a group of pod sets from one resource group."""

    group: Sequence[int]
    pod_set: str
    wanted: Mapping[str, int]
    taken: Mapping[Fr, int]
    rather: Collection[str]
    """Flavors the scheduler prefers although they do not fit now."""


def _nearest(
    scratch: Scratch,
    as_is: Scratch,
    info: WorkloadInfo,
    choices: GroupChoices,
    asks: _GroupRequest,
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
        # Where borrowing is worse than preempting, it would wait for another flavor.
        preferred = [c for c in candidates if c.flavor in asks.rather and c.shortages]
        if not preferred:
            return ()  # this group is not what is in the way
        best = preferred[0]
    found.candidates += shown_as
    if best is None or best.refusal is not None:
        found.refused = asks.pod_set
        return ()
    return best.shortages


def _lacks(node: QuotaNode, choice: FlavorChoice, asks: _GroupRequest) -> tuple[Shortage, ...]:
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
