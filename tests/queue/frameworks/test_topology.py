"""Which pod goes to which domain, by number or by what is left."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from queuecontroller.frameworks import pod_set_infos
from queuecontroller.frameworks.annotations.topology_requests import (
    domains,
    is_waiting,
    let_go_patch,
    places,
    request_of,
)
from queuecontroller.scheduler.placement.topology.slices import slices_of

HOST = "kubernetes.io/hostname"
INDEX = "batch.kubernetes.io/job-completion-index"
REQUEST = {"podIndexLabel": INDEX}
GIVEN = [({HOST: "a"}, 2), ({HOST: "b"}, 1)]


def pod(name: str, index: int | str | None = None, host: str = "", **more: Any) -> dict[str, Any]:
    labels = {} if index is None else {INDEX: str(index)}
    spec: dict[str, Any] = {"nodeSelector": {HOST: host, "pool": "x"}} if host else {}
    if not host:
        spec["schedulingGates"] = [{"name": "kueue.x-k8s.io/topology"}]
    return {"metadata": {"name": name, "labels": labels}, "spec": spec, **more}


def hosts(pods: list[dict[str, Any]], request: Any = REQUEST, given: Any = GIVEN) -> dict[str, str]:
    found = places(given, request, pods, [one for one in pods if is_waiting(one)])
    return {name: selector[HOST] for name, selector in found.items()}


@pytest.mark.parametrize(
    ("pods", "wanted"),
    [
        ([pod("x", 2), pod("y", 0), pod("z", 1)], {"y": "a", "z": "a", "x": "b"}),
        ([pod("x", 2), pod("y", 0, "a")], {"x": "b"}),
        ([pod("x"), pod("y"), pod("z"), pod("w")], {"w": "a", "x": "a", "y": "b"}),
        ([pod("x", 7), pod("y", 8)], {"x": "a", "y": "a"}),
        ([pod("x", "1x"), pod("y", 2)], {"x": "a", "y": "a"}),
        ([pod("x", 0), pod("y", 0)], {"x": "a", "y": "a"}),
        ([pod("x", 2), pod("old", 2, "b")], {}),
        ([pod("x", 2), pod("old", 2, "b", status={"phase": "Failed"})], {"x": "b"}),
        ([pod("x", 2), pod("lost", 2, "gone")], {"x": "b"}),
        ([pod("x", 0), pod("1", 1, "a"), pod("2", 2, "a")], {"x": "b"}),
        ([], {}),
    ],
    ids=[
        "by their numbers",
        "one is there already",
        "without numbers, one too many",
        "numbers beyond the count",
        "one number that is none",
        "one number twice",
        "an older one is still there",
        "an older one is over",
        "an older one is on a node that was replaced",
        "others have the places of its number",
        "no pods",
    ],
)
def test_who_goes_where(pods: list[dict[str, Any]], wanted: dict[str, str]) -> None:
    assert hosts(pods) == wanted


def test_numbers_within_groups() -> None:
    """Two Jobs of a JobSet of two pods each."""
    request = request_of(
        {
            "topologyRequest": {
                "podIndexLabel": INDEX,
                "subGroupIndexLabel": "job",
                "subGroupCount": 2,
            }
        },
        4,
    )
    pods = []
    for group in (1, 0):
        for number in (1, 0):
            one = pod(f"{group}-{number}", number)
            one["metadata"]["labels"]["job"] = str(group)
            pods.append(one)
    given = [({HOST: "a"}, 2), ({HOST: "b"}, 2)]
    found = hosts(pods, request, given)
    assert found == {"0-0": "a", "0-1": "a", "1-0": "b", "1-1": "b"}


def test_numbers_that_begin_with_one() -> None:
    """An MPIJob whose launcher is worker 0."""
    pods = [pod(name, number) for name, number in (("x", 3), ("y", 1), ("z", 2))]
    for one in pods:
        one["metadata"]["annotations"] = {"kueue.x-k8s.io/pod-index-offset": "1"}
    assert hosts(pods) == {"y": "a", "z": "a", "x": "b"}
    assert hosts(pods[:1]) == {"x": "b"}
    pods[0]["metadata"]["labels"][INDEX] = "0"
    assert len(hosts(pods)) == 3, "a number before the first is none"


@pytest.mark.parametrize("seed", range(100))
def test_no_domain_gets_more_than_it_was_given(seed: int) -> None:
    random = Random(seed)
    given = [({HOST: f"h{n}"}, random.randint(1, 4)) for n in range(random.randint(1, 4))]
    total = sum(count for _, count in given)
    pods = []
    left = {host[HOST]: count for host, count in given}
    for n in range(random.randint(0, total + 2)):
        index = n if random.random() < 0.8 else random.choice([None, 99, "x"])
        host = random.choice([*left, "", ""])
        if host and not left[host]:
            host = ""
        if host:
            left[host] -= 1
        pods.append(pod(f"p{n}", index, host))
    found = hosts(pods, REQUEST, given)
    taken = Counter(found.values()) + Counter(
        one["spec"]["nodeSelector"][HOST] for one in pods if not is_waiting(one)
    )
    assert all(taken[host[HOST]] <= count for host, count in given)
    if len(pods) <= total:
        assert len(found) == sum(map(is_waiting, pods)), "there is a place for each"


def test_an_assignment_of_several_levels() -> None:
    listed = [{"values": ["b", "r1"], "count": 2}, {"values": ["b", "r2"], "count": 1}]
    assigned = {"topologyAssignment": {"levels": ["block", "rack"], "slices": slices_of(listed)}}
    assert domains(assigned) == [
        ({"block": "b", "rack": "r1"}, 2),
        ({"block": "b", "rack": "r2"}, 1),
    ]
    assert domains({}) == []


def test_only_its_own_gate_is_lifted() -> None:
    one = pod("x")
    one["spec"]["schedulingGates"].append({"name": "else"})
    assert let_go_patch(one, {HOST: "a"}) == {
        "spec": {"schedulingGates": [{"name": "else"}], "nodeSelector": {HOST: "a"}}
    }
    assert let_go_patch(pod("y"), {HOST: "a"})["spec"]["schedulingGates"] is None


def test_pods_of_an_admission_with_domains_get_a_gate() -> None:
    assignments = [
        {
            "name": "main",
            "count": 1,
            "flavors": {},
            "topologyAssignment": {
                "levels": [HOST],
                "slices": slices_of([{"values": ["a"], "count": 1}]),
            },
        },
        {"name": "other", "count": 1, "flavors": {}},
    ]
    workload = {
        "metadata": {"name": "w", "namespace": "n"},
        "spec": {"podSets": [{"name": "main", "count": 1}, {"name": "other", "count": 1}]},
        "status": {"admission": {"clusterQueue": "q", "podSetAssignments": assignments}},
    }
    main, other = pod_set_infos(workload, {})
    assert main.gates == ("kueue.x-k8s.io/topology",)
    assert main.labels["sluice.dev/topology"] == "true"
    assert other.gates == ()
    assert "sluice.dev/topology" not in other.labels
