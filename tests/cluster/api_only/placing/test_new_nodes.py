"""Nodes for pending GPU shares, with a cloud that is not one: for each request it creates a Node that reports, as an autoscaler's node does."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from queuecontroller.cluster.autoscaling.objects import NEW_NODE, SCHEDULER
from queuecontroller.cluster.autoscaling.scale_down import AUTOSCALERS, MARK
from queuecontroller.cluster.setup import rbac
from tests.cluster.api_only.placing.queued import (
    ASKED,
    HALF,
    PLENTY,
    clear,
    objects,
    queue_job,
)
from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import control_plane
from tests.cluster.programs import build
from tests.cluster.queueing import (
    JOBS,
    Replica,
    apply,
    condition,
    define,
    door,
    is_served,
    of_kueue,
    suspended,
    workload_of,
)
from tests.cluster.scheduling import PODS, Fleet, bound, gpu_pod, replicas, scheduler, wait_bound
from tests.kit.node import until

__all__ = ["control_plane"]
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
OWN = "/api/v1/namespaces/sluice"
REQUESTS = "/apis/autoscaling.x-k8s.io/v1/namespaces/sluice/provisioningrequests"
CARDS = 2
LABELS = {"node-group": "h100"}
TEMPLATE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {
        "name": "h100",
        "labels": LABELS,
        "annotations": {"sluice.dev/gpus": json.dumps([{"count": CARDS, "memory": "80Gi"}])},
    },
    "status": {"allocatable": {"cpu": "64", "pods": "100", "nvidia.com/gpu": str(CARDS)}},
}
SMALL: dict[str, Any] = {"gpumem": 20_000, "gpucores": 25}
"""Four of them fit on a card."""


LARGE: dict[str, Any] = {**HALF}


@dataclass
class Cloud:
    """Creates a node for each request that an autoscaler would see."""

    plane: ControlPlane
    fleet: Fleet
    by_pods: bool
    made: dict[str, str] = field(default_factory=dict)
    """Nodes by the UID of the request."""

    def requests(self) -> list[dict[str, Any]]:
        path = f"{OWN}/pods" if self.by_pods else REQUESTS
        found = self.plane.api.get(path)["items"]
        return [
            one
            for one in found
            if NEW_NODE in (one["metadata"].get("labels") or {})
            and "deletionTimestamp" not in one["metadata"]
        ]

    def pod_of(self, request: dict[str, Any]) -> dict[str, Any]:
        """The pod that a request is about, checked as an autoscaler does."""
        if self.by_pods:
            assert request["spec"]["schedulerName"] == SCHEDULER
            return dict(request["spec"])
        [asked] = request["spec"]["podSets"]
        assert asked["count"] == 1
        name = asked["podTemplateRef"]["name"]
        return dict(self.plane.api.get(f"{OWN}/podtemplates/{name}")["template"]["spec"])

    def is_visible(self, request: dict[str, Any]) -> bool:
        scheduled = condition(request, "PodScheduled")
        return not self.by_pods or scheduled.get("reason") == "Unschedulable"

    def work(self) -> None:
        for one in self.requests():
            uid = one["metadata"]["uid"]
            if uid in self.made or not self.is_visible(one):
                continue
            pod = self.pod_of(one)
            assert pod["nodeSelector"] == LABELS
            [container] = pod["containers"]
            assert container["resources"]["requests"] == {"nvidia.com/gpu": str(CARDS)}
            self.made[uid] = f"cloud-{len(self.fleet.names)}"
            self.fleet.add(self.made[uid], sums=True, **LABELS)
            if not self.by_pods:
                ready = {"type": "Provisioned", "status": "True", "reason": "Made", "message": ""}
                stamped = {**ready, "lastTransitionTime": "2026-11-23T10:00:00Z"}
                path = f"{REQUESTS}/{one['metadata']['name']}/status"
                self.plane.api.patch(path, {"status": {"conditions": [stamped]}})


@dataclass
class Lab:
    plane: ControlPlane
    fleet: Fleet
    replica: Replica
    cloud: Cloud

    def wait_for_requests(self, count: int) -> list[dict[str, Any]]:
        def reached() -> bool:
            found = self.cloud.requests()
            return len(found) == count and all(map(self.cloud.is_visible, found))

        until(f"{count} nodes are requested", reached, 60)
        return self.cloud.requests()

    def watch_requests(self, seconds: float) -> int:
        """The most requests that there were in this time."""
        most, ends = 0, time.monotonic() + seconds
        while time.monotonic() < ends:
            most = max(most, len(self.cloud.requests()))
            time.sleep(0.1)
        return most

    def events(self, kind: str, reason: str) -> list[str]:
        found = json.loads(self.plane.kubectl("get", "events", "-A", "-o", "json"))["items"]
        return [
            f"{one['involvedObject']['name']}: {one['message']}"
            for one in found
            if one["involvedObject"]["kind"] == kind and one["reason"] == reason
        ]


@pytest.fixture(scope="module", params=["pods", "provisioning-requests"])
def lab(
    request: pytest.FixtureRequest,
    control_plane: ControlPlane,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Lab]:
    plane, place = control_plane, tmp_path_factory.mktemp("queue")
    if not is_served(plane):
        define(plane)
    definition = build.kueue_definitions() / "autoscaling.x-k8s.io_provisioningrequests.yaml"
    plane.kubectl("apply", "--server-side", "-f", str(definition))
    until("requests are served", lambda: plane.api.get(REQUESTS)["items"] == [], 60)
    templates = place / "templates.yaml"
    templates.write_text(json.dumps(TEMPLATE))
    settings = {
        "requests": request.param,
        "templates": str(templates),
        "waits_s": "0",
        "every_s": "1",
        "scale_down_hints": "true",
    }
    given = [f"autoscaling.{name}={value}" for name, value in settings.items()]
    with replicas(plane, place, 1, *given) as made, scheduler(plane, place, made[0].asked_port):
        [replica] = made
        fleet = Fleet(plane, {place / "0.sock": replica}, gpus=CARDS)
        with fleet:
            until("it decides", replica.leads, 60)
            apply(plane, *rbac.documents("sluice", "sluice-queue", placeholders=True))
            objects(plane)
            yield Lab(plane, fleet, replica, Cloud(plane, fleet, request.param == "pods"))
            clear(plane)
            for name in fleet.names:
                plane.api.delete(f"/api/v1/nodes/{name}")


@pytest.fixture(autouse=True)
def cleared(lab: Lab) -> None:
    clear(lab.plane)
    until("no node is requested", lambda: not lab.cloud.requests(), 60)


def test_no_node_is_requested_for_jobs_that_quota_keeps_waiting(lab: Lab) -> None:
    assert not lab.fleet.names
    resources = [{"name": one, "nominalQuota": PLENTY} for one in ASKED]
    resources[1]["nominalQuota"] = str(CARDS)
    group = {"coveredResources": list(ASKED), "flavors": [{"name": "gpus", "resources": resources}]}
    spec = {"resourceGroups": [group], "namespaceSelector": {}}
    apply(lab.plane, of_kueue("ClusterQueue", "tight", spec), door("tight", "tight"))
    for number in range(3 * CARDS):
        lab.plane.api.create("jobs", "default", queue_job(f"job-{number}", 1, "tight", **LARGE))
    lab.wait_for_requests(1)
    assert lab.watch_requests(4) == 1, "the quota is for the GPUs of one node"


def test_a_queued_job_gets_the_nodes_that_its_shares_need_and_no_more(lab: Lab) -> None:
    assert not lab.fleet.names
    lab.plane.api.create("jobs", "default", queue_job("wide", 6, **LARGE))
    requests = lab.wait_for_requests(3)
    assert lab.watch_requests(4) == 3, "two on a node, so three nodes, however often it looks"
    lease = lab.plane.api.get("/apis/coordination.k8s.io/v1/namespaces/sluice/leases/sluice-queue")
    for one in requests:
        [owner] = one["metadata"]["ownerReferences"]
        assert owner["uid"] == lease["metadata"]["uid"]
    name = (workload_of(lab.plane, "wide") or {})["metadata"]["name"]
    until(
        "an event says so",
        lambda: (
            f"{name}: Waits for 3 new nodes of template h100"
            in lab.events("Workload", "NewNodesRequested")
        ),
        60,
    )
    lab.cloud.work()
    until("it starts", lambda: not suspended(lab.plane, "wide"), 60)
    until("nothing is requested any more", lambda: not lab.cloud.requests(), 60)
    assert len(lab.fleet.names) == 3
    until("no template is left", lambda: not lab.plane.api.get(f"{OWN}/podtemplates")["items"], 60)


def test_free_room_is_used_first_and_small_pods_share_a_new_node(lab: Lab) -> None:
    have = len(lab.fleet.names)
    if not have:
        for number in range(2):
            lab.fleet.add(f"first-{number}", sums=True, **LABELS)
        have = 2
    for number in range(have * CARDS * 4):
        lab.plane.api.create("pods", "default", gpu_pod(f"fits-{number}", **SMALL))
    for number in range(have * CARDS * 4):
        wait_bound(lab.plane, f"fits-{number}")
    until("none is requested", lambda: not lab.cloud.requests(), 30)
    for number in range(5):
        lab.plane.api.create("pods", "default", gpu_pod(f"more-{number}", **SMALL))
    lab.wait_for_requests(1)
    assert lab.watch_requests(4) == 1
    lab.cloud.work()
    for number in range(5):
        pod = wait_bound(lab.plane, f"more-{number}")
        assert bound(pod) == lab.fleet.names[-1]
    until("nothing is requested any more", lambda: not lab.cloud.requests(), 60)
    assert len(lab.fleet.names) == have + 1


def test_no_node_is_requested_for_what_no_template_holds(lab: Lab) -> None:
    lab.plane.api.create("pods", "default", gpu_pod("too-large", gpumem=100_000, gpucores=10))
    elsewhere = {"nodeSelector": {"node-group": "other"}}
    lab.plane.api.create("pods", "default", gpu_pod("elsewhere", spec=elsewhere, **SMALL))
    until(
        "events say why",
        lambda: len(lab.events("Pod", "NoNodeTemplate")) >= 2,
        60,
    )
    found = lab.events("Pod", "NoNodeTemplate")
    assert any(one.startswith("too-large") and "100000 MiB" in one for one in found), found
    assert any(one.startswith("elsewhere") and "node-group=other" in one for one in found), found
    assert lab.watch_requests(3) == 0


def test_a_new_leader_goes_on_with_the_requests_and_withdraws_them(lab: Lab) -> None:
    pods = 2 * (len(lab.fleet.names) + 2)
    lab.plane.api.create("jobs", "default", queue_job("waits", pods, **LARGE))
    before = {one["metadata"]["uid"] for one in lab.wait_for_requests(2)}
    lab.replica.end(signal.SIGKILL)
    lab.replica.start()
    until("it decides again", lab.replica.leads, 60)
    assert lab.watch_requests(4) == 2
    assert {one["metadata"]["uid"] for one in lab.cloud.requests()} == before
    lab.plane.api.delete(f"{JOBS}/waits")
    until("they are withdrawn", lambda: not lab.cloud.requests(), 60)
    assert lab.plane.api.get(PODS)["items"] == []


def test_a_node_is_kept_while_its_shares_fit_nowhere_else(lab: Lab) -> None:
    while len(lab.fleet.names) < 2:
        lab.fleet.add(f"kept-{len(lab.fleet.names)}", **LABELS)
    count = len(lab.fleet.names) * CARDS - 1
    for number in range(count):
        pod = gpu_pod(f"most-{number}", gpumem=60_000, gpucores=30)
        lab.plane.api.create("pods", "default", pod)
    on = [bound(wait_bound(lab.plane, f"most-{number}")) for number in range(count)]
    [alone] = [name for name in set(on) if on.count(name) == 1]

    def annotations(name: str) -> dict[str, str]:
        found = lab.plane.api.get(f"/api/v1/nodes/{name}")["metadata"].get("annotations") or {}
        return {one: found[one] for one in (MARK, *AUTOSCALERS) if one in found}

    kept = {MARK: "kept", **dict.fromkeys(AUTOSCALERS, "true")}
    until("it is kept", lambda: annotations(alone) == kept, 90)
    other = next(number for number, name in enumerate(on) if name != alone)
    lab.plane.api.delete(f"{PODS}/most-{other}", grace_s=0)
    pair = (alone, on[other])

    def one_may_go() -> bool:
        found = [annotations(name) for name in pair]
        return {MARK: "possible"} in found and kept in found

    until("one of the two may go, and not both", one_may_go, 90)
    for number in {*range(count)} - {other}:
        lab.plane.api.delete(f"{PODS}/most-{number}", grace_s=0)
    until("empty nodes have none", lambda: not any(map(annotations, pair)), 90)
