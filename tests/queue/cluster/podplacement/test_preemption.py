"""Pods that make way for one that lacks nothing but shares: enough, none too many, none twice, and the room is his."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from queuecontroller.cluster.podplacement import preemption
from queuecontroller.cluster.podplacement.preemption import PodPreemption
from queuecontroller.gpushares.extender.ledger import Running
from queuecontroller.gpushares.extender.victims import Budget
from queuecontroller.scheduler.model.selectors import LabelSelector, Requirement
from sluicecommon.kubernetes.reflector import Changed
from tests.queue.cluster.podplacement.service import LEAVES, ObjectCache, run

HALF = {"gpumem": 40_000}
WHOLE = {"gpumem": 80_000}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SETTLES_S", "PAUSE_S", "NUDGED_S"):
        monkeypatch.setattr(preemption, name, 0.0)
    monkeypatch.setattr(preemption, "TICK_S", 0.005)


def making_room(world: ObjectCache) -> int:
    assert world.desk._preemption is not None
    return world.desk._preemption.making_room


def nominated(world: ObjectCache, name: str) -> str:
    return str(world.api.pods[name]["status"].get("nominatedNodeName") or "")


async def displace(world: ObjectCache) -> None:
    """A pod that takes half of a node arrives, and a pod of less importance is evicted for it."""
    world.create("high", priority=10, **HALF)
    await world.filter("high")
    await world.until("one is told to go", lambda: world.api.gone)


async def full(world: ObjectCache, **priorities: int) -> None:
    """Two of half a card on each node, of these priorities: a0, a1, b0, b1."""
    for name, priority in priorities.items():
        await world.run_pod(name, name[0], priority=priority, **HALF)


def test_one_goes_and_the_room_is_the_comers_alone() -> None:
    async def test(world: ObjectCache) -> None:
        await full(world, a0=5, a1=4, b0=3, b1=6)
        world.create("high", priority=10, **HALF)
        assert await world.filter("high") == []
        await world.until("one is told to go", lambda: world.api.gone)
        assert world.api.gone == [("evicted", "b0")], "the least important"
        await world.until("it is told of", lambda: world.told)
        assert world.told == [("b0", "Preempted")]
        assert world.api.marks == [("b0", "PreemptionByScheduler")]
        assert nominated(world, "high") == "b"
        answer = await world.add("filter", Pod=world.api.pods["high"], NodeNames=["a", "b"])
        assert answer["FailedNodes"]["b"].startswith("is being cleared for the pod; until then")
        world.end("b0")
        world.create("low", priority=1, **HALF)
        assert await world.filter("low") == [], "kept"
        assert await world.filter("high") == ["b"]
        await world.until("kube-scheduler is to ask", lambda: world.api.patches)
        assert await world.bind("high", "b") == ""
        world.watch("high")
        await world.until("it is over", lambda: not making_room(world))
        assert world.api.gone == [("evicted", "b0")]
        assert not world.desk.ledger.kept

    run(test)


@pytest.mark.parametrize(
    "why", ["Never", "equal", "queued elsewhere", "a dry run", "by the scheduler", "not leading"]
)
def test_nobody_goes(why: str) -> None:
    async def test(world: ObjectCache) -> None:
        await full(world, a0=5, a1=5, b0=5, b1=5)
        document = world.create("high", priority=5 if why == "equal" else 10, **HALF)
        if why == "Never":
            document["spec"]["preemptionPolicy"] = "Never"
        if why == "queued elsewhere":
            world.desk.extender._queued = lambda pod, names: "the queue has no place for it now"
        if why == "a dry run":
            nodes = {"items": [{"metadata": {"name": "a"}}]}
            await world.add("filter", Pod=document, Nodes=nodes)
        else:
            assert await world.filter("high") == []
        if why == "by the scheduler":
            victims = {"a": {"Pods": [{"UID": "u-a0"}], "NumPDBViolations": 0}}
            found = await world.add("preempt", Pod=document, NodeNameToMetaVictims=victims)
            assert list(found["NodeNameToMetaVictims"]) == ["a"]
        world.may_write = why != "not leading"
        await asyncio.sleep(0.05)
        assert world.api.gone == []
        assert not making_room(world)

    run(test)


def test_kube_scheduler_displaces_nobody_where_some_make_way_already() -> None:
    async def test(world: ObjectCache) -> None:
        await full(world, a0=1, a1=1, b0=1, b1=1)
        document = world.create("high", priority=10, **HALF)
        await world.filter("high")
        await world.until("one is told to go", lambda: world.api.gone)
        victims = {"a": {"Pods": [{"UID": "u-a0"}], "NumPDBViolations": 0}}
        found = await world.add("preempt", Pod=document, NodeNameToMetaVictims=victims)
        assert found == {"NodeNameToMetaVictims": {}}

    run(test)


def test_several_comers_displace_one_each_and_none_is_counted_twice() -> None:
    async def test(world: ObjectCache) -> None:
        await full(world, a0=1, a1=1, b0=1, b1=1)
        names = [f"high-{n}" for n in range(6)]
        for name in names:
            world.create(name, priority=10, **HALF)
        for name in names:
            await world.filter(name)
        await world.until("all are told to go", lambda: len(world.api.gone) == 4)
        await asyncio.sleep(0.05)
        assert sorted(name for _, name in world.api.gone) == ["a0", "a1", "b0", "b1"]
        assert making_room(world) == 4
        for name in ("a0", "a1", "b0", "b1"):
            world.end(name)
        placed = 0
        for name in names:
            for node in await world.filter(name):
                placed += await world.bind(name, node) == ""
                world.watch(name)
        assert placed == 4

    run(test)


def delayed(world: ObjectCache, delay: str) -> dict[str, Any]:
    """A pod of importance that waits so long since its creation, which is now."""
    document = world.create("high", priority=10, **HALF)
    document["metadata"]["creationTimestamp"] = "1970-01-01T00:00:00Z"
    document["metadata"]["annotations"]["kai.scheduler/preemption-delay"] = delay
    world.api.create(document)
    world.watch("high")
    return document


def test_kais_delay_is_waited_for_and_then_one_goes() -> None:
    async def test(world: ObjectCache) -> None:
        await full(world, a0=5, a1=4, b0=3, b1=6)
        document = delayed(world, "1s")
        assert await world.filter("high") == []
        victims = {"a": {"Pods": [{"UID": "u-a0"}], "NumPDBViolations": 0}}
        found = await world.add("preempt", Pod=document, NodeNameToMetaVictims=victims)
        assert not found["NodeNameToMetaVictims"], "kube-scheduler's own victims stay, too"
        await asyncio.sleep(0.1)
        assert await world.filter("high") == []
        assert world.api.gone == []
        await world.until("one is told to go", lambda: world.api.gone)
        assert world.api.gone == [("evicted", "b0")]

    run(test)


def test_what_kube_scheduler_would_clear_for_another_resource_it_is_asked_for_after_the_delay() -> (
    None
):
    async def test(world: ObjectCache) -> None:
        await world.run_pod("a0", "a", priority=5, **HALF)
        document = delayed(world, "100ms")
        victims = {"a": {"Pods": [{"UID": "u-a0"}], "NumPDBViolations": 0}}
        found = await world.add("preempt", Pod=document, NodeNameToMetaVictims=victims)
        assert not found["NodeNameToMetaVictims"]
        await world.until("kube-scheduler is to ask again", lambda: world.api.patches)
        assert world.api.gone == []

    run(test)


def test_without_the_delay_it_is_no_longer_waited_for() -> None:
    async def test(world: ObjectCache) -> None:
        await full(world, a0=5, a1=4, b0=3, b1=6)
        document = delayed(world, "1h")
        assert await world.filter("high") == []
        await asyncio.sleep(0.05)
        assert world.api.gone == []
        del document["metadata"]["annotations"]["kai.scheduler/preemption-delay"]
        world.api.create(document)
        assert await world.filter("high") == []
        await world.until("one is told to go", lambda: world.api.gone)

    run(test)


def guard(world: ObjectCache, *names: str, allowed: int = 0) -> None:
    """A budget of these pods, as its watch reports it."""
    for name in names:
        world.api.pods[name]["metadata"]["labels"] = {"guarded": "yes"}
        world.api.create(world.api.pods[name])
        world.watch(name)
    selector = LabelSelector((Requirement("guarded", "In", ("yes",)),))
    item = type("Item", (), {"key": "t/b", "value": Budget("t", selector, allowed)})
    world.budgets.changed(Changed(item))  # type: ignore[arg-type]


def test_a_budget_is_kept_where_another_will_do_and_broken_by_a_deletion_where_none_will() -> None:
    async def test(world: ObjectCache) -> None:
        await full(world, a0=1, a1=1, b0=5, b1=6)
        guard(world, "a0", "a1")
        await displace(world)
        assert world.api.gone == [("evicted", "b0")]
        guard(world, "b1")
        world.create("higher", priority=20, **WHOLE)
        await world.filter("higher", "a")
        await world.until("two more go", lambda: len(world.api.gone) == 3)
        assert {how for how, name in world.api.gone if name in ("a0", "a1")} == {"deleted"}

    run(test)


def test_a_budget_that_the_api_server_knows_better_is_kept_too() -> None:
    """Ours says that one more may go; another has gone meanwhile."""

    async def test(world: ObjectCache) -> None:
        await full(world, a0=1, a1=2, b0=5, b1=6)
        world.api.guarded = {"a0"}
        await displace(world)
        assert world.api.gone == [("evicted", "a1")]
        assert (nominated(world, "high"), making_room(world)) == ("a", 1)
        world.api.guarded = {"a0", "b0", "b1"}
        world.create("second", priority=10, **HALF)
        await world.filter("second")
        await world.until("another goes", lambda: len(world.api.gone) == 2)
        assert world.api.gone[1] == ("deleted", "a0"), "as kube-scheduler would, where none will do"

    run(test)


def test_a_refusal_for_haste_breaks_no_budget_and_several_budgets_take_a_deletion() -> None:
    async def test(world: ObjectCache) -> None:
        await full(world, a0=1, a1=2, b0=5, b1=6)
        world.api.hasty = 2
        world.api.several = {"a1"}
        world.create("high", priority=10, **WHOLE)
        await world.filter("high", "a")
        await world.until("both are told to go", lambda: len(world.api.gone) == 2)
        assert sorted(world.api.gone) == [("deleted", "a1"), ("evicted", "a0")]

    run(test)


def test_who_leads_next_keeps_the_room_and_displaces_nobody_again() -> None:
    async def test(world: ObjectCache) -> None:
        await full(world, a0=1, a1=2, b0=3, b1=4)
        world.create("high", priority=10, **WHOLE)
        await world.filter("high")
        await world.until("two are told to go", lambda: len(world.api.gone) == 2)
        world.may_write = False
        world.end("a0")
        again = ObjectCache(api=world.api)
        running = asyncio.create_task(again.desk.run())
        await again.until("it knows", lambda: again.desk._has_all_pods)
        await again.until("its nodes are known", lambda: not again.desk._preemption._nominated)  # type: ignore[union-attr]
        again.create("low", priority=1, **HALF)
        assert await again.filter("low") == []
        assert await again.filter("high") == []
        await asyncio.sleep(0.05)
        assert len(world.api.gone) == 2, "they are on their way"
        again.end("a1")
        assert await again.filter("low") == []
        assert await again.filter("high") == ["a"]
        assert await again.bind("high", "a") == ""
        again.watch("high")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run(test, whole=False)


def test_who_leads_next_goes_on_where_only_some_were_told() -> None:
    async def test(world: ObjectCache) -> None:
        await full(world, a0=1, a1=2, b0=3, b1=4)
        world.create("high", priority=10, **WHOLE)
        world.api.pods["high"]["status"]["nominatedNodeName"] = "b"  # by the leader before
        world.api.pods["b0"]["metadata"]["deletionTimestamp"] = LEAVES
        for name in ("high", "b0"):
            world.api.create(world.api.pods[name])
        world.may_write = False
        again = ObjectCache(api=world.api)
        running = asyncio.create_task(again.desk.run())
        await again.until("kube-scheduler is to ask", lambda: world.api.patches)
        assert await again.filter("high") == []
        await again.until("the other is told", lambda: world.api.gone)
        assert world.api.gone == [("evicted", "b1")], "on the same node"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run(test, whole=False)


def test_room_that_is_not_taken_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preemption, "KEEPS_S", 0.02)

    async def test(world: ObjectCache) -> None:
        await full(world, a0=1, a1=2, b0=3, b1=4)
        await displace(world)
        world.end("a0")
        await world.until("it is given up", lambda: not making_room(world))
        await world.until("the pod is told", lambda: not nominated(world, "high"))
        world.create("low", priority=1, **HALF)
        assert await world.filter("low") == ["a"]

    run(test)


def test_a_more_important_pod_takes_what_is_kept_and_the_first_looks_elsewhere() -> None:
    async def test(world: ObjectCache) -> None:
        await full(world, a0=1, a1=9, b0=9, b1=9)
        await displace(world)
        world.end("a0")
        world.create("higher", priority=20, **HALF)
        assert await world.filter("higher") == ["a"]
        assert await world.bind("higher", "a") == ""
        world.watch("higher")
        await world.until("it is another's", lambda: not making_room(world))
        assert not world.desk.ledger.kept

    run(test)


def test_what_the_api_server_does_not_hear_is_said_again() -> None:
    async def test(world: ObjectCache) -> None:
        await full(world, a0=1, a1=2, b0=3, b1=4)
        world.create("high", priority=10, **HALF)
        world.api.away = True
        await world.filter("high")
        await world.until("it is tried", lambda: making_room(world))
        world.api.away = False
        await world.until("one is told to go", lambda: world.api.gone)
        assert world.api.gone == [("evicted", "a0")]

    run(test)


def test_room_whose_pod_is_gone_is_free() -> None:
    async def test(world: ObjectCache) -> None:
        await full(world, a0=1, a1=2, b0=3, b1=4)
        await displace(world)
        world.end("high")
        await world.until("no pod waits", lambda: not making_room(world))
        assert not world.desk.ledger.kept

    run(test)


def test_who_leaves_soon_anyway_is_waited_for_and_who_does_not_is_not() -> None:
    async def test(world: ObjectCache) -> None:
        await full(world, a0=9, a1=9, b0=1, b1=9)
        for name, at in (("a0", LEAVES), ("b1", "1970-01-01T01:00:00Z")):
            world.api.pods[name]["metadata"]["deletionTimestamp"] = at
            world.api.create(world.api.pods[name])
            world.watch(name)
        world.create("first", priority=10, **HALF)
        await world.filter("first")
        await world.until("it waits", lambda: making_room(world) == 1)
        assert world.api.gone == []
        assert world.desk.ledger.kept["u-first"].place.node == "a"
        world.create("second", priority=10, **HALF)
        await world.filter("second")
        await world.until("another goes", lambda: world.api.gone)
        assert world.api.gone == [("evicted", "b0")]

    run(test)


def test_the_class_is_bounded_in_what_it_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preemption, "MAX_WAITING", 3)

    async def test(world: ObjectCache) -> None:
        await full(world, a0=1, a1=2, b0=3, b1=4)
        world.may_write = False
        found: Any = world.desk._preemption
        assert isinstance(found, PodPreemption)
        for n in range(6):
            found.refused(world.create(f"p{n}", priority=10, **HALF), ["a"])
        assert len(found._refused) == 3

    run(test)


def test_room_is_free_only_when_the_node_says_so_too_and_nobody_else_goes_meanwhile() -> None:
    async def test(world: ObjectCache) -> None:
        await full(world, a0=1, a1=2, b0=3, b1=4)
        held = world.desk.ledger.holding("u-a0")
        assert held is not None
        running = Running("u-a0", "t", "a0", held[1])
        await displace(world)
        world.desk.ledger.report("a", {"u-a0": running})
        world.end("a0")
        assert await world.filter("high") == []
        world.create("second", priority=10, **HALF)
        await world.filter("second")
        await world.until("another goes", lambda: len(world.api.gone) == 2)
        await asyncio.sleep(0.05)
        assert world.api.gone == [("evicted", "a0"), ("evicted", "a1")]
        assert making_room(world) == 2
        world.desk.ledger.report("a", {})
        assert await world.filter("high") == ["a"]

    run(test)
