"""Manifests: what is read from each version, what is reported of mistakes, and the examples."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path

import pytest

from queuecontroller.kueueapi.manifests import (
    ManifestError,
    read_cluster_queue,
    read_cohort,
    read_local_queue,
    read_workload,
)
from queuecontroller.kueueapi.manifests.configuration import read_configuration
from queuecontroller.kueueapi.manifests.documents import Documents, load
from queuecontroller.scheduler.model.objects import (
    AdmissionMode,
    FungibilityPolicy,
    QueueingStrategy,
    StopPolicy,
)
from queuecontroller.scheduler.model.selectors import LabelSelector
from queuecontroller.scheduler.model.settings import (
    WEIGHT_UNIT,
    AdmissionFairSharing,
    EngineSettings,
)
from queuecontroller.scheduler.model.transformations import (
    Strategy,
    Transformation,
    Transformations,
)
from queuecontroller.scheduler.scheduler import Scheduler
from sluicecommon.kubernetes.durations import parse_duration_ns
from tests.queue.builders import SECOND, used
from tests.queue.frameworks.samples import SAMPLES
from tests.queue.manifests.collected import FOLDER, SETS
from tests.queue.manifests.texts import CONFIGURATION, POD


def queue(**spec: object) -> dict[str, object]:
    return {"metadata": {"name": "q"}, "spec": spec}


@pytest.mark.parametrize("field", ["cohort", "cohortName"])
def test_both_names_of_the_cohort_are_read(field: str) -> None:
    assert read_cluster_queue(queue(**{field: "all"})).cohort == "all"


@pytest.mark.parametrize("field", ["parent", "parentName"])
def test_both_names_of_a_cohorts_parent_are_read(field: str) -> None:
    assert read_cohort(queue(**{field: "top"})).parent == "top"


@pytest.mark.parametrize(
    ("borrow", "preempt"), [("Borrow", "Preempt"), ("MayStopSearch", "MayStopSearch")]
)
def test_old_and_new_fungibility_values_mean_the_same(borrow: str, preempt: str) -> None:
    made = read_cluster_queue(
        queue(flavorFungibility={"whenCanBorrow": borrow, "whenCanPreempt": preempt})
    ).flavor_fungibility
    assert made.when_can_borrow is FungibilityPolicy.MAY_STOP_SEARCH
    assert made.when_can_preempt is FungibilityPolicy.MAY_STOP_SEARCH


def test_what_is_left_out_has_kueues_defaults() -> None:
    made = read_cluster_queue(queue())
    assert made.queueing_strategy is QueueingStrategy.BEST_EFFORT_FIFO
    assert made.flavor_fungibility.when_can_borrow is FungibilityPolicy.MAY_STOP_SEARCH
    assert made.flavor_fungibility.when_can_preempt is FungibilityPolicy.TRY_NEXT_FLAVOR
    assert made.preemption.within_cluster_queue.value == "Never"
    assert (made.stop_policy, made.fair_weight_milli) == (StopPolicy.NONE, 1000)
    assert made.namespace_selector is None
    assert read_cluster_queue(queue(namespaceSelector={})).namespace_selector == LabelSelector()


@pytest.mark.parametrize(
    ("spec", "field", "hint"),
    [
        ({"resourceGroup": []}, "ClusterQueue.spec.resourceGroup", "did you mean resourceGroups"),
        ({"preemption": {"reclaimInCohort": "Any"}}, "ClusterQueue.spec.preemption.reclaimInCohort", "did you mean reclaimWithinCohort"),
        ({"resourceGroups": [{"coveredResources": ["cpu"], "flavors": [{"name": "a", "resources": [{"name": "cpu", "nominal": 1}]}]}]}, "ClusterQueue.spec.resourceGroups[0].flavors[0].resources[0].nominal", "did you mean nominalQuota"),
        ({"xyzzy": 1}, "ClusterQueue.spec.xyzzy", "unknown field"),
        ({"queueingStrategy": "FIFO"}, "ClusterQueue.spec.queueingStrategy", "must be one of BestEffortFIFO, StrictFIFO, got 'FIFO'"),
        ({"resourceGroups": [{"coveredResources": ["cpu"], "flavors": [{"name": "a", "resources": [{"name": "cpu", "nominalQuota": "1 Gi"}]}]}]}, "ClusterQueue.spec.resourceGroups[0].flavors[0].resources[0].nominalQuota", "expected a quantity"),
        ({"resourceGroups": {}}, "ClusterQueue.spec.resourceGroups", "expected a list"),
        ({"cohort": 7}, "ClusterQueue.spec.cohort", "expected text"),
    ],
)  # fmt: skip
def test_a_mistake_names_its_field(spec: dict[str, object], field: str, hint: str) -> None:
    with pytest.raises(ManifestError) as caught:
        read_cluster_queue(queue(**spec))
    (problem,) = caught.value.problems
    assert problem.field == field
    assert hint in problem.message


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(ManifestError) as caught:
        read_local_queue({"metadata": {}, "spec": {"stopPolicy": "Never", "cluster": "q"}})
    assert [one.field for one in caught.value.problems] == [
        "LocalQueue.metadata.name",
        "LocalQueue.spec.clusterQueue",
        "LocalQueue.spec.stopPolicy",
        "LocalQueue.spec.cluster",
    ]


def pod(containers: list[dict[str, object]], **spec: object) -> dict[str, object]:
    template = {"spec": {"containers": [{"resources": one} for one in containers], **spec}}
    return {"metadata": {"name": "w"}, "spec": {"podSets": [{"count": 1, "template": template}]}}


@pytest.mark.parametrize(
    ("manifest", "requests"),
    [
        pytest.param(pod([{"requests": {"cpu": 1}}, {"requests": {"cpu": 2}}]), {"cpu": 3000}, id="containers add up"),
        pytest.param(pod([{"limits": {"cpu": 1}}]), {"cpu": 1000}, id="a limit alone is the request"),
        pytest.param(
            pod([{"requests": {"cpu": 1}}], initContainers=[{"resources": {"requests": {"cpu": 4}}}, {"resources": {"requests": {"cpu": 3}}}]),
            {"cpu": 4000},
            id="the largest init container counts",
        ),
        pytest.param(
            pod([{"requests": {"cpu": 1}}], initContainers=[{"restartPolicy": "Always", "resources": {"requests": {"cpu": 2}}}]),
            {"cpu": 3000},
            id="a sidecar runs beside the containers",
        ),
        pytest.param(pod([{"requests": {"cpu": 1}}], overhead={"cpu": "250m"}), {"cpu": 1250}, id="overhead is added"),
        pytest.param(pod([{"requests": {"cpu": 2}}] * 2, resources={"requests": {"cpu": 1}}, overhead={"cpu": "250m"}), {"cpu": 4250}, id="no pod requests less than its containers"),
        pytest.param(pod([{"requests": {"cpu": 1}}], resources={"requests": {"cpu": 3}}), {"cpu": 3000}, id="a pod may request more than its containers"),
        pytest.param(pod([{}], resources={"limits": {"cpu": 3}}), {"cpu": 3000}, id="a pod's limit alone is its request"),
    ],
)  # fmt: skip
def test_what_a_pod_asks_for(manifest: dict[str, object], requests: dict[str, int]) -> None:
    assert dict(read_workload(manifest).pod_sets[0].requests) == requests


@pytest.mark.parametrize(
    "manifest",
    [
        pod([{"requests": {"cpu": 2}, "limits": {"cpu": 1}}]),
        pod([{}], resources={"requests": {"cpu": 2}, "limits": {"cpu": 1}}),
    ],
)
def test_requests_above_limits_are_found(manifest: dict[str, object]) -> None:
    assert "requests of cpu exceed the limits" in (
        read_workload(manifest).pod_sets[0].over_limit or ""
    )


@pytest.mark.parametrize(
    ("rule", "requests", "counted"),
    [
        pytest.param(Transformation("nvidia.com/gpu", Strategy.REPLACE, {"team/gpu": 10}), {"nvidia.com/gpu": 2, "cpu": 1000}, {"team/gpu": 20, "cpu": 1000}, id="an excluded input"),
        pytest.param(Transformation("nvidia.com/gpu", Strategy.RETAIN, {"team/gpu": 10}), {"nvidia.com/gpu": 2}, {"team/gpu": 20}, id="retained, and excluded"),
        pytest.param(Transformation("memory", Strategy.REPLACE, {"team/mem": 1}, "nvidia.com/gpu"), {"memory": 4000, "nvidia.com/gpu": 3}, {"team/mem": 12000}, id="an excluded multiplier"),
    ],
)  # fmt: skip
def test_what_is_excluded_counts_for_its_transformation(
    rule: Transformation, requests: dict[str, int], counted: dict[str, int]
) -> None:
    change = Transformations((rule,), ("nvidia.com/",))
    assert change.of_container(requests) == counted


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        (
            {"usageHalfLifeTime": "168h"},
            AdmissionFairSharing(168 * 3600 * SECOND, 300 * SECOND, {}),
        ),
        (
            {
                "usageHalfLifeTime": "1h30m",
                "usageSamplingInterval": "500ms",
                "resourceWeights": {"cpu": 2.0, "memory": "0.5", "nvidia.com/gpu": 0},
            },
            AdmissionFairSharing(
                5400 * SECOND,
                SECOND // 2,
                {"cpu": 2 * WEIGHT_UNIT, "memory": WEIGHT_UNIT // 2, "nvidia.com/gpu": 0},
            ),
        ),
        ({"usageHalfLifeTime": 0, "usageSamplingInterval": "1.5s"}, AdmissionFairSharing(0, 1500 * 10**6)),
        ({"usageHalfLifeTime": "1s", "resourceWeights": {"x": 1e-10}}, AdmissionFairSharing(SECOND, resource_weights={"x": 1})),
    ],
)  # fmt: skip
def test_admission_fair_sharing_is_read(
    section: dict[str, object], expected: AdmissionFairSharing
) -> None:
    for version in ("v1beta1", "v1beta2"):
        document = {
            "apiVersion": f"config.kueue.x-k8s.io/{version}",
            "kind": "Configuration",
            "admissionFairSharing": section,
        }
        assert read_configuration(document).admission_fair_sharing == expected
    assert read_configuration({"kind": "Configuration"}).admission_fair_sharing is None


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"usageHalfLifeTime": "-1h"}, "usageHalfLifeTime: must not be negative"),
        (
            {"usageHalfLifeTime": "week"},
            "usageHalfLifeTime: expected a duration such as 168h, 5m, 1h30m or 500ms, got 'week'",
        ),
        (
            {"usageHalfLifeTime": 168},
            "usageHalfLifeTime: expected a duration such as 168h, 5m, 1h30m or 500ms, got 168",
        ),
        ({"usageSamplingInterval": "0s"}, "usageSamplingInterval: must be greater than 0"),
        ({"resourceWeights": {"cpu": -1}}, "resourceWeights.cpu: must be a number from 0"),
        ({"resourceWeights": {"cpu": True}}, "resourceWeights.cpu: must be a number from 0"),
        ({"resourceWeights": {"cpu": float("nan")}}, "resourceWeights.cpu: must be a number"),
        ({"resourceWeights": {"cpu": "much"}}, "resourceWeights.cpu: must be a number"),
        ({"usageHalfLifetime": "1h"}, "did you mean usageHalfLifeTime?"),
    ],
)
def test_mistakes_in_admission_fair_sharing_are_named(
    section: dict[str, object], message: str
) -> None:
    with pytest.raises(ManifestError) as raised:
        read_configuration({"admissionFairSharing": section})
    (problem,) = raised.value.problems
    assert f"Configuration.admissionFairSharing.{message}" in str(problem) or (
        "did you mean" in message and message in str(problem)
    )


def test_admission_scopes_are_read() -> None:
    usage = {"admissionMode": "UsageBasedAdmissionFairSharing"}
    assert read_cluster_queue(queue()).admission_mode is AdmissionMode.NONE
    assert read_cluster_queue(queue(admissionScope=usage)).admission_mode is AdmissionMode.BY_USAGE
    assert read_cohort(queue(admissionScope=usage)).admission_mode is AdmissionMode.BY_USAGE
    no = {"admissionMode": "NoAdmissionFairSharing"}
    assert read_cluster_queue(queue(admissionScope=no)).admission_mode is AdmissionMode.NONE
    for wrong in ({}, {"admissionMode": "Usage"}, {"mode": "UsageBasedAdmissionFairSharing"}):
        with pytest.raises(ManifestError, match="admissionScope"):
            read_cluster_queue(queue(admissionScope=wrong))


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("0", 0),
        ("168h", 168 * 3600 * SECOND),
        ("1h30m", 5400 * SECOND),
        ("1.5h", 5400 * SECOND),
        (".5s", SECOND // 2),
        ("1us1ns", 1001),
        ("-2m", -120 * SECOND),
    ],
)
def test_durations(text: str, ns: int) -> None:
    assert parse_duration_ns(text) == ns
    if ns > 0:
        assert parse_duration_ns(shortest(ns)) == ns


def shortest(ns: int) -> str:
    """In whole units: 168h, 5m, 90s."""
    units = {"h": 3600 * SECOND, "m": 60 * SECOND, "s": SECOND, "ms": 10**6, "us": 10**3, "ns": 1}
    return next(f"{ns // size}{unit}" for unit, size in units.items() if ns % size == 0)


@pytest.mark.parametrize("text", ["", "h", "5", "1h 5m", "5d", "1e3s", "9999999999h", "1h-5m"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="expected a duration"):
        parse_duration_ns(text)


@pytest.mark.parametrize(
    ("requests", "counts"),
    [
        ("a: 5", {"b": 10, "c": 15}),
        ("d: 4", {"b": 4, "d": 4}),
        ("a: 1, d: 4", {"b": 6, "c": 3, "d": 4}),
        ("e: 2, d: 3", {"b": 3, "d": 3, "f": 60}),
        ("e: 2", {"f": 20}),
        ("example.com/x: 1, g: 1", {"g": 1}),
    ],
)
def test_transformations(requests: str, counts: dict[str, int]) -> None:
    found = load({"all.yaml": CONFIGURATION + POD % requests})
    assert not found.problems
    assert dict(found.workloads[0].pod_sets[0].requests) == counts


@pytest.mark.parametrize(
    ("manifest", "sizes"),
    [
        ("kind: Job\nspec: {parallelism: 4, template: {spec: {containers: []}}}", [4]),
        ("kind: Job\nspec: {parallelism: 4, completions: 2, template: {spec: {containers: []}}}", [2]),
        ("kind: Deployment\nspec: {replicas: 3, template: {spec: {containers: []}}}", [1, 1, 1]),
        ("kind: Pod\nspec: {containers: []}", [1]),
    ],
)  # fmt: skip
def test_what_users_submit_becomes_workloads(manifest: str, sizes: list[int]) -> None:
    text = manifest + "\nmetadata: {name: x, labels: {kueue.x-k8s.io/queue-name: q}}"
    found = load({"x.yaml": text})
    assert [one.pod_sets[0].count for one in found.workloads] == sizes
    assert len({one.key for one in found.workloads}) == len(sizes)
    unqueued = load({"x.yaml": manifest + "\nmetadata: {name: x}"})
    assert (unqueued.workloads, len(unqueued.passed_over)) == ([], 1)


@pytest.mark.parametrize("name", [one for one in SAMPLES if "trainjob" not in one])
def test_jobs_of_every_framework_become_workloads_with_their_pod_sets(name: str) -> None:
    document, sizes = SAMPLES[name]
    found = load({"x.json": json.dumps(document)})
    assert not found.problems
    (workload,) = found.workloads
    assert workload.name == f"{document['kind'].lower()}-sample"
    assert [(one.name, one.count) for one in workload.pod_sets] == sizes
    assert all(one.requests["cpu"] > 0 for one in workload.pod_sets)


def test_a_wrong_request_is_told_where_it_stands_in_the_job() -> None:
    document = deepcopy(SAMPLES["jobset.x-k8s.io/jobset"][0])
    pod = document["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]
    pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "many"
    (problem,) = load({"x.json": json.dumps(document)}).problems
    assert problem.field == (
        "spec.replicatedJobs[1].template.spec.template.spec.containers[0].resources.requests.cpu"
    )


def test_a_time_limit_is_read_of_a_jobs_label() -> None:
    document = deepcopy(SAMPLES["batch/job"][0])
    document["metadata"]["labels"]["kueue.x-k8s.io/max-exec-time-seconds"] = "60"
    (workload,) = load({"x.json": json.dumps(document)}).workloads
    assert workload.max_execution_s == 60


@pytest.mark.parametrize(
    ("namespace", "text", "replaced"),
    [
        ("team", "team/first", "team/first"),
        ("", "default/first", "default/first"),
        ("team", "other/first", None),
        ("team", "first", None),
        ("team", "", None),
    ],
)
def test_only_a_slice_of_its_own_namespace_is_replaced(
    namespace: str, text: str, replaced: str | None
) -> None:
    name = "kueue.x-k8s.io/workload-slice-replacement-for"
    head = {"name": "w", "namespace": namespace, "annotations": {name: text}}
    assert read_workload({"metadata": head, "spec": {}}).replaces == replaced


def test_a_workloads_own_class_decides_over_its_pods() -> None:
    classes = """
kind: WorkloadPriorityClass
metadata: {name: w}
value: 7
---
kind: PriorityClass
metadata: {name: p}
value: 5
---
kind: PriorityClass
metadata: {name: d}
globalDefault: true
value: 3
---
"""

    def priority(labels: str, spec: str) -> int:
        one = f"kind: Pod\nmetadata: {{name: x, labels: {{kueue.x-k8s.io/queue-name: q{labels}}}}}\nspec: {{containers: []{spec}}}"
        return load({"x.yaml": classes + one}).workloads[0].priority

    workload_class, pod_class = ", kueue.x-k8s.io/priority-class: w", ", priorityClassName: p"
    assert priority(workload_class, pod_class) == 7
    assert priority("", pod_class) == 5
    assert priority("", "") == 3


def test_a_job_of_a_class_that_does_not_exist_is_no_workload() -> None:
    """Any priority would be wrong, and Kueue does not queue it."""
    one = "kind: Pod\nmetadata: {name: x, labels: {kueue.x-k8s.io/queue-name: q, kueue.x-k8s.io/priority-class: w}}\nspec: {containers: []}\n"
    found = load({"x.yaml": one})
    assert found.workloads == []
    (problem,) = found.problems
    assert "there is no WorkloadPriorityClass 'w'" in str(problem)
    known = "---\nkind: WorkloadPriorityClass\nmetadata: {name: w}\nvalue: 7\n"
    assert [one.priority for one in load({"x.yaml": one + known}).workloads] == [7]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind: Cohort\nx: [a,\n", "x.yaml:3: is not valid YAML: "),
        ("just text", "x.yaml:1: has no kind (fix: every document is an object"),
        ("a: 1\nb: *a", "x.yaml:2: is not valid YAML: aliases (*a) are not taken; write it out"),
        ("a: " + "[" * 40 + "]" * 40, "x.yaml:1: is not valid YAML: nested deeper than 32"),
        (
            "kind: Cohort\nat: !!timestamp 2001-99-01",
            "x.yaml:2: 2001-99-01: month must be in 1..12",
        ),
        ("kind: Cohort\nat: !!bool x", "x.yaml:2: x: "),
        ("kind: Cohort\nat: " + "9" * 5000, "x.yaml:2: 9999999999"),
        ("kind: Cohort\non: x", "x.yaml:1: line 2: key on is not text (fix: put it in quotes"),
        ("kind: Cohort\nkind: Cohort", "x.yaml:1: kind: is given twice (lines 1 and 2)"),
        ("kind: Cohort\nx: a\0b", "x.yaml:2: is not valid YAML: character"),
        (
            "apiVersion: kueue.x-k8s.io/v9\nkind: Cohort\nmetadata: {name: c}",
            "x.yaml:1: Cohort/c apiVersion: unknown version v9 (known: v1alpha1, v1alpha2,",
        ),
        (
            "kind: LocalQueue\nmetadata: {name: l}\nspec:\n  {}",
            "x.yaml:3: LocalQueue/default/l spec.clusterQueue: is required (fix: add it)",
        ),
        (
            "kind: PriorityClass\nmetadata: [p]\nvalue: 1",
            "x.yaml:2: PriorityClass/ metadata: expected fields, got ['p']",
        ),
    ],
)
def test_a_document_that_cannot_be_used_is_told_and_the_rest_is_read(text: str, said: str) -> None:
    found = load({"x.yaml": text, "y.yaml": "kind: Cohort\nmetadata: {name: good}"})
    assert str(found.problems[0]).startswith(said)
    assert [one.name for one in found.cohorts] == ["good"]


def read_set(folder: Path) -> Documents:
    return load(
        {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.yaml"))}
    )


@pytest.mark.parametrize("folder", SETS, ids=lambda path: path.name)
def test_the_owners_manifests_load(folder: Path) -> None:
    assert read_set(folder).problems == []


def test_the_owners_shares_add_up() -> None:
    """Two pods of one GPU and one of two: cores 50 + 50 + 2 x 30, memory 1024 + 1024 + 2 x 1024."""
    found = read_set(FOLDER / "deployments-with-gpu-shares")
    assert [one.namespace_selector for one in found.cluster_queues] == [None]
    made = Scheduler(EngineSettings(missing_selector_admits_all=True))
    for flavor in found.flavors:
        made.cache.put_flavor(flavor)
    for one in found.cluster_queues:
        made.cache.put_cluster_queue(one)
    for local in found.local_queues:
        made.put_local_queue(local)
    made.settle()
    for workload in found.workloads:
        made.submit(workload)
    for _ in found.workloads:
        made.cycle(SECOND)
    assert used(made, "hami-queue") == {
        "hami-flavor/nvidia.com/gpu": 4,
        "hami-flavor/nvidia.com/total-gpucores": 160,
        "hami-flavor/nvidia.com/total-gpumem": 4096,
    }
