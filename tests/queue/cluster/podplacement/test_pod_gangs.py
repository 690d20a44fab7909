"""Groups of pods at the extender's service: bindings wait for each other, and what is reserved is stored and given back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from queuecontroller.cluster.podplacement import pod_gangs
from queuecontroller.gpushares.extender import gangs
from queuecontroller.gpushares.extender.pod_groups import COSCHEDULING, COSCHEDULING_NAME
from tests.queue.cluster.podplacement.service import ObjectCache, run
from tests.queue.gpushares.extender.rooms import contradictions, pod

WHOLE: dict[str, Any] = {"gpumem": 80_000}


def create(world: ObjectCache, name: str, group: str = "g", **asked: Any) -> dict[str, Any]:
    document = pod(name, **asked)
    document["metadata"]["labels"] = {COSCHEDULING_NAME: group}
    world.api.create(document)
    world.watch(name)
    return document


def nominated(world: ObjectCache, name: str) -> str:
    return str(world.api.pods[name]["status"].get("nominatedNodeName") or "")


async def why(world: ObjectCache, name: str) -> str:
    found = await world.add("filter", Pod=world.api.pods[name], NodeNames=["a", "b"])
    assert not found["NodeNames"]
    return str(found["FailedNodes"]["a"])


def test_bindings_wait_for_each_other_and_the_nodes_are_stored_in_the_pods() -> None:
    async def test(world: ObjectCache) -> None:
        create(world, "g0", **WHOLE)
        assert await why(world, "g0") == "pod group t/g: 1 of at least 2 pods exist"
        create(world, "g1", **WHOLE)
        (first,) = await world.filter("g1")
        (second,) = await world.filter("g0")
        assert {first, second} == {"a", "b"}
        await world.until("the nodes are stored", lambda: nominated(world, "g0"))
        assert (nominated(world, "g1"), nominated(world, "g0")) == (first, second)
        await world.until("the other is requeued", lambda: world.api.patches)
        assert [name for _, name, _ in world.api.patches] == ["g0"]
        waits = asyncio.create_task(world.bind("g1", first))
        await asyncio.sleep(0.02)
        assert not waits.done()
        assert world.api.bindings == []
        assert await world.bind("g0", second) == ""
        assert await waits == ""
        assert len(world.api.bindings) == 2
        for name in ("g0", "g1"):
            world.watch(name)
        assert not world.desk.ledger.kept

    run(test, groups={"g": 2})


def test_a_node_that_kube_scheduler_removes_is_stored_again() -> None:
    async def test(world: ObjectCache) -> None:
        for n in range(2):
            create(world, f"g{n}", **WHOLE)
        await world.filter("g0")
        await world.until("stored", lambda: nominated(world, "g0") and nominated(world, "g1"))
        await asyncio.sleep(0.01)
        node = nominated(world, "g1")
        world.api.pods["g1"]["status"].clear()
        world.api.create(world.api.pods["g1"])
        world.watch("g1")
        await world.until("stored again", lambda: nominated(world, "g1") == node)

    run(test, groups={"g": 2})


def test_a_binding_that_waits_in_vain_is_put_off_and_keeps_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pod_gangs, "WAITS_S", 0.02)

    async def test(world: ObjectCache) -> None:
        for n in range(2):
            create(world, f"g{n}", **WHOLE)
        (node,) = await world.filter("g0")
        told = "pod group t/g: 1 of at least 2 pods are being bound: try again"
        assert await world.bind("g0", node) == told
        assert set(world.desk.ledger.kept) == {"u-g0", "u-g1"}
        assert world.api.bindings == []
        monkeypatch.setattr(pod_gangs, "WAITS_S", 12.0)
        (other,) = await world.filter("g1")
        assert sorted(await asyncio.gather(world.bind("g0", node), world.bind("g1", other))) == [
            "",
            "",
        ]

    run(test, groups={"g": 2})


def test_the_deadline_gives_everything_back_and_says_so_at_the_pods(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gangs, "TIMEOUT_S", 0.1)

    async def test(world: ObjectCache) -> None:
        for n in range(2):
            create(world, f"g{n}", **WHOLE)
        (node,) = await world.filter("g0")
        error = await world.bind("g0", node)
        assert error == "pod group t/g: its places were given back: try again"
        assert not world.desk.ledger.kept
        assert sorted(world.told) == [("g0", "GroupGivenBack"), ("g1", "GroupGivenBack")]
        await world.until("no node is nominated", lambda: not nominated(world, "g0"))
        await world.until("it is tried again", lambda: len(world.api.patches) > 1)

    run(test, groups={"g": 2})


def test_a_pod_that_is_deleted_while_it_waits_takes_the_group_along() -> None:
    async def test(world: ObjectCache) -> None:
        for n in range(2):
            create(world, f"g{n}", **WHOLE)
        (node,) = await world.filter("g0")
        waits = asyncio.create_task(world.bind("g0", node))
        await asyncio.sleep(0.01)
        world.end("g1")
        assert await waits == "pod group t/g: its places were given back: try again"
        assert not world.desk.ledger.kept
        assert len(world.desk.ledger) == 0

    run(test, groups={"g": 2})


def test_quota_that_ends_between_two_bindings_stops_both() -> None:
    async def test(world: ObjectCache) -> None:
        world.quota(100_000)
        for n in range(2):
            create(world, f"g{n}", **WHOLE)
        places = {name: (await world.filter(name))[0] for name in ("g0", "g1")}
        waits = asyncio.create_task(world.bind("g0", places["g0"]))
        await asyncio.sleep(0.01)
        assert "quota" in await world.bind("g1", places["g1"])
        assert world.api.bindings == []
        world.end("g1")
        assert "given back" in await waits

    run(test, groups={"g": 2}, sharing=True)


def test_a_group_of_which_the_object_comes_late_is_tried_then() -> None:
    async def test(world: ObjectCache) -> None:
        for n in range(2):
            create(world, f"g{n}", **WHOLE)
        text = "the PodGroup t/g (scheduling.x-k8s.io) does not exist"
        assert await why(world, "g0") == text
        world.group("g", 2)
        document = world.objects.get(COSCHEDULING[0], "t/g")
        world.desk.group_changed(COSCHEDULING[0], "t/g", document)
        await world.until("both are requeued", lambda: len(world.api.patches) == 2)
        world.desk.group_changed(COSCHEDULING[0], "t/g", document)
        await asyncio.sleep(0.05)
        assert len(world.api.patches) == 2, "nothing has changed for them"
        assert await world.filter("g0")

    run(test, groups={})


def test_pods_that_were_refused_while_others_were_missing_get_the_new_reason() -> None:
    async def test(world: ObjectCache) -> None:
        await world.run_pod("single", "a", **WHOLE)
        create(world, "g0", **WHOLE)
        assert "1 of at least 2 pods exist" in await why(world, "g0")
        create(world, "g1", **WHOLE)
        assert "GPU shares for 1 of 2 pods" in await why(world, "g1")
        await world.until("the other is requeued", lambda: world.api.patches)
        assert "GPU shares for 1 of 2 pods" in await why(world, "g0")
        await asyncio.sleep(0.3)
        assert [name for _, name, _ in world.api.patches] == ["g0"], "once"

    run(test, groups={"g": 2})


def test_pods_of_a_group_evict_no_others_before_it_is_complete() -> None:
    async def test(world: ObjectCache) -> None:
        await world.run_pod("low", "a", **WHOLE)
        for n in range(2):
            create(world, f"g{n}", priority=10, **WHOLE)
        assert "GPU shares for 1 of 2 pods" in await why(world, "g0")
        victims = {"a": {"Pods": [{"UID": "u-low"}], "NumPDBViolations": 0}}
        asked = {"Pod": world.api.pods["g0"], "NodeNameToMetaVictims": victims}
        assert await world.add("preempt", **asked) == {"NodeNameToMetaVictims": {}}
        await asyncio.sleep(0.05)
        assert world.api.gone == []

    run(test, groups={"g": 2})


def test_the_next_leader_reserves_the_same_nodes_and_evicts_nobody_for_them() -> None:
    async def first(world: ObjectCache) -> None:
        for n in range(2):
            create(world, f"g{n}", priority=10, **WHOLE)
        await world.filter("g0")
        await world.until("stored", lambda: nominated(world, "g0") and nominated(world, "g1"))
        nodes.update({name: nominated(world, name) for name in ("g0", "g1")})
        api.append(world.api)

    async def second(world: ObjectCache) -> None:
        world.desk._look()
        kept = {uid: one.place.node for uid, one in world.desk.ledger.kept.items()}
        assert kept == {f"u-{name}": node for name, node in nodes.items()}
        world.create("single", **WHOLE)
        assert await world.filter("single") == []
        errors = await asyncio.gather(*(world.bind(name, node) for name, node in nodes.items()))
        assert list(errors) == ["", ""]
        assert world.api.gone == []
        assert contradictions(world.desk.extender.stock) == []

    nodes: dict[str, str] = {}
    api: list[Any] = []
    run(first, groups={"g": 2})
    run(second, groups={"g": 2}, api=api[0])
