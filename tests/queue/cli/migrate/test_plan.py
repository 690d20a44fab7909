"""Plan of an import, object by object; after the import the plan is empty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from queuecontroller.cli.migrate.objects import Name, carried, in_order, name_of, why_not
from queuecontroller.cli.migrate.plan import (
    ACTS,
    Action,
    Step,
    plan_cluster,
    plan_from_service,
    plan_in_place,
    plan_service,
)

NEW, OLD = "kueue.x-k8s.io/v1beta2", "kueue.x-k8s.io/v1beta1"
LAST = {"kubectl.kubernetes.io/last-applied-configuration": "{}"}


def of(kind: str, name: str, spec: Any = None, version: str = NEW, **more: Any) -> dict[str, Any]:
    head = {"name": name, "uid": f"u-{name}", "resourceVersion": "7", "generation": 1}
    return {"apiVersion": version, "kind": kind, "metadata": head, "spec": spec or {}, **more}


def queue(name: str = "cq", quota: int | str = 4, **spec: Any) -> dict[str, Any]:
    flavors = [{"name": "f", "resources": [{"name": "cpu", "nominalQuota": quota}]}]
    groups = [{"coveredResources": ["cpu"], "flavors": flavors}]
    return of("ClusterQueue", name, {"resourceGroups": groups, "namespaceSelector": {}, **spec})


def workload(
    name: str, job: str | None = "j", running: bool = False, **more: Any
) -> dict[str, Any]:
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}
    pods = [{"name": "main", "count": 1, "template": {"spec": {"containers": [container]}}}]
    made = of("Workload", name, {"queueName": "lq", "podSets": pods, "priority": 5, "active": True})
    made["metadata"]["namespace"] = "n"
    if job is not None:
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": f"there-{job}", "controller": True}  # fmt: skip
        made["metadata"]["ownerReferences"] = [owner]
    if running:
        assigned = {"name": "main", "count": 1, "flavors": {"cpu": "f"}, "resourceUsage": {"cpu": "1"}}  # fmt: skip
        true = [{"type": one, "status": "True", "reason": one, "message": ""} for one in ("QuotaReserved", "Admitted")]  # fmt: skip
        made["status"] = {
            "admission": {"clusterQueue": "cq", "podSetAssignments": [assigned]},
            "conditions": true,
        }
    made.update(more)
    return made


def job(name: str = "j", suspend: bool = False) -> dict[str, Any]:
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    head = {"namespace": "n", "name": name, "uid": f"here-{name}", "labels": {"kueue.x-k8s.io/queue-name": "lq"}}  # fmt: skip
    spec = {"suspend": suspend, "parallelism": 1, "completions": 1, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": head, "spec": spec}


def finder(*jobs: dict[str, Any]) -> Any:
    def find(owner: Mapping[str, Any], namespace: str) -> Any:
        known = {one["metadata"]["name"]: one for one in jobs}
        return known.get(str(owner.get("name"))) if namespace == "n" else None

    return find


def told(steps: list[Step]) -> list[str]:
    return [str(one) for one in steps]


def into(*there: dict[str, Any]) -> dict[Name, dict[str, Any]]:
    return {name_of(one): one for one in there}


# -- what is carried ------------------------------------------------------------------------------


def test_what_a_user_wished_is_carried_and_nothing_of_the_cluster() -> None:
    given = queue()
    given["metadata"] |= {"labels": {"a": "b"}, "annotations": dict(LAST), "finalizers": ["x"]}
    given["status"] = {"pendingWorkloads": 3}
    made = carried(given)
    assert made["metadata"] == {"name": "cq", "labels": {"a": "b"}}
    assert set(made) == {"apiVersion", "kind", "metadata", "spec"}


def test_older_versions_become_the_newest() -> None:
    old = of("ClusterQueue", "cq", {"cohort": "all", "admissionChecks": ["a"]}, OLD)
    spec = carried(old)["spec"]
    assert spec["cohortName"] == "all"
    assert spec["admissionChecksStrategy"] == {"admissionChecks": [{"name": "a"}]}
    priority = of("WorkloadPriorityClass", "high", None, OLD, value=10, description="d")
    assert carried(priority)["value"] == 10


def test_what_others_name_comes_first_and_workloads_by_age() -> None:
    young, old = workload("young"), workload("old")
    young["metadata"]["creationTimestamp"] = "2026-11-02T00:00:00Z"
    old["metadata"]["creationTimestamp"] = "2026-11-01T00:00:00Z"
    every = [young, of("LocalQueue", "lq"), queue(), old, of("ResourceFlavor", "f"), {"kind": "Pod"}]  # fmt: skip
    assert [one["metadata"]["name"] for one in in_order(every)] == ["f", "cq", "lq", "old", "young"]


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (queue(admissionChecksStrategy={"admissionChecks": [{"name": "mk"}]}), "spec.admissionChecksStrategy: mk is a MultiKueue check, which is not imported: add it again once the workers are named here"),
        (queue(quota="x"), "spec.resourceGroups[0].flavors[0].resources[0].nominalQuota: expected a quantity such as 1, 500m, 1.5, 2Gi or 1e3, got 'x'"),
        (workload("w", status={"clusterName": "far"}), "status.clusterName: it runs in the cluster far: let it finish there"),
    ],
    ids=["MultiKueue", "unreadable", "runs elsewhere"],
)  # fmt: skip
def test_what_cannot_be_carried_is_refused_by_its_field(document: dict[str, Any], why: str) -> None:
    check = of("AdmissionCheck", "mk", {"controllerName": "kueue.x-k8s.io/multikueue"})
    known = {name_of(one): carried(one) for one in (document, check)}
    assert why_not(known[name_of(document)], known) == [why]


def test_a_workload_of_an_unknown_kind_is_refused() -> None:
    strange = workload("w")
    strange["metadata"]["ownerReferences"][0] |= {"apiVersion": "a.b/v1", "kind": "Foo"}
    (why,) = why_not(carried(strange), {})
    assert "its owner is a Foo of a.b/v1, which is not a supported framework" in why


# -- into a cluster -------------------------------------------------------------------------------


def test_objects_are_created_changed_or_kept() -> None:
    given = [queue(), queue("same"), queue("other", 8)]
    there = into(queue("same", "4"), queue("other", 2))
    steps = plan_cluster(given, there, finder())
    assert told(steps) == [
        "create ClusterQueue/cq",
        "change ClusterQueue/other: spec.resourceGroups",
        "keep ClusterQueue/same",
    ]
    assert steps[1].version == "7"


def test_what_is_there_and_not_wished_is_taken_out() -> None:
    there = into(queue(cohortName="old", stopPolicy="Hold"))
    (step,) = plan_cluster([queue(stopPolicy="None")], there, finder())
    assert step.document["spec"]["cohortName"] is None
    assert step.document["spec"]["stopPolicy"] == "None"


def test_a_running_workload_goes_on_as_its_job_does() -> None:
    (step,) = plan_cluster([workload("w", running=True)], {}, finder(job()))
    assert str(step) == "take over Workload/n/w: Job j runs, and continues"
    (owner,) = step.document["metadata"]["ownerReferences"]
    assert owner["uid"] == "here-j"
    assert step.document["status"]["admission"]["clusterQueue"] == "cq"
    assert step.document["spec"]["priority"] == 5
    assert "uid" not in step.document["metadata"]


def test_taken_over_once_it_is_kept() -> None:
    mine = workload("w", running=True)
    (step,) = plan_cluster([mine], {}, finder(job()))
    again = plan_cluster([mine], into({**step.document}), finder(job()))
    assert [one.action for one in again] == [Action.KEEP]


@pytest.mark.parametrize(
    ("given", "jobs", "wanted"),
    [
        (workload("w"), [job()], "leave Workload/n/w: Job j is queued by the controller"),
        (workload("w", running=True), [job(suspend=True)], "leave Workload/n/w: Job j is suspended there and is queued by the controller"),
        (workload("w", running=True), [], "refuse Workload/n/w: its Job j is not in the cluster: apply it there, or let it finish first"),
        (workload("w", None), [], "create Workload/n/w: in lq, priority 5"),
        (workload("w", None, running=True), [], "take over Workload/n/w: in lq, priority 5"),
        (workload("w", status={"conditions": [{"type": "Finished", "status": "True"}]}), [], "leave Workload/n/w: it is finished"),
    ],
    ids=["waits", "suspended there", "no job there", "bare, waits", "bare, runs", "finished"],
)  # fmt: skip
def test_each_workload_by_what_it_is(
    given: dict[str, Any], jobs: list[dict[str, Any]], wanted: str
) -> None:
    assert told(plan_cluster([given], {}, finder(*jobs))) == [wanted]


# -- where Kueue ran ------------------------------------------------------------------------------


def test_in_place_everything_stays_or_is_refused_by_name() -> None:
    given = [queue(), queue("bad", "x"), workload("w", running=True), workload("waits")]
    assert told(plan_in_place(given)) == [
        "refuse ClusterQueue/bad: spec.resourceGroups[0].flavors[0].resources[0].nominalQuota: expected a quantity such as 1, 500m, 1.5, 2Gi or 1e3, got 'x'",
        "keep ClusterQueue/cq",
        "keep Workload/n/w: it runs, and continues",
        "keep Workload/n/waits",
    ]  # fmt: skip


# -- into the service, and out of it --------------------------------------------------------------


def test_the_service_takes_what_it_has_kinds_for_and_who_waits() -> None:
    config = of("ProvisioningRequestConfig", "c", {"provisioningClassName": "x"})
    steps = plan_service([queue(), config, workload("w"), workload("r", running=True)], {})
    assert told(steps)[0].startswith("refuse ProvisioningRequestConfig/c: the standalone service")
    assert told(steps)[1] == "create ClusterQueue/cq"
    assert told(steps)[2].startswith("refuse Workload/n/r: it runs in the cluster")
    assert told(steps)[3] == "create Workload/n/w: in lq, priority 5"
    done = [one.document for one in steps if one.action in ACTS]
    assert [one.action for one in plan_service(done, into(*done))] == [Action.KEEP] * 2


def shown(name: str, submitted_as: str, running: bool = True, node: str = "") -> dict[str, Any]:
    made = workload(name, None, running)
    made["sluice"] = {"submittedAs": submitted_as, "node": node}
    del made["spec"]["podSets"][0]["template"]
    return made


def test_the_services_jobs_are_found_in_the_cluster() -> None:
    given = [
        shown("job-j", "Job"),
        shown("job-w", "Job", running=False),
        shown("job-gone", "Job"),
        shown("run-1", "Workload", node="n1"),
        queue(),
    ]
    steps = plan_from_service(given, {}, finder(job(), job("w")))
    assert told(steps) == [
        "create ClusterQueue/cq",
        "refuse Workload/n/job-gone: its Job gone is not in the cluster: apply it there",
        "take over Workload/n/job-j: Job j runs, and continues",
        "leave Workload/n/job-w: Job w is queued by the controller",
        "refuse Workload/n/run-1: is a process on node n1: the cluster has no object for it: let it finish",
    ]  # fmt: skip
    made = steps[2].document
    assert made["spec"]["podSets"][0]["template"]["spec"]["containers"][0]["name"] == "c"
    assert made["status"]["admission"]["clusterQueue"] == "cq"
    assert plan_from_service(given[:1], into(made), finder(job()))[0].action is Action.KEEP
