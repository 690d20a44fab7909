"""Whom a pod of higher priority displaces from a node: as few as will do, those of the lowest
priority first, and budgets for disruption are broken only where nothing else helps.

As kube-scheduler goes about it: all that may go are taken out, and one after the other is let stay
where there is room for both, those first whose going would break a budget, then the most important
and the longest there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from queuecontroller.engine.model.selectors import LabelSelector
from queuecontroller.extender.ledger import HeldPod
from queuecontroller.extender.pods import PodAsk
from queuecontroller.extender.verdicts import move, place_on, scratch
from queuecontroller.placement.stock import NodeRoom, Share


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


def choose(
    room: NodeRoom,
    ask: PodAsk,
    holders: Iterable[Holder],
    budgets: Sequence[Budget],
    goes_anyway: Collection[str] = (),
) -> Victims | None:
    """Who has to leave the node for the pod, perhaps nobody; None: nobody's going would help.
    `goes_anyway`: UIDs that are displaced for other reasons."""
    there = list(holders)
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
    if not isinstance(place_on(trial, ask.containers), str):
        return Victims((), 0)
    if not ask.may_displace:
        return None
    for one in may_go:
        move(trial, one.shares, -1)
    if isinstance(place_on(trial, ask.containers), str):
        return None
    broken = violating([one.pod for one in may_go], budgets)
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
    return Victims(tuple(leaving), sum(one.uid in broken for one in leaving))


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
    """The node whose victims matter least: no budget broken, the lowest priority, the fewest."""
    return min(
        victims,
        key=lambda name: (
            victims[name].violations,
            max((one.priority for one in victims[name].pods), default=0),
            sum(one.priority for one in victims[name].pods),
            len(victims[name].pods),
            name,
        ),
    )
