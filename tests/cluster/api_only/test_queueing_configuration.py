"""Mode kubernetes with Kueue's Configuration file: whose jobs are queued, transformations; TrainJobs by their runtimes; a check that
wants to be asked later."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from queuecontroller.frameworks import framework_named
from tests.cluster.control_plane import ControlPlane
from tests.cluster.queueing import (
    JOBS,
    KUEUE,
    Replica,
    apply,
    asked,
    condition,
    define_all,
    door,
    is_true,
    job,
    of_kueue,
    quota,
    suspended,
    workload_of,
)
from tests.kit.node import until
from tests.queue.frameworks.crds import cluster_crd_for_tests, crd_for_tests
from tests.queue.frameworks.samples import RUNTIME, sample
from tests.queue.manifests.collected import FOLDER

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
PODS = "/api/v1/namespaces/default/pods"
TRAINER = "trainer.kubeflow.org"
TRAINJOBS = f"/apis/{TRAINER}/v1alpha1/namespaces/default/trainjobs"
CONFIGURATION = FOLDER / "deployments-with-gpu-shares" / "00-kueue-configuration.yaml"


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with (
        tempfile.TemporaryDirectory(prefix="control-plane-") as directory,
        ControlPlane(Path(directory), controllers=True) as made,
    ):
        define_all(made)
        yield made


def write(place: Path, **sections: Any) -> Path:
    head = {"apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration"}
    found = place / "configuration.yaml"
    found.write_text(yaml.safe_dump({**head, **sections}))
    return found


def test_the_owners_shares_of_gpus_are_counted_by_the_owners_configuration(
    plane: ControlPlane, tmp_path: Path
) -> None:
    settings = (
        f"kubernetes.kueue_configuration={CONFIGURATION}",
        # Their ClusterQueue has no namespaceSelector, which serves no namespace in Kueue.
        "engine.missing_selector_admits_all=true",
    )
    with asked(plane, tmp_path, *settings):
        until("pods are asked about", lambda: pods_are_asked(plane), 60)
        for one in sorted((FOLDER / "deployments-with-gpu-shares").glob("*.yaml")):
            if one != CONFIGURATION:
                plane.kubectl("apply", "-f", str(one))

        def used() -> Any:
            status = plane.api.get(f"{KUEUE}/clusterqueues/hami-queue").get("status") or {}
            return {
                each["name"]: each["total"]
                for flavor in status.get("flavorsReservation") or ()
                for each in flavor["resources"]
            }

        # Two pods of one GPU with 50 and 1024, and one of two GPUs with 30 and 1024 each.
        wanted = {
            "nvidia.com/gpu": "4",
            "nvidia.com/total-gpucores": "160",
            "nvidia.com/total-gpumem": "4096",
        }
        until("all three pods are counted", lambda: used() == wanted, 30)

        def pods() -> list[Any]:
            found = plane.api.get(PODS)["items"]
            return [one for one in found if "vgpu" in one["metadata"]["name"]]

        until(
            "their gates are lifted, too",
            lambda: not any(one["spec"].get("schedulingGates") for one in pods()),
            30,
        )
        assert len(pods()) == 3
        for one in pods():
            assert one["spec"]["nodeSelector"] == {"gpu": "on"}
        assert suspended_at_once(plane) is False, "Jobs are none of its frameworks"
        plane.kubectl("delete", "deployments", "--all")


def pods_are_asked(plane: ControlPlane) -> bool:
    made = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "try",
            "namespace": "default",
            "labels": {"kueue.x-k8s.io/queue-name": "q"},
        },
        "spec": {"containers": [{"name": "c", "image": "none"}]},
    }
    found: Any = plane.api.call("POST", f"{PODS}?dryRun=All", made)
    return bool(found["spec"].get("schedulingGates"))


def suspended_at_once(plane: ControlPlane) -> bool:
    made: Any = plane.api.call("POST", f"{JOBS}?dryRun=All", job("try", "q", suspend=False))
    return bool(made["spec"].get("suspend"))


def test_jobs_without_a_queue_wait_until_they_name_one(plane: ControlPlane, tmp_path: Path) -> None:
    path = write(
        tmp_path,
        manageJobsWithoutQueueName=True,
        managedJobsNamespaceSelector={
            "matchLabels": {"kubernetes.io/metadata.name": "default"}
        },
        integrations={"frameworks": ["batch/job"], "labelKeysToCopy": ["team"]},
        clientConnection={"qps": 300},
    )  # fmt: skip
    with asked(plane, tmp_path, f"kubernetes.kueue_configuration={path}") as replica:
        assert "Configuration: clientConnection has no effect" in replica.text
        apply(plane, of_kueue("ResourceFlavor", "plain", {}), quota("one", 1), door("one", "one"))
        made = job("nameless", "", suspend=False)
        made["metadata"]["labels"] = {"team": "red"}
        plane.api.create("jobs", "default", made)
        assert suspended(plane, "nameless")
        time.sleep(1)  # nothing comes of it
        assert suspended(plane, "nameless")
        label = {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "one"}}}
        plane.api.patch(f"{JOBS}/nameless", label)
        until("it is started", lambda: not suspended(plane, "nameless"), 30)
        workload = workload_of(plane, "nameless")
        assert workload is not None
        assert workload["metadata"]["labels"]["team"] == "red"
        apply(plane, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}})
        other = job("free", "", suspend=False)
        other["metadata"]["namespace"] = "other"
        found: Any = plane.api.create("jobs", "other", other)
        assert not found["spec"].get("suspend")
        plane.api.delete(f"{JOBS}/nameless")


def test_a_file_with_a_mistake_stops_the_start_by_its_name(
    plane: ControlPlane, tmp_path: Path
) -> None:
    path = write(tmp_path, integrations={"frameworks": ["batch/jobs"]})
    replica = Replica(plane, tmp_path / "queue.log", [f"kubernetes.kueue_configuration={path}"])
    replica.start()
    assert replica.process is not None
    assert replica.process.wait(60) == 69
    assert "integrations.frameworks: unsupported framework 'batch/jobs'" in replica.text


def test_a_train_job_has_its_pods_from_its_runtime(plane: ControlPlane, tmp_path: Path) -> None:
    framework = framework_named("trainer.kubeflow.org/trainjob")
    assert framework is not None
    plural = "clustertrainingruntimes"
    apply(plane, crd_for_tests(framework), cluster_crd_for_tests(RUNTIME, plural))
    for name in (plural, "trainjobs"):
        plane.kubectl("wait", "--for=condition=Established", f"crd/{name}.{TRAINER}")
    with asked(plane, tmp_path):
        apply(
            plane,
            of_kueue("ResourceFlavor", "plain", {}),
            quota("train", 100),
            door("train", "train"),
        )
        made = sample("trainer.kubeflow.org/trainjob")
        made["metadata"] = {
            "name": "tune",
            "namespace": "default",
            "labels": {"kueue.x-k8s.io/queue-name": "train"},
        }
        apply(plane, made)
        until("it is told why it waits", lambda: "does not exist" in said(plane), 30)
        apply(plane, RUNTIME)

        def runs() -> bool:
            return plane.api.get(f"{TRAINJOBS}/tune")["spec"]["suspend"] is False

        until("it is let run", runs, 60)
        workload = workload_of(plane, "tune")
        assert workload is not None
        sets = {one["name"]: one["count"] for one in workload["spec"]["podSets"]}
        assert sets == {"initializer": 1, "node": 3}
        plane.api.delete(f"{TRAINJOBS}/tune")


def said(plane: ControlPlane) -> str:
    events = plane.api.get("/api/v1/namespaces/default/events")["items"]
    return "".join(one["message"] for one in events if one["reason"] == "ErrWorkloadCompose")


def test_a_check_that_asks_for_a_pause_is_given_it(plane: ControlPlane, tmp_path: Path) -> None:
    with asked(plane, tmp_path):
        at = "2026-11-22T10:00:00Z"
        apply(plane, of_kueue("AdmissionCheck", "slow", {"controllerName": "example.com/slow"}))
        active = {"type": "Active", "status": "True", "reason": "Active", "message": "here", "lastTransitionTime": at}  # fmt: skip
        plane.api.patch(
            f"{KUEUE}/admissionchecks/slow/status", {"status": {"conditions": [active]}}
        )
        rules = {"admissionChecks": [{"name": "slow"}]}
        apply(plane, of_kueue("ResourceFlavor", "plain", {}))
        apply(plane, quota("slow", 1, admissionChecksStrategy=rules), door("slow", "slow"))
        apply(plane, job("patient", "slow"))

        def status() -> Any:
            return (workload_of(plane, "patient") or {}).get("status") or {}

        until("it is asked", lambda: is_true(workload_of(plane, "patient"), "QuotaReserved"), 30)
        name = workload_of(plane, "patient")["metadata"]["name"]  # type: ignore[index]
        word = {"name": "slow", "state": "Retry", "message": "m", "lastTransitionTime": at, "requeueAfterSeconds": 5}  # fmt: skip
        begin_s = time.monotonic()
        path = f"{KUEUE}/namespaces/default/workloads/{name}/status"
        plane.api.patch(path, {"status": {"admissionChecks": [word]}})
        until("it waits", lambda: not is_true(workload_of(plane, "patient"), "QuotaReserved"), 30)
        assert status()["requeueState"]["requeueAt"]
        evictions = status()["schedulingStats"]["evictions"]
        assert evictions == [{"reason": "AdmissionCheck", "underlyingCause": "", "count": 1}]
        until(
            "it is tried again", lambda: is_true(workload_of(plane, "patient"), "QuotaReserved"), 30
        )
        assert time.monotonic() - begin_s > 4
        assert condition(workload_of(plane, "patient"), "Evicted")["status"] == "False"
