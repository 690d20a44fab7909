"""Events and conditions that a user of Kueue searches for when a job was stopped or refused or is
over: in a real API server, with the controller-manager; the test plays the kubelet."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.control_plane import ControlPlane
from tests.cluster.queueing import (
    JOBS,
    KUEUE,
    WORKLOADS,
    apply,
    asked,
    condition,
    door,
    is_true,
    job,
    of_kueue,
    quota,
    suspended,
    workload_of,
)
from tests.kit.node import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
PODS = "/api/v1/namespaces/default/pods"
EVENTS = "/api/v1/namespaces/default/events"
KEEP = "example.com/keep"
GATE = {"name": "kueue.x-k8s.io/admission"}
PREEMPTION = {"withinClusterQueue": "LowerPriority"}
WAIT_S = 60
CONFIGURATION = {
    "apiVersion": "config.kueue.x-k8s.io/v1beta2",
    "kind": "Configuration",
    "objectRetentionPolicies": {
        "workloads": {"afterFinished": "6s", "afterDeactivatedByKueue": "6s"}
    },
    "featureGates": {"TASBalancedPlacement": True},
}


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    place = tmp_path_factory.mktemp("queue")
    file = place / "configuration.yaml"
    file.write_text(yaml.safe_dump(CONFIGURATION))
    with (
        tempfile.TemporaryDirectory(prefix="control-plane-") as directory,
        ControlPlane(Path(directory), controllers=True) as plane,
        asked(plane, place, f"kubernetes.kueue_configuration={file}"),
    ):
        high = {"apiVersion": KUEUE[6:], "kind": "WorkloadPriorityClass", "metadata": {"name": "high"}, "value": 100}  # fmt: skip
        apply(plane, of_kueue("ResourceFlavor", "plain", {}), high)
        until("pods are asked about", lambda: is_gated_at_once(plane), WAIT_S)
        yield plane


def pod(name: str, queue: str, group: str = "", total: int = 0, **labels: str) -> dict[str, Any]:
    """One that stays where it is when it is deleted, so that it can be looked at."""
    named = {"kueue.x-k8s.io/queue-name": queue, **labels}
    head: dict[str, Any] = {"name": name, "namespace": "default", "finalizers": [KEEP]}
    if group:
        named["kueue.x-k8s.io/pod-group-name"] = group
        head["annotations"] = {"kueue.x-k8s.io/pod-group-total-count": str(total)}
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "1"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**head, "labels": named},
        "spec": {"containers": [container], "restartPolicy": "Never"},
    }


def is_gated_at_once(plane: ControlPlane) -> bool:
    made: Any = plane.api.call("POST", f"{PODS}?dryRun=All", pod("try", "none"))
    return GATE in (made["spec"].get("schedulingGates") or [])


def runs(plane: ControlPlane, *names: str) -> None:
    def all_do() -> bool:
        every = [plane.api.find(f"{PODS}/{one}") for one in names]
        return all(one is not None and not one["spec"].get("schedulingGates") for one in every)

    until(f"{', '.join(names)} may run", all_do, WAIT_S)


def told(plane: ControlPlane, about: str) -> dict[str, Any]:
    """Events by reason, of one object by its name."""
    return {
        one["reason"]: one
        for one in plane.api.get(EVENTS)["items"]
        if one["involvedObject"]["name"] == about
    }


def done(plane: ControlPlane, name: str) -> None:
    """The pods of a Job end, as the kubelet would say."""

    def mine() -> list[str]:
        every = [one["metadata"] for one in plane.api.get(PODS)["items"]]
        return [one["name"] for one in every if one.get("labels", {}).get("job-name") == name]

    until(f"{name} has pods", mine, WAIT_S)
    for one in mine():
        plane.api.patch(f"{PODS}/{one}/status", {"status": {"phase": "Succeeded"}})


def evictions(plane: ControlPlane, name: str) -> Any:
    status = (workload_of(plane, name) or {}).get("status") or {}
    return (status.get("schedulingStats") or {}).get("evictions")


@pytest.mark.parametrize("names", [("alone",), ("of-two-0", "of-two-1")])
def test_a_preempted_pod_says_so_before_it_goes(
    queue: ControlPlane, names: tuple[str, ...]
) -> None:
    line, group = f"line-{names[0]}", f"group-{names[0]}" if len(names) > 1 else ""
    apply(queue, quota(line, len(names), preemption=PREEMPTION), door(line, line))
    for one in names:
        queue.api.create("pods", "default", pod(one, line, group, len(names)))
    runs(queue, *names)
    urgent = job(f"urgent-{names[0]}", line, str(len(names)))
    urgent["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = "high"
    apply(queue, urgent)

    def leaving() -> bool:
        every = [queue.api.get(f"{PODS}/{one}")["metadata"] for one in names]
        return all("deletionTimestamp" in one for one in every)

    until("they are deleted", leaving, WAIT_S)
    for one in names:
        found = queue.api.get(f"{PODS}/{one}")
        said = condition(found, "TerminationTarget")
        assert (said["status"], said["reason"]) == ("True", "WorkloadEvictedDueToPreempted")
        assert "Preempted to accommodate a workload" in said["message"]
        until("so does an event", lambda one=one: "Stopped" in told(queue, one), WAIT_S)  # type: ignore[misc]
    for one in names:
        queue.api.patch(f"{PODS}/{one}", {"metadata": {"finalizers": None}})
    until("who preempted runs", lambda: not suspended(queue, urgent["metadata"]["name"]), WAIT_S)


def test_a_workload_that_the_server_refuses_is_told_of_at_its_job(queue: ControlPlane) -> None:
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "no-such-workload"},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": ["kueue.x-k8s.io"],
                        "apiVersions": ["*"],
                        "operations": ["CREATE"],
                        "resources": ["workloads"],
                    }
                ]
            },
            "validations": [
                {
                    "expression": "!object.metadata.name.startsWith('job-unwanted')",
                    "message": "nobody wants it",
                    "reason": "Invalid",
                }
            ],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "no-such-workload"},
        "spec": {"policyName": "no-such-workload", "validationActions": ["Deny"]},
    }
    apply(queue, quota("refused", 2), door("refused", "refused"), policy, binding)

    def is_judged() -> bool:
        spec = {"queueName": "refused", "podSets": [{"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}]}  # fmt: skip
        made = of_kueue("Workload", "job-unwanted", spec, namespace="default")
        try:
            queue.api.call("POST", f"{WORKLOADS}?dryRun=All", made)
        except Exception as error:
            return "nobody wants it" in str(error)
        return False

    until("the policy counts", is_judged, WAIT_S)
    apply(queue, job("unwanted", "refused"), job("wanted", "refused"))
    until("its job is told", lambda: "ErrWorkloadCompose" in told(queue, "unwanted"), WAIT_S)
    event = told(queue, "unwanted")["ErrWorkloadCompose"]
    assert event["type"] == "Warning"
    assert "nobody wants it" in event["message"]
    until("others run", lambda: not suspended(queue, "wanted"), WAIT_S)
    assert suspended(queue, "unwanted")
    queue.kubectl("delete", "validatingadmissionpolicybinding/no-such-workload")


def test_equal_workloads_are_all_told_why_they_wait(queue: ControlPlane) -> None:
    apply(queue, quota("equals", 1), door("equals", "equals"), job("first", "equals"))
    until("it runs", lambda: not suspended(queue, "first"), WAIT_S)
    names = [f"equal-{number}" for number in range(5)]
    apply(queue, *(job(one, "equals") for one in names))

    def why(name: str) -> str:
        return str(condition(workload_of(queue, name), "QuotaReserved").get("message") or "")

    until("all are told", lambda: all("more needed" in why(one) for one in names), WAIT_S)
    apply(queue, job("equal-late", "equals"))
    until("one that comes later, too", lambda: "more needed" in why("equal-late"), WAIT_S)


def test_what_ran_too_long_is_deactivated_counted_and_deleted_after_a_while(
    queue: ControlPlane,
) -> None:
    apply(queue, quota("short", 1), door("short", "short"))
    made = job("long", "short")
    made["metadata"]["labels"]["kueue.x-k8s.io/max-exec-time-seconds"] = "1"
    apply(queue, made)
    until("it is stopped", lambda: is_true(workload_of(queue, "long"), "Evicted"), WAIT_S)
    found = workload_of(queue, "long")
    assert condition(found, "Evicted")["reason"] == "DeactivatedDueToMaximumExecutionTimeExceeded"
    assert evictions(queue, "long") == [
        {"reason": "Deactivated", "underlyingCause": "MaximumExecutionTimeExceeded", "count": 1}
    ]
    until("the job is deleted", lambda: queue.api.find(f"{JOBS}/long") is None, WAIT_S)
    until("and its Workload", lambda: workload_of(queue, "long") is None, WAIT_S)
    assert "Deleted" in told(queue, "long")
    assert not [
        one for one in queue.api.get(PODS)["items"] if one["metadata"]["name"].startswith("long-")
    ]


def test_a_workload_that_ended_is_deleted_after_a_while_and_its_job_stays(
    queue: ControlPlane,
) -> None:
    apply(queue, quota("ends", 1), door("ends", "ends"), job("ended", "ends"))
    until("it runs", lambda: not suspended(queue, "ended"), WAIT_S)
    done(queue, "ended")
    until("it has ended", lambda: is_true(workload_of(queue, "ended"), "Finished"), WAIT_S)
    until("its Workload is deleted", lambda: workload_of(queue, "ended") is None, WAIT_S)
    assert condition(queue.api.get(f"{JOBS}/ended"), "Complete")["status"] == "True"


def test_a_stateful_set_of_one_pod_keeps_its_workload_when_it_is_preempted(
    queue: ControlPlane,
) -> None:
    apply(queue, quota("single", 1, preemption=PREEMPTION), door("single", "single"))
    template = pod("", "")
    template = {"metadata": {"labels": {"app": "db"}}, "spec": template["spec"]}
    del template["spec"]["restartPolicy"]
    head = {"name": "db", "namespace": "default", "labels": {"kueue.x-k8s.io/queue-name": "single"}}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "db"}}, "template": template}
    apply(queue, {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": head, "spec": spec})
    runs(queue, "db-0")
    name = queue.api.get(f"{PODS}/db-0")["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"]
    before = queue.api.get(f"{WORKLOADS}/{name}")["metadata"]
    first = queue.api.get(f"{PODS}/db-0")["metadata"]["uid"]
    urgent = job("urgent-single", "single")
    urgent["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = "high"
    apply(queue, urgent)
    until("it makes way", lambda: not suspended(queue, "urgent-single"), WAIT_S)

    def made_anew() -> bool:
        found = queue.api.find(f"{PODS}/db-0")
        return found is not None and found["metadata"]["uid"] != first

    until("its pod is made anew", made_anew, WAIT_S)
    found = queue.api.get(f"{WORKLOADS}/{name}")
    assert found["metadata"]["uid"] == before["uid"], "it keeps its place in line"
    assert [one["reason"] for one in found["status"]["schedulingStats"]["evictions"]] == [
        "Preempted"
    ]
    assert queue.api.get(f"{PODS}/db-0")["spec"]["schedulingGates"] == [GATE]
    done(queue, "urgent-single")
    runs(queue, "db-0")
    assert queue.api.get(f"{WORKLOADS}/{name}")["metadata"]["uid"] == before["uid"]
    queue.kubectl("delete", "statefulset/db")
    until("it goes with its set", lambda: queue.api.find(f"{WORKLOADS}/{name}") is None, WAIT_S)
