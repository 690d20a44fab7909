"""Filter, prioritize and the choice at the binding, over random clusters and by cases."""

from __future__ import annotations

import random

import pytest

from queuecontroller.extender.pods import PodPlace, read_pod
from queuecontroller.extender.verdicts import FITS, Verdicts, place_on, why_not
from tests.queue.extender.rooms import (
    MIB,
    bind,
    contradictions,
    extender,
    free,
    node,
    pod,
    random_pod,
    with_company,
)


@pytest.mark.parametrize("seed", range(20))
def test_a_node_passes_just_when_the_pod_can_be_placed_there(seed: int) -> None:
    """By figures alone, by kept verdicts and by looking at each GPU it is one answer."""
    rng = random.Random(seed)
    nodes = {
        f"n{n}": node(f"n{n}", gpus=rng.choice([1, 2, 4, 8]), links=rng.random() < 0.5)
        for n in range(6)
    }
    one = extender(nodes)
    for number in range(120):
        asked = random_pod(rng, number)
        passed = one.filter(asked, list(nodes))
        assert set(passed.names) | set(passed.failed) | set(passed.hopeless) == set(nodes)
        containers = read_pod(asked).containers
        for name in nodes:
            placed = place_on(one.stock.nodes[name], containers)
            assert isinstance(placed, PodPlace) == (name in passed.names), (name, placed)
        if passed.names:
            bind(one, asked, rng.choice(passed.names))
        assert contradictions(one.stock) == []
        assert with_company(one.ledger) == []
        if rng.random() < 0.3 and one.ledger.pods:
            one.ledger.drop(rng.choice(sorted(one.ledger.pods)))
    for uid in list(one.ledger.pods):
        one.ledger.drop(uid)
    assert free(one.stock) == free(extender(nodes).stock), "all is back"


def test_a_verdict_is_kept_until_its_node_changes() -> None:
    one = extender({"a": node("a", 1), "b": node("b", 1)})
    asked = pod(gpumem=50_000)
    assert one.filter(asked, ["a", "b"]).names == ("a", "b")
    bind(one, pod("first", gpumem=50_000), "a")
    assert one.filter(asked, ["a", "b"]).names == ("b",)
    one.ledger.drop("u-first")
    assert one.filter(asked, ["a", "b"]).names == ("a", "b")
    judge = Verdicts().of_shape(read_pod(asked))
    assert judge.look(one.stock.nodes["a"]) == (FITS, False)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (pod(gpumem=90_000), "most free on one: 81920 of 90000 MiB"),
        (pod(gpumem=60_000), "needs 1 GPU with 60000 MiB: 0 of 2 will do; 2 lack memory"),
        (pod(gpumem=1000, gpucores=80), "2 lack time (most free on one: 40 of 80 %)"),
        (pod(count=3, gpumem=1000), "needs 3 GPUs with 1000 MiB: 2 of 2 will do; it has no more"),
        (pod(gpucores=100), "and no company: 0 of 2 will do; 2 are in use"),
        (
            pod(gpumem=1, annotations={"nvidia.com/use-gputype": "A100"}),
            "2 are not of those that it takes",
        ),
    ],
    ids=["never", "memory", "time", "too few", "alone", "model"],
)
def test_why_a_node_will_not_do_is_said_in_amounts(asked: dict[str, object], said: str) -> None:
    one = extender({"n": node("n", 2)})
    for name in ("a", "b"):
        bind(one, pod(name, gpumem=30_000, gpucores=60), "n")
    answer = one.filter(asked, ["n"])
    if "81920" in said:
        one = extender({"n": node("n", 2)})
        answer = one.filter(asked, ["n"])
    ((_, why),) = [*answer.failed.items(), *answer.hopeless.items()]
    assert said in why


def test_what_nobodys_going_would_change_is_told_apart() -> None:
    one = extender({"full": node("full", 1), "small": node("small", 1, memory=1 << 30)})
    bind(one, pod("a", gpumem=70_000), "full")
    answer = one.filter(pod(gpumem=40_000), ["full", "small", "unknown"])
    assert (set(answer.failed), set(answer.hopeless)) == ({"full"}, {"small", "unknown"})
    assert "no agent of it reports" in answer.hopeless["unknown"]


def test_a_pod_without_gpus_is_none_of_ours() -> None:
    one = extender({})
    assert one.filter(pod(count=0), ["x", "y"]).names == ("x", "y")
    assert one.place(pod(count=0), "x") is None


def test_a_queued_pod_has_its_own_place_and_no_other() -> None:
    place = PodPlace("b", {"main": ()}, workload="t/w")
    one = extender({"a": node("a"), "b": node("b")})
    one._queued = lambda document: place if document["metadata"]["name"] == "queued" else None
    answer = one.filter(pod("queued", gpumem=1), ["a", "b"])
    assert answer.names == ("b",)
    assert answer.hopeless == {"a": "the pod has its place on node b"}
    assert one.place(pod("queued", gpumem=1), "b") is place
    assert one.place(pod("queued", gpumem=1), "a") == "the queue has placed the pod on node b"


def test_a_pod_whose_binding_is_under_way_is_answered_with_that_node_alone() -> None:
    one = extender({"a": node("a"), "b": node("b")})
    asked = pod(gpumem=1000)
    place = one.place(asked, "a")
    assert isinstance(place, PodPlace)
    one.ledger.assume("u-p", place)
    assert one.filter(asked, ["a", "b"]).names == ("a",)
    one.ledger.forget("u-p")
    assert one.filter(asked, ["a", "b"]).names == ("a", "b")


@pytest.mark.parametrize(
    ("policy", "best"), [("binpack", "full"), ("spread", "empty"), ("topology", "linked")]
)
def test_points_follow_the_pods_policy_or_the_clusters(policy: str, best: str) -> None:
    nodes = {
        "full": node("full", 4),
        "empty": node("empty", 4),
        "linked": node("linked", 4, links=True),
    }
    for defaults, told in (
        ({"node_policy": policy}, {}),
        ({}, {"hami.io/node-scheduler-policy": policy}),
    ):
        one = extender(nodes, **defaults)
        bind(one, pod("x", count=4, gpumem=60_000), "full")
        bind(one, pod("y", count=1, gpumem=1_000), "linked")
        points = dict(one.prioritize(pod(count=2, gpumem=1000, annotations=told), list(nodes)))
        assert max(points, key=lambda name: points[name]) == best, points
        assert max(points.values()) == 10
        assert min(points.values()) == 0


def test_what_cannot_be_meant_is_refused_everywhere_with_its_reason() -> None:
    one = extender({"a": node("a")})
    for asked, said in (
        (pod(annotations={"hami.io/gpu-scheduler-policy": "best"}), "is none of binpack, spread"),
        (pod(gpucores=101), "gpucores: 101 is not between 0 and 100"),
        (pod(gpumem_percentage=200), "200 is not between 0 and 100"),
        (pod(count=1000), "nvidia.com/gpu: 1000 is not between 0 and 64"),
    ):
        assert said in one.filter(asked, ["a"]).hopeless["a"]
        assert said in str(one.place(asked, "a"))


def test_an_init_container_takes_of_what_the_others_have_later() -> None:
    one = extender({"a": node("a", 4)})
    place = one.place(pod(gpumem=30_000, before={"gpumem": 50_000}, side={"gpumem": 10_000}), "a")
    assert isinstance(place, PodPlace)
    assert place.before == ("first",)
    (first,), (main,) = place.containers["first"], place.containers["main"]
    (beyond,) = place.beyond
    together = [one.uuid for name in ("main", "side") for one in place.containers[name]]
    assert first.uuid in together
    there = sum(s.memory_bytes for s in place.held if s.uuid == first.uuid)
    assert there == 50_000 * MIB, "as much as it needs while it runs, and no more"
    assert beyond.uuid == first.uuid
    assert main.memory_bytes == 30_000 * MIB


def test_whole_pods_on_a_node_that_has_too_little_for_all_their_containers() -> None:
    one = extender({"a": node("a", 1)})
    asked = pod(gpumem=50_000, side={"gpumem": 40_000})
    answer = one.filter(asked, ["a"])
    assert "lack memory" in answer.failed["a"]
    assert why_not(one.stock.nodes["a"], read_pod(asked).containers[0].request) == FITS
