"""Beside Kueue: a workload that was promised room has it until its pods' own grants are reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuecontroller.cluster.admissionchecks.placement import NEVER, NO_NODES, NOT_ALL, Placer
from queuecontroller.cluster.admissionchecks.states import Answer, State, with_answers
from queuecontroller.scheduler.placement.capacity import GpuCapacity, NodeCapacity

GIB = 1 << 30
NOW = "2026-11-23T10:00:00Z"


def node(name: str, gpus: int = 1, outside_gib: int = 0, **labels: str) -> NodeCapacity:
    made = tuple(
        GpuCapacity(
            f"GPU-{name}-{number}",
            number,
            "H100",
            80 * GIB,
            outside_memory_bytes=outside_gib * GIB,
            outside_slots=int(bool(outside_gib)),
        )
        for number in range(gpus)
    )
    return NodeCapacity(made, {"kubernetes.io/hostname": name, **labels})


def workload(
    name: str,
    gib: int = 0,
    count: int = 1,
    conditions: tuple[str, ...] = ("QuotaReserved",),
    template: Mapping[str, Any] | None = None,
    **check: Any,
) -> dict[str, Any]:
    limits: dict[str, Any] = {"cpu": "1"}
    if gib:
        limits |= {"nvidia.com/gpu": 1, "nvidia.com/gpumem": gib << 10, "nvidia.com/gpucores": 10}
    container = {"name": "c", "image": "i", "resources": {"limits": limits}}
    pods = template or {"spec": {"containers": [container]}}
    assigned = {"name": "main", "count": count, "flavors": {"nvidia.com/gpu": "plain"}}
    asked = {"name": "room", "state": "Pending", "message": "", "lastTransitionTime": NOW}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"namespace": "n", "name": name, "uid": f"uid-{name}"},
        "spec": {"queueName": "q", "podSets": [{"name": "main", "count": count, "template": pods}]},
        "status": {
            "admission": {"clusterQueue": "q", "podSetAssignments": [assigned]},
            "conditions": [{"type": one, "status": "True"} for one in conditions],
            "admissionChecks": [{**asked, **check}],
        },
    }


def ready(document: dict[str, Any], answer: Answer | None) -> dict[str, Any]:
    """The Workload after the answer was written."""
    assert answer is not None
    checks = with_answers(document, {"room": answer}, NOW)
    return {**document, "status": {**document["status"], "admissionChecks": checks}}


def over(document: dict[str, Any], condition: str = "Finished") -> dict[str, Any]:
    more = {"type": condition, "status": "True"}
    conditions = [*document["status"]["conditions"], more]
    return {**document, "status": {**document["status"], "conditions": conditions}}


class Player:
    def __init__(self, **nodes: NodeCapacity) -> None:
        self.placer = Placer()
        self.placer.follow(nodes)
        self.flavors: dict[str, Any] = {
            "plain": {
                "apiVersion": "kueue.x-k8s.io/v1beta2",
                "kind": "ResourceFlavor",
                "metadata": {"name": "plain"},
                "spec": {},
            }
        }

    def look(
        self, document: dict[str, Any], seen: Mapping[tuple[str, str], int] | None = None
    ) -> Answer | None:
        return self.placer.look(document, "room", self.flavors, seen or {})

    def free_gib(self, name: str) -> list[int]:
        room = self.placer.stock.nodes[name]
        return [gpu.memory_bytes // GIB for gpu in room.gpus.values()]


def test_who_has_room_is_told_where() -> None:
    player = Player(a=node("a"))
    found = player.look(workload("w", 20))
    assert found is not None
    assert (found.state, found.message) == (State.READY, "on a: GPU-a-0")
    assert found.updates == (
        {
            "name": "main",
            "labels": {"sluice.dev/placed-for": "uid-w", "sluice.dev/pod-set": "main"},
            "nodeSelector": {"kubernetes.io/hostname": "a"},
            "annotations": {"nvidia.com/use-gpuuuid": "GPU-a-0"},
        },
    )
    assert player.free_gib("a") == [60]


def test_who_has_none_is_told_why_and_asks_again() -> None:
    player = Player(a=node("a"))
    first = workload("first", 50)
    ready(first, player.look(first))
    for tries, pause_s in ((0, 10), (1, 20), (5, 300), (1000, 300)):
        found = player.look(workload("second", 50, retryCount=tries))
        assert found is not None
        assert (found.state, found.again_s) == (State.RETRY, pause_s)
        assert "GPU 0 has 30720 of 51200 MiB free" in found.message
    assert player.free_gib("a") == [30], "nothing is promised to it"


def rejected(player: Player, document: dict[str, Any]) -> bool:
    found = player.look(document)
    assert found is not None
    assert found.state in (State.RETRY, State.REJECTED)
    return found.state is State.REJECTED


def test_what_is_too_large_for_every_node_is_rejected() -> None:
    player = Player(a=node("a", outside_gib=70))
    found = player.look(workload("giant", 100))
    assert found is not None
    assert found.state is State.REJECTED
    assert found.message == (
        f"{NEVER}: 1 GPU with 102400 MiB and 10 % of the time for pod main/0:"
        " 1 node: GPU 0 has 81920 of 102400 MiB free"
    )
    assert not rejected(player, workload("large", 80)), "others leave"
    assert not rejected(player, workload("many", 60, count=3)), "nodes may come"
    player.placer.follow({"a": node("a"), "b": replace(node("b"), unschedulable=True)})
    assert rejected(player, workload("giant", 100))


def test_who_may_use_no_node_that_is_there_waits_for_one_that_may_come() -> None:
    player = Player(a=node("a"))
    player.flavors["plain"]["spec"] = {"nodeLabels": {"pool": "large"}}
    assert not rejected(player, workload("giant", 100))
    player.flavors["plain"]["spec"] = {}
    other = workload("other", 100)
    wanted = {"annotations": {"nvidia.com/use-gputype": "H200"}}
    other["spec"]["podSets"][0]["template"]["metadata"] = wanted
    assert not rejected(player, other)
    sick = replace(node("a").gpus[0], health="lost")
    player.placer.follow({"a": replace(node("a"), gpus=(sick,))})
    assert not rejected(player, workload("w", 50)), "it may be mended"


def test_while_nodes_may_be_on_their_way_nobody_is_sent_away() -> None:
    player = Player(a=node("a"))
    first = workload("first", 60)
    ready(first, player.look(first))
    for gib in (60, 100):
        document = workload("w", gib)
        found = player.placer.look(document, "room", player.flavors, {}, settled=False)
        assert found is not None
        assert found.state is State.PENDING
        assert found.message.startswith(f"{NOT_ALL}: 1 GPU with {gib << 10} MiB")
    small = player.placer.look(workload("s", 10), "room", player.flavors, {}, settled=False)
    assert small is not None
    assert small.state is State.READY


def test_who_is_looked_at_again_when_nodes_report() -> None:
    player = Player(a=node("a"))
    first = workload("first", 60)
    assert player.placer.waits(first, "room")
    first = ready(first, player.look(first))
    assert not player.placer.waits(first, "room"), "it has its promise"
    assert Player().placer.waits(first, "room"), "the next leader has none yet"
    assert not player.placer.waits(workload("w", 60, state="Retry"), "room")
    assert not player.placer.waits(workload("w", 60), "another")


def test_what_others_use_is_no_room() -> None:
    player = Player(a=node("a", outside_gib=70))
    found = player.look(workload("w", 20))
    assert found is not None
    assert found.state is State.RETRY


def test_without_gpus_there_is_always_room() -> None:
    found = Player().look(workload("w"))
    assert found == Answer(State.READY, "No GPU shares are requested")


def test_before_any_node_has_reported_nobody_is_sent_away() -> None:
    assert Player().look(workload("w", 1)) == Answer(State.PENDING, NO_NODES)


def test_what_can_never_be_is_rejected_and_says_so() -> None:
    player = Player(a=node("a"))
    wrong = workload("w", 1)
    wrong["spec"]["podSets"][0]["template"]["metadata"] = {
        "annotations": {"sluice.dev/share-policy": "most"}
    }
    found = player.look(wrong)
    assert found is not None
    assert found.state is State.REJECTED
    assert (
        found.message
        == "sluice.dev/share-policy: must be one of hard, elastic, exclusive, got 'most'"
    )


@pytest.mark.parametrize("ends", ["Finished", "Evicted"])
def test_a_promise_ends_with_the_quota(ends: str) -> None:
    player = Player(a=node("a"))
    first = workload("first", 50)
    first = ready(first, player.look(first))
    assert player.look(over(first, ends)) is None
    assert player.free_gib("a") == [80]
    without = {**first, "status": {**first["status"], "admission": None}}
    player.look(workload("first", 50))
    assert player.look(without) is None
    assert player.free_gib("a") == [80]
    player.look(workload("first", 50))
    player.placer.forget("uid-first")
    assert player.free_gib("a") == [80]


def test_grants_that_nodes_report_are_not_counted_twice() -> None:
    player = Player(a=node("a"))
    pair = workload("pair", 20, count=2)
    pair = ready(pair, player.look(pair))
    assert player.free_gib("a") == [40]
    assert player.look(pair, {("main", "a"): 1}) is None
    player.placer.follow({"a": node("a", outside_gib=20)})
    assert player.free_gib("a") == [40], "one by the node, one by us"
    player.look(pair, {})
    player.placer.follow({"a": node("a")})
    assert player.free_gib("a") == [40], "it failed, and another will come"


def test_pods_that_are_done_need_nothing_more() -> None:
    player = Player(a=node("a"))
    pair = workload("pair", 20, count=2)
    pair = ready(pair, player.look(pair))
    pair["status"]["reclaimablePods"] = [{"name": "main", "count": 1}]
    player.look(pair)
    assert player.free_gib("a") == [60]


def test_a_pod_that_went_elsewhere_counts_there() -> None:
    player = Player(a=node("a"), b=node("b"))
    both = workload("both", 60, count=2)
    found = player.look(both)
    assert found is not None
    (update,) = found.updates
    assert "nodeSelector" not in update, "one cannot name two nodes"
    assert found.message == "1 on a, 1 on b"
    player.look(ready(both, found), {("main", "c"): 1, ("main", "a"): 1})
    assert player.free_gib("a") + player.free_gib("b") == [80, 80]


def test_pods_stay_on_one_node_where_it_has_room() -> None:
    player = Player(a=node("a", 1), b=node("b", 2))
    found = player.look(workload("w", 60, count=2))
    assert found is not None
    assert found.updates[0]["nodeSelector"] == {"kubernetes.io/hostname": "b"}
    assert found.updates[0]["annotations"] == {"nvidia.com/use-gpuuuid": "GPU-b-0,GPU-b-1"}


def test_nodes_carry_the_flavors_labels() -> None:
    player = Player(a=node("a"), b=node("b", pool="fast"))
    player.flavors["plain"]["spec"] = {"nodeLabels": {"pool": "fast"}}
    found = player.look(workload("w", 10))
    assert found is not None
    assert found.message == "on b: GPU-b-0"


def test_what_a_user_named_is_left_to_him() -> None:
    player = Player(a=node("a", 2))
    named = workload("w", 10)
    head = {"annotations": {"nvidia.com/use-gpuuuid": "GPU-a-1"}}
    named["spec"]["podSets"][0]["template"]["metadata"] = head
    found = player.look(named)
    assert found is not None
    assert found.message == "on a: GPU-a-1"
    assert "annotations" not in found.updates[0], "Kueue refuses an annotation that is there"


def test_the_next_leader_promises_the_same_again() -> None:
    player = Player(a=node("a", 2), b=node("b"))
    first = workload("first", 50)
    first = ready(first, player.look(first))
    where = first["status"]["admissionChecks"][0]["message"]
    anew = Player()
    assert anew.look(first) is None
    anew.placer.follow({"a": node("a", 2), "b": node("b")})
    assert anew.look(first) is None
    assert {name: anew.free_gib(name) for name in "ab"} == {
        name: player.free_gib(name) for name in "ab"
    }, where


def test_an_answer_that_was_not_stored_is_no_second_promise() -> None:
    player = Player(a=node("a"))
    document = workload("w", 50)
    assert player.look(document) == player.look(document)
    assert player.free_gib("a") == [30]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 4),
            st.sampled_from(["ask", "run", "fail", "finish", "evict"]),
        ),
        max_size=40,
    )
)
def test_whatever_comes_no_gpu_is_promised_beyond_what_it_has(
    events: list[tuple[int, str]],
) -> None:
    player = Player(a=node("a"), b=node("b"))
    sizes = (30, 50, 80, 20, 60)
    documents: dict[int, dict[str, Any]] = {}
    on: dict[int, str] = {}
    running: set[int] = set()

    def report() -> None:
        used = {name: sum(sizes[one] for one in running if on[one] == name) for name in "ab"}
        player.placer.follow({name: node(name, outside_gib=used[name]) for name in "ab"})

    for who, what in events:
        document = documents.get(who)
        if document is None:
            made = workload(str(who), sizes[who])
            answer = player.look(made) if what == "ask" else None
            if answer is not None and answer.state is State.READY:
                documents[who] = ready(made, answer)
                on[who] = answer.updates[0]["nodeSelector"]["kubernetes.io/hostname"]
        elif what == "run":
            running.add(who)
            report()
            player.look(document, {("main", on[who]): 1})
        elif what == "fail":
            player.look(document)
            running.discard(who)
            report()
        elif what in ("finish", "evict"):
            running.discard(who)
            report()
            player.look(over(document, "Evicted" if what == "evict" else "Finished"))
            del documents[who]
        for name in "ab":
            assert sum(sizes[one] for one in documents if on[one] == name) <= 80
        if not documents:
            assert [player.free_gib(name) for name in "ab"] == [[80], [80]]


def test_a_node_that_is_gone_gives_no_room() -> None:
    player = Player(a=node("a"))
    assert player.placer.follow({})
    assert player.look(workload("w", 1)) == Answer(State.PENDING, NO_NODES)
    assert not player.placer.follow({})
    drained = replace(node("a"), unschedulable=True)
    player.placer.follow({"a": drained})
    found = player.look(workload("w", 1))
    assert found is not None
    assert found.state is State.RETRY
