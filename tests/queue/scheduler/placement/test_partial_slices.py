"""Pod sets whose last slice is smaller: random trees against a search of every choice."""

from __future__ import annotations

from collections import Counter
from itertools import product
from random import Random
from typing import Any

import pytest

from queuecontroller.scheduler.placement.topology.choose import (
    Ask,
    Given,
    Layer,
    Unfit,
    choose,
    pods_beside,
    pods_in,
)
from queuecontroller.scheduler.placement.topology.ground import HOSTNAME, Values
from tests.queue.scheduler.placement.rooms_by_topology import Place, domains, node, pods

LEVELS = ("block", "rack", HOSTNAME)
Leaves = dict[Values, dict[str, int]]
RACKS = ("block", "rack", HOSTNAME)


def leaves(**free: int) -> Leaves:
    return {tuple(name.split("_")): {"cpu": amount} for name, amount in free.items()}


def found(where: Leaves, count: int, layer: Layer, **asked: object) -> list[tuple[str, int]] | str:
    ask = Ask("main", count, {"cpu": 1}, layers=(layer,), **asked)  # type: ignore[arg-type]
    given = choose("t", LEVELS, where, ask)
    if isinstance(given, Unfit):
        return given.reason
    return [(values[-1], number) for values, number in given.workers]


def test_the_smaller_slice_is_where_it_costs_nothing_and_comes_last() -> None:
    where = leaves(b1_r1_h1=5, b1_r2_h2=4)
    assert found(where, 9, Layer("rack", 4), required="block") == [("h2", 4), ("h1", 5)]
    assert found(where, 8, Layer("rack", 4), required="block") == [("h1", 4), ("h2", 4)]
    assert found(where, 5, Layer("rack", 4), required="rack") == [("h1", 5)]
    assert found(where, 3, Layer("rack", 4), required="rack") == [("h1", 3)]


def test_a_smaller_slice_may_need_a_domain_of_its_own() -> None:
    where = leaves(b1_r1_h1=4, b1_r2_h2=4, b1_r3_h3=1)
    assert found(where, 9, Layer("rack", 4), preferred="rack") == [("h1", 4), ("h2", 4), ("h3", 1)]
    assert found(where, 10, Layer("rack", 4)) == (
        'topology "t" allows to fit only 8 out of 10 pod(s)'
    )


def test_without_the_feature_and_with_slices_within_it_is_refused() -> None:
    where = leaves(b1_r1_h1=9)
    refusal = found(where, 5, Layer("rack", 4), partial=False)
    assert refusal == "pod set main: 5 pods are not a whole number of slices of 4"
    ask = Ask("main", 10, {"cpu": 1}, layers=(Layer("rack", 4), Layer(HOSTNAME, 2)))
    given = choose("t", LEVELS, where, ask)
    assert isinstance(given, Unfit)
    assert given.misconfigured


def every_choice(where: Leaves, ask: Ask) -> bool:
    """True if some domain of the required level has room, with the leader on any of its hosts and
    the smaller slice in any of its domains."""
    (layer,) = ask.layers
    depth = LEVELS.index(ask.required) + 1 if ask.required is not None else 0
    within = LEVELS.index(layer.level) + 1
    whole, rest = divmod(ask.count, layer.size)
    for top in {values[:depth] for values in where}:
        hosts = [values for values in where if values[:depth] == top]
        parts = {values[:within] for values in hosts}
        for leader, smaller in product(hosts if ask.leader else [None], parts):
            room: Counter[Values] = Counter()
            for values in hosts:
                fits = pods_in(where[values], ask.each)
                if values == leader:
                    assert ask.leader is not None
                    fits = pods_beside(where[values], ask.leader, ask.each)
                room[values[:within]] += fits if fits >= 0 else -1000
            if rest:
                room[smaller] -= rest
            if min(room.values()) < 0:
                continue
            if sum(number // layer.size for number in room.values()) >= whole:
                return True
    return False


def random_tree(random: Random) -> Leaves:
    made: Leaves = {}
    for block in range(random.randint(1, 2)):
        for rack in range(random.randint(1, 3)):
            for host in range(random.randint(1, 3)):
                name = (f"b{block}", f"b{block}r{rack}", f"b{block}r{rack}h{host}")
                made[name] = {"cpu": random.randint(0, 7)}
    return made


@pytest.mark.parametrize("seed", range(30))
def test_random_trees_against_every_choice(seed: int) -> None:
    random = Random(seed)
    for _ in range(50):
        one_tree(random)


def one_tree(random: Random) -> None:
    where = random_tree(random)
    required = random.choice((None, *LEVELS[:2]))
    preferred = random.choice((None, *LEVELS[:2])) if required is None else None
    top = required or preferred
    inner = random.choice(LEVELS[LEVELS.index(top) if top else 0 :])
    size = random.randint(2, 5)
    ask = Ask(
        "main",
        random.randint(1, 16),
        {"cpu": random.randint(1, 2)},
        required=required,
        preferred=preferred,
        layers=(Layer(inner, size),),
        leader={"cpu": random.randint(1, 4)} if random.random() < 0.5 else None,
        leader_name="leader",
        balanced=random.random() < 0.3,
    )
    given = choose("t", LEVELS, where, ask)
    assert isinstance(given, Given) == every_choice(where, ask)
    assert given == choose("t", LEVELS, dict(reversed(where.items())), ask), "in any order"
    if isinstance(given, Unfit):
        assert "allow" in given.reason
        return
    assert sum(number for _, number in given.workers) == ask.count
    for values, number in given.workers:
        room = pods_in(where[values], ask.each)
        if values == given.leader:
            assert ask.leader is not None
            room = pods_beside(where[values], ask.leader, ask.each)
        assert 0 < number <= room
    if required is not None:
        depth = LEVELS.index(required) + 1
        tops = {values[:depth] for values, _ in given.workers}
        assert len(tops | ({given.leader[:depth]} if given.leader else set())) == 1
    # Pods get their numbers in this order, so the pods of each slice are in one domain.
    within = LEVELS.index(inner) + 1
    numbered = [values[:within] for values, number in given.workers for _ in range(number)]
    for first in range(0, ask.count, size):
        assert len(set(numbered[first : first + size])) == 1


@pytest.mark.parametrize("seed", range(20))
def test_whole_slices_are_placed_as_if_none_could_be_smaller(seed: int) -> None:
    random = Random(seed)
    where = random_tree(random)
    size = random.randint(1, 3)
    layer = Layer(random.choice(LEVELS), size)
    for count in range(size, 13, size):
        answers = [
            choose("t", LEVELS, where, Ask("main", count, {"cpu": 1}, layers=(layer,), partial=one))
            for one in (True, False)
        ]
        assert answers[0] == answers[1]


# -- pods of a node that failed ---------------------------------------------------------------------


def place_of(**hosts: tuple[str, int]) -> Place:
    nodes = [node(name, {"block": "b", "rack": rack}, cpu) for name, (rack, cpu) in hosts.items()]
    return Place(RACKS, *nodes)


def test_replaced_pods_take_the_place_of_the_failed_node_in_the_list() -> None:
    place = place_of(a=("r", 2), b=("r", 2), c=("r", 2), d=("r", 2))
    place.ground.drop_node("d")
    one = place.admit(place.workload("one", pods(count=6, required_topology="rack")))
    assert not isinstance(one, str)
    assert domains(one) == [(("a",), 2), (("b",), 2), (("c",), 2)]
    place.ground.put_node(node("d", {"block": "b", "rack": "r"}, 2))
    after = place.room.replaced(one, "b")
    assert after is not None
    assert after.pod_sets[0].topology is not None
    assert after.pod_sets[0].topology.domains == ((("a",), 2), (("d",), 2), (("c",), 2))


def test_slices_of_hosts_stay_whole_when_they_are_replaced() -> None:
    place = place_of(a=("r", 4), b=("r", 3), c=("r", 1), d=("r", 2))
    sliced: dict[str, Any] = {"slice_topology": HOSTNAME, "slice_size": 2}
    one = place.admit(place.workload("one", pods(count=4, required_topology="rack", **sliced)))
    assert not isinstance(one, str)
    assert domains(one) == [(("a",), 4)]
    after = place.room.replaced(one, "a")
    assert after is not None
    assert after.pod_sets[0].topology is not None
    assert after.pod_sets[0].topology.domains == ((("b",), 2), (("d",), 2))
    place.ground.drop_node("d")
    assert place.room.replaced(one, "a") is None, "3 and 1 are no slices of two"


def test_the_smaller_slice_stays_the_last_when_it_is_replaced() -> None:
    place = place_of(a=("r", 2), b=("r", 1), c=("r", 2), d=("r", 1))
    sliced: dict[str, Any] = {"slice_topology": HOSTNAME, "slice_size": 2}
    one = place.admit(place.workload("one", pods(count=5, required_topology="rack", **sliced)))
    assert not isinstance(one, str)
    assert domains(one) == [(("a",), 2), (("c",), 2), (("b",), 1)]
    after = place.room.replaced(one, "b")
    assert after is not None
    assert after.pod_sets[0].topology is not None
    assert after.pod_sets[0].topology.domains == ((("a",), 2), (("c",), 2), (("d",), 1))
