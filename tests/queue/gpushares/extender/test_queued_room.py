"""Room for workloads of the queue out of the stock that plain pods are placed from: kept at once, on nodes that take the pods, by
topologies where there are some, and believed again only where it can be the workload's own."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from queuecontroller.gpushares.extender.answers import Defaults
from queuecontroller.gpushares.extender.queued_room import MAX_PODS
from queuecontroller.scheduler.model.objects import PlacedPods, WorkloadKey
from queuecontroller.scheduler.model.reasons import PendingReason
from tests.queue.gpushares.extender.queue import RACK, Queue, uuids
from tests.queue.gpushares.extender.rooms import GIB, contradictions, free, node, pod

MIB = 1 << 20


def test_what_is_kept_for_a_workload_no_plain_pod_gets() -> None:
    queue = Queue({"a": node("a", 1)})
    verdict = queue.keep(queue.submit("w", gpumem=50_000, gpucores=50))
    assert not verdict.refusal
    assert uuids(verdict) == ["GPU-a-0"]
    plain = pod("plain", gpumem=50_000)
    passed = queue.extender.filter(plain, ["a"])
    assert "lack memory (most free on one: 31920 of 50000 MiB)" in passed.failed["a"]
    queue.room.release(WorkloadKey("t/w"))
    assert queue.extender.filter(plain, ["a"]).names == ("a",)


def test_who_finds_no_share_is_told_in_amounts_and_by_which_reason() -> None:
    queue = Queue({"a": node("a", 2), "b": node("b", 1)})
    assert queue.bind(pod("plain", gpumem=60_000))
    verdict = queue.keep(queue.submit("w", count=4, gpumem=50_000, gpucores=30))
    assert verdict.reason is PendingReason.WAITING_FOR_PLACEMENT
    assert "pod set main: GPU shares for 2 of 4 pods" in verdict.refusal
    assert "2 of 2 nodes have none" in verdict.refusal
    assert "needs 1 GPU with 50000 MiB and 30 % of the time" in verdict.refusal
    assert "most free on one: 31920 of 50000 MiB" in verdict.refusal
    assert verdict.preempting_helps
    assert not queue.ledger.reserved.has(WorkloadKey("t/w")), "nothing is kept of it"
    assert len(queue.keep(queue.submit("less", count=2, gpumem=50_000)).places["main"]) == 2


def test_what_no_node_could_ever_give_is_waited_for_in_vain() -> None:
    queue = Queue({"a": node("a", 1)})
    verdict = queue.keep(queue.submit("w", gpumem=100_000))
    assert not verdict.preempting_helps
    verdict = queue.keep(queue.submit("many", count=MAX_PODS + 1, gpumem=1))
    assert f"at most {MAX_PODS} can be placed" in verdict.refusal
    wrong = queue.submit("wrong", annotations={"nvidia.com/numa-bind": "perhaps"}, gpumem=1)
    verdict = queue.keep(wrong)
    assert "must be true or false" in verdict.refusal
    assert not verdict.preempting_helps


def test_nothing_is_placed_before_it_is_known_which_pods_hold_gpus() -> None:
    queue = Queue({"a": node("a", 1)})
    queue.shares.missing_input = "which pods hold GPUs already"
    verdict = queue.keep(queue.submit("w", gpumem=1000))
    assert "not received yet: which pods hold GPUs already" in verdict.refusal
    freed = queue.room.freed
    queue.shares.inputs_received()
    assert queue.room.freed > freed, "who waits is looked at again"
    assert not queue.keep(queue.submit("w", gpumem=1000)).refusal


def test_nodes_that_would_not_take_its_pods_are_left_out() -> None:
    queue = Queue(
        {one: node(one, 4) for one in ("a", "b", "c", "d")},
        cpus={"a": 500},
        labels={one: {"pool": "a"} for one in ("a", "b", "c")},
    )
    queue.taint("b")
    verdict = queue.keep(queue.submit("w", count=2, gpumem=1000), "pool")
    assert {one.split("-")[1] for one in uuids(verdict)} == {"c"}
    for one in ("c", "d"):
        queue.stock.forget(one)
    verdict = queue.keep(queue.submit("next", gpumem=1000), "pool")
    assert (
        "of 4 nodes: 1 not of the flavor, 1 tainted k, 1 without cpu for a pod" in verdict.refusal
    )


def test_processors_of_what_is_kept_are_kept_too() -> None:
    queue = Queue({"a": node("a", 4)}, cpus={"a": 2500})
    assert not queue.keep(queue.submit("one", count=2, gpumem=1000)).refusal
    assert "GPU shares for 0 of 1 pods" in queue.keep(queue.submit("two", gpumem=1000)).refusal
    queue.room.release(WorkloadKey("t/one"))
    assert not queue.keep(queue.submit("two", gpumem=1000)).refusal


@pytest.mark.parametrize(("policy", "nodes"), [("binpack", 1), ("spread", 3)])
def test_the_clusters_policy_for_nodes_counts(policy: str, nodes: int) -> None:
    names = ("a", "b", "c")
    queue = Queue({one: node(one, 4) for one in names}, defaults=Defaults(node_policy=policy))
    verdict = queue.keep(queue.submit("w", count=3, gpumem=1000))
    assert len({one.split("-")[1] for one in uuids(verdict)}) == nodes


def test_with_whom_gone_there_is_room_and_who_stands_there() -> None:
    queue = Queue({"a": node("a", 1), "b": node("b", 1)})
    for one in ("old-1", "old-2"):
        assert not queue.keep(queue.submit(one, gpumem=60_000)).refusal
    info = queue.submit("new", gpumem=60_000)
    before = free(queue.stock)
    verdict = queue.room.look(info, queue.given(info), [WorkloadKey("t/old-1")])
    assert not verdict.refusal
    assert verdict.in_the_way == {"t/old-1"}
    assert queue.room.look(info, queue.given(info), []).refusal
    assert free(queue.stock) == before, "looking changes nothing"


def test_a_topology_and_shares_count_together() -> None:
    """The rack with more room for shares is too small for the pods, and the other way round."""
    names = ("a1", "a2", "b1", "b2")
    labels = {one: {RACK: one[0]} for one in names}
    queue = Queue({one: node(one, 1) for one in names}, labels=labels)
    assert queue.bind(
        pod("plain", gpumem=60_000, annotations={"nvidia.com/use-gpuuuid": "GPU-a2-0"})
    )
    sets = {"main": (2, {"gpumem": 50_000})}
    info = queue.submit_sets("w", sets, required_topology=RACK)
    verdict = queue.keep(info, "racks")
    assert not verdict.refusal
    assert sorted(uuids(verdict)) == ["GPU-b1-0", "GPU-b2-0"]
    assert [values for values, _ in verdict.topology["main"].domains] == [("b1",), ("b2",)]
    verdict = queue.keep(queue.submit_sets("x", sets, required_topology=RACK), "racks")
    assert verdict.reason is PendingReason.TOPOLOGY_PLACEMENT_FAILED
    assert "3 without the GPU shares for a pod" in verdict.refusal
    assert "most free on one: 21920 of 50000 MiB" in verdict.refusal


def test_of_a_topology_of_racks_the_node_is_chosen_by_its_shares() -> None:
    names = ("a1", "a2")
    labels = {one: {RACK: "a"} for one in names}
    queue = Queue({one: node(one, 1) for one in names}, labels=labels, levels=(RACK,))
    info = queue.submit_sets("w", {"main": (2, {"gpumem": 50_000})}, required_topology=RACK)
    verdict = queue.keep(info, "racks")
    assert sorted(uuids(verdict)) == ["GPU-a1-0", "GPU-a2-0"]
    assert verdict.topology["main"].domains == ((("a",), 2),)


def test_a_leader_and_its_workers_find_their_shares_together() -> None:
    labels = {one: {RACK: "r"} for one in ("a", "b")}
    queue = Queue({one: node(one, 2) for one in ("a", "b")}, labels=labels)
    sets = {"leader": (1, {"gpucores": 100}), "main": (3, {"gpucores": 100})}
    info = queue.submit_sets("w", sets, group="g", required_topology=RACK)
    verdict = queue.keep(info, "racks")
    assert not verdict.refusal
    every = uuids(verdict) + uuids(verdict, "leader")
    assert sorted(every) == ["GPU-a-0", "GPU-a-1", "GPU-b-0", "GPU-b-1"]
    counts = {name: dict(one.domains) for name, one in verdict.topology.items()}
    assert sum(counts["main"].values()) == 3


def test_the_next_leader_keeps_what_is_written_and_plain_pods_do_not_get_it() -> None:
    queue = Queue({"a": node("a", 2)})
    info = queue.submit("w", count=2, gpumem=50_000)
    workload = queue.admitted(info, queue.keep(info))
    after = Queue(queue.nodes, asks=queue.asks)
    after.room.restored(workload)
    assert free(after.stock) == free(queue.stock)
    assert after.ground.taken("a", ()) == queue.ground.taken("a", ())
    assert after.bind(pod("plain", gpumem=40_000)) == ""
    assert after.bind(after.pod_of("w", "w-0", gpumem=50_000)) == "a"


def changed(place: str, **fields: Any) -> str:
    found = json.loads(place)
    (share,) = found["containers"]["main"]
    share.update(fields)
    return json.dumps(found)


FORGED = {
    "of another amount": lambda one: [PlacedPods(changed(one.place, memory_bytes=GIB), 1)],
    "of more time": lambda one: [PlacedPods(changed(one.place, share_ppm=900_000), 1)],
    "without company": lambda one: [PlacedPods(changed(one.place, alone=True), 1)],
    "for more pods": lambda one: [replace(one, count=2)],
    "no place at all": lambda one: [PlacedPods("GPU-a-0", 1)],
    "of two GPUs": lambda one: [
        PlacedPods(
            one.place.replace(
                '"main":[', '"main":[{"uuid":"GPU-a-1","memory_bytes":1,"share_ppm":0},'
            ),
            1,
        )
    ],
    "for another container": lambda one: [PlacedPods(one.place.replace("main", "mine"), 1)],
    "with more beside": lambda one: [
        PlacedPods(
            json.dumps(
                json.loads(one.place)
                | {"beyond": [{"uuid": "GPU-a-1", "memory_bytes": GIB, "share_ppm": 0}]}
            ),
            1,
        )
    ],
}


@pytest.mark.parametrize("forged", FORGED)
def test_what_cannot_be_its_own_is_not_believed(forged: str) -> None:
    queue = Queue({"a": node("a", 2)})
    info = queue.submit("w", gpumem=50_000, gpucores=30)
    workload = queue.admitted(info, queue.keep(info))
    assert workload.admission is not None
    (given,) = workload.admission.pod_sets
    (one,) = given.places
    odd = replace(given, places=tuple(FORGED[forged](one)))
    after = Queue(queue.nodes, asks=queue.asks)
    untouched = free(after.stock)
    after.room.restored(replace(workload, admission=replace(workload.admission, pod_sets=(odd,))))
    assert free(after.stock) == untouched
    assert after.shares.wrong.keys() == {info.key}


def test_a_workload_loses_its_places_with_the_node() -> None:
    queue = Queue({"a": node("a", 1), "b": node("b", 1)})
    info = queue.submit("w", gpumem=50_000)
    workload = queue.admitted(info, queue.keep(info))
    (gpu,) = uuids(queue.keep(info))
    there = gpu.split("-")[1]
    other = "b" if there == "a" else "a"
    assert list(queue.ground.holders(there)) == [info.key]
    assert queue.ledger.reserved.on(there) == [info.key]
    assert queue.room.replaced(workload, there) is None
    assert queue.room.replaced(workload, other) == workload.admission


def test_pods_that_ask_for_no_shares_are_none_of_its_business() -> None:
    queue = Queue({})
    info = queue.submit("w", gpumem=1000)
    queue.asks.clear()
    verdict = queue.keep(info)
    assert (verdict.refusal, verdict.places) == ("", {})
    assert contradictions(queue.stock) == []
