"""Kueue's kinds in a real API server: defined, stored, converted, judged, shown. No controller reads them here.

The webhooks run in this process; the API server reaches them by URL.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from queuecontroller.kueueapi import GROUP, KINDS
from queuecontroller.kueueapi.crds import Webhook, definitions, validation
from tests.cluster.api import ApiError
from tests.cluster.control_plane import ControlPlane, ControlPlaneError
from tests.cluster.fixtures import control_plane
from tests.kit.node import until
from tests.queue.kueueapi.serving import certify, webhooks
from tests.queue.manifests.collected import FOLDER, SETS

__all__ = ["control_plane"]
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
OLD, NEW = f"{GROUP}/v1beta1", f"{GROUP}/v1beta2"
BUILT_IN = ("v1", "apps/v1", "batch/v1", "scheduling.k8s.io/v1")
QUEUE = {
    "resourceGroups": [
        {
            "coveredResources": ["cpu"],
            "flavors": [{"name": "f", "resources": [{"name": "cpu", "nominalQuota": 9}]}],
        }
    ]
}


@pytest.fixture(scope="module")
def plane(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    place = tmp_path_factory.mktemp("webhooks")
    authority = certify(place)
    with webhooks(place) as server:
        bundle = base64.b64encode(authority.certificate.read_bytes()).decode()
        where = Webhook(bundle, f"https://127.0.0.1:{server.port}", word=server.word)
        text = json.dumps(
            {"apiVersion": "v1", "kind": "List", "items": [*definitions(where), validation(where)]}
        )
        control_plane.kubectl("apply", "--server-side", "-f", "-", given=text)
        until("every kind is established", lambda: not unestablished(control_plane), 60)
        until("objects are judged", lambda: judged(control_plane), 60)
        yield control_plane


def unestablished(plane: ControlPlane) -> list[str]:
    found = {one["metadata"]["name"]: one for one in plane.api.get(CRDS)["items"]}
    wanted = {f"{one.plural}.{GROUP}" for one in KINDS.values()}
    assert wanted <= set(found)
    return [name for name in wanted if condition(found[name], "Established") != "True"]


def judged(plane: ControlPlane) -> bool:
    """The API server takes a moment to know of a webhook, and to serve a kind."""
    try:
        body = made(
            "ResourceFlavor", "try", {"nodeTaints": [{"key": "a b", "effect": "NoExecute"}]}
        )
        plane.api.call("POST", f"/apis/{NEW}/resourceflavors?dryRun=All", body)
    except ApiError as error:
        return "fix:" in str(error) or error.status == 422
    return False


def condition(of: dict[str, Any], name: str) -> str:
    conditions = of.get("status", {}).get("conditions") or ()  # null until the server has looked
    return next((str(one["status"]) for one in conditions if one["type"] == name), "")


def made(kind: str, name: str, spec: object, version: str = NEW, **more: object) -> dict[str, Any]:
    namespace = {"namespace": "default"} if KINDS[kind].namespaced else {}
    head = {"name": name, **namespace}
    return {"apiVersion": version, "kind": kind, "metadata": head, "spec": spec, **more}


def apply(plane: ControlPlane, *documents: dict[str, Any]) -> str:
    return plane.kubectl(
        "apply",
        "-f",
        "-",
        given=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(documents)}),
    )


def read(plane: ControlPlane, version: str, plural: str, name: str) -> dict[str, Any]:
    namespaced = next(one.namespaced for one in KINDS.values() if one.plural == plural)
    place = "namespaces/default/" if namespaced else ""
    found: dict[str, Any] = plane.api.get(f"/apis/{version}/{place}{plural}/{name}")
    return found


def test_the_server_has_no_complaint_about_the_schemas(plane: ControlPlane) -> None:
    for one in plane.api.get(CRDS)["items"]:
        name = one["metadata"]["name"]
        assert condition(one, "NamesAccepted") == "True", name
        assert condition(one, "NonStructuralSchema") in ("", "False"), name


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_every_kind_answers_to_its_short_names_in_every_version(
    plane: ControlPlane, kind: Any
) -> None:
    for name in (kind.plural, kind.name.lower(), *kind.short_names):
        plane.kubectl("get", name, "-A")
    for version in kind.versions:
        plane.kubectl("get", f"{kind.plural}.{version}.{GROUP}", "-A")
    listed = plane.kubectl("api-resources", "--categories=kueue", "--no-headers")
    assert kind.plural in listed


def test_one_object_of_every_kind_is_stored_and_read_in_both_versions(plane: ControlPlane) -> None:
    config = {"location": "secret"}
    objects = [
        made("AdmissionCheck", "every", {"controllerName": "sluice.dev/placement", "retryDelayMinutes": 3}, OLD),
        made("ClusterQueue", "every", {**QUEUE, "cohort": "c", "admissionChecks": ["every"]}, OLD),
        made("Cohort", "every", {"parentName": "top"}, OLD),
        made("LocalQueue", "every", {"clusterQueue": "every"}, OLD),
        made("MultiKueueCluster", "every", {"kubeConfig": config}, OLD),
        made("MultiKueueConfig", "every", {"clusters": ["every"]}, OLD),
        made("ProvisioningRequestConfig", "every", {"provisioningClassName": "c"}, OLD),
        made("ResourceFlavor", "every", {"nodeLabels": {"a": "b"}}, OLD),
        made("Topology", "every", {"levels": [{"nodeLabel": "rack"}]}, OLD),
        made("Workload", "every", {"podSets": [{"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}], "priorityClassName": "p", "priorityClassSource": "kueue.x-k8s.io/workloadpriorityclass"}, OLD),
        {"apiVersion": OLD, "kind": "WorkloadPriorityClass", "metadata": {"name": "every"}, "value": 7},
    ]  # fmt: skip
    assert {one["kind"] for one in objects} == set(KINDS)
    apply(plane, *objects)
    for one in objects:
        plural = KINDS[one["kind"]].plural
        old = read(plane, OLD, plural, "every")
        for key, value in one.get("spec", {}).items():
            if one["kind"] != "Workload" or key != "podSets":
                assert old["spec"][key] == value or one["kind"] == "MultiKueueCluster", (
                    plural,
                    key,
                )
        assert read(plane, NEW, plural, "every")["apiVersion"] == NEW
    queue = read(plane, NEW, "clusterqueues", "every")["spec"]
    assert (queue["cohortName"], queue["admissionChecksStrategy"]) == (
        "c",
        {"admissionChecks": [{"name": "every"}]},
    )
    assert queue["flavorFungibility"] == {
        "whenCanBorrow": "MayStopSearch",
        "whenCanPreempt": "TryNextFlavor",
    }
    cluster = read(plane, NEW, "multikueueclusters", "every")["spec"]
    assert cluster == {"clusterSource": {"kubeConfig": {**config, "locationType": "Secret"}}}
    workload = read(plane, NEW, "workloads", "every")["spec"]
    assert workload["priorityClassRef"] == {
        "group": GROUP,
        "kind": "WorkloadPriorityClass",
        "name": "p",
    }
    assert (
        workload["active"],
        workload["podSets"][0]["name"],
        workload["podSets"][0]["count"],
    ) == (True, "main", 1)
    # kubectl takes what is filled in inside a list (name, count) for a change, in any custom resource.
    again = [one for one in objects if one["kind"] != "Workload"]
    assert "configured" not in apply(plane, *again), "the same again changes nothing"


def test_a_change_in_one_version_is_seen_in_the_other(plane: ControlPlane) -> None:
    apply(plane, made("ClusterQueue", "moves", {**QUEUE, "cohort": "one"}, OLD))
    plane.api.patch(f"/apis/{NEW}/clusterqueues/moves", {"spec": {"cohortName": "two"}})
    assert read(plane, OLD, "clusterqueues", "moves")["spec"]["cohort"] == "two"
    plane.api.patch(f"/apis/{OLD}/clusterqueues/moves", {"spec": {"cohort": "three"}})
    assert read(plane, NEW, "clusterqueues", "moves")["spec"]["cohortName"] == "three"


def test_a_status_is_converted_and_a_user_cannot_forge_one(plane: ControlPlane) -> None:
    pods = {"podSets": [{"template": {"spec": {"containers": []}}}]}
    forged = made("Workload", "stands", pods, OLD, status={"admission": {"clusterQueue": "q"}})
    forged["metadata"]["annotations"] = {
        "sluice.dev/as-v1beta2": '{"priorityClassRef":{"group":"kueue.x-k8s.io","kind":"WorkloadPriorityClass","name":"top"},"status":{"admission":{}}}'
    }
    apply(plane, forged)
    assert "status" not in read(plane, NEW, "workloads", "stands")
    assert "priorityClassRef" not in read(plane, NEW, "workloads", "stands")["spec"]
    places = [{"values": ["r1", f"n{i}"], "count": 1} for i in range(3)]
    status = {
        "accumulatedPastExexcutionTimeSeconds": 5,
        "admission": {"clusterQueue": "q", "podSetAssignments": [{"name": "main", "topologyAssignment": {"levels": ["rack", "host"], "domains": places}}]},
    }  # fmt: skip
    path = "namespaces/default/workloads/stands"
    plane.api.patch(f"/apis/{OLD}/{path}/status", {"status": status})
    new = read(plane, NEW, "workloads", "stands")["status"]
    assert new["accumulatedPastExecutionTimeSeconds"] == 5
    assignment = new["admission"]["podSetAssignments"][0]["topologyAssignment"]
    assert assignment["slices"][0]["domainCount"] == 3
    old = read(plane, OLD, "workloads", "stands")["status"]
    assert old["admission"]["podSetAssignments"][0]["topologyAssignment"]["domains"] == places


WRONG = [
    pytest.param(made("ClusterQueue", "w", {"resourceGroups": [*QUEUE["resourceGroups"], *QUEUE["resourceGroups"]]}), "resource 'cpu' is in two groups (the first is spec.resourceGroups[0].coveredResources) (fix: leave it in one of them)", id="by the webhook"),
    pytest.param(made("Workload", "w", {"podSets": [{"count": 1, "minCount": 2, "template": {}}]}), "spec.podSets[0].minCount: 2 is more than count (1) (fix: write less)", id="pods"),
    pytest.param(made("Workload", "w", {"podSets": [{"template": {"spec": {"containers": [{"resources": {"requests": {"cpu": "x"}}}]}}}]}), "expected a quantity such as 1, 500m, 1.5, 2Gi or 1e3, got 'x'", id="in a template that the schema does not know"),
    pytest.param(made("ClusterQueue", "w", {"queueingStrategy": "FIFO"}), 'Unsupported value: "FIFO"', id="by the schema"),
    pytest.param(made("ClusterQueue", "w", {"cohort": "c"}), 'unknown field "cohort"', id="an old field in the new version"),
    pytest.param(made("ResourceFlavor", "w", {"topologyName": "A_b"}), "spec.topologyName", id="a name"),
    pytest.param(made("MultiKueueCluster", "w", {"clusterSource": {}}), "needs exactly one of kubeConfig and clusterProfileRef", id="by CEL"),
]  # fmt: skip


@pytest.mark.parametrize(("document", "said"), WRONG)
def test_what_is_wrong_is_refused_with_a_word(
    plane: ControlPlane, document: dict[str, Any], said: str
) -> None:
    with pytest.raises(ControlPlaneError) as caught:
        apply(plane, document)
    assert said in str(caught.value)
    kind = KINDS[document["kind"]]
    with pytest.raises(ApiError, match="404"):
        read(plane, NEW, kind.plural, "w")


def test_a_local_queue_stays_with_its_cluster_queue(plane: ControlPlane) -> None:
    apply(plane, made("LocalQueue", "stays", {"clusterQueue": "one"}))
    with pytest.raises(ControlPlaneError, match="make another LocalQueue"):
        apply(plane, made("LocalQueue", "stays", {"clusterQueue": "two"}))


def test_pods_are_fixed_while_quota_is_reserved(plane: ControlPlane) -> None:
    def workload(count: int) -> dict[str, Any]:
        return made("Workload", "fixed", {"podSets": [{"count": count, "template": {}}]})

    apply(plane, workload(1))
    apply(plane, workload(2))
    reserved = {
        "type": "QuotaReserved",
        "status": "True",
        "reason": "r",
        "message": "m",
        "lastTransitionTime": "2026-11-22T10:00:00Z",
    }
    path = f"/apis/{NEW}/namespaces/default/workloads/fixed/status"
    with pytest.raises(ApiError, match=r"status\.admission: is required"):
        plane.api.patch(path, {"status": {"conditions": [reserved]}})
    given = {"clusterQueue": "cq", "podSetAssignments": [{"name": "main", "count": 2}]}
    plane.api.patch(path, {"status": {"conditions": [reserved], "admission": given}})
    with pytest.raises(
        ControlPlaneError, match=r"spec\.podSets: cannot be changed while quota is reserved"
    ):
        apply(plane, workload(3))


def test_get_shows_kueues_columns(plane: ControlPlane) -> None:
    apply(
        plane,
        made("ClusterQueue", "shown", {**QUEUE, "cohort": "red"}, OLD),
        made("LocalQueue", "shown", {"clusterQueue": "shown"}),
    )
    plane.api.patch(
        f"/apis/{NEW}/clusterqueues/shown/status",
        {"status": {"pendingWorkloads": 3, "admittedWorkloads": 4}},
    )
    head, line = plane.kubectl("get", "cq", "shown").splitlines()
    assert head.split("  ")[0] == "NAME"
    assert head.split() == ["NAME", "COHORT", "PENDING", "WORKLOADS"]
    assert line.split() == ["shown", "red", "3"]
    assert plane.kubectl("get", f"clusterqueues.v1beta1.{GROUP}", "shown").splitlines()[
        1
    ].split() == ["shown", "red", "3"]
    wide = plane.kubectl("get", "cq", "shown", "-o", "wide").splitlines()[1].split()
    assert wide == ["shown", "red", "BestEffortFIFO", "3", "4"]
    assert plane.kubectl("get", "kwl").split()[:7] == [
        "NAME",
        "QUEUE",
        "RESERVED",
        "IN",
        "ADMITTED",
        "FINISHED",
        "AGE",
    ]


def test_explain_has_our_words(plane: ControlPlane) -> None:
    told = plane.kubectl(
        "explain", "clusterqueues.spec.resourceGroups.flavors.resources.nominalQuota"
    )
    assert "as much as the flavor's nodes have" in told
    assert "StrictFIFO: the head blocks the queue" in plane.kubectl("explain", "cq.spec")
    assert "v1beta2 has cohortName" in plane.kubectl("explain", "cq.spec", f"--api-version={OLD}")


def examples() -> list[Any]:
    return [
        pytest.param(path, id=str(path.relative_to(FOLDER)))
        for folder in SETS
        for path in sorted(folder.glob("*.yaml"))
    ]


@pytest.mark.parametrize("path", examples())
def test_examples_are_taken_as_they_are(plane: ControlPlane, path: Path) -> None:
    documents = [one for one in yaml.safe_load_all(path.read_text()) if one]
    ours = [
        one
        for one in documents
        if one["apiVersion"].startswith(f"{GROUP}/") or one["apiVersion"] in BUILT_IN
    ]
    if len(ours) != len(documents):
        pytest.skip(f"holds {documents[0]['kind']}, which is a file for a program and no object")
    for one in documents:
        if namespace := one["metadata"].get("namespace"):
            plane.kubectl(
                "apply",
                "-f",
                "-",
                given=json.dumps(
                    {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
                ),
            )
    # kubectl itself does not apply what has only the beginning of a name.
    verb = "create" if any("generateName" in one["metadata"] for one in documents) else "apply"
    plane.kubectl(verb, "-f", str(path))
    for one in ours:
        if one["apiVersion"].startswith(GROUP):
            where = ("-n", one["metadata"].get("namespace", "default"))
            plural = KINDS[one["kind"]].plural
            stored = json.loads(
                plane.kubectl(
                    "get",
                    f"{plural}.v1beta2.{GROUP}",
                    one["metadata"]["name"],
                    *where,
                    "-o",
                    "json",
                )
            )
            assert stored["apiVersion"] == NEW


def test_kubernetes_itself_refuses_a_job_without_a_restart_policy(plane: ControlPlane) -> None:
    document = yaml.safe_load((FOLDER / "building-blocks" / "job-sample.yaml").read_text())
    document["metadata"]["name"] = "without-a-restart-policy"
    del document["spec"]["template"]["spec"]["restartPolicy"]
    with pytest.raises(ControlPlaneError, match="restartPolicy: Required value"):
        plane.kubectl("apply", "-f", "-", given=json.dumps(document))
