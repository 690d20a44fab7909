"""A pod that was refused on every node is requeued once there is room, whatever made it, and not
otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest

from queuecontroller.cluster.podplacement import extender_service, requeueing
from queuecontroller.state.nodes.nodes_room import NO_CORDON, Cordon
from sluicecommon.kubernetes.decoding import Item
from sluicecommon.kubernetes.reflector import Changed, Removed
from sluicecommon.pod_annotations import PLACEMENT
from tests.queue.cluster.podplacement.service import Api, ObjectCache, run, settled
from tests.queue.gpushares.extender.rooms import node, pod


@pytest.mark.parametrize(
    ("before_s", "may_write", "tried"), [(0.0, True, 1), (60.0, True, 0), (0.0, False, 0)]
)
def test_who_was_refused_just_before_room_was_heard_of_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, before_s: float, may_write: bool, tried: int
) -> None:
    """Once: the pod is changed, which kube-scheduler sees."""

    async def test(world: ObjectCache) -> None:
        world.create("whole", cores=100)
        assert await world.bind("whole", "a") == ""
        world.watch("whole")
        late = pod("late", cores=100)
        for _ in range(2):
            assert (await world.add("filter", Pod=late, NodeNames=["a"]))["NodeNames"] == []
        world.may_write = may_write
        monkeypatch.setattr(requeueing, "monotonic", lambda: monotonic() + before_s)
        for name in ("whole", "another"):
            world.pods.changed(Removed(f"t/{name}"))
            await settled()
        patch = {"uid": "u-late", "annotations": {requeueing.TRIED_FOR: "u-whole"}}
        assert world.api.patches == [("t", "late", {"metadata": patch})] * tried
        assert (await world.add("filter", Pod=late, NodeNames=["a"]))["NodeNames"] == ["a"]

    run(test)


def cordon(world: ObjectCache) -> None:
    assert world.shell.book.nodes_room.cordon("a", Cordon(gpus=frozenset({"GPU-a-0"})))


def cordon_is_taken_away(world: ObjectCache) -> None:
    world.shell.book.nodes_room.cordon("a", NO_CORDON)


def node_reports_again(world: ObjectCache) -> None:
    world.connect("a", node("a", 1))


def quota_grows(world: ObjectCache) -> None:
    world.quota(3000)


def quota_is_deleted(world: ObjectCache) -> None:
    assert world.sharing is not None
    world.sharing.quota_changed(Removed("t/q"))


def device_comes(world: ObjectCache) -> None:
    assert world.sharing is not None
    annotations = {"hami.io/node-dcu-register": "DCU-0,1,32768,60,DCU-Z100,0,true,0,hygon:"}
    document = {"metadata": {"name": "a", "annotations": annotations}, "status": {}}
    seen_node = world.sharing.seen_node(document)
    world.sharing.node_changed(Changed(Item("a", "1", seen_node)))


MORE = {
    "a cordon is taken away": (cordon, cordon_is_taken_away),
    "a card is healthy again": (
        lambda world: world.connect("a", node("a", 1, health="unhealthy")),
        node_reports_again,
    ),
    "a node has a session again": (lambda world: world.away("a"), node_reports_again),
    "a quota has grown": (lambda world: world.quota(1000), quota_grows),
    "a quota is gone": (lambda world: world.quota(1000), quota_is_deleted),
    "another vendor's device has come": (cordon, device_comes),
}


@pytest.mark.parametrize(("less", "more"), MORE.values(), ids=MORE)
def test_whatever_makes_room_is_heard_of_for_those_who_were_refused(
    monkeypatch: pytest.MonkeyPatch,
    less: Callable[[ObjectCache], Any],
    more: Callable[[ObjectCache], None],
) -> None:
    """However long ago: kube-scheduler itself never sees some of it."""
    monkeypatch.setattr(extender_service, "LAG_S", 0.0)
    monkeypatch.setattr(requeueing, "REST_S", 0.0)

    async def test(world: ObjectCache) -> None:
        less(world)
        world.shell.book.nodes_room.follow(1)
        await settled()
        late = pod("late", gpumem=2000)
        assert not (await world.add("filter", Pod=late, NodeNames=["a"]))["NodeNames"]
        world.shell.book.nodes_room.follow(1)
        await settled()
        assert world.api.patches == [], "nothing has changed since"
        monkeypatch.setattr(requeueing, "monotonic", lambda: monotonic() + 60)
        for _ in range(2):
            more(world)
            world.shell.book.nodes_room.follow(1)  # as each cycle does
            await settled()
        ((namespace, name, patch),) = world.api.patches
        assert (namespace, name, patch["metadata"]["uid"]) == ("t", "late", "u-late")

    run(test, sharing=True)


def test_a_new_leader_requeues_the_pods_that_the_leader_before_refused() -> None:
    """kube-scheduler has set them aside; whatever made room meanwhile, no leader has a record of
    them. Pods that it has not tried or has bound are left alone."""
    api = Api()
    for name, reason, where in (
        ("refused", "Unschedulable", ""),
        ("bound", "Unschedulable", "a"),
        ("gated", "SchedulingGated", ""),
        ("new", "", ""),
    ):
        document = pod(name, gpumem=2000)
        document["spec"]["nodeName"] = where
        if reason:
            condition = {"type": "PodScheduled", "status": "False", "reason": reason}
            document["status"]["conditions"] = [condition]
        api.create(document)

    async def test(world: ObjectCache) -> None:
        await settled()
        assert [one[:2] for one in world.api.patches] == [("t", "refused")]
        world.away("a")
        world.away("b")
        world.shell.book.nodes_room.follow(1)
        asked = world.api.pods["refused"]
        assert not (await world.add("filter", Pod=asked, NodeNames=["a"]))["NodeNames"]
        node_reports_again(world)
        world.shell.book.nodes_room.follow(1)
        await settled(after_s=1.0)
        assert [one[1] for one in world.api.patches] == ["refused"] * 2, "agents report later"

    run(test, whole=False, api=api)


def test_less_than_a_pod_was_given_is_room() -> None:
    """It was resized."""

    async def test(world: ObjectCache) -> None:
        world.create("large", gpumem=80_000)
        assert await world.bind("large", "a") == ""
        world.watch("large")
        late = pod("late", gpumem=50_000)
        assert not (await world.add("filter", Pod=late, NodeNames=["a"]))["NodeNames"]
        document = world.api.pods["large"]
        place = json.loads(document["metadata"]["annotations"][PLACEMENT])
        place["containers"]["main"][0]["memory_bytes"] >>= 3
        document["metadata"]["annotations"][PLACEMENT] = json.dumps(place)
        world.api.create(document)
        world.watch("large")
        await settled()
        assert [one[1] for one in world.api.patches] == ["late"]
        assert (await world.add("filter", Pod=late, NodeNames=["a"]))["NodeNames"] == ["a"]

    run(test)


def test_many_who_wait_are_changed_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pods that were bound or deleted meanwhile are not changed."""
    monkeypatch.setattr(requeueing, "REST_S", 60.0)

    async def test(world: ObjectCache) -> None:
        room = world.shell.book.nodes_room
        cordon(world)
        for n in range(3 * requeueing.AT_ONCE):
            asked = world.create(f"p{n}", gpumem=1)
            assert not (await world.add("filter", Pod=asked, NodeNames=["a"]))["NodeNames"]
        cordon_is_taken_away(world)
        room.follow(1)
        await settled()
        assert len(world.api.patches) == requeueing.AT_ONCE
        names = [f"p{n}" for n in range(requeueing.AT_ONCE, 3 * requeueing.AT_ONCE)]
        assert await world.bind(names[0], "a") == ""
        world.watch(names[0])
        world.pods.changed(Removed(f"t/{names[1]}"))
        for turn in range(2, 4):
            await settled(after_s=61.0)
            assert len(world.api.patches) == min(
                turn * requeueing.AT_ONCE, 3 * requeueing.AT_ONCE - 2
            )
        changed = [one[1] for one in world.api.patches[requeueing.AT_ONCE :]]
        assert changed == names[2:]

    run(test)


def test_a_dry_run_is_never_tried_again() -> None:
    async def test(world: ObjectCache) -> None:
        world.create("whole", cores=100)
        assert await world.bind("whole", "a") == ""
        world.watch("whole")
        nodes = {"items": [{"metadata": {"name": "a"}}]}
        await world.add("filter", Pod=pod("late", cores=100), Nodes=nodes)
        world.pods.changed(Removed("t/whole"))
        await settled()
        assert world.api.patches == []

    run(test)
