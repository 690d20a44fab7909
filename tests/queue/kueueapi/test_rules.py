"""Rules about whole specs and about a Workload's status, each with its shortest input."""

from __future__ import annotations

from typing import Any

import pytest

from queuecontroller.kueueapi.crds import Webhook, definitions, validation
from queuecontroller.kueueapi.manifests.validating import problems_of
from tests.queue.kueueapi.reviews import made


def group(*resources: dict[str, Any], covered: tuple[str, ...] = ("cpu",)) -> dict[str, Any]:
    flavor = {"name": "f", "resources": list(resources)}
    return {"coveredResources": list(covered), "flavors": [flavor]}


def quota(name: str = "cpu", **more: Any) -> dict[str, Any]:
    return {"name": name, "nominalQuota": 1, **more}


def queue(**spec: Any) -> dict[str, Any]:
    return made("ClusterQueue", spec)


def on_flavors(*names: str) -> dict[str, Any]:
    return {"admissionChecks": [{"name": "check", "onFlavors": list(names)}]}


def selecting(**requirement: Any) -> dict[str, Any]:
    return queue(namespaceSelector={"matchExpressions": [{"key": "a", **requirement}]})


def flavor(**spec: Any) -> dict[str, Any]:
    return made("ResourceFlavor", spec)


def levels(*labels: str) -> dict[str, Any]:
    return made("Topology", {"levels": [{"nodeLabel": one} for one in labels]})


def pod_set(name: str = "main", count: int = 2, **more: Any) -> dict[str, Any]:
    return {"name": name, "count": count, "template": {"spec": {"containers": []}}, **more}


def workload(*pod_sets: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return made("Workload", {"podSets": list(pod_sets), **spec})


ASKING = {"spec": {"containers": [{"resources": {"requests": {"pods": 1}}}]}}
HOST = "kubernetes.io/hostname"
CLASS = {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "high"}
RECLAIM = {"reclaimWithinCohort": "Any", "borrowWithinCohort": {"policy": "LowerPriority"}}


@pytest.mark.parametrize(
    ("document", "field"),
    [
        (queue(resourceGroups=[group(quota(borrowingLimit=1))]), "spec.resourceGroups[0].flavors[0].resources[0].borrowingLimit"),
        (queue(resourceGroups=[group(quota(lendingLimit=1))]), "spec.resourceGroups[0].flavors[0].resources[0].lendingLimit"),
        (queue(cohortName="c", resourceGroups=[group(quota(borrowingLimit=1))]), ""),
        (queue(cohortName="c", resourceGroups=[group(quota(lendingLimit=2))]), "spec.resourceGroups[0].flavors[0].resources[0].lendingLimit"),
        (queue(cohortName="c", resourceGroups=[group(quota(lendingLimit="1"))]), ""),
        (made("Cohort", {"parentName": "p", "resourceGroups": [group(quota(lendingLimit=2))]}), ""),
        (queue(resourceGroups=[{"coveredResources": ["cpu"], "flavors": []}]), "spec.resourceGroups[0].flavors"),
        (made("Cohort", {"resourceGroups": [group(quota(borrowingLimit=1))]}), "spec.resourceGroups[0].flavors[0].resources[0].borrowingLimit"),
        (made("Cohort", {"parentName": "p", "resourceGroups": [group(quota(lendingLimit=1))]}), ""),
        (queue(resourceGroups=[group(quota(), covered=("cpu", "memory"))]), "spec.resourceGroups[0].flavors[0].resources"),
        (queue(resourceGroups=[group(quota("memory"), quota(), covered=("cpu", "memory"))]), "spec.resourceGroups[0].flavors[0].resources"),
        (queue(preemption={"borrowWithinCohort": {"policy": "LowerPriority"}}), "spec.preemption.borrowWithinCohort"),
        (queue(preemption=RECLAIM), ""),
        (queue(resourceGroups=[group(quota())], admissionChecksStrategy=on_flavors("other")), "spec.admissionChecksStrategy.admissionChecks[0].onFlavors[0]"),
        (queue(resourceGroups=[group(quota())], admissionChecksStrategy=on_flavors(group(quota())["flavors"][0]["name"])), ""),
        (queue(resourceGroups=[group(quota())], admissionChecksStrategy=on_flavors()), ""),
        (queue(fairSharing={"weight": "1n"}), "spec.fairSharing.weight"),
        (queue(fairSharing={"weight": "2n"}), ""),
        (queue(fairSharing={"weight": 0}), ""),
        (queue(namespaceSelector={"matchLabels": {"a": "not a value"}}), "spec.namespaceSelector.matchLabels"),
        (selecting(operator="In", values=[]), "spec.namespaceSelector.matchExpressions[0].values"),
        (selecting(operator="Exists", values=["x"]), "spec.namespaceSelector.matchExpressions[0].values"),
        (selecting(operator="NotIn", values=["x"]), ""),
        (flavor(nodeLabels={"not a key": "x"}), "spec.nodeLabels"),
        (flavor(nodeLabels={"a": "-"}), "spec.nodeLabels"),
        (flavor(topologyName="t"), "spec.nodeLabels"),
        (flavor(topologyName="t", nodeLabels={"a": "b"}), ""),
        (flavor(tolerations=[{"key": "a", "operator": "Exists", "value": "b"}]), "spec.tolerations[0].value"),
        (flavor(tolerations=[{"operator": "Equal"}]), "spec.tolerations[0].operator"),
        (flavor(tolerations=[{"key": "a", "operator": "In"}]), "spec.tolerations[0].operator"),
        (flavor(tolerations=[{"key": "a", "effect": "Never"}]), "spec.tolerations[0].effect"),
        (flavor(tolerations=[{"key": "a", "tolerationSeconds": 5}]), "spec.tolerations[0].effect"),
        (flavor(tolerations=[{"key": "a", "effect": "NoExecute", "tolerationSeconds": 5}, {"operator": "Exists"}]), ""),
        (levels(HOST, "rack"), "spec.levels[0].nodeLabel"),
        (levels("rack", HOST), ""),
        (workload(), "spec.podSets"),
        (workload(pod_set("a", minCount=1), pod_set("b", minCount=1)), "spec.podSets"),
        (workload(pod_set(template=ASKING)), "spec.podSets[0].template.spec.containers[0].resources.requests.pods"),
        (workload(pod_set(), priorityClassRef=CLASS), "spec.priority"),
        (workload(pod_set(), priority=1, priorityClassRef={**CLASS, "group": "scheduling.k8s.io"}), "spec.priorityClassRef"),
        (workload(pod_set(), priority=1, priorityClassRef=CLASS), ""),
    ],
)  # fmt: skip
def test_a_spec_that_kueue_refuses_is_refused(document: dict[str, Any], field: str) -> None:
    assert [one.field for one in problems_of(document)] == ([field] if field else [])


@pytest.mark.parametrize("version", ["v1alpha2", "v1beta1"])
def test_manifests_of_the_old_versions_are_taken_as_they_are(version: str) -> None:
    resources = [quota("memory", borrowingLimit=1)]
    document = made("ClusterQueue", {"resourceGroups": [group(*resources, covered=("cpu", "memory"))]}, version)  # fmt: skip
    assert problems_of(document) == []
    newer = {**document, "apiVersion": "kueue.x-k8s.io/v1beta2"}
    assert len(problems_of(newer)) == 2


RESERVED = {"type": "QuotaReserved", "status": "True"}
ASSIGNED = {"name": "main", "count": 2, "flavors": {"cpu": "f"}, "resourceUsage": {"cpu": "2"}}
ADMISSION = {"clusterQueue": "cq", "podSetAssignments": [ASSIGNED]}
HELD = {"conditions": [RESERVED], "admission": ADMISSION}
LEVELS = {"levels": ["rack"]}
SLICE = {"domainCount": 2, "podCounts": {"universal": 1}, "valuesPerLevel": [{"universal": "r"}]}
READY = {"name": "c", "state": "Ready"}
UPDATES = [{"name": "main", "labels": {"a": "b"}}]


def assigned(**more: Any) -> dict[str, Any]:
    return {**HELD, "admission": {**ADMISSION, "podSetAssignments": [{**ASSIGNED, **more}]}}


def updating(**update: Any) -> dict[str, Any]:
    return {"admissionChecks": [{**READY, "podSetUpdates": [{"name": "main", **update}]}]}


def placed(**slice_: Any) -> dict[str, Any]:
    return assigned(topologyAssignment={**LEVELS, "slices": [{**SLICE, **slice_}]})


@pytest.mark.parametrize(
    ("before", "after", "field"),
    [
        ({}, HELD, ""),
        (HELD, {}, ""),
        ({}, {"conditions": [RESERVED]}, "status.admission"),
        ({"conditions": [RESERVED]}, {"conditions": [RESERVED], "requeueState": {"count": 1}}, ""),
        (HELD, {**HELD, "admission": {**ADMISSION, "clusterQueue": "other"}}, "status.admission"),
        (HELD, {**HELD, "reclaimablePods": [{"name": "main", "count": 1}]}, ""),
        (HELD, {**HELD, "reclaimablePods": [{"name": "main", "count": 3}]}, "status.reclaimablePods[0].count"),
        (HELD, {**HELD, "reclaimablePods": [{"name": "no", "count": 1}]}, "status.reclaimablePods[0].name"),
        ({**HELD, "reclaimablePods": [{"name": "main", "count": 1}]}, HELD, "status.reclaimablePods"),
        ({}, assigned(name="no"), "status.admission.podSetAssignments[0].name"),
        ({}, assigned(resourceUsage={"cpu": "1m"}), "status.admission.podSetAssignments[0].resourceUsage.cpu"),
        ({}, {**HELD, "admission": {**ADMISSION, "podSetAssignments": []}}, "status.admission.podSetAssignments"),
        ({}, placed(), ""),
        ({}, placed(valuesPerLevel=[]), "status.admission.podSetAssignments[0].topologyAssignment.slices[0].valuesPerLevel"),
        ({}, placed(podCounts={}), "status.admission.podSetAssignments[0].topologyAssignment.slices[0].podCounts"),
        ({}, placed(podCounts={"individual": [1]}), "status.admission.podSetAssignments[0].topologyAssignment.slices[0].podCounts.individual"),
        ({}, placed(valuesPerLevel=[{"individual": {"roots": ["a", "b"]}}]), ""),
        ({"admissionChecks": [READY]}, {"admissionChecks": [{**READY, "podSetUpdates": UPDATES}]}, "status.admissionChecks[0].podSetUpdates"),
        ({"admissionChecks": [{**READY, "state": "Pending"}]}, {"admissionChecks": [{**READY, "podSetUpdates": UPDATES}]}, ""),
        ({}, {"admissionChecks": [{**READY, "podSetUpdates": [{"name": "no"}]}]}, "status.admissionChecks[0].podSetUpdates[0].name"),
        ({}, updating(tolerations=[{"key": "a", "operator": "In"}]), "status.admissionChecks[0].podSetUpdates[0].tolerations[0].operator"),
        ({}, updating(labels={"a": "not a value"}), "status.admissionChecks[0].podSetUpdates[0].labels"),
        ({}, updating(nodeSelector={"a b": "c"}), "status.admissionChecks[0].podSetUpdates[0].nodeSelector"),
        ({}, updating(tolerations=[{"operator": "Exists"}]), ""),
        ({}, {"clusterName": "a", "nominatedClusterNames": ["a"]}, "status.clusterName"),
        ({"nominatedClusterNames": ["a"]}, {"clusterName": "b"}, "status.clusterName"),
        ({"nominatedClusterNames": ["a"]}, {"clusterName": "a"}, ""),
        ({"clusterName": "a"}, {"clusterName": "b"}, "status.clusterName"),
        ({"clusterName": "a"}, {}, ""),
    ],
)  # fmt: skip
def test_a_status_that_kueue_refuses_is_refused(
    before: dict[str, Any], after: dict[str, Any], field: str
) -> None:
    old, new = ({**workload(pod_set()), "status": one} for one in (before, after))
    assert [one.field for one in problems_of(new, old)] == ([field] if field else [])


def test_a_status_from_before_the_rules_can_be_changed() -> None:
    wrong = {**workload(pod_set()), "status": {"conditions": [RESERVED]}}
    finalized = {**wrong, "metadata": {**wrong["metadata"], "finalizers": []}}
    assert problems_of(finalized, wrong) == []


def test_the_status_of_workloads_is_sent_to_the_webhook() -> None:
    ((rule,),) = (one["rules"] for one in validation(Webhook())["webhooks"])
    assert "workloads/status" in rule["resources"]


def schema_of_kind(kind: str, version: str) -> dict[str, Any]:
    (found,) = (one for one in definitions(Webhook()) if one["spec"]["names"]["kind"] == kind)
    (schema,) = (one["schema"] for one in found["spec"]["versions"] if one["name"] == version)
    return dict(schema["openAPIV3Schema"])


def rules_of(kind: str, version: str) -> str:
    return str(schema_of_kind(kind, version))


def test_what_holds_without_a_webhook_is_in_the_schemas() -> None:
    assert "self.borrowWithinCohort.policy != 'Never'" in rules_of("ClusterQueue", "v1beta2")
    assert "has(self.topologyName)" in rules_of("ResourceFlavor", "v1beta2")
    assert HOST in rules_of("Topology", "v1beta2")


def test_lists_are_applied_as_in_kueue() -> None:
    for kind in ("ClusterQueue", "Topology", "MultiKueueConfig"):
        assert "'x-kubernetes-list-type': 'atomic'" in rules_of(kind, "v1beta2")
    for kind, path in (
        ("ClusterQueue", ("spec", "namespaceSelector")),
        ("ResourceFlavor", ("spec", "nodeLabels")),
        ("Workload", ("status", "nominatedClusterNames")),
    ):
        schema = schema_of_kind(kind, "v1beta2")
        for name in path:
            schema = schema["properties"][name]
        of = "list" if schema["type"] == "array" else "map"
        assert schema[f"x-kubernetes-{of}-type"] == "atomic", f"two managers must not merge {path}"
