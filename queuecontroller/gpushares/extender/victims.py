"""Choice of victims on a node for a pod of higher priority: as few as possible, lowest priority
first, and disruption budgets are violated only if nothing else helps.

The method is kube-scheduler's: all candidates are removed, then each is reprieved if there is room
for both, first those whose eviction would violate a budget, then the most important and the longest
running.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from queuecontroller.gpushares.extender.ledger import HeldPod
from queuecontroller.gpushares.extender.pods import PodAsk, PodPlace
from queuecontroller.gpushares.extender.verdicts import move, place_on, scratch
from queuecontroller.scheduler.model.selectors import LabelSelector
from queuecontroller.scheduler.placement.stock import NodeRoom, Share


@dataclass(frozen=True, slots=True)
class Budget:
    """A PodDisruptionBudget."""

    namespace: str
    selector: LabelSelector
    allowed: int
    """Disruptions that the budget still allows."""
    disrupted: frozenset[str] = frozenset()
    """Names of pods that already count as disrupted."""


@dataclass(frozen=True, slots=True)
class Holder:
    pod: HeldPod
    shares: tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class Victims:
    pods: tuple[HeldPod, ...]
    violations: int
    """Number of budget violations."""
    broken: frozenset[str] = frozenset()
    """UIDs of the victims that violate a budget."""
    place: PodPlace | None = field(default=None, compare=False)
    """Place of the preemptor once the victims are gone."""


PRIORITY_OFFSET: Final = 1 << 31
"""Exceeds any priority's absolute value, so that a sum grows with the number of victims."""


def choose(
    room: NodeRoom,
    ask: PodAsk,
    holders: Iterable[Holder],
    budgets: Sequence[Budget],
    goes_anyway: Collection[str] = (),
    guarded: Collection[str] = (),
    soon: str = "",
) -> Victims | None:
    """Victims on the node for the pod, empty if it fits without; None if preemption would not help.
    `goes_anyway` are UIDs evicted for other reasons; `guarded` are those whose eviction violates a
    budget regardless of `budgets`. Pods that terminate later than `soon` (RFC 3339) are not waited
    for; empty: all terminating pods are."""
    there = [
        one for one in holders if not (soon and one.pod.leaves > soon) or one.pod.uid in goes_anyway
    ]
    may_go = [
        one
        for one in there
        if one.pod.priority < ask.priority
        and not one.pod.leaving
        and one.pod.uid not in goes_anyway
    ]
    trial = scratch(room)
    for one in there:
        if one.pod.leaving or one.pod.uid in goes_anyway:
            move(trial, one.shares, -1)
    place = place_on(trial, ask.containers)
    if not isinstance(place, str):
        return Victims((), 0, place=place)
    if not ask.may_displace:
        return None
    for one in may_go:
        move(trial, one.shares, -1)
    if isinstance(place_on(trial, ask.containers), str):
        return None
    broken = violating([one.pod for one in may_go], budgets)
    broken |= {one.pod.uid for one in may_go if one.pod.uid in guarded}
    order = sorted(
        may_go,
        key=lambda one: (one.pod.uid not in broken, -one.pod.priority, one.pod.started),
    )
    victims = []
    for one in order:
        move(trial, one.shares, 1)
        if isinstance(place_on(trial, ask.containers), str):
            move(trial, one.shares, -1)
            victims.append(one.pod)
    broke = frozenset(one.uid for one in victims if one.uid in broken)
    place = place_on(trial, ask.containers)
    assert not isinstance(place, str)
    return Victims(tuple(victims), len(broke), broke, place)


def violating(pods: Iterable[HeldPod], budgets: Sequence[Budget]) -> set[str]:
    """UIDs of the pods whose eviction would violate a budget, if all are evicted in this order."""
    allowed = [one.allowed for one in budgets]
    found = set()
    for pod in pods:
        for at, budget in enumerate(budgets):
            if budget.namespace != pod.namespace or pod.name in budget.disrupted:
                continue
            if budget.selector.matches(pod.labels or {}):
                allowed[at] -= 1
                if allowed[at] < 0:
                    found.add(pod.uid)
    return found


def by_node(victims: Mapping[str, Victims]) -> str:
    """The node whose victims matter least, in kube-scheduler's order: fewest budget violations,
    lowest highest priority, lowest sum of priorities, fewest victims, latest start among the most
    important victims."""

    def weight(name: str) -> tuple[int, int, int, int]:
        pods = victims[name].pods
        return (
            victims[name].violations,
            max((one.priority for one in pods), default=-PRIORITY_OFFSET),
            sum(one.priority + PRIORITY_OFFSET for one in pods),
            len(pods),
        )

    def oldest(name: str) -> str:
        pods = victims[name].pods
        most = max((one.priority for one in pods), default=0)
        return min((one.started for one in pods if one.priority == most), default="")

    least = min(map(weight, victims))
    best = sorted(name for name in victims if weight(name) == least)
    return max(best, key=oldest)
