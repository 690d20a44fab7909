"""Filter, prioritize and the choice at the binding, over random clusters and by cases."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from queuecontroller.gpushares.extender.answers import STOPPED
from queuecontroller.gpushares.extender.pods import HAMI, PodPlace, read_place, read_pod
from queuecontroller.gpushares.extender.verdicts import FITS, Verdicts, place_on, why_not
from sluicecommon.pod_annotations import SHARE_POLICY
from tests.queue.gpushares.extender.rooms import (
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
    """Figures alone, kept verdicts and a search of each GPU give one answer."""
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


def test_a_node_whose_kubelet_has_no_gpus_to_allocate_gets_no_pod() -> None:
    """A pod that is bound there fails for good: UnexpectedAdmissionError."""
    one = extender({"a": node("a", 1), "b": node("b", 1)})
    stopped = {"a"}
    one._is_stopped = stopped.__contains__
    asked = pod(gpumem=1000)
    passed = one.filter(asked, ["a", "b"])
    assert (passed.names, passed.failed, passed.hopeless) == (("b",), {"a": STOPPED}, {})
    assert one.place(asked, "a") == f"node a {STOPPED}"
    assert isinstance(one.place(asked, "b"), PodPlace)
    chosen = one.best(read_pod(asked), ["a", "b"])
    assert chosen is not None
    assert chosen.node == "b"
    queued = PodPlace("a", {})
    one._queued = lambda _pod, _names: queued
    assert one.filter(asked, ["a", "b"]).names == ()
    assert one.place(asked, "a") == f"node a {STOPPED}"
    stopped.clear()
    assert one.filter(asked, ["a", "b"]).names == ("a",)
    assert one.place(asked, "a") == queued


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
        (pod(gpumem=60_000), "needs 1 GPU with 60000 MiB: 0 of 2 fit; 2 lack memory"),
        (pod(gpumem=1000, gpucores=80), "2 lack time (most free on one: 40 of 80 %)"),
        (pod(count=3, gpumem=1000), "needs 3 GPUs with 1000 MiB: 2 of 2 fit; the node has no more"),
        (pod(gpucores=100), "exclusively: 0 of 2 fit; 2 are in use"),
        (
            pod(gpumem=1, annotations={"nvidia.com/use-gputype": "A100"}),
            "2 do not match its GPU selection",
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
    assert "its agent does not report" in answer.hopeless["unknown"]


def test_a_pod_without_gpus_is_none_of_ours() -> None:
    one = extender({})
    assert one.filter(pod(count=0), ["x", "y"]).names == ("x", "y")
    assert one.place(pod(count=0), "x") is None


def test_a_queued_pod_has_its_own_place_and_no_other() -> None:
    place = PodPlace("b", {"main": ()}, workload="t/w")
    one = extender({"a": node("a"), "b": node("b")})
    one._queued = lambda document, names: (
        place if document["metadata"]["name"] == "queued" else None
    )
    answer = one.filter(pod("queued", gpumem=1), ["a", "b"])
    assert answer.names == ("b",)
    assert answer.hopeless == {"a": "the pod has its place on node b"}
    assert one.place(pod("queued", gpumem=1), "b") is place
    assert one.place(pod("queued", gpumem=1), "a") == "the pod has its place on node b"


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


@pytest.mark.parametrize("policy", ["binpack", "spread", "topology"])
def test_the_best_alone_is_one_with_the_most_points(policy: str) -> None:
    rng = random.Random(3)
    nodes = {f"n{n}": node(f"n{n}", gpus=rng.choice([2, 4, 8]), links=n % 2 == 0) for n in range(6)}
    one = extender(nodes, node_policy=policy, best_only=True)
    every = extender(nodes, node_policy=policy)
    for number in range(40):
        asked = random_pod(rng, number)
        passed = one.filter(asked, list(nodes)).names
        assert every.narrowed(asked, passed) == passed
        if not passed:
            continue
        (best,) = one.narrowed(asked, passed)
        points = dict(one.prioritize(asked, passed))
        assert points[best] == max(points.values())
        bind(one, asked, best)
    assert one.narrowed(pod(count=0), tuple(nodes)) == tuple(nodes), "GPUs do not decide"


def test_what_cannot_be_meant_is_refused_everywhere_with_its_reason() -> None:
    one = extender({"a": node("a")})
    for asked, said in (
        (
            pod(annotations={"hami.io/gpu-scheduler-policy": "best"}),
            "must be one of binpack, spread",
        ),
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


def test_a_pod_whose_init_container_alone_asks_is_placed_and_goes_whole() -> None:
    one = extender({"a": node("a", 1)})
    room = free(one.stock)
    asked = pod(count=0, before={"gpumem": 4000})
    assert one.filter(asked, ["a"]).names == ("a",)
    place = bind(one, asked, "a")
    assert sum(share.memory_bytes for share in place.held) == 4000 * MIB
    one.ledger.take(pod(count=0, before={"gpumem": 4000}, bound=place))
    one.ledger.drop("u-p")
    assert free(one.stock) == room


def test_whole_pods_on_a_node_that_has_too_little_for_all_their_containers() -> None:
    one = extender({"a": node("a", 1)})
    asked = pod(gpumem=50_000, side={"gpumem": 40_000})
    answer = one.filter(asked, ["a"])
    assert "lack memory" in answer.failed["a"]
    assert why_not(one.stock.nodes["a"], read_pod(asked).containers[0].request) == FITS


@pytest.mark.parametrize(
    ("annotations", "on"),
    [
        ({"nvidia.com/use-gpuindexes": "2"}, {2}),
        ({"nvidia.com/nouse-gpuindexes": "0, 1,3"}, {2}),
        ({"nvidia.com/use-gpuindexes": "1,2", "nvidia.com/nouse-gpuindexes": "1"}, {2}),
        ({"nvidia.com/vgpu-mode": "hami-core,mps"}, {0, 1, 2, 3}),
        ({"nvidia.com/vgpu-mode": "mig"}, set()),
    ],
    ids=["only one", "none of these", "both", "its mode", "a mode that no card is in"],
)
def test_cards_are_picked_by_number_and_mode(annotations: dict[str, str], on: set[int]) -> None:
    nodes = {"n": node("n")}
    one = extender(nodes)
    found = set()
    for number in range(len(on) or 1):
        asked = pod(f"p{number}", gpucores=100, annotations=annotations)
        if not one.filter(asked, ["n"]).names:
            continue
        found |= {int(share.uuid[-1]) for share in bind(one, asked, "n").held}
    assert found == on
    asked = pod("more", gpucores=100, annotations=annotations)
    passed = one.filter(asked, ["n"])
    assert not passed.names
    why = {**passed.failed, **passed.hopeless}["n"]
    assert ("do not match its GPU selection" in why) == (len(on) < 4)


@pytest.mark.parametrize("value", ["", ",", " , ", "A100,", " A100 , L40 ", "l40,,"])
@pytest.mark.parametrize("kind", ["gputype", "gpuuuid"])
def test_empty_members_of_a_list_choose_nothing(kind: str, value: str) -> None:
    """No card is an A100 or an L40: a list of these excludes none, and admits none if it has any."""
    one = extender({"n": node("n")})
    excluded = pod(gpumem=1000, annotations={f"nvidia.com/nouse-{kind}": value})
    assert one.filter(excluded, ["n"]).names
    wanted = pod(gpumem=1000, annotations={f"nvidia.com/use-{kind}": value})
    assert bool(one.filter(wanted, ["n"]).names) is not any(map(str.isalnum, value))


def test_models_are_compared_without_regard_to_case() -> None:
    one = extender({"n": node("n")})
    for value, fits in (("h100", True), ("nvidia-h200, H100", True), ("h200", False)):
        asked = pod(gpumem=1000, annotations={"nvidia.com/use-gputype": value})
        assert bool(one.filter(asked, ["n"]).names) is fits


LONG = ".".join(["node-of-a-rack"] * 8)


@pytest.mark.parametrize("name", ["ip-10-0-0-1.eu-central-1.compute.internal", LONG])
def test_a_node_with_a_long_name_and_dots_is_placed_on(name: str) -> None:
    one = extender({name: node(name)})
    asked = pod("train.v1.2", gpumem=1000)
    assert one.filter(asked, [name]).names == (name,)
    place = bind(one, asked, name)
    assert place.node == name
    assert read_place(place.text()) == place


def test_what_was_asked_for_in_percent_comes_back() -> None:
    one = extender({"n": node("n", 1)})
    room = free(one.stock)
    for number in range(20):
        asked = pod(f"p{number}", gpumem_percentage=100)
        assert one.filter(asked, ["n"]).names
        place = bind(one, asked, "n")
        one.ledger.take(pod(f"p{number}", gpumem_percentage=100, bound=place))
        assert not one.filter(pod("next", gpumem=1), ["n"]).names
        one.ledger.drop(f"u-p{number}")
        assert free(one.stock) == room


def test_a_node_that_has_not_reported_takes_no_pod_and_leaves_no_trace() -> None:
    one = extender({"n": node("n")})
    room = free(one.stock)
    answer = one.filter(pod(gpumem=1000), ["template-node-xyz", "n"])
    assert answer.names == ("n",)
    assert "template-node-xyz" in {**answer.failed, **answer.hopeless}
    assert free(one.stock) == room


@pytest.mark.parametrize(
    ("weights", "policy", "index"),
    [
        ("", "binpack", 0),
        ("memory=0,slot=0,core=1", "binpack", 1),
        ("memory=0,slot=0,core=1", "spread", 0),
        ("memory=1,slot=0,core=0", "spread", 2),
    ],
    ids=["memory first", "time alone", "time alone, the emptiest", "memory alone, the emptiest"],
)
def test_weights_say_which_card_is_the_fullest(weights: str, policy: str, index: int) -> None:
    one = extender({"n": node("n", gpus=3)})
    for name, asked in (("a", {"gpumem": 60_000}), ("b", {"gpumem": 1_000, "gpucores": 60})):
        at = {"nvidia.com/use-gpuindexes": str("ab".index(name))}
        document = pod(name, annotations=at, **asked)  # type: ignore[arg-type]
        bind(one, document, "n")
    annotations = {"hami.io/gpu-scheduler-policy": policy}
    if weights:
        annotations["hami.io/device-scoring-weights"] = weights
    place = one.place(pod("c", gpumem=1000, annotations=annotations), "n")
    assert isinstance(place, PodPlace)
    assert place.held[0].uuid == f"GPU-n-{index}"


def test_memory_has_the_unit_that_the_clusters_file_says() -> None:
    names = replace(HAMI, memory="example.com/mem", memory_factor=256)
    document = pod("p")
    limits = document["spec"]["containers"][0]["resources"]["limits"]
    limits["example.com/mem"] = "4"
    (container,) = read_pod(document, names).containers
    assert container.request.memory_bytes == 1024 * MIB
    limits["example.com/mem"] = str(1 << 40)
    assert "is not between 0 and" in read_pod(document, names).wrong


def test_a_pods_share_policy_decides_what_counts_of_its_time() -> None:
    """Three pods that ask for 80 % of one card: elastic ones share it, hard ones do not, and an
    exclusive one has it alone."""
    elastic, exclusive = ({SHARE_POLICY: one} for one in ("elastic", "exclusive"))
    one = extender({"a": node("a", 1)})
    for name in ("p1", "p2", "p3"):
        asked = pod(name, annotations=elastic, gpumem=1000, gpucores=80)
        assert one.filter(asked, ["a"]).names == ("a",)
        bind(one, asked, "a")
    assert one.filter(pod("alone", annotations=exclusive, gpumem=1000), ["a"]).names == ()
    bind(one, pod("hard", gpumem=1000, gpucores=80), "a")
    assert one.filter(pod("second", gpumem=1000, gpucores=80), ["a"]).names == ()
    for uid in ("p1", "p2", "p3", "hard"):
        one.ledger.drop(f"u-{uid}")
    bind(one, pod("alone", annotations=exclusive, gpumem=1000, gpucores=10), "a")
    assert one.filter(pod("second", annotations=elastic, gpumem=1000), ["a"]).names == ()


def test_an_unknown_share_policy_is_told() -> None:
    wrong = read_pod(pod(annotations={SHARE_POLICY: "soft"}, gpumem=1000)).wrong
    assert wrong == f"{SHARE_POLICY}: must be one of hard, elastic, exclusive, got 'soft'"
