"""Victims of displacement: enough of them, none too many, none of the same priority, and disruption
budgets are broken last."""

from __future__ import annotations

import random

import pytest

from queuecontroller.gpushares.extender.answers import Extender
from queuecontroller.gpushares.extender.pods import PodPlace, read_pod
from queuecontroller.gpushares.extender.verdicts import move, place_on, scratch
from queuecontroller.gpushares.extender.victims import Budget, Holder, Victims, choose
from queuecontroller.scheduler.model.selectors import LabelSelector, Requirement
from tests.queue.gpushares.extender.rooms import bind, extender, node, pod, random_pod


def holders(one: Extender, name: str) -> list[Holder]:
    return list(one._holders(name))


@pytest.mark.parametrize("seed", range(25))
def test_those_who_go_are_enough_and_none_of_them_could_stay(seed: int) -> None:
    rng = random.Random(seed)
    one = extender({"n": node("n", 4)})
    for number in range(40):
        asked = random_pod(rng, number)
        if one.filter(asked, ["n"]).names:
            bind(one, asked, "n")
    for number in range(40):
        comer = {**random_pod(rng, 100 + number)}
        comer["spec"]["priority"] = rng.choice([5, 15, 30])
        ask = read_pod(comer)
        found = choose(one.stock.nodes["n"], ask, holders(one, "n"), [])
        lower = [h for h in holders(one, "n") if h.pod.priority < ask.priority]
        room = scratch(one.stock.nodes["n"])
        if found is None:
            for each in lower:
                move(room, each.shares, -1)
            assert isinstance(place_on(room, ask.containers), str), "all together would not help"
            continue
        going = {victim.uid for victim in found.pods}
        assert going <= {h.pod.uid for h in lower}
        for each in holders(one, "n"):
            if each.pod.uid in going:
                move(room, each.shares, -1)
        assert isinstance(place_on(room, ask.containers), PodPlace)
        for each in [h for h in lower if h.pod.uid in going]:
            move(room, each.shares, 1)
            assert isinstance(place_on(room, ask.containers), str), f"{each.pod.key} could stay"
            move(room, each.shares, -1)


def full() -> Extender:
    """One card, two pods of the same size; one of them is guarded by a budget."""
    one = extender({"n": node("n", 1)})
    for name, priority in (("guarded", 1), ("plain", 5)):
        document = pod(name, priority=priority, gpumem=40_000)
        document["metadata"]["labels"] = {"app": name}
        bind(one, document, "n")
    return one


def budget(allowed: int) -> Budget:
    return Budget("t", LabelSelector((Requirement("app", "In", ("guarded",)),)), allowed)


@pytest.mark.parametrize(("allowed", "goes"), [(1, "guarded"), (0, "plain")])
def test_a_budget_is_broken_only_where_nothing_else_helps(allowed: int, goes: str) -> None:
    one = full()
    ask = read_pod(pod("comer", priority=10, gpumem=40_000))
    found = one.displaced(ask, "n", [budget(allowed)])
    assert found is not None
    assert [victim.name for victim in found.pods] == [goes]
    assert found.violations == 0
    both = one.displaced(read_pod(pod("comer", priority=10, gpumem=80_000)), "n", [budget(allowed)])
    assert both is not None
    assert (len(both.pods), both.violations) == (2, 1 - allowed)


def test_the_schedulers_victims_go_in_any_case_and_ours_besides() -> None:
    one = full()
    large = pod("comer", priority=10, gpumem=80_000)
    assert one.preempt(large, {"n": (["u-plain"], 0)}, []) == {"n": (["u-plain", "u-guarded"], 0)}
    small = pod("comer", priority=10, gpumem=40_000)
    assert one.preempt(small, {"n": (["u-plain"], 0)}, []) == {"n": (["u-plain"], 0)}
    assert (
        one.preempt(large, {"n": ([], 0), "away": (["x"], 0)}, [budget(0)])
        == {"n": (["u-guarded", "u-plain"], 1)}
        or one.preempt(large, {"n": ([], 0)}, [budget(0)])["n"][1] == 1
    )
    huge = pod("comer", priority=10, gpumem=90_000)
    assert one.preempt(huge, {"n": (["u-plain"], 0)}, []) == {}


def test_equals_and_those_who_displace_nobody_wait() -> None:
    one = full()
    assert one.displaced(read_pod(pod("c", priority=1, gpumem=40_000)), "n", []) is None
    patient = pod("c", priority=10, gpumem=40_000)
    patient["spec"]["preemptionPolicy"] = "Never"
    assert one.displaced(read_pod(patient), "n", []) is None


def test_who_is_leaving_already_is_waited_for() -> None:
    one = full()
    document = pod("guarded", priority=1, gpumem=40_000, bound=one.ledger.place("u-guarded"))
    document["metadata"]["deletionTimestamp"] = "2026-11-22T10:00:00Z"
    one.ledger.take(document)
    found = one.displaced(read_pod(pod("c", priority=10, gpumem=40_000)), "n", [])
    assert found == Victims((), 0)
