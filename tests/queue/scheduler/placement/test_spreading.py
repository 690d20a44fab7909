"""Workloads of one service over the domains of a topology, by their rules."""

from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import Any

import pytest

from queuecontroller.scheduler.model.objects import Workload
from queuecontroller.scheduler.model.spreading import (
    Spreading,
    read_spreading,
    spreading_problems,
)
from queuecontroller.scheduler.placement.topology.ground import HOSTNAME
from tests.queue.scheduler.placement.rooms_by_topology import Place, domains, node, pods

LEVELS = ("block", "rack", HOSTNAME)
OF_JOB = {"kueue.x-k8s.io/job-uid": "u"}


def rules(most: object = "34%", level: str = "rack", **more: object) -> dict[str, Any]:
    return {"topologyKey": level, "maxShareAllowingPlacement": most, **more}


def spreading(*given: dict[str, Any], select: str = "") -> Spreading:
    document: dict[str, Any] = {"rules": list(given)}
    if select:
        document["workloadLabelSelectors"] = [{"key": "app", "operator": "In", "values": [select]}]
    made = read_spreading(json.dumps(document))
    assert made is not None
    return made


def place_of(racks: dict[str, int], per_block: int = 9, **settings: bool) -> Place:
    """One node a rack, with so many CPUs."""
    nodes = [
        node(f"n-{rack}", {"block": f"b{n // per_block}", "rack": rack}, cpu)
        for n, (rack, cpu) in enumerate(racks.items())
    ]
    return Place(LEVELS, *nodes, **settings)


def submit(
    place: Place, name: str, given: Spreading | None, labels: dict[str, str] = OF_JOB, **more: Any
) -> str:
    """The host that it gets, or the reason why it waits."""
    namespace = more.pop("namespace", "n")
    one = place.workload(name, pods(spreading=given, **more), namespace=namespace, labels=labels)
    answer = place.admit(one)
    return answer if isinstance(answer, str) else host_of(answer)


def host_of(workload: Workload) -> str:
    ((values, _),) = domains(workload)
    return values[-1].removeprefix("n-")


def test_every_rack_is_used_before_one_is_used_again() -> None:
    place = place_of({"r1": 2, "r2": 3, "r3": 4})
    taken = [submit(place, f"w{n}", spreading(rules())) for n in range(6)]
    assert sorted(taken[:3]) == ["r1", "r2", "r3"]
    assert Counter(taken) == {"r1": 2, "r2": 2, "r3": 2}
    alone = place_of({"r1": 2, "r2": 3, "r3": 4})
    assert [submit(alone, f"w{n}", None) for n in range(3)] == ["r1", "r1", "r2"]


def test_a_service_waits_where_no_other_domain_has_room() -> None:
    place = place_of({"r1": 9, "r2": 1})
    assert submit(place, "a", spreading(rules())) == "r2"
    assert submit(place, "b", spreading(rules())) == "r1"
    refused = submit(place, "c", spreading(rules()))
    assert refused == (
        'topology "t" doesn\'t allow to fit any of 1 pod(s); of 2 nodes: 2 in domains that have '
        "their share"
    )
    assert submit(place, "other", None) == "r1", "other workloads are free"
    place.room.release(place.workload("a").key)
    assert submit(place, "c", spreading(rules())) == "r2"


def test_a_preferred_rule_takes_the_domain_with_least_of_the_service() -> None:
    soft = spreading(rules("20%", enforcementMode="Preferred"))
    place = place_of({"r1": 3, "r2": 9, "r3": 1})
    taken = [submit(place, f"w{n}", soft) for n in range(6)]
    assert taken[:3] == ["r3", "r1", "r2"]
    assert Counter(taken) == {"r1": 3, "r2": 2, "r3": 1}
    assert submit(place, "large", soft, cpu=4) == "r2"


def test_the_same_labels_count_in_one_namespace() -> None:
    mine = spreading(rules("50%"), select="x")
    labels = {"app": "x"}
    place = place_of({"r1": 4, "r2": 9})
    assert submit(place, "a", mine, labels, namespace="other") == "r1"
    assert submit(place, "b", mine, {"app": "y"}) == "r1"
    assert submit(place, "c", mine, labels) == "r1", "none of its own is there"
    assert submit(place, "d", mine, labels) == "r2"
    unlabelled = spreading(rules("50%"))
    assert submit(place, "e", unlabelled, {}) == "r1", "without a job there is no service"


def test_two_rules_count_both_and_one_for_another_level_is_ignored() -> None:
    place = place_of({"r1": 9, "r2": 9, "r3": 9, "r4": 9}, per_block=2)
    both = spreading(rules("50%", "block"), rules("25%", "rack"))
    taken = [submit(place, f"w{n}", both) for n in range(4)]
    assert {one[1] in "12" for one in taken[:2]} == {True, False}, "a block each"
    assert sorted(taken) == ["r1", "r2", "r3", "r4"]
    elsewhere = spreading(rules("25%", "zone"))
    assert submit(place, "x", elsewhere) == "r1"


def test_a_group_of_pod_sets_counts_once_and_the_feature_can_be_off() -> None:
    given = spreading(rules("49%"))
    together: dict[str, Any] = {"group": "g", "required_topology": "rack", "spreading": given}

    def groups(place: Place) -> list[str]:
        found = []
        for n in range(2):
            sets = pods("leader", **together), pods("worker", 2, **together)
            one = place.admit(place.workload(f"w{n}", *sets, labels=OF_JOB))
            assert not isinstance(one, str)
            assert domains(one, "leader")[0][0] == domains(one, "worker")[0][0]
            found.append(domains(one, "worker")[0][0][0])
        return found

    assert groups(place_of({"r1": 9, "r2": 10})) == ["n-r1", "n-r2"]
    assert groups(place_of({"r1": 9, "r2": 10}, spreading=False)) == ["n-r1", "n-r1"]


@pytest.mark.parametrize("seed", range(20))
def test_random_services_against_the_rule(seed: int) -> None:
    random = Random(seed)
    for _ in range(15):
        a_service(random)


def a_service(random: Random) -> None:
    room = {f"r{n}": random.randint(0, 4) for n in range(random.randint(1, 5))}
    percent, soft = random.randint(1, 99), random.random() < 0.4
    mode = "Preferred" if soft else "Required"
    given = spreading(rules(f"{percent}%", enforcementMode=mode))
    place = place_of(room)
    here: Counter[str] = Counter()
    names: dict[str, str] = {}
    for n in range(14):
        if names and random.random() < 0.25:
            gone = random.choice(sorted(names))
            place.room.release(place.workload(gone).key)
            here[names.pop(gone)] -= 1
            continue
        total = sum(here.values())
        able = [rack for rack in room if here[rack] < room[rack]]
        under = [rack for rack in able if 100 * here[rack] <= percent * total]
        answer = submit(place, f"w{n}", given)
        if under:
            assert answer in under
        elif soft and able:
            assert here[answer] == min(here[rack] for rack in able)
        else:
            assert answer.startswith("topology"), "no rack may be used"
            continue
        names[f"w{n}"] = answer
        here[answer] += 1


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"rules": [rules()]}, ""),
        ({"rules": [rules("0.45"), rules("99%", "block")]}, ""),
        ({"rules": [rules(0.45)]}, ""),
        ({"rules": [rules("450m", enforcementMode="Preferred")]}, ""),
        ("{", "is not a JSON object"),
        ([], "is not a JSON object"),
        ({}, "rules needs 1 to 2 entries"),
        ({"rules": []}, "rules needs 1 to 2 entries"),
        ({"rules": [rules(), rules("1%", "a"), rules("1%", "b")]}, "rules needs 1 to 2 entries"),
        ({"rules": [rules(), rules("1%")]}, "the same topologyKey"),
        ({"rules": [rules("100%")]}, "expected 1% to 99%"),
        ({"rules": [rules("0%")]}, "expected 1% to 99%"),
        ({"rules": [rules("1")]}, "expected 1% to 99%"),
        ({"rules": [rules(45)]}, "expected 1% to 99%"),
        ({"rules": [rules("0.0")]}, "expected 1% to 99%"),
        ({"rules": [rules(None)]}, "expected 1% to 99%"),
        ({"rules": [rules(level="")]}, "needs a topologyKey"),
        ({"rules": [rules(enforcementMode="Soft")]}, "Required or Preferred"),
        ({"rules": [{**rules(), "x": 1}]}, "a rule has the fields"),
        ({"rules": [rules()], "x": 1}, "unknown field"),
        ({"rules": [rules()], "workloadLabelSelectors": [{}]}, "a selector has a key"),
        ({"rules": [rules()], "workloadLabelSelectors": [{}, {}]}, "has one entry"),
        (
            {
                "rules": [rules()],
                "workloadLabelSelectors": [{"key": "a", "operator": "Exists", "values": ["b"]}],
            },
            "the operator In",
        ),
    ],
)
def test_the_grammar_of_the_rules(given: object, problem: str) -> None:
    text = given if isinstance(given, str) else json.dumps(given)
    found = [one.message for one in spreading_problems(text, "here")]
    if problem:
        assert any(problem in one for one in found), found
        assert read_spreading(text) is None
    else:
        assert found == []
        assert read_spreading(text) is not None
