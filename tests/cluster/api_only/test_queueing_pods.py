"""Mode kubernetes with pods that are queued themselves: alone, in groups, of Deployments, StatefulSets, LeaderWorkerSets and
elastic Jobs. The controller-manager makes them; the test plays the kubelet."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from queuecontroller.frameworks.serving import SET
from tests.cluster.api import ApiError
from tests.cluster.control_plane import ControlPlane, ControlPlaneError
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
)
from tests.kit.node import until
from tests.queue.frameworks.crds import crd_for_tests

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
PODS = "/api/v1/namespaces/default/pods"
SETS = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/default/leaderworkersets"
GATE = {"name": "kueue.x-k8s.io/admission"}


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with (
        tempfile.TemporaryDirectory(prefix="control-plane-") as directory,
        ControlPlane(Path(directory), controllers=True) as plane,
    ):
        apply(plane, crd_for_tests(SET))
        with asked(plane, tmp_path_factory.mktemp("queue")):
            apply(plane, of_kueue("ResourceFlavor", "plain", {"nodeLabels": {"pool": "plain"}}))
            until("pods are asked about", lambda: is_gated_at_once(plane), 60)
            yield plane


def is_gated_at_once(plane: ControlPlane) -> bool:
    return is_held(plane.api.call("POST", f"{PODS}?dryRun=All", pod("try", "none")))


def pod(name: str, queue: str, cpu: str = "1", **head: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": cpu}}}
    labels = {"kueue.x-k8s.io/queue-name": queue, **head.pop("labels", {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": labels, **head},
        "spec": {"containers": [container], "restartPolicy": "Never"},
    }


def member(name: str, queue: str, group: str, total: int, cpu: str = "1") -> dict[str, Any]:
    labels = {"kueue.x-k8s.io/pod-group-name": group}
    annotations = {"kueue.x-k8s.io/pod-group-total-count": str(total)}
    return pod(name, queue, cpu, labels=labels, annotations=annotations)


def make(plane: ControlPlane, *documents: dict[str, Any]) -> None:
    for one in documents:
        plane.api.create("pods", "default", one)


def found(plane: ControlPlane, name: str) -> Any:
    return plane.api.find(f"{PODS}/{name}")


def is_held(document: Any) -> bool:
    return GATE in (document["spec"].get("schedulingGates") or [])


def let_go(plane: ControlPlane, *names: str) -> None:
    def all_are() -> bool:
        every = [found(plane, one) for one in names]
        return all(one is not None and not is_held(one) for one in every)

    until(f"{', '.join(names)} may run", all_are, 30)


def end(plane: ControlPlane, name: str, phase: str = "Succeeded") -> None:
    plane.api.patch(f"{PODS}/{name}/status", {"status": {"phase": phase}})


def gone(plane: ControlPlane, *names: str) -> None:
    until(f"{', '.join(names)} are gone", lambda: not any(found(plane, one) for one in names), 30)


def workload(plane: ControlPlane, name: str) -> Any:
    """The Workload with that name (its group's), or the one that a pod with that name owns."""
    for one in plane.api.get(WORKLOADS)["items"]:
        owners = [owner["name"] for owner in one["metadata"].get("ownerReferences", ())]
        if one["metadata"]["name"] == name or name in owners:
            return one
    return None


def waits(plane: ControlPlane, name: str) -> None:
    until(f"{name} waits", lambda: condition(workload(plane, name), "QuotaReserved"), 30)
    assert condition(workload(plane, name), "QuotaReserved")["status"] == "False"


def free(plane: ControlPlane, name: str) -> None:
    def is_free() -> bool:
        status = plane.api.get(f"{KUEUE}/clusterqueues/{name}").get("status") or {}
        return (status.get("reservingWorkloads"), status.get("pendingWorkloads")) == (0, 0)

    until(f"{name} holds nothing", is_free, 30)


def of_app(plane: ControlPlane, app: str) -> list[Any]:
    return [
        one
        for one in plane.api.get(PODS)["items"]
        if one["metadata"].get("labels", {}).get("app") == app
        and "deletionTimestamp" not in one["metadata"]
    ]


def running(plane: ControlPlane, app: str) -> list[str]:
    return sorted(one["metadata"]["name"] for one in of_app(plane, app) if not is_held(one))


def test_a_pod_is_held_let_go_and_its_quota_free(queue: ControlPlane) -> None:
    apply(queue, quota("one-pod", 1), door("one-pod", "one-pod"))
    make(queue, pod("alone", "one-pod"))
    let_go(queue, "alone")
    head = found(queue, "alone")["metadata"]
    assert head["finalizers"] == ["kueue.x-k8s.io/managed"]
    assert head["labels"]["kueue.x-k8s.io/podset"] == "main"
    assert found(queue, "alone")["spec"]["nodeSelector"] == {"pool": "plain"}
    make(queue, pod("second", "one-pod"))
    waits(queue, "second")
    assert is_held(found(queue, "second"))
    end(queue, "alone")
    let_go(queue, "second")
    assert condition(workload(queue, "alone"), "Finished")["reason"] == "Succeeded"
    until(
        "no finalizer keeps it", lambda: "finalizers" not in found(queue, "alone")["metadata"], 30
    )
    queue.api.delete(f"{PODS}/second")
    gone(queue, "second")
    free(queue, "one-pod")


def test_a_pod_that_waits_can_be_deleted(queue: ControlPlane) -> None:
    apply(queue, quota("no-room", 0), door("no-room", "no-room"))
    make(queue, pod("patient", "no-room"))
    waits(queue, "patient")
    queue.api.delete(f"{PODS}/patient")
    gone(queue, "patient")
    until("its Workload goes with it", lambda: workload(queue, "patient") is None, 30)
    free(queue, "no-room")


def test_a_group_comes_in_as_a_whole(queue: ControlPlane) -> None:
    apply(queue, quota("group", 4), door("group", "group"))
    make(queue, member("g-0", "group", "gang", 3), member("g-1", "group", "gang", 3, "2"))
    make(queue, pod("fills", "group"))
    let_go(queue, "fills")
    assert workload(queue, "gang") is None, "two of three are there"
    make(queue, member("g-2", "group", "gang", 3))
    waits(queue, "gang")
    assert sorted(one["count"] for one in workload(queue, "gang")["spec"]["podSets"]) == [1, 2]
    assert all(is_held(found(queue, f"g-{number}")) for number in range(3))
    end(queue, "fills")
    let_go(queue, "g-0", "g-1", "g-2")
    assert len(workload(queue, "gang")["metadata"]["ownerReferences"]) == 3
    make(queue, member("g-extra", "group", "gang", 3))
    gone(queue, "g-extra")
    for number in range(3):
        end(queue, f"g-{number}")
    until("it is done", lambda: is_true(workload(queue, "gang"), "Finished"), 30)
    free(queue, "group")
    keep = [found(queue, f"g-{number}")["metadata"] for number in range(3)]
    assert not any("finalizers" in one for one in keep)


def test_a_pod_that_failed_is_replaced(queue: ControlPlane) -> None:
    apply(queue, quota("again", 2), door("again", "again"))
    make(queue, member("r-0", "again", "retry", 2), member("r-1", "again", "retry", 2))
    let_go(queue, "r-0", "r-1")
    end(queue, "r-0", "Failed")

    def waiting(status: str) -> bool:
        said = condition(workload(queue, "retry"), "WaitingForReplacementPods")
        return bool(said.get("status") == status)

    until("it waits for another", lambda: waiting("True"), 30)
    assert found(queue, "r-0")["metadata"].get("finalizers"), "it is kept until then"
    make(queue, member("r-2", "again", "retry", 2))
    let_go(queue, "r-2")
    until("it has its pods", lambda: waiting("False"), 30)
    until("no finalizer keeps it", lambda: "finalizers" not in found(queue, "r-0")["metadata"], 30)
    end(queue, "r-1")
    end(queue, "r-2")
    until("it is done", lambda: is_true(workload(queue, "retry"), "Finished"), 30)


def test_the_pods_of_a_preempted_group_are_kept_until_they_are_replaced(
    queue: ControlPlane,
) -> None:
    high = {"apiVersion": f"{KUEUE[6:]}", "kind": "WorkloadPriorityClass", "metadata": {"name": "high"}, "value": 100}  # fmt: skip
    preemption = {"withinClusterQueue": "LowerPriority"}
    apply(queue, high, quota("ranks", 2, preemption=preemption), door("ranks", "ranks"))
    make(queue, member("low-0", "ranks", "low", 2), member("low-1", "ranks", "low", 2))
    let_go(queue, "low-0", "low-1")
    first = workload(queue, "low")["metadata"]["uid"]
    make(queue, pod("urgent", "ranks", labels={"kueue.x-k8s.io/priority-class": "high"}))
    let_go(queue, "urgent")
    stopped = [found(queue, one) for one in ("low-0", "low-1")]
    assert all(one["metadata"]["finalizers"] for one in stopped)
    why = [condition(one, "TerminationTarget")["reason"] for one in stopped]
    assert why == ["WorkloadEvictedDueToPreempted"] * 2
    assert condition(workload(queue, "low"), "QuotaReserved")["reason"] == "OnHold"
    assert condition(workload(queue, "low"), "WaitingForReplacementPods")["reason"] == "Preempted"
    end(queue, "urgent")
    make(queue, member("low-2", "ranks", "low", 2))
    until("it gives its quota back", lambda: is_true(workload(queue, "urgent"), "Finished"), 30)
    assert is_held(found(queue, "low-2")), "one is not replaced yet"
    make(queue, member("low-3", "ranks", "low", 2))
    let_go(queue, "low-2", "low-3")
    gone(queue, "low-0", "low-1")
    assert workload(queue, "low")["metadata"]["uid"] == first
    make(queue, pod("again", "ranks", labels={"kueue.x-k8s.io/priority-class": "high"}))
    let_go(queue, "again")
    queue.api.delete(f"{WORKLOADS}/low")
    gone(queue, "low-2", "low-3")
    until("nothing of it is left", lambda: workload(queue, "low") is None, 30)
    end(queue, "again")
    free(queue, "ranks")


def test_a_preempted_pod_without_a_group_is_deleted(queue: ControlPlane) -> None:
    preemption = {"withinClusterQueue": "LowerPriority"}
    apply(queue, quota("lone", 1, preemption=preemption), door("lone", "lone"))
    make(queue, pod("lone", "lone"))
    let_go(queue, "lone")
    make(queue, pod("before-it", "lone", labels={"kueue.x-k8s.io/priority-class": "high"}))
    gone(queue, "lone")
    let_go(queue, "before-it")
    until("nothing of it is left", lambda: workload(queue, "lone") is None, 30)
    end(queue, "before-it")
    free(queue, "lone")


def test_a_pod_nobody_held_is_left_alone_without_a_queue(queue: ControlPlane) -> None:
    made = pod("free", "")
    del made["metadata"]["labels"]
    make(queue, made)
    assert "finalizers" not in found(queue, "free")["metadata"]
    assert not is_held(found(queue, "free"))


def app(kind: str, name: str, queue: str, replicas: int, **spec: Any) -> dict[str, Any]:
    template = pod("", "")
    del template["metadata"], template["apiVersion"], template["kind"]
    del template["spec"]["restartPolicy"]
    template["metadata"] = {"labels": {"app": name}}
    head = {
        "name": name,
        "namespace": "default",
        "labels": {"kueue.x-k8s.io/queue-name": queue},
    }
    wanted = {
        "replicas": replicas,
        "selector": {"matchLabels": {"app": name}},
        "template": template,
        **spec,
    }
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": head, "spec": wanted}


def test_the_pods_of_a_deployment_are_queued_one_by_one(queue: ControlPlane) -> None:
    apply(queue, quota("apps", 2), door("apps", "apps"), app("Deployment", "web", "apps", 3))
    until("two run", lambda: len(running(queue, "web")) == 2, 30)
    until("there are three", lambda: len(of_app(queue, "web")) == 3, 30)
    queue.api.delete(f"{PODS}/{running(queue, 'web')[0]}")
    until("another is in its place", lambda: len(running(queue, "web")) == 2, 30)
    queue.kubectl("scale", "deployment/web", "--replicas=1")
    until("one is left", lambda: len(of_app(queue, "web")) == 1, 30)
    until("which runs", lambda: len(running(queue, "web")) == 1, 30)
    queue.kubectl("delete", "deployment/web", "--cascade=foreground", "--wait=false")
    until("they are gone", lambda: not of_app(queue, "web"), 30)
    free(queue, "apps")


def ready(plane: ControlPlane, name: str) -> None:
    at = "2026-11-22T10:00:00Z"
    conditions = [{"type": "Ready", "status": "True", "lastTransitionTime": at}]
    status = {"phase": "Running", "startTime": at, "conditions": conditions}
    plane.api.patch(f"{PODS}/{name}/status", {"status": status})


def test_a_stateful_set_is_one_group_and_keeps_its_size(queue: ControlPlane) -> None:
    apply(queue, quota("sets", 3), door("sets", "sets"), app("StatefulSet", "db", "sets", 2))
    for number in range(2):
        let_go(queue, f"db-{number}")
        ready(queue, f"db-{number}")
    names = {
        one["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"] for one in of_app(queue, "db")
    }
    (name,) = names
    (pods,) = workload(queue, name)["spec"]["podSets"]
    assert (pods["name"], pods["count"]) == ("main", 2)
    with pytest.raises(ControlPlaneError, match="scale it to 0 first"):
        queue.kubectl("scale", "statefulset/db", "--replicas=3")
    queue.api.delete(f"{PODS}/db-1")

    def anew() -> bool:
        now = found(queue, "db-1")
        return now is not None and "deletionTimestamp" not in now["metadata"] and not is_held(now)

    until("another takes its place", anew, 30)
    assert is_true(workload(queue, name), "Admitted")
    queue.kubectl("scale", "statefulset/db", "--replicas=0")
    until("they are gone", lambda: not of_app(queue, "db"), 30)
    free(queue, "sets")

    def on_hold() -> bool:
        found: str = condition(workload(queue, name), "QuotaReserved")["reason"]
        return found == "OnHold"

    until("its Workload is on hold", on_hold, 30)
    queue.kubectl("scale", "statefulset/db", "--replicas=3")
    for number in range(3):
        let_go(queue, f"db-{number}")
        ready(queue, f"db-{number}")
    (pods,) = workload(queue, name)["spec"]["podSets"]
    assert pods["count"] == 3
    queue.kubectl("delete", "statefulset/db")
    free(queue, "sets")


def of_set(name: str, group: int, index: int) -> dict[str, Any]:
    """A pod as its controller makes it."""
    prefix = "leaderworkerset.sigs.k8s.io"
    labels = {f"{prefix}/name": name, f"{prefix}/group-index": str(group)}
    annotations = {"kueue.x-k8s.io/pod-suspending-parent": SET.name}
    if index:
        annotations[f"{prefix}/leader-name"] = f"{name}-{group}"
    made = pod(f"{name}-{group}-{index}", "", labels=labels, annotations=annotations)
    del made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"]
    return made


def test_each_group_of_a_leader_worker_set_has_its_workload(queue: ControlPlane) -> None:
    apply(queue, quota("leads", 2), door("leads", "leads"))
    template = {"spec": {"containers": pod("", "")["spec"]["containers"]}}
    document = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {
            "name": "llm",
            "namespace": "default",
            "labels": {"kueue.x-k8s.io/queue-name": "leads"},
        },
        "spec": {
            "replicas": 2,
            "leaderWorkerTemplate": {"size": 2, "leaderTemplate": template, "workerTemplate": template},
        },
    }  # fmt: skip
    until("its kind is served", lambda: served(queue), 30)
    apply(queue, document)

    def groups() -> list[Any]:
        every = queue.api.get(WORKLOADS)["items"]
        return [one for one in every if one["spec"]["queueName"] == "leads"]

    until("each group has its Workload", lambda: len(groups()) == 2, 60)
    until("one is admitted", lambda: any(is_true(one, "Admitted") for one in groups()), 30)
    (index,) = (
        int(one["metadata"]["annotations"]["kueue.x-k8s.io/component-workload-index"])
        for one in groups()
        if is_true(one, "Admitted")
    )
    make(queue, *(of_set("llm", group, number) for group in range(2) for number in range(2)))
    let_go(queue, f"llm-{index}-0", f"llm-{index}-1")
    other = 1 - index
    assert is_held(found(queue, f"llm-{other}-0"))
    queue.api.patch(f"{SETS}/llm", {"spec": {"replicas": 1}})
    for number in range(2):
        queue.api.delete(f"{PODS}/llm-1-{number}")
    gone(queue, "llm-1-0", "llm-1-1")
    until("it has one group", lambda: len(groups()) == 1, 30)
    let_go(queue, "llm-0-0", "llm-0-1")
    queue.api.delete(f"{SETS}/llm")
    for number in range(2):
        queue.api.delete(f"{PODS}/llm-0-{number}")
    until("nothing is left", lambda: not groups(), 30)
    free(queue, "leads")


def served(plane: ControlPlane) -> bool:
    try:
        return "items" in plane.api.get(SETS)
    except ApiError:
        return False


def elastic_pods(plane: ControlPlane, name: str) -> list[Any]:
    return [
        one
        for one in plane.api.get(PODS)["items"]
        if one["metadata"].get("labels", {}).get("job-name") == name
        and "deletionTimestamp" not in one["metadata"]
    ]


def test_an_elastic_job_grows_by_a_slice_and_shrinks_in_place(queue: ControlPlane) -> None:
    apply(queue, quota("elastic", 3), door("elastic", "elastic"))
    made = job("stretch", "elastic", pods=1, suspend=False)
    made["metadata"]["annotations"] = {"kueue.x-k8s.io/elastic-job": "true"}
    del made["spec"]["completions"]
    apply(queue, made)

    def run(count: int) -> bool:
        pods = elastic_pods(queue, "stretch")
        return sum(not one["spec"].get("schedulingGates") for one in pods) == count

    def used() -> Any:
        status = queue.api.get(f"{KUEUE}/clusterqueues/elastic").get("status") or {}
        return [one["resources"][0]["total"] for one in status.get("flavorsReservation") or ()]

    until("one pod runs", lambda: run(1), 30)
    queue.api.patch(f"{JOBS}/stretch", {"spec": {"parallelism": 3}})
    until("three run", lambda: run(3), 30)
    until("three are counted", lambda: used() == ["3"], 30)
    assert not queue.api.get(f"{JOBS}/stretch")["spec"].get("suspend")
    queue.api.patch(f"{JOBS}/stretch", {"spec": {"parallelism": 4}})
    until("there are four", lambda: len(elastic_pods(queue, "stretch")) == 4, 30)
    assert run(3), "there is no quota for the fourth"
    queue.api.patch(f"{JOBS}/stretch", {"spec": {"parallelism": 2}})
    until("two run", lambda: run(2), 30)
    until("two are counted", lambda: used() == ["2"], 30)
    apply(queue, job("beside", "elastic", suspend=True))
    until("there is room", lambda: not queue.api.get(f"{JOBS}/beside")["spec"]["suspend"], 30)
    queue.api.delete(f"{JOBS}/stretch")
    queue.api.delete(f"{JOBS}/beside")
    free(queue, "elastic")
