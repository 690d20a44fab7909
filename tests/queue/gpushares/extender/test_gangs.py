"""Gangs: all of a group's pods have places or none, groups do not block each other, and nothing is promised twice.

The file is long: each rule has its scene and its random sequences."""

from __future__ import annotations

import random
from typing import Any

import pytest

from queuecontroller.gpushares.extender.gangs import FIRM, TIMEOUT_S
from queuecontroller.gpushares.extender.pod_groups import (
    COSCHEDULING,
    FABRIC,
    HOSTNAME,
    KAI,
    KUBERNETES,
    KUBERNETES_1_35,
    VOLCANO,
    Group,
    GroupKey,
    RuleError,
    Rules,
    group_of,
    read_group,
    rules_of,
)
from tests.queue.gpushares.extender.gang_world import World
from tests.queue.gpushares.extender.rooms import contradictions, free, node, pod

HALF: dict[str, Any] = {"gpumem": 40_000}
WHOLE: dict[str, Any] = {"gpumem": 80_000}


def world(nodes: int = 2, gpus: int = 2) -> World:
    return World({name: node(name, gpus) for name in "abcdefgh"[:nodes]})


def test_no_pod_is_placed_before_the_minimum_is_there_and_then_all_are() -> None:
    one = world()
    one.group("g", 3)
    untouched = free(one.stock)
    for n in range(2):
        one.create(f"g{n}", "g", **WHOLE)
    assert one.why("g0") == "pod group t/g: 2 of at least 3 pods exist"
    assert one.why("g1") == "pod group t/g: 2 of at least 3 pods exist"
    assert free(one.stock) == untouched
    one.create("g2", "g", **WHOLE)
    assert one.schedule("g2") == ""
    assert one.bound() == [], "it waits for the others"
    assert one.reserved == ["g0", "g1"]
    assert one.schedule("g0") == one.schedule("g1") == ""
    assert one.bound() == ["g0", "g1", "g2"]
    assert contradictions(one.stock) == []
    assert not one.ledger.kept


def test_a_group_that_does_not_fit_holds_nothing_and_says_why() -> None:
    one = world()
    one.group("g", 5)
    for n in range(5):
        one.create(f"g{n}", "g", **WHOLE)
    untouched = free(one.stock)
    why = one.why("g0")
    assert why.startswith("pod group t/g: pods g0, g1, g2, g3, ...: GPU shares for 4 of 5 pods; 2")
    assert "needs 1 GPU with 80000 MiB" in why
    assert free(one.stock) == untouched
    one.create("single", **WHOLE)
    assert one.schedule("single") == ""
    assert one.bound() == ["single"]


def test_pods_with_the_same_nodes_in_another_order_are_alike() -> None:
    one = world()
    one.group("g", 5)
    for n in range(5):
        one.create(f"g{n}", "g", **WHOLE)
    orders = tuple(one.nodes), tuple(reversed(one.nodes))
    told = {one.why(f"g{n}", *orders[n % 2]) for n in range(5)}
    assert len(told) == 1
    assert "GPU shares for 4 of 5 pods; 2 of 2 nodes have none" in told.pop()


def test_reserved_room_is_no_other_pods_of_any_priority() -> None:
    one = world(1)
    one.group("g", 2)
    one.create("g0", "g", **WHOLE)
    one.create("g1", "g", **WHOLE)
    assert one.filter("g0")[0] == ["a"]
    one.create("urgent", priority=1_000_000_000, **WHOLE)
    assert "0 of 2 fit" in one.why("urgent")
    assert all(kept.priority == FIRM for kept in one.ledger.kept.values())


def test_what_is_reserved_is_given_back_at_the_deadline_and_tried_again_later() -> None:
    one = world(1)
    one.group("g", 2)
    untouched = free(one.stock)
    one.create("g0", "g", **WHOLE)
    one.create("g1", "g", **WHOLE)
    assert one.schedule("g0") == ""
    for _ in range(4):  # Its binding is put off, and its place stays reserved.
        one.sleep(13.0)
        assert one.bound() == []
        assert one.reserved == ["g0", "g1"]
        assert one.schedule("g0") == ""
    one.sleep(TIMEOUT_S - 52.0)
    assert free(one.stock) == untouched
    assert one.waiting == {}
    assert one.events[-1].nodes == ()
    assert one.events[-1].rest_s == TIMEOUT_S
    why = "its reservation ended after 60 s: 1 of at least 2 pods were being bound"
    assert why in one.events[-1].why
    assert why in one.why("g1"), "others may take the room now"
    one.sleep(TIMEOUT_S)
    assert one.schedule("g0") == one.schedule("g1") == ""
    assert one.bound() == ["g0", "g1"]


def test_each_deadline_that_is_missed_makes_the_next_rest_longer() -> None:
    one = world(1)
    one.group("g", 2, timeout_s=10.0)
    one.create("g0", "g", **WHOLE)
    one.create("g1", "g", **WHOLE)
    rests = []
    for _ in range(8):
        assert one.filter("g0")[0] == ["a"]
        one.sleep(10.0)
        rests.append(one.events[-1].rest_s)
        one.sleep(rests[-1])
    assert rests == [10, 20, 40, 80, 160, 320, 600, 600]


def test_a_later_group_yields_to_an_earlier_one_and_never_takes_from_it() -> None:
    one = world(1)
    one.group("old", 2, "2026-01-01T00:00:00Z")
    one.group("new", 2, "2026-01-02T00:00:00Z")
    for name in ("old0", "old1", "new0", "new1"):
        one.create(name, name[:3], **WHOLE)
    assert one.filter("new0")[0] == ["a"]
    assert one.reserved == ["new0", "new1"]
    assert one.filter("old0")[0] == ["a"]
    assert one.reserved == ["old0", "old1"]
    given_back = [event for event in one.events if not event.nodes]
    assert [event.key.name for event in given_back] == ["new"]
    assert given_back[0].why == "its places went to pod group t/old, which is earlier"
    assert "GPU shares for 0 of 2 pods" in one.why("new0")
    assert one.schedule("old0") == one.schedule("old1") == ""
    assert one.bound() == ["old0", "old1"]


def test_priority_comes_before_age() -> None:
    one = world(1)
    one.group("old", 2, "2026-01-01T00:00:00Z")
    one.group("new", 2, "2026-01-02T00:00:00Z")
    for name, priority in (("old0", 0), ("old1", 0), ("new0", 10), ("new1", 10)):
        one.create(name, name[:3], priority=priority, **WHOLE)
    assert one.filter("old0")[0] == ["a"]
    assert one.filter("new0")[0] == ["a"]
    assert one.reserved == ["new0", "new1"]


def test_a_group_that_is_being_bound_yields_to_none() -> None:
    one = world(1)
    one.group("old", 2, "2026-01-01T00:00:00Z")
    one.group("new", 2, "2026-01-02T00:00:00Z")
    for name in ("old0", "old1", "new0", "new1"):
        one.create(name, name[:3], **WHOLE)
    assert one.schedule("new0") == ""
    assert "GPU shares for 0 of 2 pods" in one.why("old0")
    assert one.schedule("new1") == ""
    assert one.bound() == ["new0", "new1"]


def test_more_pods_than_the_minimum_come_along_if_there_is_room() -> None:
    one = world(1, 3)
    one.group("g", 2)
    for n in range(4):
        one.create(f"g{n}", "g", **WHOLE)
    assert one.schedule("g3") == ""
    assert len(one.reserved) == 1, "all four do not fit, so the minimum is reserved"
    assert one.schedule(one.reserved[0]) == ""
    assert len(one.bound()) == 2
    left = [name for name in one.pods if name not in one.bound()]
    assert one.schedule(left[0]) == "", "the rest is placed pod by pod"
    assert "0 of 3 fit" in one.why(left[1])
    assert len(one.bound()) == 3


def test_a_pod_that_replaces_another_is_placed_alone() -> None:
    one = world(1)
    one.group("g", 2)
    for name in ("g0", "g1"):
        one.create(name, "g", **WHOLE)
    for name in ("g0", "g1"):
        one.schedule(name)
    one.delete("g1")
    one.create("g2", "g", **WHOLE)
    assert one.schedule("g2") == ""
    assert one.bound() == ["g0", "g2"]


def test_a_deleted_pod_returns_its_place_and_those_of_a_group_that_is_too_small_then() -> None:
    one = world(1)
    one.group("g", 2)
    untouched = free(one.stock)
    one.create("g0", "g", **WHOLE)
    one.create("g1", "g", **WHOLE)
    one.filter("g0")
    one.delete("g1")
    assert free(one.stock) == untouched
    assert one.why("g0") == "pod group t/g: 1 of at least 2 pods exist"


def test_the_scheduler_refuses_a_node_and_the_group_is_placed_anew() -> None:
    one = world(3, 1)
    one.group("g", 2)
    for name in ("g0", "g1"):
        one.create(name, "g", **WHOLE)
    (first,), _ = one.filter("g0")
    others = [name for name in one.nodes if name != first]
    assert one.schedule("g0", *others) == ""
    assert one.schedule("g1") == ""
    assert len(set(one.nodes_of("g"))) == 2
    assert first not in {one.pods["g0"]["spec"]["nodeName"]}


def test_places_that_are_chosen_anew_do_not_put_the_deadline_off() -> None:
    one = world(4, 1)
    one.group("g", 2)
    for n in range(2):
        one.create(f"g{n}", "g", **WHOLE)
    for second in range(int(TIMEOUT_S)):  # The scheduler never accepts the node of before.
        assert one.filter("g0", *("ab" if second % 2 else "cd"))[0]
        assert len(one.reserved) == 2
        one.sleep(1.0)
    assert one.reserved == []
    assert one.events[-1].rest_s == TIMEOUT_S
    assert "its reservation ended after 60 s" in one.why("g0")


def test_pods_of_different_requests_and_nodes_are_placed_together() -> None:
    one = world(2, 1)
    one.group("g", 3)
    one.create("big", "g", **WHOLE)
    one.create("s0", "g", **HALF)
    one.create("s1", "g", **HALF)
    told = "pod group t/g: pods big: GPU shares for 0 of 1 pods; 1 of 1 nodes have none"
    assert told in one.why("s0", "a"), "it may only go there; of the others nothing is known yet"
    assert one.schedule("big") == one.schedule("s1") == one.schedule("s0", "a") == ""
    assert one.pods["s0"]["spec"]["nodeName"] == one.pods["s1"]["spec"]["nodeName"] == "a"
    assert one.pods["big"]["spec"]["nodeName"] == "b"


def test_quota_that_refuses_one_pod_refuses_the_group() -> None:
    one = world(1)
    one.group("g", 2)
    for name in ("g0", "g1"):
        one.create(name, "g", **WHOLE)
    one.refused["g1"] = "quota q is used up"
    assert one.why("g0") == "pod group t/g: pod g1: quota q is used up"
    assert one.reserved == []


def test_no_two_pods_on_one_gpu() -> None:
    one = world(1, 2)
    one.group("g", 2)
    for n in range(2):
        one.create(f"g{n}", "g", "separate-gpus", gpumem=1000)
    for n in range(2):
        assert one.schedule(f"g{n}") == ""
    assert sorted(one.gpus_of("g")) == ["GPU-a-0", "GPU-a-1"]
    one.create("g2", "g", "separate-gpus", gpumem=1000)
    assert "with no two on one GPU: GPU shares for 0 of 1 pods" in one.why("g2"), "also later ones"
    one.create("other", gpumem=1000)
    assert one.schedule("other") == "", "others may share the GPU"


def test_all_on_one_node() -> None:
    one = world(3, 2)
    one.create("single", **WHOLE)
    one.schedule("single")
    one.group("g", 2)
    for n in range(3):
        one.create(f"g{n}", "g", "one-node", **WHOLE)
    for n in range(2):
        assert one.schedule(f"g{n}") == ""
    assert len(one.bound("g")) == 2
    assert len(set(one.nodes_of("g"))) == 1
    assert one.nodes_of("g")[0] != one.pods["single"]["spec"]["nodeName"]
    assert "GPU shares for 0 of 1 pods" in one.why("g2"), "a later pod has to join them"


def test_all_in_one_fabric() -> None:
    fabric = {name: {FABRIC: value} for name, value in (("a", "x"), ("b", "y"), ("c", "y"))}
    one = World({name: node(name, 1) for name in "abcd"}, **fabric)
    one.group("g", 2)
    for n in range(2):
        one.create(f"g{n}", "g", "same-fabric", **WHOLE)
    for n in range(2):
        assert one.schedule(f"g{n}") == ""
    assert one.nodes_of("g") == ["b", "c"]
    one.group("h", 2, topology=("rack",))
    for n in range(2):
        one.create(f"h{n}", "h", **WHOLE)
    assert one.why("h0") == "pod group t/h: no node has the label rack"


def test_a_dry_run_reserves_nothing() -> None:
    one = world(1)
    one.group("g", 2)
    for n in range(2):
        one.create(f"g{n}", "g", **WHOLE)
    untouched = free(one.stock)
    with one.gangs.dry_run():
        assert one.filter("g0")[0] == ["a"]
        unknown = pod("g9", **WHOLE)
        unknown["metadata"]["labels"] = one.pods["g0"]["metadata"]["labels"]
        assert "GPU shares for 2 of 3 pods" not in one.one.filter(unknown, ["a"]).failed
    assert free(one.stock) == untouched
    assert one.events == []


def test_a_group_without_an_object_waits_for_it_and_an_unknown_kind_is_no_group() -> None:
    one = world(1)
    one.groups["g"] = "the PodGroup t/g (scheduling.x-k8s.io) does not exist"
    one.create("g0", "g", **WHOLE)
    assert one.why("g0") == one.groups["g"]
    one.create("u0", "unknown", **WHOLE)
    assert one.schedule("u0") == ""
    assert one.bound() == ["u0"]


def test_a_wrong_rule_is_named() -> None:
    one = world(1)
    one.group("g", 1)
    one.create("g0", "g", "same-card", **WHOLE)
    assert one.why("g0").startswith("pod group t/g: sluice.dev/group-rules: must be a list of")


def test_the_next_leader_has_the_same_reservations() -> None:
    one = world(2, 2)
    one.group("g", 3)
    for n in range(3):
        one.create(f"g{n}", "g", **WHOLE)
    one.filter("g0")
    nodes = {uid: kept.place.node for uid, kept in one.ledger.kept.items()}
    assert len(nodes) == 3
    one.start()
    assert {uid: kept.place.node for uid, kept in one.ledger.kept.items()} == nodes
    one.create("single", **WHOLE)
    one.create("more", **WHOLE)
    assert one.schedule("single") == ""
    assert "0 of 2 fit" in one.why("more")
    for n in range(3):
        assert one.schedule(f"g{n}") == ""
    assert one.bound("g") == ["g0", "g1", "g2"]
    assert contradictions(one.stock) == []


def test_the_next_leader_completes_a_reservation_that_was_stored_in_part() -> None:
    one = world(2, 2)
    one.group("g", 3)
    for n in range(3):
        one.create(f"g{n}", "g", **WHOLE)
    one.filter("g0")
    for name in ("g1", "g2"):
        one.pods[name]["status"].clear()
    one.start()
    assert one.reserved == ["g0"]
    node = one.pods["g0"]["status"]["nominatedNodeName"]
    assert one.schedule("g0", node) == "", "the scheduler asks about the nominated node alone"
    assert one.reserved == ["g1", "g2"]
    assert one.schedule("g1") == one.schedule("g2") == ""
    assert one.bound() == ["g0", "g1", "g2"]


def test_the_next_leader_completes_a_group_that_was_bound_in_part() -> None:
    one = world(1, 2)
    one.group("g", 2)
    for n in range(2):
        one.create(f"g{n}", "g", **WHOLE)
    for n in range(2):
        one.schedule(f"g{n}")
    lost = one.pods["g1"]  # Its binding was never written.
    lost["spec"].pop("nodeName")
    lost["metadata"]["annotations"].clear()
    one.start()
    one.create("single", **WHOLE)
    assert "0 of 2 fit" in one.why("single")
    assert one.schedule("g1") == ""
    assert one.bound() == ["g0", "g1"]


# -- words -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "spec", "kinds", "group", "minimum"),
    [
        (
            {},
            {"schedulingGroup": {"podGroupName": "g"}},
            KUBERNETES,
            {"schedulingPolicy": {"gang": {"minCount": 4}}},
            4,
        ),
        (
            {},
            {"schedulingGroup": {"podGroupName": "g"}},
            KUBERNETES,
            {"schedulingPolicy": {"basic": {}}},
            1,
        ),
        (
            {},
            {"workloadRef": {"name": "g", "podGroup": "w", "podGroupReplicaKey": "r"}},
            KUBERNETES_1_35,
            {
                "podGroups": [
                    {"name": "v", "policy": {"basic": {}}},
                    {"name": "w", "policy": {"gang": {"minCount": 3}}},
                ]
            },
            3,
        ),
        ({"annotations": {"scheduling.k8s.io/group-name": "g"}}, {}, VOLCANO, {"minMember": 2}, 2),
        (
            {"annotations": {"scheduling.volcano.sh/group-name": "g"}},
            {},
            VOLCANO,
            {"minMember": "2"},
            1,
        ),
        ({"labels": {"scheduling.x-k8s.io/pod-group": "g"}}, {}, COSCHEDULING, {"minMember": 2}, 2),
        ({"annotations": {"pod-group-name": "g"}}, {}, KAI, {"minMember": 5}, 5),
        ({"annotations": {"pod-group-name": "g"}}, {}, KAI, {}, 1),
    ],
)
def test_each_ones_word_for_a_group(
    head: dict[str, object],
    spec: dict[str, object],
    kinds: object,
    group: dict[str, object],
    minimum: int,
) -> None:
    document = {"metadata": {"namespace": "t", "name": "p", **head}, "spec": spec}
    key = group_of(document)
    assert key is not None
    assert (key.kinds, key.namespace, key.name) == (kinds, "t", "g")
    found = read_group(key, {"metadata": {"creationTimestamp": "then"}, "spec": group})
    assert (found.minimum, found.created) == (minimum, "then")


def test_further_fields_of_a_groups_object() -> None:
    key = GroupKey(KUBERNETES, "t", "g")
    spec = {
        "schedulingPolicy": {"gang": {"minCount": 2}},
        "schedulingConstraints": {"topology": [{"key": "rack"}]},
    }
    assert read_group(key, {"metadata": {}, "spec": spec}) == Group(2, "", None, ("rack",))
    key = GroupKey(COSCHEDULING, "t", "g")
    for given, timeout_s in ((30, 30.0), (1, 10.0), (10**6, 600.0), (0, None), ("5", None)):
        spec = {"minMember": 2, "scheduleTimeoutSeconds": given}
        assert read_group(key, {"metadata": {}, "spec": spec}).timeout_s == timeout_s


def test_a_pod_without_a_word_has_no_group() -> None:
    specs: list[dict[str, Any]] = [{}, {"schedulingGroup": {}}, {"schedulingGroup": None}]
    for spec in (*specs, {"workloadRef": {}}):
        assert group_of({"metadata": {"labels": None}, "spec": spec}) is None


def test_rules_are_read_and_wrong_ones_refused() -> None:
    def read(text: str) -> Rules:
        return rules_of({"metadata": {"annotations": {"sluice.dev/group-rules": text}}})

    assert read("") == Rules()
    assert not read("")
    assert read(" separate-gpus , one-node") == Rules(True, (HOSTNAME,))
    assert read("same-fabric,same=rack") == Rules(False, (FABRIC, "rack"))
    for wrong in ("same=", "yes", "one-node;same-fabric"):
        with pytest.raises(RuleError, match=r"sluice\.dev/group-rules"):
            read(wrong)


# -- random sequences ------------------------------------------------------------------------------


def _check(one: World, sizes: dict[str, int], whole: set[str]) -> None:
    assert contradictions(one.stock) == []
    for key in one.gangs._holding:
        gang = one.gangs._gangs[key]
        assert one.now_s < gang.until_s, "beyond the deadline"
        assert gang.reserved
    for uid in one.ledger.kept:
        assert one.gangs.group_key(uid) is not None, "a reservation of no pod"
    for group in whole:
        bound = len(one.bound(group))
        assert bound == 0 or bound >= sizes[group], f"{group} is bound in part"


@pytest.mark.parametrize("seed", range(30))
def test_random_sequences_keep_all_promises(seed: int) -> None:
    rng = random.Random(seed)
    one = world(rng.choice([1, 2, 4]), rng.choice([1, 2, 4]))
    sizes: dict[str, int] = {}
    whole: set[str] = set()
    """Groups of which no pod was deleted."""
    singles = 0
    for _ in range(150):
        match rng.choice(["group", "single", "ask", "ask", "ask", "ask", "sleep", "end", "start"]):
            case "group" if len(sizes) < 12:
                group = f"g{len(sizes)}"
                sizes[group] = rng.choice([1, 2, 3, 5])
                whole.add(group)
                one.group(group, sizes[group], f"2026-01-{rng.randint(10, 20)}T00:00:00Z")
                rules = rng.choice(["", "", "", "separate-gpus", "one-node"])
                for n in range(sizes[group] + rng.choice([-1, 0, 0, 0, 2])):
                    memory = rng.choice([10_000, 40_000, 80_000])
                    priority = rng.choice([0, 0, 10])
                    one.create(f"{group}-{n}", group, rules, gpumem=memory, priority=priority)
            case "single":
                singles += 1
                one.create(f"s{singles}", gpumem=rng.choice([10_000, 80_000]))
            case "ask" if one.pods:
                names = rng.sample(list(one.nodes), rng.randint(1, len(one.nodes)))
                one.schedule(rng.choice(list(one.pods)), *names)
            case "sleep":
                one.sleep(rng.choice([0.1, 5.0, 15.0, 70.0]))
            case "end" if one.bound():
                gone = rng.choice(one.bound())
                whole.discard(gone.partition("-")[0])
                one.delete(gone)
            case "start" if rng.random() < 0.3:
                one.start()
        _check(one, sizes, whole)


@pytest.mark.parametrize("seed", range(20))
def test_groups_that_compete_all_get_their_turn(seed: int) -> None:
    """Each fits into the empty cluster, not all at once; what is bound ends after a while."""
    rng = random.Random(1000 + seed)
    one = world(2, 2)
    sizes = {f"g{n}": rng.choice([2, 3, 4]) for n in range(6)}
    for group, size in sizes.items():
        one.group(group, size, f"2026-01-{rng.randint(10, 20)}T00:00:00Z", timeout_s=10.0)
        for n in range(size):
            one.create(f"{group}-{n}", group, gpumem=80_000, priority=rng.choice([0, 10]))
    done: set[str] = set()
    for _ in range(200):
        names = list(one.pods)
        rng.shuffle(names)
        for name in names:
            one.schedule(name)
            _check(one, sizes, set(sizes) - done)
        for group in sorted({name.partition("-")[0] for name in one.pods}):
            if len(one.bound(group)) == sizes[group]:
                done.add(group)
                for name in one.of(group):
                    one.delete(name)
        if rng.random() < 0.1:
            one.start()
        one.sleep(rng.choice([0.5, 3.0]))
        if not one.pods:
            break
    assert done == set(sizes)
    assert one.ledger.kept == {}
