"""The check `kueue.x-k8s.io/provisioning-request` against a real API server with the autoscaler's own definition.

No autoscaler runs: what it would write into a request's status the tests write.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import control_plane
from tests.cluster.programs import build
from tests.cluster.queueing import (
    JOBS,
    KUEUE,
    apply,
    condition,
    define,
    door,
    finish,
    is_true,
    job,
    of_kueue,
    quota,
    serving,
    suspended,
    workload_of,
)
from tests.kit.node import until

__all__ = ["control_plane"]
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
REQUESTS = "/apis/autoscaling.x-k8s.io/v1/namespaces/default/provisioningrequests"
TEMPLATES = "/api/v1/namespaces/default/podtemplates"
CHECK = f"{KUEUE}/admissionchecks/nodes"


@pytest.fixture(scope="module")
def queue(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """The check is named by every ClusterQueue of these tests."""
    plane = control_plane
    define(plane)
    definition = build.kueue_definitions() / "autoscaling.x-k8s.io_provisioningrequests.yaml"
    plane.kubectl("apply", "--server-side", "-f", str(definition))
    until("requests are served", lambda: plane.api.get(REQUESTS)["items"] == [], 60)
    parameters = {
        "apiGroup": "kueue.x-k8s.io",
        "kind": "ProvisioningRequestConfig",
        "name": "large",
    }
    spec = {"controllerName": "kueue.x-k8s.io/provisioning-request", "parameters": parameters}
    flavor = {"nodeLabels": {"pool": "cloud"}, "tolerations": [{"key": "cloud", "operator": "Exists"}]}  # fmt: skip
    apply(
        plane,
        of_kueue("AdmissionCheck", "nodes", spec),
        of_kueue("ResourceFlavor", "plain", flavor),
    )
    with serving(plane, tmp_path_factory.mktemp("queue")) as replica:
        until("it decides", replica.leads, 60)
        yield plane


@pytest.fixture
def configured(queue: ControlPlane) -> ControlPlane:
    apply(queue, configuration())
    until("the check is active", lambda: is_true(queue.api.get(CHECK), "Active"), 60)
    return queue


def configuration(**spec: Any) -> dict[str, Any]:
    nodes = [{"key": "group", "valueFromProvisioningClassDetail": "NodeGroup"}]
    made = {
        "provisioningClassName": "best-effort-atomic-scale-up.autoscaling.x-k8s.io",
        "parameters": {"ValidUntilSeconds": "60"},
        "retryStrategy": {"backoffLimitCount": 1, "backoffBaseSeconds": 1, "backoffMaxSeconds": 1},
        "podSetUpdates": {"nodeSelector": nodes},
    }
    return of_kueue("ProvisioningRequestConfig", "large", {**made, **spec})


def checked(name: str, cpu: int = 1) -> tuple[dict[str, Any], dict[str, Any]]:
    strategy = {"admissionChecks": [{"name": "nodes"}]}
    return quota(name, cpu, admissionChecksStrategy=strategy), door(name, name)


def requests(plane: ControlPlane, name: str) -> list[dict[str, Any]]:
    """ProvisioningRequests of that Job, the oldest first, without those that are being deleted."""
    workload = workload_of(plane, name)
    if workload is None:
        return []
    uid = workload["metadata"]["uid"]
    mine = [
        one
        for one in plane.api.get(REQUESTS)["items"]
        if one["metadata"]["ownerReferences"][0]["uid"] == uid
        and "deletionTimestamp" not in one["metadata"]
    ]
    return sorted(mine, key=lambda one: str(one["metadata"]["name"]))


def request(plane: ControlPlane, name: str, attempt: int) -> dict[str, Any]:
    def found() -> dict[str, Any] | None:
        mine = requests(plane, name)
        wanted = f"-nodes-{attempt}"
        return mine[0] if len(mine) == 1 and mine[0]["metadata"]["name"].endswith(wanted) else None

    return until(f"attempt {attempt} is asked for, and nothing else", found, 60)


def say(
    plane: ControlPlane, asked: dict[str, Any], *true: str, details: dict[str, str] | None = None
) -> None:
    """Write conditions on a ProvisioningRequest, as the autoscaler does."""
    at = "2026-11-23T10:00:00Z"
    conditions = [
        {"type": one, "status": "True", "reason": one, "message": f"it is {one}", "lastTransitionTime": at}
        for one in true
    ]  # fmt: skip
    status: dict[str, Any] = {"conditions": conditions}
    if details:
        status["provisioningClassDetails"] = details
    plane.api.patch(f"{REQUESTS}/{asked['metadata']['name']}/status", {"status": status})


def check_of(plane: ControlPlane, name: str) -> dict[str, Any]:
    found = (workload_of(plane, name) or {}).get("status") or {}
    return dict(next(iter(found.get("admissionChecks") or ()), {}))


def test_a_check_without_its_config_lets_nobody_in_and_says_why(queue: ControlPlane) -> None:
    def why() -> dict[str, Any]:
        return condition(queue.api.get(CHECK), "Active")

    # Until the API server lists the autoscaler's definition, the check says that it is missing.
    missing = "spec.parameters: there is no ProvisioningRequestConfig large: create it"
    until("it says so", lambda: why().get("message") == missing, 60)
    assert (why()["status"], why()["reason"]) == ("False", "BadParametersRef")
    apply(queue, *checked("early"), job("early", "early"))
    path = f"{KUEUE}/clusterqueues/early"
    until(
        "its queue says so",
        lambda: condition(queue.api.get(path), "Active").get("reason") == "AdmissionCheckInactive",
        60,
    )
    apply(queue, configuration())
    until("the check is active", lambda: is_true(queue.api.get(CHECK), "Active"), 60)
    until("so is the queue", lambda: is_true(queue.api.get(path), "Active"), 60)
    request(queue, "early", 1)
    queue.api.delete(f"{JOBS}/early")


def test_nodes_are_asked_for_and_the_job_starts_on_them(configured: ControlPlane) -> None:
    plane = configured
    made = job("first", "first", pods=2)
    made["metadata"]["annotations"] = {"provreq.kueue.x-k8s.io/Extra": "yes"}
    apply(plane, *checked("first", 2), made)
    asked = request(plane, "first", 1)
    workload = workload_of(plane, "first")
    assert workload is not None
    head = workload["metadata"]["name"]
    assert asked["metadata"]["name"] == f"{head}-nodes-1"
    assert asked["spec"] == {
        "provisioningClassName": "best-effort-atomic-scale-up.autoscaling.x-k8s.io",
        "parameters": {"ValidUntilSeconds": "60", "Extra": "yes"},
        "podSets": [{"podTemplateRef": {"name": f"ppt-{head}-nodes-1-main"}, "count": 2}],
    }

    def template() -> dict[str, Any]:
        return dict(plane.api.get(f"{TEMPLATES}/ppt-{head}-nodes-1-main"))

    owners = [{"kind": "ProvisioningRequest", "uid": asked["metadata"]["uid"]}]
    until(
        "the template goes with the request",
        lambda: (
            [
                {"kind": one["kind"], "uid": one["uid"]}
                for one in template()["metadata"]["ownerReferences"]
            ]
            == owners
        ),
        60,
    )
    pods = template()["template"]["spec"]
    assert pods["nodeSelector"] == {"pool": "cloud"}
    assert pods["tolerations"] == [{"key": "cloud", "operator": "Exists"}]
    assert is_true(workload, "QuotaReserved")
    assert not is_true(workload, "Admitted")
    say(plane, asked, "Accepted")
    assert suspended(plane, "first")
    say(plane, asked, "Accepted", "Provisioned", details={"NodeGroup": "g-7", "Other": "o"})
    until("it starts", lambda: not suspended(plane, "first"), 60)
    found = plane.api.get(f"{JOBS}/first")["spec"]["template"]
    assert found["spec"]["nodeSelector"] == {"pool": "cloud", "group": "g-7"}
    annotations = found["metadata"]["annotations"]
    assert annotations["autoscaling.x-k8s.io/consume-provisioning-request"] == f"{head}-nodes-1"
    assert annotations["autoscaling.x-k8s.io/provisioning-class-name"].startswith("best-effort")
    assert check_of(plane, "first")["state"] == "Ready"
    assert len(requests(plane, "first")) == 1, "its nodes are used"
    finish(plane, "first")
    until("the request goes when the work is done", lambda: not requests(plane, "first"), 60)


def test_a_failed_attempt_is_made_again_after_a_pause_and_the_last_one_counts(
    configured: ControlPlane,
) -> None:
    plane = configured
    apply(plane, *checked("tries"), job("tries", "tries"))
    say(plane, request(plane, "tries", 1), "Failed")
    second = request(plane, "tries", 2)
    assert check_of(plane, "tries")["retryCount"] == 1
    status = (workload_of(plane, "tries") or {})["status"]
    assert status["schedulingStats"]["evictions"] == [
        {"reason": "AdmissionCheck", "underlyingCause": "", "count": 1}
    ]
    assert suspended(plane, "tries")
    say(plane, second, "Failed")
    path = f"{KUEUE}/namespaces/default/workloads"
    until(
        "it is deactivated",
        lambda: (workload_of(plane, "tries") or {})["spec"].get("active") is False,
        60,
    )
    evicted = condition(workload_of(plane, "tries"), "Evicted")
    assert evicted["reason"] == "DeactivatedDueToAdmissionCheck"
    until("no workload waits for nodes any more", lambda: not requests(plane, "tries"), 60)
    events = plane.kubectl("get", "events", "-o", "json")
    told = {one["reason"] for one in json.loads(events)["items"]}
    assert any(
        "Retrying after the request failed: it is Failed" in one["message"]
        for one in json.loads(events)["items"]
    )
    assert {
        "ProvisioningRequestCreated",
        "AdmissionCheckUpdated",
        "AdmissionCheckRejected",
    } <= told
    name = (workload_of(plane, "tries") or {})["metadata"]["name"]
    plane.api.patch(f"{path}/{name}", {"spec": {"active": True}})
    say(plane, request(plane, "tries", 1), "Provisioned")
    until("activated again it begins anew", lambda: not suspended(plane, "tries"), 60)


def test_nodes_that_are_taken_away_end_the_work(configured: ControlPlane) -> None:
    plane = configured
    apply(plane, *checked("taken"), job("taken", "taken"))
    asked = request(plane, "taken", 1)
    say(plane, asked, "Provisioned")
    until("it starts", lambda: not suspended(plane, "taken"), 60)
    say(plane, asked, "Provisioned", "BookingExpired")
    say(plane, asked, "Provisioned", "BookingExpired", "CapacityRevoked")
    until("it is stopped", lambda: suspended(plane, "taken"), 60)
    until(
        "it is deactivated",
        lambda: (workload_of(plane, "taken") or {})["spec"].get("active") is False,
        60,
    )


def test_a_preempted_job_asks_anew_and_leaves_no_request(configured: ControlPlane) -> None:
    plane = configured
    strategy = {"admissionChecks": [{"name": "nodes"}]}
    preemption = {"withinClusterQueue": "LowerPriority"}
    urgent = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "WorkloadPriorityClass",
        "metadata": {"name": "urgent"},
        "value": 100,
    }
    queue = quota("ranked", 1, admissionChecksStrategy=strategy, preemption=preemption)
    apply(plane, urgent, queue, door("ranked", "ranked"), job("low", "ranked"))
    first = request(plane, "low", 1)
    say(plane, first, "Provisioned")
    until("it starts", lambda: not suspended(plane, "low"), 60)
    high = job("high", "ranked")
    high["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = "urgent"
    apply(plane, high)
    until("it is stopped", lambda: suspended(plane, "low"), 60)
    until("its request is gone", lambda: not requests(plane, "low"), 60)
    say(plane, request(plane, "high", 1), "Provisioned")
    until("the other starts", lambda: not suspended(plane, "high"), 60)
    finish(plane, "high")
    again = request(plane, "low", 1)
    assert again["metadata"]["uid"] != first["metadata"]["uid"]


def test_jobs_without_managed_resources_ask_for_nothing(configured: ControlPlane) -> None:
    plane = configured
    apply(plane, configuration(managedResources=["nvidia.com/gpu"]))
    apply(plane, *checked("plain"), job("plain", "plain"))
    until("it starts", lambda: not suspended(plane, "plain"), 60)
    assert requests(plane, "plain") == []
    assert check_of(plane, "plain")["message"] == "the provisioning request is not needed"
    apply(plane, configuration(managedResources=["cpu"]))


def test_what_the_api_server_will_not_have_is_told(configured: ControlPlane) -> None:
    plane = configured
    bad = job("refused", "refused")
    bad["metadata"]["annotations"] = {"provreq.kueue.x-k8s.io/Long": "x" * 300}
    apply(plane, *checked("refused"), bad)
    until("the check says why", lambda: "Long" in check_of(plane, "refused").get("message", ""), 60)
    assert check_of(plane, "refused")["state"] == "Pending"
    assert suspended(plane, "refused")
