"""Places of workloads and their pods: each pod has one of its own, no other pod gets it, and no card ever promises more than it has,
whatever comes in whatever order, and after a change of leader."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from queuecontroller.gpushares.extender.ledger import Running
from queuecontroller.gpushares.extender.pods import PodPlace, place_of, read_place, read_pod
from queuecontroller.scheduler.model.objects import Workload, WorkloadKey
from sluicecommon.pod_annotations import PLACEMENT
from tests.queue.gpushares.extender.queue import Queue
from tests.queue.gpushares.extender.rooms import contradictions, free, node, pod, random_pod

W = WorkloadKey("t/w")


def full(count: int = 2) -> Queue:
    """Every card is kept for w."""
    queue = Queue({"a": node("a", 1), "b": node("b", 1)})
    assert not queue.keep(queue.submit("w", count=count, gpucores=100)).refusal
    return queue


def test_each_pod_gets_a_place_of_its_own_and_holds_nothing_besides() -> None:
    queue = full()
    before = free(queue.stock)
    pods = [queue.pod_of("w", f"w-{n}", gpucores=100) for n in range(3)]
    assert sorted(map(queue.bind, pods)) == ["", "a", "b"]
    assert free(queue.stock) == before
    answer = queue.extender.filter(pods[2], ["a", "b"])
    assert answer.failed == dict.fromkeys(("a", "b"), "all places are held")


def test_a_place_on_a_node_that_kube_scheduler_has_left_over_is_taken_first() -> None:
    queue = full()
    one = queue.pod_of("w", "w-0", gpucores=100)
    assert queue.extender.filter(one, ["b"]).names == ("b",)
    assert queue.extender.filter(one, ["a"]).names == ("a",), "it is bound to none yet"
    assert queue.extender.filter(one, ["a", "b"]).names == ("a",), "and keeps what it was told"


def test_a_place_is_exchanged_for_another_and_all_others_stay_whose_they_are() -> None:
    queue = Queue({"a": node("a", 1), "b": node("b", 1), "c": node("c", 1)})
    info = queue.submit("w", count=2, gpucores=100)
    verdict = queue.keep(info)
    first, second = (queue.pod_of("w", f"w-{n}", gpucores=100) for n in range(2))
    assert queue.bind(first) == "a"
    assert queue.extender.filter(second, ["c"]).names == ()
    other = queue.extender.best(read_pod(second), ["c"])
    assert other is not None
    queue.ledger.reserved.move("u-w-1", replace(other, workload=W))
    assert queue.extender.filter(second, ["c"]).names == ("c",)
    assert queue.bind(pod("plain", gpucores=100)) == "b", "what it had is free"
    # The Workload says the same in another order: nothing is taken anew.
    notes = verdict.places["main"]
    kept = [replace(other, workload=W)]
    kept += [replace(p, workload=W) for p in map(_place, notes) if p.node == "a"]
    queue.ledger.reserve(W, {"main": kept})
    assert queue.ledger.reserved.covers("u-w-0")
    assert queue.bind(second) == "c"
    assert contradictions(queue.stock) == []


def _place(one: Any) -> PodPlace:
    found = read_place(one.place)
    assert found is not None
    return found


def kept_by(queue: Queue) -> list[PodPlace]:
    return [slot.place for slot in queue.ledger.reserved.slots(W)]


def test_pods_that_are_done_give_their_places_back_before_the_others_are() -> None:
    queue = full()
    before = free(queue.stock)
    pods = {
        queue.bind(one): one for one in (queue.pod_of("w", f"w-{n}", gpucores=100) for n in (0, 1))
    }
    assert pods.keys() == {"a", "b"}
    queue.ledger.reserve(W, {"main": kept_by(queue)}, {"main": 1})
    assert free(queue.stock) == before, "both are there still"
    pods["a"]["status"]["phase"] = "Succeeded"
    queue.ledger.take(pods["a"])
    assert queue.bind(queue.pod_of("w", "again", gpucores=100)) == "", "none is wanted"
    assert queue.bind(pod("plain", gpucores=100)) == "a"
    queue.ledger.drop("u-plain")
    queue.ledger.reserve(W, {"main": kept_by(queue)})  # as if it had been a mistake
    assert queue.bind(pod("plain", gpucores=100)) == ""
    queue.room.release(W)
    assert contradictions(queue.stock) == []


@pytest.mark.parametrize("runs_on", ["a", "b"])
def test_who_comes_to_lead_gives_back_the_place_that_nobody_has(runs_on: str) -> None:
    queue = full()
    places = kept_by(queue)
    running = queue.pod_of("w", "w-0", gpucores=100)
    queue.extender.filter(running, [runs_on])
    assert queue.bind(running) == runs_on
    again = Queue(queue.nodes)
    again.ledger.reserve(W, {"main": places}, {"main": 1})
    again.ledger.take(running)
    other = "b" if runs_on == "a" else "a"
    assert again.bind(pod("plain", gpucores=100)) == other
    assert again.ledger.reserved.covers("u-w-0")
    assert contradictions(again.stock) == []


@pytest.mark.parametrize("seed", range(30))
def test_as_many_places_are_held_as_pods_are_left_whatever_comes(seed: int) -> None:
    rng = random.Random(seed)
    queue = Queue({name: node(name, 2) for name in "abc"})
    assert not queue.keep(queue.submit("w", count=6, gpucores=100)).refusal
    places, done = kept_by(queue), 0
    pods: dict[str, Any] = {}
    for number in range(60):
        match rng.randrange(4):
            case 0 if len(pods) < 6 - done:
                one = queue.pod_of("w", f"w-{number}", gpucores=100)
                if queue.bind(one):
                    pods[one["metadata"]["uid"]] = one
            case 1 if pods and done < 5:  # one has succeeded
                ended = pods.pop(rng.choice(sorted(pods)))
                ended["status"]["phase"] = "Succeeded"
                done += 1
                steps = [
                    lambda ended=ended: queue.ledger.take(ended),
                    lambda done=done: queue.ledger.reserve(W, {"main": places}, {"main": done}),
                ]
                rng.shuffle(steps)
                for step in steps:
                    step()
            case 2 if pods:  # one has failed
                ended = pods.pop(rng.choice(sorted(pods)))
                queue.ledger.drop(ended["metadata"]["uid"])
            case _:
                pass
        idle = sum(gpu.holders == 0 for r in queue.stock.nodes.values() for gpu in r.gpus.values())
        assert idle == done
        assert contradictions(queue.stock) == []
        assert all(queue.ledger.reserved.covers(uid) for uid in pods)


def test_a_pod_that_is_being_bound_keeps_its_place_where_what_is_kept_changes() -> None:
    queue = full()
    one = queue.pod_of("w", "w-0", gpucores=100)
    place = queue.extender.place(one, "a")
    assert isinstance(place, PodPlace)
    queue.ledger.assume("u-w-0", replace(place, workload=W))
    mine = [replace(slot.place) for slot in queue.ledger.reserved.slots(W)]
    queue.ledger.reserve(W, {"main": mine[:1]})
    assert queue.ledger.reserved.covers("u-w-0")
    assert contradictions(queue.stock) == []


def test_the_place_of_a_pod_that_ended_is_the_next_ones() -> None:
    queue = full()
    pods = [queue.pod_of("w", f"w-{n}", gpucores=100) for n in range(2)]
    ended = {queue.bind(one): one for one in pods}["a"]
    ended["status"]["phase"] = "Failed"
    queue.ledger.take(ended)
    assert queue.bind(queue.pod_of("w", "again", gpucores=100)) == "a"


def test_a_pod_that_was_deleted_by_force_keeps_its_place_until_its_node_says_so() -> None:
    queue = full()
    pods = [queue.pod_of("w", f"w-{n}", gpucores=100) for n in range(2)]
    gone = {queue.bind(one): one for one in pods}["a"]
    uid, place = gone["metadata"]["uid"], place_of(gone)
    assert place is not None
    queue.ledger.report("a", {uid: Running(uid, "t", "x", place.held)})
    queue.ledger.drop(uid)
    again = queue.pod_of("w", "again", gpucores=100)
    assert queue.bind(again) == ""
    queue.ledger.report("a", {})
    assert queue.bind(again) == "a"


def test_a_pod_that_outlives_its_workloads_quota_holds_its_gpus_itself() -> None:
    queue = full()
    pods = [queue.pod_of("w", f"w-{n}", gpucores=100) for n in range(2)]
    left = {queue.bind(one): one for one in pods}["a"]
    queue.room.release(W)
    assert queue.bind(pod("plain", gpucores=100)) == "", "both still run"
    queue.ledger.drop(left["metadata"]["uid"])
    assert queue.bind(pod("plain", gpucores=100)) == "a"


def test_a_pod_that_says_it_is_a_workloads_and_is_not_holds_its_gpus_itself() -> None:
    queue = Queue({"a": node("a", 1)})
    plain = pod("plain", gpumem=50_000)
    assert queue.bind(plain) == "a"
    forged = plain["metadata"]["annotations"]
    forged[PLACEMENT] = forged[PLACEMENT][:-1] + ',"workload":"t/nobody"}'
    queue.ledger.take(plain)
    assert queue.bind(pod("next", gpumem=50_000)) == ""


def test_a_binding_that_was_refused_leaves_the_place_the_workloads() -> None:
    queue = full(1)
    one = queue.pod_of("w", "w-0", gpucores=100)
    place = queue.placed(one, None)
    assert place is not None
    assert not isinstance(place, str)
    queue.ledger.assume("u-w-0", place)
    queue.ledger.forget("u-w-0")
    assert queue.bind(pod("plain", gpucores=100)) in ("a", "b"), "the other card is free"
    assert queue.bind(pod("more", gpucores=100)) == ""
    assert queue.bind(one) == place.node


def recount(queue: Queue, workloads: dict[str, Workload], pods: dict[str, Any]) -> list[str]:
    """Overcommitted GPUs, recounted from the reservations and the pods' own places."""
    memory: Counter[str] = Counter()
    time: Counter[str] = Counter()
    holders: Counter[str] = Counter()
    alone: set[str] = set()

    def add(shares: Any) -> None:
        for one in shares:
            memory[one.uuid] += one.memory_bytes
            time[one.uuid] += one.share_ppm
            holders[one.uuid] += 1
            if one.alone:
                alone.add(one.uuid)

    for key in workloads:
        for slot in queue.ledger.reserved.slots(WorkloadKey(f"t/{key}")):
            add(slot.place.held)
    for document in pods.values():
        place = place_of(document)
        if place is not None and not queue.ledger.reserved.covers(document["metadata"]["uid"]):
            add(place.held)
    return [
        f"{gpu.uuid}: {memory[gpu.uuid]} {time[gpu.uuid]} {holders[gpu.uuid]}"
        for capacity in queue.nodes.values()
        for gpu in capacity.gpus
        if memory[gpu.uuid] > gpu.memory_bytes
        or time[gpu.uuid] > 1_000_000
        or holders[gpu.uuid] > gpu.slots
    ]


@pytest.mark.parametrize("seed", range(30))
def test_no_card_is_promised_twice_to_queued_and_plain_pods(seed: int) -> None:
    rng = random.Random(seed)
    queue = Queue({f"n{i}": node(f"n{i}", rng.choice([1, 2, 4])) for i in range(3)})
    workloads: dict[str, Workload] = {}
    asked: dict[str, dict[str, Any]] = {}
    pods: dict[str, dict[str, Any]] = {}
    placed = refused = bound = 0
    for number in range(150):
        what = rng.random()
        if what < 0.25:
            name = f"w{number}"
            amounts: dict[str, Any] = {"gpumem": rng.choice([1000, 20_000, 60_000])}
            if rng.random() < 0.5:
                amounts["gpucores"] = rng.choice([10, 50, 100])
            if rng.random() < 0.3:
                amounts["before"] = {"gpumem": rng.choice([500, 70_000])}
            if rng.random() < 0.3:
                amounts["side"] = {"gpumem": 5000}
            info = queue.submit(name, count=rng.randint(1, 5), **amounts)
            verdict = queue.keep(info)
            if verdict.refusal:
                refused += 1
                assert "GPU shares for" in verdict.refusal
            else:
                placed += 1
                workloads[name], asked[name] = queue.admitted(info, verdict), amounts
        elif what < 0.35 and workloads:
            name = rng.choice(sorted(workloads))
            queue.room.release(WorkloadKey(f"t/{name}"))
            del workloads[name]
        elif what < 0.65 and workloads:
            name = rng.choice(sorted(workloads))
            document = queue.pod_of(name, f"p{number}", **asked[name])
            mine = [
                one
                for one in pods.values()
                if one["metadata"]["annotations"].get("workload") == name
            ]
            has_place = len(mine) < workloads[name].pod_sets[0].count
            assert bool(queue.bind(document)) == has_place, "just as many as were kept"
            if has_place:
                bound += 1
                pods[document["metadata"]["uid"]] = document
        elif what < 0.8:
            document = random_pod(rng, number)
            if queue.bind(document):
                pods[document["metadata"]["uid"]] = document
        elif what < 0.95 and pods:
            uid = rng.choice(sorted(pods))
            del pods[uid]
            queue.ledger.drop(uid)
        else:  # another leader, in whatever order the objects arrive
            queue = Queue(queue.nodes, asks=queue.asks)
            heard: list[Any] = [*workloads.values(), *pods.values()]
            rng.shuffle(heard)
            for one in heard:
                if isinstance(one, Workload):
                    queue.room.restored(one)
                else:
                    queue.ledger.take(one)
            assert not queue.shares.wrong
        assert contradictions(queue.stock) == []
        assert recount(queue, workloads, pods) == []
    assert placed
    assert bound
    assert refused
