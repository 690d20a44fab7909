"""Mode kubernetes against a real API server: jobs are held, admitted, started and finished by the queue."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import control_plane
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
from tests.node import until

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
    queue.kubectl("wait", "--for=condition=Admitted", f"workload/{name}", "--timeout=30s")
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
