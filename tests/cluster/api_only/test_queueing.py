"""Mode kubernetes against a real API server: jobs are held, admitted, started and finished by the queue."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import control_plane
from tests.cluster.queueing import (
    JOBS,
    KUEUE,
    LEASE,
    Replica,
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
    wait_done_pods,
    workload_of,
)
from tests.kit.node import until

__all__ = ["control_plane"]
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def queue(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    define(control_plane)
    apply(
        control_plane,
        of_kueue(
            "ResourceFlavor",
            "plain",
            {
                "nodeLabels": {"pool": "plain"},
                "tolerations": [{"key": "pool", "operator": "Exists"}],
            },
        ),
    )
    with serving(control_plane, tmp_path_factory.mktemp("queue")) as replica:
        until("it decides", replica.leads, 60)
        yield control_plane


def test_a_job_is_held_admitted_started_finished_and_its_quota_free(queue: ControlPlane) -> None:
    apply(queue, quota("first", 2), door("first", "first"))
    apply(queue, job("one", "first", "2"))
    until("it is started", lambda: not suspended(queue, "one"), 30)
    pods = queue.api.get(f"{JOBS}/one")["spec"]["template"]
    assert pods["spec"]["nodeSelector"] == {"pool": "plain"}
    assert pods["spec"]["tolerations"] == [{"key": "pool", "operator": "Exists"}]
    assert pods["metadata"]["labels"]["kueue.x-k8s.io/podset"] == "main"
    workload = workload_of(queue, "one")
    assert workload is not None
    assert workload["status"]["admission"] == {
        "clusterQueue": "first",
        "podSetAssignments": [
            {"name": "main", "count": 1, "flavors": {"cpu": "plain"}, "resourceUsage": {"cpu": "2"}}
        ],
    }
    apply(queue, job("two", "first", "1"))

    def waits() -> bool:
        return bool(condition(workload_of(queue, "two"), "QuotaReserved"))

    until("the second is told why it waits", waits, 30)
    said = condition(workload_of(queue, "two"), "QuotaReserved")
    assert (said["status"], said["reason"]) == ("False", "WaitingForQuota")
    assert said["message"] == (
        "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor plain,"
        " 1 more needed"
    )
    assert suspended(queue, "two")
    finish(queue, "one")
    until("the second is started", lambda: not suspended(queue, "two"), 30)
    first = workload_of(queue, "one")
    assert is_true(first, "Finished")
    assert condition(first, "Finished")["reason"] == "Succeeded"


def test_kubectl_waits_for_admission(queue: ControlPlane) -> None:
    apply(queue, quota("waits", 1), door("waits", "waits"), job("waited", "waits"))
    until("it has a Workload", lambda: workload_of(queue, "waited") is not None, 30)
    workload = workload_of(queue, "waited")
    assert workload is not None
    name = workload["metadata"]["name"]
    queue.kubectl("wait", "--for=condition=Admitted", f"workload/{name}", "--timeout=100s")
    events = queue.kubectl("describe", "job", "waited")
    assert "waits" in events


def test_queues_say_what_they_hold(queue: ControlPlane) -> None:
    apply(queue, quota("told", 1), door("told", "told"), job("in", "told"), job("out", "told"))

    def status(kind: str) -> dict[str, object]:
        place = "namespaces/default/" if kind == "localqueues" else ""
        found = queue.api.get(f"{KUEUE}/{place}{kind}/told").get("status") or {}
        return {name: found.get(name) for name in ("pendingWorkloads", "admittedWorkloads")}

    wanted: dict[str, object] = {"pendingWorkloads": 1, "admittedWorkloads": 1}
    until("the ClusterQueue says so", lambda: status("clusterqueues") == wanted, 30)
    until("the LocalQueue says so", lambda: status("localqueues") == wanted, 30)
    path = f"{KUEUE}/clusterqueues/told"
    until("it is kept", lambda: "finalizers" in queue.api.get(path)["metadata"], 30)
    found = queue.api.get(f"{KUEUE}/clusterqueues/told")
    assert is_true(found, "Active")
    assert found["status"]["flavorsUsage"] == [
        {"name": "plain", "resources": [{"name": "cpu", "total": "1", "borrowed": "0"}]}
    ]
    assert found["metadata"]["finalizers"] == ["kueue.x-k8s.io/resource-in-use"]


def started(plane: ControlPlane, name: str) -> None:
    until(f"{name} is started", lambda: not suspended(plane, name), 30)


def stopped(plane: ControlPlane, name: str) -> None:
    until(f"{name} is stopped", lambda: suspended(plane, name), 30)


def test_a_job_that_nobody_suspended_is_suspended_and_waits(queue: ControlPlane) -> None:
    apply(queue, quota("eager", 1), door("eager", "eager"))
    apply(queue, job("holds", "eager"))
    started(queue, "holds")
    apply(queue, job("eager", "eager", suspend=False))
    stopped(queue, "eager")
    until("it waits", lambda: condition(workload_of(queue, "eager"), "QuotaReserved"), 30)
    queue.api.delete(f"{JOBS}/holds")
    started(queue, "eager")


CLASSES = [
    {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass", "metadata": {"name": name}, "value": value}
    for name, value in (("low", 1), ("high", 100))
]  # fmt: skip


def test_the_more_important_takes_the_place_of_the_less(queue: ControlPlane) -> None:
    preemption = {"withinClusterQueue": "LowerPriority"}
    apply(queue, *CLASSES, quota("ranks", 1, preemption=preemption), door("ranks", "ranks"))

    def ranked(name: str) -> dict[str, object]:
        made = job(f"{name}-job", "ranks")
        made["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = name
        return made

    apply(queue, ranked("low"))
    started(queue, "low-job")
    apply(queue, ranked("high"))
    stopped(queue, "low-job")
    started(queue, "high-job")
    low = workload_of(queue, "low-job")
    assert low is not None
    assert condition(low, "Evicted")["reason"] == "Preempted"
    assert condition(low, "Preempted")["reason"] == "InClusterQueue"
    high = workload_of(queue, "high-job")
    assert high is not None
    by = f"UID: {high['metadata']['uid']}, JobUID: {high['metadata']['ownerReferences'][0]['uid']}"
    assert condition(low, "Preempted")["message"] == (
        f"Preempted to accommodate a workload ({by}) due to prioritization in the ClusterQueue;"
        " preemptor path: /ranks; preemptee path: /ranks"
    )
    assert "admission" not in low["status"]
    assert low["spec"]["priorityClassRef"]["name"] == "low"
    pods = queue.api.get(f"{JOBS}/low-job")["spec"]["template"]["spec"]
    assert "nodeSelector" not in pods, "what its admission gave is taken back"
    finish(queue, "high-job")
    started(queue, "low-job")
    assert not is_true(workload_of(queue, "low-job"), "Evicted")


def test_a_preempted_job_keeps_its_quota_until_its_pods_are_gone(queue: ControlPlane) -> None:
    preemption = {"withinClusterQueue": "LowerPriority"}
    apply(
        queue,
        *CLASSES,
        quota("slow", 1, preemption=preemption),
        door("slow", "slow"),
        job("slow-one", "slow"),
    )
    started(queue, "slow-one")
    running = {"active": 1, "ready": 1, "startTime": "2026-11-22T10:00:00Z"}
    queue.api.patch(f"{JOBS}/slow-one/status", {"status": running})
    urgent = job("urgent", "slow")
    urgent["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = "high"
    apply(queue, urgent)
    stopped(queue, "slow-one")
    assert condition(workload_of(queue, "slow-one"), "QuotaReserved")["status"] == "True"
    assert suspended(queue, "urgent")
    assert not is_true(workload_of(queue, "urgent"), "QuotaReserved")
    queue.api.patch(f"{JOBS}/slow-one/status", {"status": {"active": 0, "ready": 0}})
    started(queue, "urgent")


def test_what_is_deleted_mid_flight_strands_nothing(queue: ControlPlane) -> None:
    apply(queue, quota("gone", 1), door("gone", "gone"))
    for turn in range(3):
        names = [f"gone-{turn}-{number}" for number in range(3)]
        apply(queue, *(job(one, "gone") for one in names))
        if turn:
            until(
                "one is started",
                lambda names=names: not all(suspended(queue, one) for one in names),
                30,
            )
        for one in names:
            queue.api.delete(f"{JOBS}/{one}")
    names = [f"gone-{turn}-{number}" for turn in range(3) for number in range(3)]
    until("no Workload is left", lambda: not any(workload_of(queue, one) for one in names), 30)
    apply(queue, job("after", "gone"))
    started(queue, "after")


def test_a_workload_that_is_deleted_stops_its_job_which_queues_again(queue: ControlPlane) -> None:
    apply(queue, quota("again", 1), door("again", "again"), job("again", "again"))
    started(queue, "again")
    first = workload_of(queue, "again")
    assert first is not None
    queue.kubectl("delete", "workload", first["metadata"]["name"], "--wait=false")

    def anew() -> bool:
        now = workload_of(queue, "again")
        return now is not None and now["metadata"]["uid"] != first["metadata"]["uid"]

    until("it has another Workload", anew, 30)
    until("that is admitted", lambda: is_true(workload_of(queue, "again"), "Admitted"), 30)
    started(queue, "again")


def test_a_queue_is_kept_until_it_is_empty_and_lets_nobody_in(queue: ControlPlane) -> None:
    apply(queue, quota("leaves", 2), door("leaves", "leaves"), job("stays", "leaves"))
    started(queue, "stays")
    path = f"{KUEUE}/clusterqueues/leaves"
    until("it is kept", lambda: "finalizers" in queue.api.get(path)["metadata"], 30)
    queue.api.delete(path)
    until("it is closed", lambda: queue.api.get(path)["metadata"].get("deletionTimestamp"), 30)
    apply(queue, job("late", "leaves"))
    until("it waits", lambda: condition(workload_of(queue, "late"), "QuotaReserved"), 30)
    assert suspended(queue, "late")
    finish(queue, "stays")
    until("it is gone", lambda: queue.api.find(path) is None, 30)

    def why() -> str:
        return str(condition(workload_of(queue, "late"), "QuotaReserved").get("message"))

    until("that is said", lambda: why() == "ClusterQueue leaves doesn't exist", 30)
    apply(queue, quota("leaves", 1))
    started(queue, "late")


def test_a_drained_queue_stops_what_runs_and_goes_on(queue: ControlPlane) -> None:
    apply(queue, quota("drained", 1), door("drained", "drained"), job("drained", "drained"))
    started(queue, "drained")
    path = f"{KUEUE}/clusterqueues/drained"
    queue.api.patch(path, {"spec": {"stopPolicy": "HoldAndDrain"}})
    stopped(queue, "drained")
    until("it holds nothing", lambda: not is_true(workload_of(queue, "drained"), "Admitted"), 30)
    assert condition(workload_of(queue, "drained"), "Evicted")["reason"] == "ClusterQueueStopped"
    until(
        "the queue says so",
        lambda: condition(queue.api.get(path), "Active").get("reason") == "Stopped",
        30,
    )
    queue.api.patch(path, {"spec": {"stopPolicy": "None"}})
    started(queue, "drained")


def test_a_deactivated_workload_stops_until_it_is_activated(queue: ControlPlane) -> None:
    apply(queue, quota("off", 1), door("off", "off"), job("off", "off"))
    started(queue, "off")
    path = f"{KUEUE}/namespaces/default/workloads/{workload_of(queue, 'off')['metadata']['name']}"  # type: ignore[index]
    queue.api.patch(path, {"spec": {"active": False}})
    stopped(queue, "off")
    until("it holds nothing", lambda: not is_true(workload_of(queue, "off"), "QuotaReserved"), 30)
    assert condition(workload_of(queue, "off"), "Evicted")["reason"] == "Deactivated"
    queue.api.patch(path, {"spec": {"active": True}})
    started(queue, "off")


def test_what_cannot_be_read_says_so_and_stops_nobody(queue: ControlPlane) -> None:
    """No webhook validates objects here before they are stored."""
    wrong = quota("wrong", 1)
    wrong["spec"]["resourceGroups"].append(wrong["spec"]["resourceGroups"][0])
    template = {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "x"}}}]}}
    bad = of_kueue(
        "Workload",
        "bad",
        {"queueName": "fine", "podSets": [{"template": template}]},
        namespace="default",
    )
    apply(queue, wrong, bad, quota("fine", 1), door("fine", "fine"), job("fine", "fine"))
    started(queue, "fine")
    path = f"{KUEUE}/namespaces/default/workloads/bad"
    until("the Workload says so", lambda: condition(queue.api.get(path), "QuotaReserved"), 30)
    said = condition(queue.api.get(path), "QuotaReserved")
    assert (said["status"], said["reason"]) == ("False", "Misconfigured")
    assert "expected a quantity such as 1, 500m, 1.5, 2Gi or 1e3, got 'x'" in said["message"]


def test_a_workload_of_nobody_is_admitted_and_let_go(queue: ControlPlane) -> None:
    template = {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}}
    spec = {"queueName": "bare", "podSets": [{"template": template}]}
    apply(queue, quota("bare", 1), door("bare", "bare"))
    apply(queue, of_kueue("Workload", "bare", spec, namespace="default"))
    queue.kubectl("wait", "--for=condition=Admitted", "workload/bare", "--timeout=100s")
    queue.kubectl("delete", "workload", "bare")
    apply(queue, job("next", "bare"))
    started(queue, "next")


def test_an_admission_by_another_hand_is_taken_back(queue: ControlPlane) -> None:
    apply(queue, quota("forged", 1), door("forged", "forged"), job("honest", "forged"))
    started(queue, "honest")
    apply(queue, job("forger", "forged"))
    until("it waits", lambda: condition(workload_of(queue, "forger"), "QuotaReserved"), 30)
    forged = {
        "admission": {"clusterQueue": "forged", "podSetAssignments": [{"name": "main", "count": 1, "flavors": {"cpu": "plain"}, "resourceUsage": {"cpu": "1"}}]},
    }  # fmt: skip
    name = workload_of(queue, "forger")["metadata"]["name"]  # type: ignore[index]
    path = f"{KUEUE}/namespaces/default/workloads/{name}"
    queue.api.patch(f"{path}/status", {"status": forged})
    until("it is taken back", lambda: "admission" not in queue.api.get(path)["status"], 30)
    assert suspended(queue, "forger")


def test_pods_that_are_done_give_their_quota_back(queue: ControlPlane) -> None:
    apply(queue, quota("done", 2), door("done", "done"), job("pair", "done", pods=2))
    started(queue, "pair")
    apply(queue, job("single", "done"))
    until("it waits", lambda: condition(workload_of(queue, "single"), "QuotaReserved"), 30)
    half = {"active": 1, "ready": 1, "succeeded": 1, "startTime": "2026-11-22T10:00:00Z"}
    queue.api.patch(f"{JOBS}/pair/status", {"status": half})
    started(queue, "single")
    wait_done_pods(queue, "pair", 1)


def test_a_controller_that_starts_anew_touches_nothing(queue: ControlPlane, tmp_path: Path) -> None:
    """A second one is there when the first ends, and takes over what the API says."""
    apply(
        queue, quota("kept", 1), door("kept", "kept"), job("kept", "kept"), job("next-up", "kept")
    )
    until(
        "one is started", lambda: not (suspended(queue, "kept") and suspended(queue, "next-up")), 30
    )
    running = next(one for one in ("kept", "next-up") if not suspended(queue, one))
    waiting = "next-up" if running == "kept" else "kept"
    until("the other waits", lambda: condition(workload_of(queue, waiting), "QuotaReserved"), 30)

    def versions() -> list[str]:
        workload = workload_of(queue, running)
        assert workload is not None
        found = queue.api.get(f"{JOBS}/{running}")
        return [one["metadata"]["resourceVersion"] for one in (workload, found)]

    before = versions()
    with serving(queue, tmp_path) as second:
        until("it follows", lambda: "following jobs" in second.life, 60)
        queue.api.patch(LEASE, {"spec": {"holderIdentity": "", "leaseDurationSeconds": 1}})
        until("a replica leads", lambda: queue.api.get(LEASE)["spec"]["holderIdentity"], 60)
        assert versions() == before
        finish(queue, running)
        started(queue, waiting)
        assert second.end() == 0, second.text[-2000:]


def test_it_refuses_to_decide_beside_kueue(queue: ControlPlane, tmp_path: Path) -> None:
    head = {"name": "c1f6bfd2.kueue.x-k8s.io", "namespace": "default"}
    now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    spec = {"holderIdentity": "kueue-1", "leaseDurationSeconds": 15, "renewTime": now}
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": head,
        "spec": spec,
    }
    path = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    queue.api.call("POST", path, lease)
    try:
        other = Replica(queue, tmp_path / "other.log")
        other.start()
        assert other.process is not None
        assert other.process.wait(60) == 69
        assert "Kueue runs in this cluster" in other.text
        assert "kubernetes.mode=beside" in other.text
    finally:
        queue.api.delete(f"{path}/{head['name']}")


def test_a_check_decides_after_the_quota_and_again_after_each_eviction(queue: ControlPlane) -> None:
    apply(queue, of_kueue("AdmissionCheck", "budget", {"controllerName": "example.com/budget"}))
    active = {"type": "Active", "status": "True", "reason": "Active", "message": "here", "lastTransitionTime": "2026-11-22T10:00:00Z"}  # fmt: skip
    queue.api.patch(f"{KUEUE}/admissionchecks/budget/status", {"status": {"conditions": [active]}})
    rules = {"admissionChecks": [{"name": "budget"}]}
    apply(queue, quota("checked", 1, admissionChecksStrategy=rules), door("checked", "checked"))
    apply(queue, job("checked", "checked"))

    def state() -> str:
        found = (workload_of(queue, "checked") or {}).get("status") or {}
        return "".join(one["state"] for one in found.get("admissionChecks") or ())

    def say(word: str, **more: object) -> None:
        workload = workload_of(queue, "checked")
        assert workload is not None
        said = {"name": "budget", "state": word, "message": "m", "lastTransitionTime": "2026-11-22T10:00:00Z", **more}  # fmt: skip
        path = f"{KUEUE}/namespaces/default/workloads/{workload['metadata']['name']}/status"
        queue.api.patch(path, {"status": {"admissionChecks": [said]}})

    until("it is asked", lambda: state() == "Pending", 30)
    assert is_true(workload_of(queue, "checked"), "QuotaReserved")
    assert not is_true(workload_of(queue, "checked"), "Admitted")
    say("Retry")
    until("it is asked again", lambda: state() == "Pending", 30)
    until(
        "the quota is its own again",
        lambda: is_true(workload_of(queue, "checked"), "QuotaReserved"),
        30,
    )
    assert condition(workload_of(queue, "checked"), "Evicted"), "it was let go meanwhile"
    assert suspended(queue, "checked")
    say("Ready", podSetUpdates=[{"name": "main", "nodeSelector": {"zone": "z"}}])
    started(queue, "checked")
    pods = queue.api.get(f"{JOBS}/checked")["spec"]["template"]["spec"]
    assert pods["nodeSelector"] == {"pool": "plain", "zone": "z"}
