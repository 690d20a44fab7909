"""Pending pods as requests for new nodes: per container, with their other resources, and by the nodes' own labels."""

from __future__ import annotations

from queuecontroller.gpushares.extender.pending_shares import EqualPods, PendingShares, Terrain
from queuecontroller.gpushares.extender.pods import ContainerAsk, PodAsk
from queuecontroller.scheduler.model.selectors import Taint, Toleration
from queuecontroller.scheduler.placement.capacity import GpuCapacity, NodeCapacity
from queuecontroller.scheduler.placement.choose import PodToPlace
from queuecontroller.scheduler.placement.new_nodes import NewNodes, NodeTemplate, new_nodes
from queuecontroller.scheduler.placement.request import GpuRequest
from queuecontroller.scheduler.placement.stock import Share, Stock

GIB = 1 << 30
ANYWHERE = PodToPlace("", GpuRequest())


def cards(name: str) -> tuple[GpuCapacity, ...]:
    return tuple(GpuCapacity(f"{name}-{g}", g, "H100", 80 * GIB) for g in range(2))


TEMPLATE = NodeTemplate("large", NodeCapacity(cards("T"), {"pool": "a"}, other={"cpu": 8_000}))


def ask(*gib: int, percent: int = 10, name: str = "p") -> PodAsk:
    containers = tuple(
        ContainerAsk(f"c{n}", GpuRequest(1, one * GIB, share_ppm=percent * 10_000))
        for n, one in enumerate(gib)
    )
    return PodAsk("default", name, f"uid-{name}", 0, containers)


def nowhere(name: str) -> NodeCapacity | None:
    return None


def needed(
    *parts: EqualPods,
    stock: Stock | None = None,
    terrain: Terrain | None = None,
    apart: bool = True,
) -> NewNodes:
    """`apart`: each part is a request of its own, else all are one."""
    there = terrain or Terrain(nowhere)
    groups = [(one,) for one in parts] if apart else [parts]
    requests = [PendingShares(f"p{n}", one, there) for n, one in enumerate(groups)]
    return new_nodes(stock or Stock(), requests, [TEMPLATE], 100)


def pods(count: int, *gib: int, **other: int) -> EqualPods:
    return EqualPods(ask(*gib), ANYWHERE, count, other)


def test_containers_of_a_pod_get_cards_of_one_node() -> None:
    assert needed(pods(1, 60, 60)).nodes == {"large": 1}
    assert needed(pods(1, 60, 60, 60)).unfit.keys() == {"p0"}
    assert needed(pods(2, 60, 60)).nodes == {"large": 2}
    assert needed(pods(2, 40, 20), pods(2, 20)).nodes == {"large": 1}


def test_cpus_of_new_nodes_count() -> None:
    assert needed(pods(4, 10, cpu=4_000)).nodes == {"large": 2}
    assert needed(*[pods(1, 10, cpu=4_000)] * 4).nodes == {"large": 2}
    assert needed(pods(4, 10, memory=1 << 60)).nodes == {"large": 1}, "the template names none"
    found = needed(pods(1, 10, cpu=9_000))
    assert "too little cpu" in found.unfit["p0"]


def test_present_nodes_count_by_their_own_labels_taints_and_free_cpus() -> None:
    stock = Stock()
    stock.report("n0", NodeCapacity(cards("G")))
    facts = NodeCapacity((), {"pool": "b"}, (Taint("gpu"),), other={"cpu": 1_000})
    of_pool = PodToPlace(
        "", GpuRequest(), labels=(("pool", "b"),), tolerations=(Toleration("gpu", "Exists"),)
    )
    terrain = Terrain({"n0": facts}.get)
    small = EqualPods(ask(10), of_pool, 1, {"cpu": 600})
    found = needed(small, stock=stock, terrain=terrain)
    assert found.fitting == {"p0"}
    found = needed(small, small, stock=stock, terrain=terrain)
    assert len(found.fitting) == 1, "the CPUs are enough for one"
    assert len(found.unfit) == 1, "the template is of another pool"
    assert needed(pods(1, 10), stock=stock, terrain=terrain).nodes == {"large": 1}, (
        "the taint is not tolerated"
    )
    assert needed(pods(1, 10), stock=stock).nodes == {"large": 1}, "it takes no pods"


def test_a_workload_is_placed_as_a_whole() -> None:
    both = (pods(1, 80), pods(3, 80))
    assert needed(*both, apart=False).nodes == {"large": 2}
    assert not needed(pods(1, 80), pods(1, 90), apart=False).nodes


def test_free_parts_of_present_cards_are_used_first() -> None:
    stock = Stock()
    stock.report("n0", NodeCapacity(cards("G")))
    stock.hold("x", "n0", [Share("G-0", 50 * GIB, 500_000)])
    terrain = Terrain({"n0": NodeCapacity()}.get)
    found = needed(*[pods(1, 30)] * 3, stock=stock, terrain=terrain)
    assert len(found.fitting) == 3
    found = needed(*[pods(1, 30)] * 4, stock=stock, terrain=terrain)
    assert found.nodes == {"large": 1}
