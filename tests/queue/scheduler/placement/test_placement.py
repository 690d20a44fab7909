"""Placement: rules by table, laws by random programs, the index against a full look."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuecontroller.scheduler.model.selectors import Taint
from queuecontroller.scheduler.placement.capacity import GpuCapacity, NodeCapacity
from queuecontroller.scheduler.placement.choose import Chosen, NoPlace, PodToPlace, Topology, place
from queuecontroller.scheduler.placement.fragmentation import (
    REFERENCES,
    Gauge,
    in_words,
    of_stock,
)
from queuecontroller.scheduler.placement.request import (
    AnnotationError,
    GpuRequest,
    Policy,
    annotated,
)
from queuecontroller.scheduler.placement.stock import Share, Stock
from sluicecommon.hami.names import GPU_POLICY, NOUSE_TYPE, NUMA_BIND, USE_TYPE, USE_UUID

GIB = 1 << 30
HALF = 500_000


def gpu(node: str, index: int, gib: int = 80, **more: object) -> GpuCapacity:
    made = GpuCapacity(f"GPU-{node}-{index}", index, "NVIDIA H100 80GB HBM3", gib * GIB)
    return replace(made, **more)  # type: ignore[arg-type]


def stock(*nodes: tuple[str, int], **more: object) -> Stock:
    made = Stock()
    for name, count in nodes:
        made.report(name, NodeCapacity(tuple(gpu(name, i, **more) for i in range(count))))  # type: ignore[arg-type]
    return made


def ask(gib: int = 10, share: int = HALF, **more: object) -> GpuRequest:
    return replace(GpuRequest(memory_bytes=gib * GIB, share_ppm=share), **more)  # type: ignore[arg-type]


def one(made: Stock, request: GpuRequest, **more: object) -> Chosen:
    found = place(made, [PodToPlace("pod", request, **more)])  # type: ignore[arg-type]
    assert not isinstance(found, NoPlace), found.reason
    return found[0]


def why(made: Stock, request: GpuRequest, **more: object) -> str:
    found = place(made, [PodToPlace("pod", request, **more)])  # type: ignore[arg-type]
    assert isinstance(found, NoPlace)
    return found.reason


def uuids(chosen: Chosen) -> list[str]:
    return [share.uuid for share in chosen.shares]


# --- rules ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "index"), [(Policy.BINPACK, 1), (Policy.SPREAD, 0)])
def test_gpus_are_filled_or_spared(policy: Policy, index: int) -> None:
    made = stock(("a", 2))
    made.hold("before", "a", [Share("GPU-a-1", 20 * GIB, 300_000)])
    assert uuids(one(made, ask(gpu_policy=policy))) == [f"GPU-a-{index}"]


@pytest.mark.parametrize(("policy", "node"), [(Policy.BINPACK, "b"), (Policy.SPREAD, "a")])
def test_nodes_are_filled_or_spared(policy: Policy, node: str) -> None:
    made = stock(("a", 1), ("b", 1))
    made.hold("before", "b", [Share("GPU-b-0", 20 * GIB, 300_000)])
    assert one(made, ask(node_policy=policy)).node == node


def test_a_share_is_a_promise_only_if_it_is_hard() -> None:
    made = stock(("a", 1))
    made.hold("before", "a", [Share("GPU-a-0", GIB, 700_000)])
    assert "has 30 of 50 % free" in why(made, ask())
    assert one(made, ask(hard=False)).shares[0].share_ppm == 0


def test_exclusive_means_no_company_and_percent_means_of_that_gpu() -> None:
    made = stock(("a", 2))
    made.hold("before", "a", [Share("GPU-a-0", GIB, 0)])
    whole = GpuRequest(memory_ppm=1_000_000, exclusive=True)
    assert one(made, whole).shares == (Share("GPU-a-1", 80 * GIB, 1_000_000, True),)
    made.hold("other", "a", [Share("GPU-a-1", GIB, 0)])
    assert "requests exclusive use" in why(made, whole)
    assert one(made, GpuRequest(memory_ppm=250_000, share_ppm=1)).shares[0].memory_bytes == 20 * GIB


def test_what_others_use_is_not_given_and_is_company() -> None:
    made = stock(("a", 1), outside_memory_bytes=75 * GIB)
    assert "has 5120 of 10240 MiB free" in why(made, ask())
    assert "requests exclusive use" in why(made, ask(gib=1, exclusive=True))


@pytest.mark.parametrize(
    ("annotations", "index"),
    [
        ({USE_TYPE: "a100,v100"}, 1),
        ({NOUSE_TYPE: "H100"}, 1),
        ({USE_UUID: "GPU-a-1"}, 1),
        ({"nvidia.com/nouse-gpuuuid": "GPU-a-1"}, 0),
    ],
)
def test_models_and_cards_are_chosen_by_annotation(annotations: dict[str, str], index: int) -> None:
    made = Stock()
    made.report("a", NodeCapacity((gpu("a", 0), gpu("a", 1, type="NVIDIA A100-SXM4-80GB"))))
    assert uuids(one(made, ask(**annotated(annotations)))) == [f"GPU-a-{index}"]


@pytest.mark.parametrize(
    ("annotations", "names"),
    [({NUMA_BIND: "yes"}, NUMA_BIND), ({GPU_POLICY: "best"}, GPU_POLICY)],
)
def test_an_annotation_that_cannot_be_meant_is_named(
    annotations: dict[str, str], names: str
) -> None:
    with pytest.raises(AnnotationError, match=names):
        annotated(annotations)


def test_several_gpus_are_linked_ones_then_of_one_numa_node() -> None:
    links = {"GPU-a-1": 4, "GPU-a-3": 4}
    made = Stock()
    made.report(
        "a",
        NodeCapacity(
            (
                gpu("a", 0, numa_node=0),
                gpu("a", 1, numa_node=0, nvlinks={"GPU-a-3": 4}),
                gpu("a", 2, numa_node=1),
                gpu("a", 3, numa_node=1, nvlinks=links | {"GPU-a-1": 4}),
                gpu("a", 4, numa_node=1),
            )
        ),
    )
    assert sorted(uuids(one(made, ask(gpus=2)))) == ["GPU-a-1", "GPU-a-3"]
    assert sorted(uuids(one(made, ask(gpus=3)))) == ["GPU-a-2", "GPU-a-3", "GPU-a-4"]
    bound = ask(gpus=2, one_numa_node=True)
    assert sorted(uuids(one(made, bound))) == ["GPU-a-0", "GPU-a-1"]
    assert "several NUMA nodes" in why(made, ask(gpus=4, one_numa_node=True))


def test_nodes_are_chosen_by_label_taint_and_readiness() -> None:
    made = Stock()
    taint = Taint("team", "a", "NoSchedule")
    made.report("a", NodeCapacity((gpu("a", 0),), taints=(taint,)))
    made.report("b", NodeCapacity((gpu("b", 0),), unschedulable=True))
    made.report("c", NodeCapacity((gpu("c", 0, health="lost"),), {"zone": "x"}))
    reason = why(made, ask())
    for part in ("has the taint team=a", "takes no new work", "GPU 0 is lost"):
        assert part in reason
    assert "lacks the label zone=y" in why(made, ask(), labels=(("zone", "y"),))
    assert "node d is not connected" in why(made, ask(), node="d")


def test_a_gang_is_placed_as_a_whole_or_not_at_all() -> None:
    made = stock(("a", 1), ("b", 1))
    before = [(r.keys, r.best_share_ppm) for r in made.nodes.values()]
    pods = [PodToPlace(f"w-{i}", ask(share=1_000_000)) for i in range(2)]
    found = place(made, pods)
    assert not isinstance(found, NoPlace)
    assert sorted(c.node for c in found) == ["a", "b"]
    assert [c.pod for c in found] == ["w-0", "w-1"]
    assert isinstance(place(made, [*pods, PodToPlace("w-2", ask(share=1_000_000))]), NoPlace)
    assert [(r.keys, r.best_share_ppm) for r in made.nodes.values()] == before


def racks() -> Stock:
    made = Stock()
    for name, rack in (("a", "r1"), ("b", "r2"), ("c", "r2")):
        labels = {"rack": rack, "zone": "z"}
        made.report(name, NodeCapacity((gpu(name, 0),), labels))
    return made


@pytest.mark.parametrize(
    ("topology", "pods", "nodes"),
    [
        (Topology(required="rack"), 2, {"b", "c"}),
        (Topology(required="rack"), 1, {"a"}),
        (Topology(required="rack"), 3, None),
        (Topology(preferred=("rack",)), 3, {"a", "b", "c"}),
        (Topology(preferred=("rack",)), 2, {"b", "c"}),
        (Topology(required="zone"), 3, {"a", "b", "c"}),
        (Topology(required="row"), 1, None),
    ],
)
def test_pods_are_together_as_required_or_preferred(
    topology: Topology, pods: int, nodes: set[str] | None
) -> None:
    found = place(
        racks(), [PodToPlace(f"w-{i}", ask(share=1_000_000)) for i in range(pods)], topology
    )
    if nodes is None:
        assert isinstance(found, NoPlace)
        assert str(topology.required) in found.reason
    else:
        assert not isinstance(found, NoPlace)
        assert {c.node for c in found} == nodes


def test_a_thousand_full_nodes_are_one_reason() -> None:
    made = stock(*[(f"n{i}", 1) for i in range(1000)])
    reason = why(made, ask(gib=100))
    assert reason.endswith("1000 nodes: no GPU has the memory free")


def test_a_card_that_went_away_takes_its_holds_along_and_brings_them_back() -> None:
    made = stock(("a", 1))
    made.hold("x", "a", [Share("GPU-a-0", 60 * GIB, HALF)])
    capacity = made.nodes["a"].capacity
    made.report("a", NodeCapacity(()))
    made.forget("a")
    assert made.nodes == {}
    made.report("a", capacity)
    assert made.nodes["a"].gpus["GPU-a-0"].memory_bytes == 20 * GIB
    made.release("x")
    assert made.nodes["a"].gpus["GPU-a-0"].memory_bytes == 80 * GIB


# --- fragmentation ----------------------------------------------------------------------------


def test_fragments_are_what_nobody_who_asks_can_have() -> None:
    made = stock(("a", 2))
    assert of_stock(made, ask(gib=40)).ppm == 0
    for i in range(2):
        made.hold(i, "a", [Share(f"GPU-a-{i}", 60 * GIB, 0)])
    found = of_stock(made, ask(gib=30))
    assert (found.free_bytes, found.usable_bytes, found.ppm) == (40 * GIB, 0, 1_000_000)
    assert of_stock(made, ask(gib=15, share=1)).ppm == 250_000
    assert of_stock(made, ask(gib=20, gpus=2, share=1)).ppm == 0
    assert of_stock(made, ask(gib=20, share=1)).ppm == 0
    assert of_stock(Stock(), ask()).ppm == 0


def test_time_is_lost_where_memory_is_full_and_a_reason_says_what_is_free() -> None:
    made = stock(("a", 2))
    made.hold("x", "a", [Share("GPU-a-0", 80 * GIB, 100_000)])
    found = of_stock(made, REFERENCES["50%"])
    assert (found.free_time_ppm, found.usable_time_ppm, found.fits) == (1_900_000, 1_000_000, 2)
    assert found.ppm == 0
    assert in_words(made, REFERENCES["50%"]) == ""
    made.hold("y", "a", [Share("GPU-a-1", 60 * GIB, 0)])
    assert in_words(made, ask(gib=40)) == (
        "20480 MiB of GPU memory are free, in pieces on 1 GPU, 100 % of it of no use for"
        " 1 GPU with 40960 MiB and 50 % of the time: no piece is large enough"
    )


@given(
    program=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(1, 60), st.integers(0, 50)),
        max_size=15,
    ),
    leaves=st.sets(st.integers(0, 2)),
)
def test_a_gauge_that_remembers_measures_what_a_new_one_does(
    program: list[tuple[int, int, int, int]], leaves: set[int]
) -> None:
    made = stock(("n0", 2), ("n1", 2), ("n2", 2))
    gauge = Gauge()
    for number, (node, index, gib, cores) in enumerate(program):
        made.hold(number, f"n{node}", [Share(f"GPU-n{node}-{index}", gib * GIB, cores * 10_000)])
        assert gauge.measure(made) == Gauge().measure(made)
        if number % 3 == 2:
            made.release(number - 1)
    for node in leaves:
        capacity = made.nodes[f"n{node}"].capacity
        made.forget(f"n{node}")
        assert gauge.measure(made) == Gauge().measure(made)
        made.report(f"n{node}", capacity)
    measured = gauge.measure(made)
    assert measured == Gauge().measure(made)
    for found in measured.values():
        assert 0 <= found.usable_bytes <= found.free_bytes
        assert 0 <= found.usable_time_ppm <= found.free_time_ppm


# --- laws -------------------------------------------------------------------------------------

requests = st.builds(
    lambda gpus, gib, share, hard, exclusive, node, card: GpuRequest(
        gpus=gpus,
        memory_bytes=gib * GIB,
        share_ppm=share * 10_000,
        hard=hard,
        exclusive=exclusive,
        node_policy=node,
        gpu_policy=card,
    ),
    st.integers(1, 4),
    st.integers(1, 80),
    st.integers(1, 100),
    st.booleans(),
    st.integers(0, 9).map(lambda n: n == 0),
    st.sampled_from(Policy),
    st.sampled_from(Policy),
)


def fits_anywhere(made: Stock, request: GpuRequest) -> bool:
    """The same question, asked of every GPU of every node."""
    for room in made.nodes.values():
        count = sum(
            r.gives_shares
            and not r.alone
            and r.memory_bytes >= request.memory_on(r.gpu)
            and (not request.hard or r.share_ppm >= request.share_ppm)
            and not (request.exclusive and r.holders)
            for r in room.gpus.values()
        )
        if count >= request.count:
            return True
    return False


@given(
    sizes=st.lists(st.integers(1, 8), min_size=1, max_size=6),
    program=st.lists(st.tuples(requests, st.integers(0, 3)), max_size=40),
)
def test_no_gpu_is_over_committed_and_what_fits_somewhere_is_placed(
    sizes: list[int], program: list[tuple[GpuRequest, int]]
) -> None:
    made = stock(*[(f"n{i}", size) for i, size in enumerate(sizes)], slots=4)
    empty = {name: room.keys for name, room in made.nodes.items()}
    held: list[int] = []
    for number, (request, let_go) in enumerate(program):
        possible = fits_anywhere(made, request)
        found = place(made, [PodToPlace("pod", request)])
        again = place(made, [PodToPlace("pod", request)])
        assert found == again, "asking changes nothing, and the answer is the same"
        assert isinstance(found, NoPlace) is not possible
        if not isinstance(found, NoPlace):
            made.hold(number, found[0].node, found[0].shares)
            held.append(number)
        for _ in range(min(let_go, len(held)) if number % 3 == 2 else 0):
            made.release(held.pop(0))
        for room in made.nodes.values():
            for r in room.gpus.values():
                assert r.memory_bytes >= 0
                assert r.share_ppm >= 0
                assert r.slots >= 0
    for number in held:
        made.release(number)
    assert {name: room.keys for name, room in made.nodes.items()} == empty


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    pods=st.lists(requests, min_size=1, max_size=6),
)
def test_a_gang_never_shares_what_is_there_once(sizes: list[int], pods: list[GpuRequest]) -> None:
    made = stock(*[(f"n{i}", size) for i, size in enumerate(sizes)])
    found = place(made, [PodToPlace(str(i), request) for i, request in enumerate(pods)])
    if isinstance(found, NoPlace):
        return
    assert len(found) == len(pods)
    for chosen in found:
        assert len(set(uuids(chosen))) == pods[int(chosen.pod)].count
        made.hold(chosen.pod, chosen.node, chosen.shares)
    for room in made.nodes.values():
        for r in room.gpus.values():
            assert min(r.memory_bytes, r.share_ppm, r.slots) >= 0
            alone = [c.pod for c in found if pods[int(c.pod)].exclusive and r.gpu.uuid in uuids(c)]
            assert not alone or r.holders == 1, "no company means none"
