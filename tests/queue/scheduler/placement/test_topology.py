"""Domains of a topology: what is chosen is there, is enough, and is where it was wished; random nodes against a plain look at all."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from random import Random

import pytest

from queuecontroller.scheduler.model.objects import (
    Admission,
    PodSet,
    PodSetAssignment,
    ResourceFlavor,
    TopologyAssignment,
    Workload,
    WorkloadKey,
)
from queuecontroller.scheduler.placement.topology.choose import Ask, Given, Layer, Unfit, choose
from queuecontroller.scheduler.placement.topology.ground import (
    HOSTNAME,
    Ground,
    NodeFacts,
    Part,
    Values,
)
from queuecontroller.scheduler.placement.topology.room import TopologyRoom

LEVELS = ("block", "rack", HOSTNAME)
Leaves = dict[Values, dict[str, int]]


def leaves(**free: int) -> Leaves:
    """Leaves of a topology; names are like b1_r1_h1."""
    return {tuple(name.split("_")): {"cpu": amount} for name, amount in free.items()}


TREE = leaves(b1_r1_h1=4, b1_r1_h2=4, b1_r2_h3=3, b1_r2_h4=1, b2_r3_h5=8, b2_r3_h6=2)


def found(where: Leaves, **asked: object) -> dict[str, int] | str:
    given = choose("t", LEVELS, where, Ask("main", each={"cpu": 1}, **asked))  # type: ignore[arg-type]
    if isinstance(given, Unfit):
        return given.reason
    return {values[-1]: count for values, count in given.workers}


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ({"count": 3, "required": HOSTNAME}, {"h3": 3}),
        ({"count": 4, "required": "rack"}, {"h3": 3, "h4": 1}),
        ({"count": 8, "required": "rack"}, {"h1": 4, "h2": 4}),
        ({"count": 9, "required": "rack"}, {"h5": 8, "h6": 1}),
        ({"count": 11, "required": "rack"}, 'topology "t" allows to fit only 10 out of 11 pod(s)'),
        ({"count": 10, "required": HOSTNAME}, 'topology "t" allows to fit only 8 out of 10 pod(s)'),
        ({"count": 11, "preferred": "rack"}, {"h1": 4, "h2": 4, "h3": 3}),
        ({"count": 14, "preferred": HOSTNAME}, {"h1": 4, "h2": 4, "h3": 3, "h6": 2, "h4": 1}),
        ({"count": 3}, {"h4": 1, "h6": 2}),
        ({"count": 23}, 'topology "t" allows to fit only 22 out of 23 pod(s)'),
        (
            {"count": 8, "required": "rack", "layers": (Layer(HOSTNAME, 4),)},
            {"h1": 4, "h2": 4},
        ),
        (
            {"count": 12, "preferred": "block", "layers": (Layer("rack", 6), Layer(HOSTNAME, 2))},
            {"h1": 4, "h2": 2, "h5": 6},
        ),
        (
            {"count": 6, "required": "rack", "layers": (Layer(HOSTNAME, 4),)},
            {"h1": 4, "h2": 2},
        ),
        (
            {"count": 6, "preferred": "rack", "layers": (Layer(HOSTNAME, 4),), "partial": False},
            "not a whole number",
        ),
        (
            {"count": 6, "preferred": "rack", "layers": (Layer("rack", 4), Layer(HOSTNAME, 2))},
            "not a whole number",
        ),
        ({"count": 2, "required": "zone"}, "has no level zone"),
        ({"count": 2, "required": "rack", "layers": (Layer("block", 2),)}, "is wider than rack"),
        ({"count": 0, "required": "rack"}, {}),
    ],
    ids=lambda one: str(one)[:70],
)
def test_what_is_chosen(asked: dict[str, object], wanted: object) -> None:
    got = found(TREE, **asked)
    if isinstance(wanted, str):
        assert isinstance(got, str)
        assert wanted in got
    elif "preferred" in asked and isinstance(got, dict):
        assert sum(got.values()) == asked["count"]
        if asked.get("layers"):
            assert all(count % 2 == 0 for count in got.values())
    else:
        assert got == wanted


def test_balanced_spreads_evenly_over_as_few_domains() -> None:
    where = leaves(b1_r1_h1=6, b1_r2_h2=6, b1_r3_h3=6)
    assert found(where, count=8, preferred="rack", balanced=True) == {"h1": 4, "h2": 4}
    assert found(where, count=8, preferred="rack") == {"h1": 6, "h2": 2}
    one = leaves(b1_r1_h1=6, b1_r2_h2=2, b1_r3_h3=1)
    assert found(one, count=8, preferred="rack", balanced=True) == {"h1": 6, "h2": 2}


def test_a_leader_goes_with_its_workers() -> None:
    where: Leaves = {
        ("b1", "r1", "h1"): {"cpu": 4},
        ("b1", "r1", "h2"): {"cpu": 4},
        ("b1", "r2", "h3"): {"cpu": 9},
    }
    ask = Ask("workers", 6, {"cpu": 1}, required="rack", leader={"cpu": 3}, leader_name="leader")
    given = choose("t", LEVELS, where, ask)
    assert isinstance(given, Given)
    assert given.leader == ("b1", "r2", "h3")
    assert given.workers == ((("b1", "r2", "h3"), 6),)
    tight = Ask("workers", 5, {"cpu": 1}, required="rack", leader={"cpu": 3}, leader_name="leader")
    given = choose("t", LEVELS, where, tight)
    assert isinstance(given, Given)
    assert given.leader is not None
    assert given.leader[1] == "r1", "the smaller rack takes all of it"
    large = Ask("workers", 1, {"cpu": 1}, required="rack", leader={"cpu": 10}, leader_name="leader")
    refused = choose("t", LEVELS, where, large)
    assert isinstance(refused, Unfit)
    assert "the leader leader" in refused.reason


def random_tree(random: Random) -> Leaves:
    made: Leaves = {}
    for block in range(random.randint(1, 3)):
        for rack in range(random.randint(1, 3)):
            for host in range(random.randint(1, 4)):
                name = (f"b{block}", f"b{block}r{rack}", f"b{block}r{rack}h{host}")
                made[name] = {"cpu": random.randint(0, 9), "gpu": random.randint(0, 4)}
    return made


def fits_plainly(where: Leaves, ask: Ask) -> bool:
    """True if a domain of the required level has hosts for all slices, by counting."""
    depth = LEVELS.index(ask.required or HOSTNAME) + 1
    (layer,) = ask.layers or (Layer(HOSTNAME, 1),)
    within = LEVELS.index(layer.level) + 1
    best: Counter[Values] = Counter()
    parts: Counter[Values] = Counter()
    for values, free in where.items():
        parts[values[:within]] += min(
            free[name] // amount for name, amount in ask.each.items() if amount
        )
    for values, pods in parts.items():
        best[values[:depth]] += pods // layer.size * layer.size
    return any(pods >= ask.count for pods in best.values())


@pytest.mark.parametrize("seed", range(300))
def test_random_trees_against_a_plain_count(seed: int) -> None:
    random = Random(seed)
    where = random_tree(random)
    required = random.choice(LEVELS)
    inner = random.choice(LEVELS[LEVELS.index(required) :])
    size = random.choice((1, 1, 2, 3))
    count = size * random.randint(1, 6)
    each = {"cpu": random.randint(1, 3), "gpu": random.randint(0, 1)}
    ask = Ask("main", count, each, required=required, layers=(Layer(inner, size),))
    given = choose("t", LEVELS, where, ask)
    assert isinstance(given, Given) == fits_plainly(where, ask)
    if isinstance(given, Unfit):
        return
    assert sum(pods for _, pods in given.workers) == count
    depth = LEVELS.index(required) + 1
    assert len({values[:depth] for values, _ in given.workers}) == 1
    per_slice: Counter[Values] = Counter()
    for values, pods in given.workers:
        assert all(pods * amount <= where[values][name] for name, amount in each.items())
        per_slice[values[: LEVELS.index(inner) + 1]] += pods
    assert all(pods % size == 0 for pods in per_slice.values())
    assert given == choose("t", LEVELS, dict(reversed(where.items())), ask), "in any order"


@pytest.mark.parametrize("seed", range(60))
def test_as_few_hosts_as_will_do(seed: int) -> None:
    random = Random(1000 + seed)
    free = [random.randint(1, 6) for _ in range(6)]
    where = {("b", "r", f"h{n}"): {"cpu": amount} for n, amount in enumerate(free)}
    count = random.randint(1, sum(free))
    given = choose("t", LEVELS, where, Ask("main", count, {"cpu": 1}, required="rack"))
    assert isinstance(given, Given)
    fewest = next(
        n for n in range(1, 7) if any(sum(some) >= count for some in combinations(free, n))
    )
    assert len(given.workers) == fewest


# -- the room ---------------------------------------------------------------------------------------


def node(name: str, rack: str, cpu: int = 4, **labels: str) -> NodeFacts:
    every = {HOSTNAME: name, "rack": rack, "block": "b", **labels}
    return NodeFacts(name, every, {"cpu": cpu, "pods": 10})


def room_of(*nodes: NodeFacts) -> TopologyRoom:
    ground = Ground()
    for one in nodes:
        ground.put_node(one)
    flavors = {"f": ResourceFlavor("f", topology_name="t")}
    return TopologyRoom(ground, lambda: flavors, lambda: {"t": LEVELS})


def workload(
    name: str, hosts: dict[str, int], cpu: int = 1, required: str | None = None, **more: object
) -> Workload:
    count = sum(hosts.values())
    pod_set = PodSet(
        "main", count, {"cpu": cpu}, pod_requests={"cpu": cpu}, required_topology=required, **more
    )  # type: ignore[arg-type]
    topology = TopologyAssignment((HOSTNAME,), tuple(((h,), n) for h, n in hosts.items()))
    given = PodSetAssignment("main", count, {"cpu": "f"}, {"cpu": cpu * count}, topology)
    return Workload("n", name, (pod_set,), admission=Admission("q", (given,)))


def replaced(room: TopologyRoom, one: Workload, host: str) -> dict[str, int] | None:
    after = room.replaced(one, host)
    if after is None:
        return None
    (given,) = after.pod_sets
    assert given.topology is not None
    return {values[-1]: count for values, count in given.topology.domains}


def test_what_was_stored_is_held_and_let_go() -> None:
    room = room_of(node("a", "r1"), node("b", "r1"))
    one = workload("one", {"a": 2, "b": 1}, cpu=2)
    room.restored(one)
    room.restored(one)
    assert room.ground.taken("a", ()) == {"cpu": 4, "pods": 2}
    assert room.ground.taken("b", ()) == {"cpu": 2, "pods": 1}
    assert room.ground.taken("a", {one.key}) == {}
    freed = room.freed
    room.release(one.key)
    assert room.freed > freed
    assert room.ground.taken("a", ()) == {}
    assert list(room.ground.everybody()) == []


def test_nodes_are_held_also_while_the_flavor_is_gone() -> None:
    ground = Ground()
    ground.put_node(node("a", "r1"))
    room = TopologyRoom(ground, dict, dict)
    one = workload("one", {"a": 2}, cpu=2)
    room.restored(one)
    assert room.ground.taken("a", ()) == {"cpu": 4, "pods": 2}


def test_pods_of_a_failed_node_go_elsewhere_in_its_rack() -> None:
    room = room_of(node("a", "r1"), node("b", "r1"), node("c", "r1"), node("d", "r2", 9))
    one = workload("one", {"a": 4, "b": 3}, required="rack")
    room.restored(one)
    room.ground.drop_node("b")
    assert replaced(room, one, "b") == {"a": 4, "c": 3}
    room.ground.drop_node("c")
    assert replaced(room, one, "b") is None, "r2 is another rack"
    free = workload("one", {"a": 4, "b": 3})
    assert replaced(room, free, "b") == {"a": 4, "d": 3}
    assert replaced(room, one, "d") == {"a": 4, "b": 3}, "nothing of it was there"


def test_a_rack_whose_name_another_begins_with_is_another_rack() -> None:
    others = [node(f"x{n}", rack, 9) for n, rack in enumerate(("r10", "r1-a", "r", "r11"))]
    room = room_of(node("a", "r1"), node("b", "r1"), *others)
    one = workload("one", {"a": 4, "b": 3}, required="rack")
    room.restored(one)
    room.ground.drop_node("b")
    assert replaced(room, one, "b") is None
    room.ground.put_node(node("c", "r1"))
    assert replaced(room, one, "b") == {"a": 4, "c": 3}


def test_all_of_it_was_on_the_node_that_failed() -> None:
    room = room_of(node("a", "r1"), node("b", "r1", 2), node("c", "r2"))
    one = workload("one", {"a": 3}, required=HOSTNAME)
    room.restored(one)
    room.ground.drop_node("a")
    assert replaced(room, one, "a") == {"c": 3}


def test_others_pods_count_once() -> None:
    ground = Ground()
    ground.put_node(node("a", "r1"))
    assert ground.put_pod("n/p", "a", {"cpu": 1})
    assert not ground.put_pod("n/p", "a", {"cpu": 1})
    assert ground.put_pod("n/p", "a", {"cpu": 3})
    assert ground.others_on("a") == {"cpu": 3}
    assert ground.drop_pod("n/p")
    assert not ground.drop_pod("n/p")
    assert ground.others_on("a") == {}


@pytest.mark.parametrize("seed", range(50))
def test_the_ground_adds_up(seed: int) -> None:
    random = Random(seed)
    ground = Ground()
    holds: dict[WorkloadKey, list[Part]] = {}
    for _ in range(200):
        key = WorkloadKey(f"n/{random.randint(0, 5)}")
        if random.random() < 0.3:
            ground.release(key)
            holds.pop(key, None)
        else:
            parts = [
                Part(
                    f"h{random.randint(0, 3)}", random.randint(1, 3), {"cpu": random.randint(1, 4)}
                )
                for _ in range(random.randint(0, 3))
            ]
            ground.hold(key, parts)
            holds[key] = parts
        for host in ("h0", "h1", "h2", "h3"):
            wanted = sum(
                part.each["cpu"] * part.count
                for parts in holds.values()
                for part in parts
                if part.place == host
            )
            assert ground.taken(host, ()).get("cpu", 0) == wanted
