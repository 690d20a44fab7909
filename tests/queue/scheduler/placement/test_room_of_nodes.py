"""Topologies whose lowest level is not the host name: each pod has to fit on one node."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from queuecontroller.scheduler.model.selectors import (
    NodeSelectorTerm,
    Requirement,
    Taint,
    Toleration,
)
from queuecontroller.scheduler.placement.topology.choose import pods_beside, pods_in
from tests.queue.scheduler.placement.rooms_by_topology import Place, domains, node, pods

LEVELS = ("block", "rack")


def of(rack: str, block: str = "b", **more: str) -> dict[str, str]:
    return {"block": block, "rack": rack, **more}


def test_a_pod_that_no_node_takes_waits_though_the_rack_has_the_sum() -> None:
    nodes = [node("n1", of("r"), 4), node("n2", of("r"), 4)]
    one = Place(LEVELS, *nodes)
    large = one.workload("large", pods(cpu=6, required_topology="rack"))
    assert one.admit(large) == (
        'topology "t" doesn\'t allow to fit any of 1 pod(s); of 2 nodes: 2 without cpu for a pod'
    )
    sums = Place(LEVELS, *nodes, each_node=False)
    admitted = sums.admit(large)
    assert not isinstance(admitted, str)
    assert domains(admitted) == [(("b", "r"), 1)]


def test_what_nodes_have_left_besides_is_no_room() -> None:
    """Three nodes of 5 have 15 CPUs, and take one pod of 3 each."""
    place = Place(LEVELS, *(node(f"n{n}", of("r"), 5) for n in range(3)))
    assert isinstance(place.admit(place.workload("a", pods(count=4, cpu=3))), str)
    assert not isinstance(place.admit(place.workload("b", pods(count=3, cpu=3))), str)
    assert isinstance(place.admit(place.workload("c", pods(cpu=7))), str)


def test_nodes_that_pods_may_not_use_do_not_count() -> None:
    tainted = node("n1", of("r"), 8, taints=(Taint("k", "v"),))
    place = Place(LEVELS, tainted, node("n2", of("r", zone="z"), 4), node("n3", of("r"), 2))
    here: dict[str, Any] = {"required_topology": "rack"}
    assert isinstance(place.admit(place.workload("a", pods(cpu=5, **here))), str)
    tolerated = (Toleration("k", operator="Exists"),)
    selected = {"zone": "z"}
    terms = (NodeSelectorTerm((Requirement("zone", "DoesNotExist"),)),)
    for pod_set, fits in (
        (pods(tolerations=tolerated, **here), 8),
        (pods(node_selector=selected, **here), 4),
        (pods(affinity=terms, **here), 2),
    ):
        for cpu in (fits, fits + 1):
            one = place.workload(f"{fits}-{cpu}", replace(pod_set, pod_requests={"cpu": cpu}))
            answer = place.admit(one)
            assert isinstance(answer, str) == (cpu > fits)
            place.room.release(one.key)


def test_pods_of_the_other_pod_sets_use_the_same_nodes() -> None:
    place = Place(LEVELS, node("n1", of("r"), 4), node("n2", of("r"), 3))
    sets = pods("a", cpu=3), pods("b", cpu=4)
    assert not isinstance(place.admit(place.workload("fits", *sets)), str)
    place = Place(LEVELS, node("n1", of("r"), 4), node("n2", of("r"), 4))
    sets = pods("a", count=2, cpu=3), pods("b", cpu=2)
    assert isinstance(place.admit(place.workload("does not", *sets)), str)


def test_a_leader_needs_a_node_beside_its_workers() -> None:
    place = Place(LEVELS, node("n1", of("r"), 4), node("n2", of("r"), 3))
    leader = pods("leader", cpu=3, group="g", required_topology="rack")

    def workers(count: int) -> object:
        many = pods("workers", count, 2, group="g", required_topology="rack")
        return place.admit(place.workload(f"w{count}", leader, many))

    assert isinstance(workers(3), str)
    assert not isinstance(workers(2), str), "the leader is on n2, both workers on n1"


@pytest.mark.parametrize("seed", range(20))
def test_random_racks_against_a_count_of_their_nodes(seed: int) -> None:
    random = Random(seed)
    for _ in range(30):
        some_racks(random)


def some_racks(random: Random) -> None:
    nodes = [
        node(f"n{n}", of(f"r{random.randint(0, 2)}"), random.randint(1, 9))
        for n in range(random.randint(1, 7))
    ]
    place = Place(LEVELS, *nodes)
    used = {}
    for one in nodes:
        if random.random() < 0.4:
            used[one.name] = random.randint(1, 4)
            place.ground.put_pod(f"n/{one.name}", one.name, {"cpu": used[one.name]})
    cpu, count = random.randint(1, 4), random.randint(2, 6)
    leader = random.randint(1, 5) if random.random() < 0.5 else None
    fits = False
    for rack in {one.labels["rack"] for one in nodes}:
        free = [
            {"cpu": max(0, one.allocatable["cpu"] - used.get(one.name, 0))}
            for one in nodes
            if one.labels["rack"] == rack
        ]
        alone = [pods_in(amounts, {"cpu": cpu}) for amounts in free]
        if leader is None:
            fits |= sum(alone) >= count
            continue
        for at, amounts in enumerate(free):
            beside = pods_beside(amounts, {"cpu": leader}, {"cpu": cpu})
            fits |= beside >= 0 and sum(alone) - alone[at] + beside >= count
    together: dict[str, Any] = {"group": "g", "required_topology": "rack"}
    sets = [pods("workers", count, cpu, **together)]
    if leader is not None:
        sets.append(pods("leader", 1, leader, **together))
    answer = place.admit(place.workload("one", *sets))
    assert isinstance(answer, str) != fits
    if not isinstance(answer, str):
        again = place.admit(place.workload("two", pods("main", 1, 10)))
        assert isinstance(again, str), "no node has 10"
