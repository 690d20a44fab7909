"""Borrowing, fair sharing and WaitForPodsReady with real Jobs in a real API server; and what stands around them deleted while
they run or wait."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import control_plane
from tests.cluster.queueing import (
    JOBS,
    KUEUE,
    WORKLOADS,
    apply,
    condition,
    define,
    door,
    finish,
    is_served,
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
DEADLINE_S = 120
RECLAIM = {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"}


@pytest.fixture
def plane(control_plane: ControlPlane) -> ControlPlane:
    if not is_served(control_plane):
        define(control_plane)
    apply(control_plane, of_kueue("ResourceFlavor", "plain", {}))
    return control_plane


def started(plane: ControlPlane, *names: str) -> None:
    for one in names:
        until(f"{one} is let run", lambda one=one: not suspended(plane, one), DEADLINE_S)  # type: ignore[misc]


def waiting(plane: ControlPlane, *names: str) -> None:
    for one in names:
        until(f"{one} waits", lambda one=one: why(plane, one), DEADLINE_S)  # type: ignore[misc]


def why(plane: ControlPlane, name: str) -> str:
    found = condition(workload_of(plane, name), "QuotaReserved")
    return str(found.get("message")) if found.get("status") == "False" else ""


def configuration(place: Path, **sections: Any) -> str:
    head = {"apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration"}
    path = place / "configuration.yaml"
    path.write_text(yaml.safe_dump({**head, **sections}))
    return f"kubernetes.kueue_configuration={path}"


def test_what_is_lent_is_used_and_taken_back(plane: ControlPlane, tmp_path: Path) -> None:
    with serving(plane, tmp_path) as replica:
        until("it decides", replica.leads, 60)
        both = [
            quota(name, 2, cohortName="pair", preemption=RECLAIM) for name in ("lends", "borrows")
        ]
        apply(plane, *both, door("lends", "lends"), door("borrows", "borrows"))
        apply(plane, *(job(f"guest-{number}", "borrows") for number in range(4)))
        started(plane, *(f"guest-{number}" for number in range(4)))

        def borrowed() -> Any:
            status = plane.api.get(f"{KUEUE}/clusterqueues/borrows").get("status") or {}
            return status["flavorsUsage"][0]["resources"][0]

        wanted = {"name": "cpu", "total": "4", "borrowed": "2"}
        until("the queue says what it borrows", lambda: borrowed() == wanted, DEADLINE_S)
        apply(plane, job("owner", "lends", "2"))
        started(plane, "owner")
        stopped = [one for one in range(4) if suspended(plane, f"guest-{one}")]
        assert len(stopped) == 2, "as many as are needed, and no more"
        for one in stopped:
            workload = workload_of(plane, f"guest-{one}")
            assert condition(workload, "Preempted")["reason"] == "InCohortReclamation"
        finish(plane, "owner")
        started(plane, *(f"guest-{one}" for one in stopped))


def test_two_who_borrow_share_what_there_is(plane: ControlPlane, tmp_path: Path) -> None:
    with serving(plane, tmp_path, configuration(tmp_path, fairSharing={})) as replica:
        until("it decides", replica.leads, 60)
        queues = [
            quota(name, 0, cohortName="fair", preemption=RECLAIM) for name in ("left", "right")
        ]
        apply(plane, quota("common", 4, cohortName="fair"), *queues)
        apply(plane, door("left", "left"), door("right", "right"))
        apply(plane, *(job(f"left-{number}", "left") for number in range(4)))
        started(plane, *(f"left-{number}" for number in range(4)))
        apply(plane, *(job(f"right-{number}", "right") for number in range(4)))

        def shares() -> tuple[int, int]:
            left, right = (
                sum(not suspended(plane, f"{side}-{number}") for number in range(4))
                for side in ("left", "right")
            )
            return left, right

        until("each has half", lambda: shares() == (2, 2), DEADLINE_S)
        stopped = [one for one in range(4) if suspended(plane, f"left-{one}")]
        for one in stopped:
            workload = workload_of(plane, f"left-{one}")
            assert condition(workload, "Preempted")["reason"] == "InCohortFairSharing"

        def weights() -> list[int]:
            found = [plane.api.get(f"{KUEUE}/clusterqueues/{one}") for one in ("left", "right")]
            return [one["status"]["fairSharing"]["weightedShare"] for one in found]

        until("their shares are alike", lambda: len(set(weights())) == 1 and all(weights()), 60)
        for side in ("left", "right"):
            for number in range(4):
                plane.api.delete(f"{JOBS}/{side}-{number}")


def test_a_job_whose_pods_are_on_no_node_gives_way_before_one_whose_pods_start(
    plane: ControlPlane, tmp_path: Path
) -> None:
    ready = {"timeout": "1h", "unscheduledTimeout": "3s"}
    with serving(plane, tmp_path, configuration(tmp_path, waitForPodsReady=ready)) as replica:
        until("it decides", replica.leads, 60)
        apply(plane, quota("bound", 4), door("bound", "bound"), job("starts", "bound"))
        started(plane, "starts")
        template = plane.api.get(f"{JOBS}/starts")["spec"]["template"]
        spec = {**template["spec"], "nodeName": "somewhere", "nodeSelector": None}
        plane.api.create(
            "pods", "default", {"metadata": {**template["metadata"], "name": "it"}, "spec": spec}
        )

        def reason(name: str) -> str:
            return str(condition(workload_of(plane, name), "PodsReady").get("reason"))

        until("its pod is on a node", lambda: reason("starts") == "WaitForStart", DEADLINE_S)
        apply(plane, job("floats", "bound"))

        def evictions() -> object:
            status = (workload_of(plane, "floats") or {}).get("status") or {}
            stats = (status.get("schedulingStats") or {}).get("evictions") or [{}]
            return stats[0].get("reason"), stats[0].get("underlyingCause")

        expected = ("PodsReadyTimeout", "WaitForScheduling")
        until("it gives way", lambda: evictions() == expected, DEADLINE_S)
        assert is_true(workload_of(plane, "starts"), "Admitted")
        assert reason("starts") == "WaitForStart"
        for name in ("starts", "floats"):
            plane.api.delete(f"{JOBS}/{name}")
        plane.api.delete("/api/v1/namespaces/default/pods/it", grace_s=0)


def test_a_job_whose_pods_do_not_come_gives_way(plane: ControlPlane, tmp_path: Path) -> None:
    strategy = {"backoffBaseSeconds": 1, "backoffLimitCount": 1}
    ready = {"timeout": "4s", "blockAdmission": True, "requeuingStrategy": strategy}
    with serving(plane, tmp_path, configuration(tmp_path, waitForPodsReady=ready)) as replica:
        until("it decides", replica.leads, 60)
        apply(plane, quota("ready", 4), door("ready", "ready"), job("never", "ready"))
        started(plane, "never")
        apply(plane, job("behind", "ready"))
        waiting(plane, "behind")
        assert suspended(plane, "behind"), (
            "no workload is admitted until the pods of the first are ready"
        )
        until(
            "it is put off",
            lambda: (
                condition(workload_of(plane, "never"), "Evicted").get("reason")
                in ("PodsReadyTimeout", "Deactivated")
            ),
            DEADLINE_S,
        )
        started(plane, "behind")
        up = {"active": 1, "ready": 1, "startTime": "2026-11-22T10:00:00Z"}
        plane.api.patch(f"{JOBS}/behind/status", {"status": up})
        until("it is ready", lambda: is_true(workload_of(plane, "behind"), "PodsReady"), DEADLINE_S)

        def given_up() -> bool:
            found = workload_of(plane, "never")
            return found is not None and found["spec"]["active"] is False

        until("after its tries it is given up", given_up, DEADLINE_S)
        assert suspended(plane, "never")
        finish(plane, "behind")
        for name in ("never", "behind"):
            plane.api.delete(f"{JOBS}/{name}")


def test_what_stands_around_jobs_is_deleted_while_they_run_or_wait(
    plane: ControlPlane, tmp_path: Path
) -> None:
    with serving(plane, tmp_path) as replica:
        until("it decides", replica.leads, 60)
        apply(plane, of_kueue("ResourceFlavor", "gone", {}))
        flavors = [{"name": "gone", "resources": [{"name": "cpu", "nominalQuota": 1}]}]
        spec = {
            "resourceGroups": [{"coveredResources": ["cpu"], "flavors": flavors}],
            "namespaceSelector": {},
        }
        apply(plane, of_kueue("ClusterQueue", "around", spec), door("around", "around"))
        apply(plane, job("runs", "around"))
        started(plane, "runs")
        apply(plane, job("next", "around"))
        waiting(plane, "next")

        flavor = f"{KUEUE}/resourceflavors/gone"
        until("the flavor is kept", lambda: plane.api.get(flavor)["metadata"].get("finalizers"), 60)
        plane.api.delete(flavor)
        assert plane.api.find(flavor) is not None, "a queue uses it"
        local = f"{KUEUE}/namespaces/default/localqueues/around"
        plane.api.delete(local)
        until("its line is told", lambda: "doesn't exist" in why(plane, "next"), DEADLINE_S)
        assert not suspended(plane, "runs"), "what runs goes on"
        finish(plane, "runs")
        until("it is done", lambda: is_true(workload_of(plane, "runs"), "Finished"), DEADLINE_S)
        apply(plane, door("around", "around"))
        started(plane, "next")

        plane.api.delete(f"{KUEUE}/clusterqueues/around")
        assert not suspended(plane, "next")
        plane.api.delete(f"{JOBS}/next")
        until("the queue goes with its last job", lambda: plane.api.find(f"{KUEUE}/clusterqueues/around") is None, DEADLINE_S)  # fmt: skip
        until("and the flavor with the queue", lambda: plane.api.find(flavor) is None, DEADLINE_S)
        until("no Workload is left of them", lambda: workload_of(plane, "next") is None, DEADLINE_S)


def test_a_namespace_goes_with_all_that_is_queued_in_it(
    plane: ControlPlane, tmp_path: Path
) -> None:
    """The garbage of a namespace is the controller-manager's to take out: here what it would delete is deleted."""
    with serving(plane, tmp_path) as replica:
        until("it decides", replica.leads, 60)
        apply(plane, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "leaves"}})
        local = of_kueue("LocalQueue", "home", {"clusterQueue": "homes"}, namespace="leaves")
        apply(plane, quota("homes", 1), local, door("homes", "homes"))
        jobs = "/apis/batch/v1/namespaces/leaves/jobs"
        for name in ("first", "second"):
            made = job(name, "home")
            made["metadata"]["namespace"] = "leaves"
            plane.api.create("jobs", "leaves", made)
        until("one is let run", lambda: any(runs(plane, f"{jobs}/{one}") for one in ("first", "second")), DEADLINE_S)  # fmt: skip
        plane.api.delete("/api/v1/namespaces/leaves")
        workloads = WORKLOADS.replace("/default/", "/leaves/")
        for path in (jobs, workloads, f"{KUEUE}/namespaces/leaves/localqueues"):
            plane.api.call("DELETE", path)
        until("all of it is gone", lambda: not plane.api.get(workloads)["items"], DEADLINE_S)
        apply(plane, job("elsewhere", "homes"))
        started(plane, "elsewhere")


def runs(plane: ControlPlane, path: str) -> bool:
    return plane.api.get(path)["spec"].get("suspend") is False
