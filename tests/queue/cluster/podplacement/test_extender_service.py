"""Bindings: GPUs are taken before the write and given back when it is refused; an answer that was lost is found out."""

from __future__ import annotations

import asyncio
import json
from time import monotonic
from typing import Any

import pytest

from queuecontroller.cluster.podplacement import binding, extender_service
from queuecontroller.cluster.podplacement.gpu_pods import GpuPods, read_budget, seen
from queuecontroller.cluster.podplacement.left_out import FIRST_S, ROUNDS
from queuecontroller.gpushares.admission import Rules
from queuecontroller.state.nodes.nodes_room import NO_CORDON, Cordon
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused
from sluicecommon.kubernetes.reflector import Changed, Removed
from sluicecommon.kubernetes.resources import NAMESPACES
from sluicecommon.pod_annotations import PLACEMENT
from tests.queue.cluster.podplacement.service import ObjectCache, answered, run, settled
from tests.queue.gpushares.extender.rooms import dumped, pod


def test_a_pods_end_that_is_on_its_way_to_us_counts_before_another_is_refused() -> None:
    async def test(world: ObjectCache) -> None:
        world.create("whole", cores=100)
        assert await world.bind("whole", "a") == ""
        world.watch("whole")
        late = {"Pod": pod("late", cores=100), "NodeNames": ["a"]}
        asking = asyncio.create_task(world.add("filter", **late))
        await asyncio.sleep(0)
        world.pods.changed(Removed("t/whole"))
        assert (await asking)["NodeNames"] == ["a"]

    run(test)


def test_where_only_the_best_is_wanted_others_with_room_are_not_named() -> None:
    async def test(world: ObjectCache) -> None:
        world.create("first", gpumem=1000)
        assert await world.bind("first", "b") == ""
        world.watch("first")
        asked = {"Pod": pod("p", gpumem=1000), "NodeNames": ["a", "b"]}
        assert (await world.add("filter", **asked))["NodeNames"] == ["b"]
        names = {"items": [{"metadata": {"name": name}} for name in "ab"]}
        tried = await world.add("filter", Pod=asked["Pod"], Nodes=names)
        assert tried["Nodes"] == {"metadata": {}, **names}, "an autoscaler is sent all"

    run(test, best_only=True)


@pytest.mark.parametrize("best_only", [True, False])
def test_the_last_room_of_a_node_is_not_promised_to_the_next_pod_as_well(best_only: bool) -> None:
    """kube-scheduler asks about the next pod before it has bound the one before."""

    async def chosen(world: ObjectCache, name: str) -> str:
        asked = {"Pod": pod(name, gpumem=50_000), "NodeNames": ["a", "b"]}
        names = (await world.add("filter", **asked))["NodeNames"]
        if len(names) == 1:
            return str(names[0])
        points = await world.add("prioritize", Pod=asked["Pod"], NodeNames=names)
        return str(max(points, key=lambda one: one["Score"])["Host"])

    async def test(world: ObjectCache) -> None:
        world.create("there", gpumem=1000)
        assert await world.bind("there", "a") == ""
        for name in ("first", "second", "third"):
            world.create(name, gpumem=50_000)
        assert await chosen(world, "first") == "a", "the fullest"
        assert await chosen(world, "second") == "b"
        assert await chosen(world, "first") == "a", "asked for again it blocks no other pod"
        assert await world.bind("first", "a") == ""
        assert await world.bind("second", "b") == ""
        failed = (await world.add("filter", Pod=pod("third", gpumem=50_000), NodeNames=["a", "b"]))[
            "FailedNodes"
        ]
        assert set(failed) == {"a", "b"}

    run(test, best_only=best_only)


def test_who_is_not_bound_after_all_keeps_room_for_a_moment_and_never_the_only_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(world: ObjectCache) -> None:
        first, second = (pod(name, gpumem=50_000) for name in ("first", "second"))
        both = ["a", "b"]
        assert (await world.add("filter", Pod=first, NodeNames=["a"]))["NodeNames"] == ["a"]
        assert (await world.add("filter", Pod=second, NodeNames=both))["NodeNames"] == ["b"]
        assert (await world.add("filter", Pod=second, NodeNames=["a"]))["NodeNames"] == ["a"]
        monkeypatch.setattr(extender_service, "monotonic", lambda: now_s + 2)
        assert (await world.add("filter", Pod=second, NodeNames=both))["NodeNames"] == both

    now_s = monotonic()
    run(test)


def test_a_refusal_waits_for_no_more_than_a_moment_and_not_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(extender_service, "RESTS_S", 3600)

    async def test(world: ObjectCache) -> None:
        world.create("whole", cores=100)
        assert await world.bind("whole", "a") == ""
        late = dumped({"Pod": pod("late", cores=100), "NodeNames": ["a"]})
        made = world.desk.answer("filter", late)
        assert not isinstance(made, bytes), "it looks again"
        assert "needs 1 GPU" in json.loads(await made)["FailedNodes"]["a"]
        assert isinstance(world.desk.answer("filter", late), bytes), "and then not so soon"

    run(test)


def test_a_binding_carries_the_placement_and_is_conditional_on_the_pod() -> None:
    async def test(world: ObjectCache) -> None:
        world.create("p", gpumem=50_000)
        assert await world.bind("p", "a") == ""
        (made,) = world.api.bindings
        assert made["metadata"]["uid"] == "u-p"
        place = json.loads(made["metadata"]["annotations"][PLACEMENT])
        assert place["containers"]["main"][0]["uuid"] == "GPU-a-0"
        world.create("q", gpumem=50_000)
        assert "lack memory" in await world.bind("q", "a"), "before the watch has told of p"
        world.watch("p")
        assert "lack memory" in await world.bind("q", "a"), "and after"
        assert await world.bind("q", "b") == ""

    run(test)


def test_what_is_cordoned_gets_nothing_new_and_keeps_what_it_has() -> None:
    async def test(world: ObjectCache) -> None:
        room = world.shell.book.nodes_room
        world.create("before", gpumem=1_000)
        assert await world.bind("before", "a") == ""
        world.watch("before")
        assert room.cordon("a", Cordon(gpus=frozenset({"GPU-a-0", "GPU-elsewhere"})))
        world.create("p", gpumem=1_000)
        assert "1 are cordoned" in await world.bind("p", "a")
        assert await world.bind("p", "b") == ""
        assert not room.cordon("a", Cordon(gpus=frozenset({"GPU-a-0", "GPU-elsewhere"})))
        assert room.cordon("a", NO_CORDON)
        world.create("q", gpumem=80_000)
        assert await world.bind("q", "a") == ""
        world.create("r", gpumem=1_000)
        assert "lack memory" in await world.bind("r", "a"), "what came before the cordon counts"

    run(test)


def test_no_pod_is_bound_to_a_node_whose_agent_has_told_that_it_stops() -> None:
    """Its kubelet would admit it by devices that are being withdrawn. The node's GPUs still count, so that no new node is bought for them."""

    async def test(world: ObjectCache) -> None:
        world.create("late", gpumem=1000)
        capacity = world.shell.book.nodes.nodes["a"].capacity
        world.shell.step(
            "report",
            lambda book, now_ns: book.desk.report("a", 1, 1, capacity, now_ns, stopping=True),
        )
        assert "while its agent restarts" in await world.bind("late", "a")
        assert await world.filter("late") == ["b"]
        assert "a" in world.shell.book.nodes_room.stock.nodes
        world.connect("a", capacity)
        assert await world.filter("late") == ["a", "b"]
        assert await world.bind("late", "a") == ""

    run(test)


def test_two_bindings_at_once_never_share_what_there_is_once() -> None:
    async def test(world: ObjectCache) -> None:
        for n in range(6):
            world.create(f"p{n}", gpumem=30_000)
        answers = await asyncio.gather(*(world.bind(f"p{n}", "a") for n in range(6)))
        assert sorted(bool(one) for one in answers) == [False, False, True, True, True, True]

    run(test)


def test_a_refused_binding_gives_its_gpus_back() -> None:
    async def test(world: ObjectCache) -> None:
        def refuse() -> None:
            raise ApiRefused(409, "Conflict", "somebody was faster")

        world.create("p", gpumem=50_000)
        world.api.fate = refuse
        assert "somebody was faster" in await world.bind("p", "a")
        assert len(world.desk.ledger) == 0
        world.api.fate = lambda: None
        assert await world.bind("p", "a") == ""

    run(test)


@pytest.mark.parametrize("carried_out", [True, False])
def test_an_answer_that_was_lost_is_found_out_and_the_gpus_are_kept_until_then(
    monkeypatch: pytest.MonkeyPatch, carried_out: bool
) -> None:
    monkeypatch.setattr(binding, "AGAIN_S", 0.0)
    monkeypatch.setattr(binding, "CARRIED_OUT_S", 0.0)

    async def test(world: ObjectCache) -> None:
        def lose() -> None:
            if carried_out:
                world.api.bind("p", world.api.bindings[-1])
            raise ApiAway("the connection broke")

        world.create("p", gpumem=50_000)
        world.api.fate = lose
        assert "has no answer" in await world.bind("p", "a")
        assert "has no answer" in await world.bind("p", "b"), "not twice"
        assert len(world.desk.ledger) == 1
        await settled()
        assert len(world.desk.ledger) == (1 if carried_out else 0)
        world.api.fate = lambda: None
        assert bool(await world.bind("p", "b")) == carried_out

    run(test)


def test_whoever_does_not_lead_any_more_binds_nothing() -> None:
    async def test(world: ObjectCache) -> None:
        world.create("p", gpumem=1)
        world.may_write = False
        assert "does not lead" in await world.bind("p", "a")
        assert (world.api.bindings, len(world.desk.ledger)) == ([], 0)

    run(test)


def test_who_comes_to_lead_knows_what_was_bound_before_the_watch_tells() -> None:
    async def test(world: ObjectCache) -> None:
        world.create("p", gpumem=50_000)
        await world.bind("p", "a")
        again = ObjectCache()
        again.api = world.api
        again.desk._client = world.api  # type: ignore[assignment]
        answer = await again.add("filter", Pod=pod("q", gpumem=50_000), NodeNames=["a", "b"])
        assert "has not listed all pods yet" in answer["Error"]
        running = asyncio.create_task(again.desk.run())
        while not again.desk._has_all_pods:
            await asyncio.sleep(0)
        answer = await again.add("filter", Pod=pod("q", gpumem=50_000), NodeNames=["a", "b"])
        assert answer["NodeNames"] == ["b"]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run(test)


def test_a_pod_that_kept_a_scheduler_which_knows_of_no_shares_is_told_so_once() -> None:
    """It was created before a webhook answered: its events said `Insufficient nvidia.com/gpumem`
    for ever."""
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}

    def create(world: ObjectCache, name: str, scheduler: str, tried: bool, **asked: int) -> None:
        document = pod(name, **asked)
        document["spec"]["schedulerName"] = scheduler
        document["status"]["conditions"] = [unschedulable] if tried else []
        world.api.create(document)
        world.watch(name)

    async def test(world: ObjectCache) -> None:
        create(world, "early", "default-scheduler", tried=True, gpumem=1000)
        world.api.create(world.api.pods["early"])
        world.watch("early")
        create(world, "new", "default-scheduler", tried=False, gpumem=1000)
        create(world, "ours", "sluice-scheduler", tried=True, gpumem=1000)
        create(world, "whole", "default-scheduler", tried=True)
        assert world.told == [("early", "SharesNotPlaced")]
        assert "schedulerName: sluice-scheduler" in world.texts[0]
        world.end("early")
        create(world, "early", "default-scheduler", tried=True, gpumem=1000)
        assert len(world.told) == 2, "it is another pod"

    run(test, sharing=True, rules=Rules(scheduler="sluice-scheduler"), groups={})

    async def untold(world: ObjectCache) -> None:
        create(world, "early", "default-scheduler", tried=True, gpumem=1000)
        assert world.told == [], "nodes advertise sums, by which any scheduler places it"

    run(untold, sharing=True, groups={})


@pytest.mark.parametrize(
    ("kind", "labels", "namespace_labels", "is_deleted"),
    [
        ("ReplicaSet", {}, {}, True),
        ("StatefulSet", {}, {}, True),
        ("Job", {}, {}, False),
        ("", {}, {}, False),
        ("ReplicaSet", {"hami.io/webhook": "ignore"}, {}, False),
        ("ReplicaSet", {}, {"hami.io/webhook": "ignore"}, False),
        ("StatefulSet", {"leaderworkerset.sigs.k8s.io/name": "g"}, {}, False),
    ],
)
def test_a_pod_without_its_scheduler_is_deleted_if_its_owner_creates_it_again(
    kind: str, labels: dict[str, str], namespace_labels: dict[str, str], is_deleted: bool
) -> None:
    """The webhook did not answer: no scheduler places the pod, and its owner creates no other."""
    head = {"name": "t", "uid": "t", "resourceVersion": "1", "labels": namespace_labels}

    async def test(world: ObjectCache) -> None:
        world.api.create(left_out("p", kind, labels))
        world.watch("p")
        await settled()
        assert world.api.gone == [], "not yet: a leader is not reached at once"
        await settled(FIRST_S)
        assert world.api.gone == ([("deleted", "p")] if is_deleted else [])
        assert world.told == [("p", "SharesNotPlaced")]
        end = f"deleted soon, and its {kind} creates it again" if is_deleted else "sluice-scheduler"
        assert world.texts[0].endswith(end)
        world.watch("p")
        await settled()
        assert len(world.told) == 1

    rules = Rules(scheduler="sluice-scheduler")
    run(test, sharing=True, rules=rules, groups={}, objects=((NAMESPACES, {"metadata": head}),))


def test_pods_of_one_owner_are_deleted_together_and_each_time_later() -> None:
    async def test(world: ObjectCache) -> None:
        deleted = 0
        for number in range(ROUNDS + 1):
            for name in (f"a{number}", f"b{number}"):
                world.api.create(left_out(name, "ReplicaSet", {}))
                world.watch(name)
            await settled(FIRST_S * 2**number * 0.9)
            assert len(world.api.gone) == deleted
            await settled(FIRST_S * 2**number * 0.2)
            deleted += 2 if number < ROUNDS else 0
            assert len(world.api.gone) == deleted
        assert world.texts[-1].endswith("schedulerName: sluice-scheduler"), "it is left alone"

    run(test, sharing=True, rules=Rules(scheduler="sluice-scheduler"), groups={})


@pytest.mark.parametrize("namespace", ["kube-system", "sluice"])
def test_pods_that_are_not_sent_to_the_webhook_are_not_deleted(namespace: str) -> None:
    async def test(world: ObjectCache) -> None:
        document = left_out("p", "ReplicaSet", {})
        document["metadata"]["namespace"] = namespace
        world.api.create(document)
        world.watch("p")
        await settled(2 * FIRST_S)
        assert world.api.gone == []
        assert world.told == [("p", "SharesNotPlaced")]

    run(test, sharing=True, rules=Rules(scheduler="sluice-scheduler"), groups={})


def test_a_pod_that_is_gone_or_placed_meanwhile_is_not_deleted() -> None:
    async def test(world: ObjectCache) -> None:
        for name in ("gone", "bound"):
            world.api.create(left_out(name, "ReplicaSet", {}))
            world.watch(name)
        world.end("gone")
        world.api.pods["bound"]["spec"]["nodeName"] = "a"
        world.api.create(world.api.pods["bound"])
        world.watch("bound")
        await settled(2 * FIRST_S)
        assert world.api.gone == []

    run(test, sharing=True, rules=Rules(scheduler="sluice-scheduler"), groups={})


def left_out(name: str, kind: str, labels: dict[str, str]) -> dict[str, Any]:
    """A pod with shares of the default scheduler, which has refused it."""
    document = pod(name, gpumem=1000)
    document["spec"]["schedulerName"] = "default-scheduler"
    document["metadata"]["labels"] = labels
    if kind:
        owner = {"kind": kind, "name": "o", "uid": "u-o", "controller": True}
        document["metadata"]["ownerReferences"] = [owner]
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    document["status"]["conditions"] = [refused]
    return document


def test_what_cannot_be_read_is_an_error_in_the_answer() -> None:
    async def test(world: ObjectCache) -> None:
        assert json.loads(await answered(world.desk, "filter", b"{")) == {
            "Error": "invalid JSON: Expecting property name enclosed in double quotes: line 1 column"
            " 2 (char 1)"
        }
        assert json.loads(await answered(world.desk, "prioritize", b"{")) == []
        assert json.loads(await answered(world.desk, "preempt", b"{")) == {
            "NodeNameToMetaVictims": {}
        }
        spoilt = {"metadata": {"annotations": 1}, "spec": {"containers": 1}}
        assert (
            "malformed request" in (await world.add("filter", Pod=spoilt, NodeNames=["a"]))["Error"]
        )
        assert "cannot be read" in await world.bind("nobody", "a")

    run(test)


def test_pods_are_kept_as_far_as_they_have_to_do_with_gpus() -> None:
    pods, told = GpuPods(), []
    pods.on_change = lambda uid, document: told.append((uid, document is not None))

    def item(document: dict[str, Any], version: int) -> Any:
        document["metadata"]["resourceVersion"] = str(version)
        key = f"t/{document['metadata']['name']}"
        return type("Item", (), {"key": key, "value": seen(document)})

    pods.changed(Changed(item(pod("plain", count=0), 1)))
    assert len(pods) == 0
    pods.changed(Changed(item(pod("p", gpumem=1), 2)))
    pods.changed(Changed(item(pod("p", gpumem=1), 1)))  # older, reported late
    other = pod("p", gpumem=1)
    other["metadata"]["uid"] = "u-other"
    pods.changed(Changed(item(other, 3)))
    pods.changed(Removed("t/p"))
    assert told == [("u-p", True), ("u-p", False), ("u-other", True), ("u-other", False)]
    assert len(pods) == 0


def test_a_budget_is_read_whole() -> None:
    found = read_budget(
        {
            "metadata": {"name": "b", "namespace": "t"},
            "spec": {
                "selector": {
                    "matchLabels": {"app": "x"},
                    "matchExpressions": [{"key": "tier", "operator": "Exists"}],
                }
            },
            "status": {"disruptionsAllowed": 2, "disruptedPods": {"gone": "now"}},
        }
    )
    assert (found.namespace, found.allowed, found.disrupted) == ("t", 2, frozenset({"gone"}))
    assert found.selector.matches({"app": "x", "tier": "1"})
    assert not found.selector.matches({"app": "x"})
