"""Queued jobs whose pods ask for shares of GPUs: kept at admission, noted at the Workload, given to its pods by kube-scheduler and the
extender, and to no other pod; also while leaders are killed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from sluicecommon.pod_annotations import PLACEMENT
from tests.cluster.api_only.placing.queued import (
    ASKED,
    CARDS,
    HALF,
    NODES,
    PLENTY,
    clear,
    kept,
    labels_of,
    make_fleet,
    make_pods,
    objects,
    queue_job,
    shares,
)
from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import control_plane
from tests.cluster.queueing import (
    JOBS,
    WORKLOADS,
    apply,
    condition,
    define,
    door,
    finish,
    is_true,
    of_kueue,
    suspended,
    wait_done_pods,
    workload_of,
)
from tests.cluster.scheduling import (
    PODS,
    Fleet,
    bound,
    gpu_pod,
    placement,
    replicas,
    scheduler,
    wait_bound,
    wait_refused,
)
from tests.kit.node import until

__all__ = ["control_plane"]
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]


@dataclass
class Lab:
    plane: ControlPlane
    fleet: Fleet

    def start(self, name: str, pods: int = 1, **amounts: Any) -> list[tuple[str, str, int, int]]:
        """Start a queued Job; returns the shares reserved for it."""
        self.plane.api.create("jobs", "default", queue_job(name, pods, **amounts))
        until(f"{name} is started", lambda: not suspended(self.plane, name), 60)
        return kept(workload_of(self.plane, name))

    def wait_for_reason(self, name: str) -> str:
        def why() -> dict[str, Any]:
            return condition(workload_of(self.plane, name), "QuotaReserved")

        until("it says why", lambda: why().get("reason") == "WaitingForPlacement", 60)
        return str(why()["message"])


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> ControlPlane:
    define(control_plane)
    return control_plane


@pytest.fixture(scope="module")
def lab(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    place = tmp_path_factory.mktemp("queued")
    with replicas(plane, place) as (replica,):
        fleet = make_fleet(plane, {place / "0.sock": replica})
        until("it decides", replica.leads, 60)
        objects(plane)
        with fleet, scheduler(plane, place, replica.asked_port):
            until("all report", lambda: fleet.sessions_total >= NODES, 60)
            yield Lab(plane, fleet)


@pytest.fixture
def empty(plane: ControlPlane) -> Iterator[None]:
    yield
    clear(plane)


def test_the_pods_of_a_job_get_just_what_was_kept_and_a_plain_pod_does_not(
    lab: Lab, empty: None
) -> None:
    every = lab.start("train", pods=NODES * CARDS - 1, **HALF)
    assert len({uuid for _, uuid, _, _ in every}) == NODES * CARDS - 1
    assert {(memory, time) for _, _, memory, time in every} == {(50_000 << 20, 500_000)}
    # Its pods are not there yet, and no other takes their places.
    api = lab.plane.api
    api.call("POST", PODS, gpu_pod("first", gpumem=50_000))
    wait_bound(lab.plane, "first")
    api.call("POST", PODS, gpu_pod("second", gpumem=50_000))
    assert "most free on one: 31920 of 50000 MiB" in wait_refused(lab.plane, "second")
    stolen = gpu_pod("forged", gpumem=50_000, gpucores=50)
    name = str((workload_of(lab.plane, "train") or {})["metadata"]["name"])
    stolen["metadata"]["annotations"] = {"kueue.x-k8s.io/workload": name}
    api.call("POST", PODS, stolen)
    assert "lack memory" in wait_refused(lab.plane, "forged")
    make_pods(lab.plane, "train", range(NODES * CARDS - 1))
    pods = [wait_bound(lab.plane, f"train-{n}", 120) for n in range(NODES * CARDS - 1)]
    assert sorted(one for pod in pods for one in shares(placement(pod))) == every
    assert {placement(pod)["workload"] for pod in pods} == {f"default/{name}"}
    assert all(placement(pod)["node"] == bound(pod) for pod in pods)


def test_a_job_without_shares_waits_although_there_is_quota_and_says_for_how_much(
    lab: Lab, empty: None
) -> None:
    api = lab.plane.api
    for n in range(NODES * CARDS):
        api.call("POST", PODS, gpu_pod(f"plain-{n}", gpumem=60_000))
    for n in range(NODES * CARDS):
        wait_bound(lab.plane, f"plain-{n}")
    api.create("jobs", "default", queue_job("late", 2, **HALF))
    said = lab.wait_for_reason("late")
    assert "GPU shares for 0 of 2 pods" in said
    assert "needs 1 GPU with 50000 MiB and 50 % of the time" in said
    assert "most free on one: 21920 of 50000 MiB" in said
    assert suspended(lab.plane, "late")
    for n in range(2):
        api.delete(f"{PODS}/plain-{n}", grace_s=0)
    until("it is started", lambda: not suspended(lab.plane, "late"), 60)


def test_what_was_kept_is_given_back_by_who_ends_stops_or_is_deleted(lab: Lab, empty: None) -> None:
    api = lab.plane.api
    count = NODES * CARDS
    lab.start("one", count, **HALF)
    finish(lab.plane, "one")
    lab.start("two", count, **HALF)
    name = str((workload_of(lab.plane, "two") or {})["metadata"]["name"])
    api.patch(f"{WORKLOADS}/{name}", {"spec": {"active": False}})
    lab.start("three", count, **HALF)
    assert is_true(workload_of(lab.plane, "two"), "Evicted")
    assert kept(workload_of(lab.plane, "two")) == []
    api.delete(f"{JOBS}/three")
    lab.start("four", count, **HALF)


def test_who_loses_a_node_gets_its_shares_on_another(lab: Lab, empty: None) -> None:
    ((node, *_),) = lab.start("moves", 1, **HALF)
    lab.fleet.names.remove(node)
    lab.plane.api.delete(f"/api/v1/nodes/{node}")
    try:

        def there() -> str:
            found = kept(workload_of(lab.plane, "moves"))
            return found[0][0] if found else ""

        until("it has others", lambda: there() not in ("", node), 120)
        stats = (workload_of(lab.plane, "moves") or {})["status"]["schedulingStats"]
        assert [one["reason"] for one in stats["evictions"]] == ["NodeFailures"]
        until("it goes on", lambda: not suspended(lab.plane, "moves"), 60)
    finally:
        lab.fleet.add(node, **labels_of(node))


def test_a_pod_that_is_queued_itself_gets_what_was_kept(lab: Lab, empty: None) -> None:
    pod = gpu_pod("alone", **HALF)
    pod["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "gpus"}
    lab.plane.api.call("POST", PODS, pod)
    place = placement(wait_bound(lab.plane, "alone"))
    assert shares(place) == kept(workload_of(lab.plane, "alone"))
    assert place["workload"]


def test_a_topology_and_shares_count_together(lab: Lab, empty: None) -> None:
    """Only one of two racks with the same processors has the cards."""
    levels = {"levels": [{"nodeLabel": one} for one in ("rack", "kubernetes.io/hostname")]}
    resources = [{"name": one, "nominalQuota": PLENTY} for one in ASKED]
    flavors = [{"name": "racks", "resources": resources}]
    groups = [{"coveredResources": list(ASKED), "flavors": flavors}]
    apply(
        lab.plane,
        of_kueue("Topology", "racks", levels),
        of_kueue(
            "ResourceFlavor", "racks", {"nodeLabels": {"pool": "gpus"}, "topologyName": "racks"}
        ),
        of_kueue("ClusterQueue", "racks", {"resourceGroups": groups, "namespaceSelector": {}}),
        door("racks", "racks"),
    )
    api, count = lab.plane.api, NODES * CARDS // 2
    api.call("POST", PODS, gpu_pod("there", gpumem=1000, spec={"nodeSelector": {"rack": "r0"}}))
    wait_bound(lab.plane, "there")
    for name in ("fits", "waits"):
        document = queue_job(name, count, "racks", gpucores=100)
        wish = {"kueue.x-k8s.io/podset-required-topology": "rack"}
        document["spec"]["template"]["metadata"] = {"annotations": wish}
        api.create("jobs", "default", document)
        if name == "fits":
            until("it is started", lambda: not suspended(lab.plane, "fits"), 60)
    every = kept(workload_of(lab.plane, "fits"))
    assert {node for node, _, _, _ in every} == {"gpu-1", "gpu-3"}, "of the other rack"

    def why() -> dict[str, Any]:
        return condition(workload_of(lab.plane, "waits"), "QuotaReserved")

    until("it says why", lambda: why().get("reason") == "TopologyPlacementFailed", 60)
    assert "without the GPU shares for a pod" in why()["message"]
    make_pods(lab.plane, "fits", range(count))
    pods = [wait_bound(lab.plane, f"fits-{n}", 120) for n in range(count)]
    assert sorted(one for pod in pods for one in shares(placement(pod))) == every


def test_pods_that_are_done_give_their_places_back_before_the_job_ends(
    lab: Lab, empty: None
) -> None:
    api, count = lab.plane.api, NODES * CARDS
    every = lab.start("partly", count, **HALF)
    make_pods(lab.plane, "partly", range(count))
    pods = [wait_bound(lab.plane, f"partly-{n}", 120) for n in range(count)]
    api.call("POST", PODS, gpu_pod("waits", gpumem=50_000))
    wait_refused(lab.plane, "waits")
    api.patch(f"{PODS}/partly-0/status", {"status": {"phase": "Succeeded"}})
    at = "2026-11-22T10:00:00Z"
    status = {"startTime": at, "succeeded": 1, "active": count - 1, "ready": 0}
    api.patch(f"{JOBS}/partly/status", {"status": status})
    place = placement(wait_bound(lab.plane, "waits", 60))
    assert place["node"] == bound(pods[0])
    assert kept(workload_of(lab.plane, "partly")) == every, "what was given stands there"
    wait_done_pods(lab.plane, "partly", 1)


def tainted(lab: Lab, node: str, taints: list[dict[str, str]] | None) -> None:
    lab.plane.api.patch(f"/api/v1/nodes/{node}", {"spec": {"taints": taints}})


KEEP_OUT = [{"key": "keep", "value": "out", "effect": "NoSchedule"}]


def test_a_place_that_kube_scheduler_does_not_take_is_exchanged(lab: Lab, empty: None) -> None:
    ((node, *_),) = lab.start("moved", 1, **HALF)
    tainted(lab, node, KEEP_OUT)
    try:
        make_pods(lab.plane, "moved", range(1))
        pod = wait_bound(lab.plane, "moved-0", 60)
        assert bound(pod) != node
        assert shares(placement(pod)) == kept(workload_of(lab.plane, "moved"))
        whole = gpu_pod("whole", gpucores=100, count=CARDS, spec={"nodeSelector": labels_on(node)})
        whole["spec"]["tolerations"] = [{"key": "keep", "operator": "Exists"}]
        lab.plane.api.call("POST", PODS, whole)
        wait_bound(lab.plane, "whole")  # what it had is free
    finally:
        tainted(lab, node, None)


def labels_on(node: str) -> dict[str, str]:
    return {"kubernetes.io/hostname": node}


def test_pods_that_keep_apart_get_places_apart(lab: Lab, empty: None) -> None:
    apart = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"a": "b"}}}
    rule = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
    document = queue_job("apart", 3, spec={"affinity": rule}, **HALF)
    document["spec"]["template"]["metadata"] = {"labels": {"a": "b"}}
    lab.plane.api.create("jobs", "default", document)
    until("it is started", lambda: not suspended(lab.plane, "apart"), 60)
    assert len({node for node, _, _, _ in kept(workload_of(lab.plane, "apart"))}) == 2
    make_pods(lab.plane, "apart", range(3))
    pods = [wait_bound(lab.plane, f"apart-{n}", 120) for n in range(3)]
    assert len(set(map(bound, pods))) == 3
    every = sorted(one for pod in pods for one in shares(placement(pod)))
    assert every == kept(workload_of(lab.plane, "apart"))


def test_a_place_is_exchanged_within_the_domain_that_was_chosen(lab: Lab, empty: None) -> None:
    resources = [{"name": one, "nominalQuota": PLENTY} for one in ASKED]
    flavors = [{"name": "wide", "resources": resources}]
    groups = [{"coveredResources": list(ASKED), "flavors": flavors}]
    apply(
        lab.plane,
        of_kueue("Topology", "wide", {"levels": [{"nodeLabel": "rack"}]}),
        of_kueue(
            "ResourceFlavor", "wide", {"nodeLabels": {"pool": "gpus"}, "topologyName": "wide"}
        ),
        of_kueue("ClusterQueue", "wide", {"resourceGroups": groups, "namespaceSelector": {}}),
        door("wide", "wide"),
    )
    document = queue_job("within", 1, "wide", **HALF)
    wish = {"kueue.x-k8s.io/podset-required-topology": "rack"}
    document["spec"]["template"]["metadata"] = {"annotations": wish}
    lab.plane.api.create("jobs", "default", document)
    until("it is started", lambda: not suspended(lab.plane, "within"), 60)
    ((node, *_),) = kept(workload_of(lab.plane, "within"))
    tainted(lab, node, KEEP_OUT)
    try:
        make_pods(lab.plane, "within", range(1))
        pod = wait_bound(lab.plane, "within-0", 60)
        assert (bound(pod) != node, labels_of(bound(pod))) == (True, labels_of(node))
        assert shares(placement(pod)) == kept(workload_of(lab.plane, "within"))
    finally:
        tainted(lab, node, None)


def test_the_places_of_a_job_cannot_be_written_by_whoever_makes_it(lab: Lab, empty: None) -> None:
    document = queue_job("forger", 1, **HALF)
    place = {"node": "gpu-0", "containers": {"main": []}}
    document["spec"]["template"]["metadata"] = {"annotations": {PLACEMENT: json.dumps(place)}}
    lab.plane.api.create("jobs", "default", document)
    said = lab.wait_for_reason("forger")
    assert "records an allocation" in said
