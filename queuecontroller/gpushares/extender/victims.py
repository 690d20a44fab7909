"""Whom a pod of higher priority displaces from a node: as few as will do, those of the lowest
priority first, and budgets for disruption are broken only where nothing else helps.

As kube-scheduler goes about it: all that may go are taken out, and one after the other is let stay
where there is room for both, those first whose going would break a budget, then the most important
and the longest there.
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
    """Disruptions that it still takes."""
    disrupted: frozenset[str] = frozenset()
    """Names of pods that count as disrupted already."""


@dataclass(frozen=True, slots=True)
class Holder:
    pod: HeldPod
    shares: tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class Victims:
    pods: tuple[HeldPod, ...]
    violations: int
    """Of budgets."""
    broken: frozenset[str] = frozenset()
    """UIDs of those whose going breaks one."""
    place: PodPlace | None = field(default=None, compare=False)
    """The pod's, once they are gone."""


NOBODY: Final = 1 << 31
"""Above what priorities of either sign have, so that more victims always are more."""


def choose(
    room: NodeRoom,
    ask: PodAsk,
    holders: Iterable[Holder],
    budgets: Sequence[Budget],
    goes_anyway: Collection[str] = (),
    guarded: Collection[str] = (),
    soon: str = "",
) -> Victims | None:
    """Who has to leave the node for the pod, perhaps nobody; None: nobody's going would help.
    `goes_anyway`: UIDs that are displaced for other reasons; `guarded`: such whose going would
    break a budget, whatever is known of these; `soon`: who leaves later than that (RFC 3339) is
    not waited for, empty: everybody who leaves is."""
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
    leaving = []
    for one in order:
        move(trial, one.shares, 1)
        if isinstance(place_on(trial, ask.containers), str):
            move(trial, one.shares, -1)
            leaving.append(one.pod)
    broke = frozenset(one.uid for one in leaving if one.uid in broken)
    place = place_on(trial, ask.containers)
    assert not isinstance(place, str)
    return Victims(tuple(leaving), len(broke), broke, place)


def violating(pods: Iterable[HeldPod], budgets: Sequence[Budget]) -> set[str]:
    """UIDs of those whose going would break a budget, if all go in this order."""
    left = [one.allowed for one in budgets]
    found = set()
    for pod in pods:
        for at, budget in enumerate(budgets):
            if budget.namespace != pod.namespace or pod.name in budget.disrupted:
                continue
            if budget.selector.matches(pod.labels or {}):
                left[at] -= 1
                if left[at] < 0:
                    found.add(pod.uid)
    return found


def by_node(victims: Mapping[str, Victims]) -> str:
    """The node whose victims matter least, as kube-scheduler chooses: no budget broken, the lowest
    priority, of all together too, the fewest, and of those that matter most the youngest."""

    def weight(name: str) -> tuple[int, int, int, int]:
        pods = victims[name].pods
        return (
            victims[name].violations,
            max((one.priority for one in pods), default=-NOBODY),
            sum(one.priority + NOBODY for one in pods),
            len(pods),
        )

    def oldest(name: str) -> str:
        pods = victims[name].pods
        most = max((one.priority for one in pods), default=0)
        return min((one.started for one in pods if one.priority == most), default="")

    least = min(map(weight, victims))
    best = sorted(name for name in victims if weight(name) == least)
    return max(best, key=oldest)
