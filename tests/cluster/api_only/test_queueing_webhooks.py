"""Mode kubernetes with its webhooks: old manifests count, jobs are suspended as they are made, mistakes are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from queuecontroller.kueueapi import GROUP, KINDS
from tests.cluster.control_plane import ControlPlane, ControlPlaneError
from tests.cluster.fixtures import control_plane
from tests.cluster.queueing import (
    JOBS,
    KUEUE,
    apply,
    asked,
    condition,
    door,
    finish,
    is_true,
    job,
    of_kueue,
    quota,
    suspended,
    workload_of,
)
from tests.kit.node import until
from tests.queue.manifests.collected import FOLDER

__all__ = ["control_plane"]
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


@pytest.fixture(scope="module")
def queue(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    with asked(control_plane, tmp_path_factory.mktemp("queue")):
        apply(control_plane, of_kueue("ResourceFlavor", "plain", {}))
        yield control_plane


def test_a_job_is_suspended_as_it_is_made(queue: ControlPlane) -> None:
    made = queue.api.create("jobs", "default", job("asked", "nowhere", suspend=False))
    assert made["spec"]["suspend"] is True
    other = queue.api.create("jobs", "default", job("free", "", suspend=False))
    assert not other["spec"].get("suspend"), "it names no queue"


def test_a_job_that_names_no_queue_has_the_one_called_default(queue: ControlPlane) -> None:
    apply(queue, quota("by-default", 1), door("default", "by-default"))

    def has_it() -> bool:
        made = queue.api.call("POST", f"{JOBS}?dryRun=All", job("try", "", suspend=False))
        return made["metadata"].get("labels") == {"kueue.x-k8s.io/queue-name": "default"}

    until("its namespace has one", has_it, 30)
    queue.api.create("jobs", "default", job("by-default", "", suspend=False))
    until("it is admitted", lambda: not suspended(queue, "by-default"), 30)
    queue.api.delete(f"{KUEUE}/namespaces/default/localqueues/default")


def test_a_job_without_a_class_has_the_one_called_default(queue: ControlPlane) -> None:
    kind = {"apiVersion": f"{GROUP}/v1beta2", "kind": "WorkloadPriorityClass"}
    apply(queue, {**kind, "metadata": {"name": "default"}, "value": 7})
    key = "kueue.x-k8s.io/priority-class"

    def labels() -> dict[str, str]:
        made = queue.api.call("POST", f"{JOBS}?dryRun=All", job("try", "classed", suspend=False))
        return dict(made["metadata"]["labels"])

    until("the class is known", lambda: labels().get(key) == "default", 30)
    apply(queue, quota("classed", 1), door("classed", "classed"))
    queue.api.create("jobs", "default", job("classed", "classed"))
    until("it has a Workload", lambda: workload_of(queue, "classed"), 30)
    spec = (workload_of(queue, "classed") or {})["spec"]
    assert (spec["priority"], spec["priorityClassRef"]["name"]) == (7, "default")
    queue.api.delete(f"{KUEUE}/workloadpriorityclasses/default")


def test_a_job_has_timeouts_of_its_own_until_its_pods_are_ready(queue: ControlPlane) -> None:
    key = "kueue.x-k8s.io/wait-for-pods-ready"
    apply(queue, quota("timed", 1), door("timed", "timed"))
    wrong = job("wrong", "timed")
    wrong["metadata"]["annotations"] = {key: '{"timeoutSeconds": 7201}'}
    with pytest.raises(ControlPlaneError, match="more than 7200"):
        apply(queue, wrong)
    timed = job("timed", "timed")
    timed["metadata"]["annotations"] = {key: '{"timeoutSeconds": 1}'}
    queue.api.create("jobs", "default", timed)

    def evicted() -> dict[str, Any]:
        return condition(workload_of(queue, "timed"), "Evicted")

    until("its pods were not ready in time", lambda: evicted().get("status") == "True", 30)
    assert evicted()["reason"] == "PodsReadyTimeout"
    until("it is stopped", lambda: suspended(queue, "timed"), 30)
    queue.api.delete(f"{JOBS}/timed")


def test_what_is_wrong_is_refused_with_the_readers_words(queue: ControlPlane) -> None:
    wrong = quota("wrong", 1)
    wrong["spec"]["resourceGroups"].append(wrong["spec"]["resourceGroups"][0])
    with pytest.raises(ControlPlaneError, match="is in two groups"):
        apply(queue, wrong)


def test_old_manifests_are_decided_upon(queue: ControlPlane) -> None:
    old = quota("old", 1)
    old["apiVersion"] = f"{GROUP}/v1beta1"
    old["spec"]["cohort"] = "shared"
    lends = quota("lends", 2, cohortName="shared")
    apply(queue, old, lends, door("old", "old"), job("borrows", "old", "3"))
    until("it is admitted with what it borrows", lambda: not suspended(queue, "borrows"), 30)

    def usage() -> Any:
        found = queue.api.get(f"{KUEUE}/clusterqueues/old").get("status") or {}
        return [one["resources"] for one in found.get("flavorsUsage") or ()]

    wanted = [[{"name": "cpu", "total": "3", "borrowed": "2"}]]
    until("the queue says what is borrowed", lambda: usage() == wanted, 30)


def test_the_owners_manifests_queue_a_job(queue: ControlPlane) -> None:
    folder = FOLDER / "first-queue"
    queue.kubectl("apply", "-f", str(folder / "00-queues.yaml"))
    (document,) = yaml.safe_load_all((folder / "10-job.yaml").read_text())
    names = []
    for _ in range(4):
        made = queue.kubectl("create", "-f", str(folder / "10-job.yaml"), "-o", "json")
        names.append(json.loads(made)["metadata"]["name"])
    assert document["spec"]["parallelism"] == 3
    for name in names[:3]:
        until(f"{name} is admitted", lambda name=name: not suspended(queue, name), 30)  # type: ignore[misc]
    selector = queue.api.get(f"{JOBS}/{names[0]}")["spec"]["template"]["spec"]["nodeSelector"]
    assert selector == {"node-type": "worker"}
    until("the fourth waits", lambda: condition(workload_of(queue, names[3]), "QuotaReserved"), 30)
    assert suspended(queue, names[3]), "nine CPUs are three times three"
    assert (
        "insufficient unused quota for cpu"
        in condition(workload_of(queue, names[3]), "QuotaReserved")["message"]
    )
    finish(queue, names[0])
    until("then it is its turn", lambda: not suspended(queue, names[3]), 30)
    assert is_true(workload_of(queue, names[0]), "Finished")


def test_the_definitions_ask_here(queue: ControlPlane) -> None:
    crds = queue.api.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")["items"]
    ours = [one for one in crds if one["spec"]["group"] == GROUP]
    converted = [one for one in ours if len(one["spec"]["versions"]) > 1]
    assert {one["spec"]["names"]["kind"] for one in converted} == set(KINDS)
    assert {one["spec"]["conversion"]["strategy"] for one in ours if one not in converted} <= {
        "None"
    }
    for one in converted:
        client = one["spec"]["conversion"]["webhook"]["clientConfig"]
        assert set(client) == {"url", "caBundle"}
    (configuration,) = queue.api.get(CONFIGURATIONS)["items"]
    assert configuration["webhooks"][0]["failurePolicy"] == "Ignore"


def test_the_queue_is_not_asked_about_its_own_writes(queue: ControlPlane) -> None:
    """Each question costs both sides more than a millisecond; and who restarts must not wait for itself."""

    def judged() -> int:
        lines = queue.api.get("/metrics").splitlines()
        name = 'name="objects.kueue.sluice.dev"'
        counts = [
            one
            for one in lines
            if one.startswith("apiserver_admission_webhook_request_total{") and name in one
        ]
        return sum(int(float(one.rpartition(" ")[2])) for one in counts)

    apply(queue, quota("own", 1), door("own", "own"))
    before = judged()
    apply(queue, job("own", "own"))
    until("it is started", lambda: not suspended(queue, "own"), 30)
    assert judged() == before
    template = {"spec": {"containers": [{"name": "c", "image": "none"}]}}
    sets = [{"name": "main", "count": 1, "minCount": 2, "template": template}]
    wrong = of_kueue(
        "Workload", "users", {"queueName": "own", "podSets": sets}, namespace="default"
    )
    with pytest.raises(ControlPlaneError, match="minCount"):
        apply(queue, wrong)
    assert judged() > before


REFUSED = {
    "deployments-with-gpu-shares/00-kueue-configuration.yaml": "no matches for kind",
    "gangs/00-pod-group.yaml": "no matches for kind",
}
"""Kubernetes has no such kinds: the first file is for the controller's start, the other needs
another project's CRD."""
ABSENT = ("team-a", "hami-system")
"""Namespaces that the examples are for and do not make."""


@pytest.mark.parametrize("folder", sorted(one.name for one in FOLDER.glob("*/")))
def test_the_owners_folders_are_applied_as_they_are(queue: ControlPlane, folder: str) -> None:
    for name in ABSENT:
        apply(queue, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    applied = 0
    for one in sorted((FOLDER / folder).glob("*.yaml")):
        verb = "create" if "generateName" in one.read_text() else "apply"
        wrong = REFUSED.get(f"{folder}/{one.name}")
        if wrong is not None:
            with pytest.raises(ControlPlaneError, match=wrong):
                queue.kubectl(verb, "-f", str(one))
            continue
        queue.kubectl(verb, "-f", str(one))
        applied += 1
    assert applied
    for place, told in REASONS.get(folder, {}).items():
        until(f"{place} is told", lambda told=told, place=place: told in why(queue, place), 30)  # type: ignore[misc]


REASONS = {
    "research-and-production": {
        "ai-research/llm-training-research": "resource cpu unavailable in ClusterQueue",
        "ai-production/model-inference-prod": "namespace doesn't match ClusterQueue selector",
    },
}
"""Kueue says the same of them: their ClusterQueue covers no cpu, and serves one of their namespaces."""


def why(plane: ControlPlane, place: str) -> str:
    """Why a job's Workload waits, or that it does not."""
    namespace, name = place.split("/")
    for one in plane.api.get(f"{KUEUE}/namespaces/{namespace}/workloads")["items"]:
        if not name or name in one["metadata"]["name"]:
            return str(condition(one, "QuotaReserved").get("message", "nothing is said yet"))
    return "it has none"


def test_who_waits_is_told_why_where_it_is_looked_for(queue: ControlPlane) -> None:
    queue.api.create("jobs", "default", job("waits", "not-there"))
    bare = {"name": "waits-too", "namespace": "default"}
    labels = {"labels": {"kueue.x-k8s.io/queue-name": "not-there"}}
    spec = {"containers": [{"name": "main", "image": "none"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {**bare, **labels}, "spec": spec}
    queue.api.call("POST", "/api/v1/namespaces/default/pods", pod)

    def told() -> list[tuple[str, str]]:
        events = queue.api.get("/api/v1/namespaces/default/events")["items"]
        return sorted(
            (one["involvedObject"]["kind"], one["type"])
            for one in events
            if one["involvedObject"]["name"] in ("waits", "waits-too")
            and "LocalQueue not-there doesn't exist" in one["message"]
        )

    until("both are told", lambda: len(told()) >= 2, 60)
    apply(queue, quota("another", 1))  # Everything is looked at again.
    until("it is", lambda: queue.api.get(f"{KUEUE}/clusterqueues/another").get("status"), 60)
    assert told() == [("Job", "Warning"), ("Pod", "Warning")], "once each"
