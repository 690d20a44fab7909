"""Refusals of queued jobs when they are written, and of changes while they run."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from queuecontroller.frameworks import (
    Setting,
    framework_of,
    job_problems,
    on_create,
    pod_sets,
)
from queuecontroller.frameworks.patches import at, merged
from queuecontroller.frameworks.reconcile import ALONE
from queuecontroller.frameworks.table import frameworks
from tests.queue.frameworks.samples import QUEUE, RUNTIME, SAMPLES, job, pod, sample, workers

PREFIX = "kueue.x-k8s.io/"
PRIORITY = f"{PREFIX}priority-class"


def told(
    document: dict[str, Any], old: dict[str, Any] | None = None, around: Setting = ALONE
) -> list[str]:
    fw = framework_of(document)
    assert fw is not None
    return [one.field for one in job_problems(fw, document, old, around)]


def ready(name: str) -> dict[str, Any]:
    document = sample(name)
    if name == "ray.io/rayjob":
        document["spec"]["shutdownAfterJobFinishes"] = True
    return document


def running(name: str) -> dict[str, Any]:
    document = ready(name)
    fw = framework_of(document)
    assert fw is not None
    patch: dict[str, Any] = {}
    inner = patch
    for step in fw.suspend[:-1]:
        inner = inner.setdefault(str(step), {})
    inner[str(fw.suspend[-1])] = False
    return merged(document, patch)


def labelled(document: dict[str, Any], **labels: str | None) -> dict[str, Any]:
    patch = {PREFIX + name.replace("_", "-"): value for name, value in labels.items()}
    return merged(document, {"metadata": {"labels": patch}})


def noted(document: dict[str, Any], **notes: str) -> dict[str, Any]:
    patch = {PREFIX + name.replace("_", "-"): value for name, value in notes.items()}
    return merged(document, {"metadata": {"annotations": patch}})


@pytest.mark.parametrize("name", SAMPLES)
def test_a_right_job_is_taken_and_may_be_written_again(name: str) -> None:
    around = Setting(runtime=RUNTIME)
    assert told(ready(name), None, around) == []
    assert told(running(name), ready(name), around) == []


@pytest.mark.parametrize("name", SAMPLES)
def test_a_running_job_stays_in_its_queue(name: str) -> None:
    for queue in (None, "other"):
        changed = labelled(running(name), queue_name=queue)
        assert told(changed, running(name)) == [f"metadata.labels[{QUEUE}]"]
        assert told(labelled(ready(name), queue_name=queue), ready(name)) == [], "it is suspended"


@pytest.mark.parametrize("name", SAMPLES)
def test_a_running_job_keeps_a_priority_class(name: str) -> None:
    low = labelled(running(name), priority_class="low")
    assert told(labelled(low, priority_class="high"), low) == []
    assert told(running(name), low) == [f"metadata.labels[{PRIORITY}]"]
    assert told(low, running(name)) == [f"metadata.labels[{PRIORITY}]"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"queue_name": "Not_A_Name"}, f"metadata.labels[{QUEUE}]"),
        ({"prebuilt_workload_name": "a b"}, f"metadata.labels[{PREFIX}prebuilt-workload-name]"),
        ({"max_exec_time_seconds": "-5"}, f"metadata.labels.{PREFIX}max-exec-time-seconds"),
    ],
)
def test_labels_are_judged_by_their_grammar(change: dict[str, str], field: str) -> None:
    assert told(labelled(ready("batch/job"), **change)) == [field]


@pytest.mark.parametrize("least", ["a", "-1", "4", "9999"])
def test_the_fewest_pods_are_a_number_within_reach(least: str) -> None:
    (field,) = told(noted(ready("batch/job"), job_min_parallelism=least))
    assert "job-min-parallelism" in field


def test_a_job_may_do_without_pods() -> None:
    document = noted(ready("batch/job"), job_min_parallelism="0")
    assert told(document) == []
    fw = framework_of(document)
    assert fw is not None
    assert pod_sets(fw, document)[0]["minCount"] == 0


@pytest.mark.parametrize(
    ("strategy", "elastic", "is_refused"),
    [
        pytest.param(None, False, True, id="the operator's default is another cluster"),
        pytest.param({"type": "NewCluster"}, False, True, id="another cluster"),
        pytest.param({"type": "None"}, False, False, id="no other cluster"),
        pytest.param({"type": "NewCluster"}, True, False, id="another cluster by a slice"),
    ],
)
def test_a_rayservice_does_not_upgrade_outside_of_its_quota(
    strategy: dict[str, str] | None, elastic: bool, is_refused: bool
) -> None:
    document = ready("ray.io/rayservice")
    if elastic:
        document = noted(document, elastic_job="true")
    if strategy is not None:
        document["spec"]["upgradeStrategy"] = strategy
    fields = ["spec.upgradeStrategy.type"] if is_refused else []
    assert told(document, None, Setting(fixed_upgrades=True)) == fields
    assert told(document) == [], "the older line takes all"
    again = labelled(document, other="label")
    assert told(again, document, Setting(fixed_upgrades=True)) == [], "it was stored before"


@pytest.mark.parametrize("role", ["driver", "executor"])
@pytest.mark.parametrize("key", ["memory", "memoryOverhead"])
@pytest.mark.parametrize(("text", "is_taken"), [("512m", True), ("2g", True), ("512Mi", False)])
def test_memory_of_spark_is_in_its_own_notation(
    role: str, key: str, text: str, is_taken: bool
) -> None:
    document = ready("sparkoperator.k8s.io/sparkapplication")
    document["spec"][role] |= {"memory": "1g", key: text}
    fields = told(document)
    assert bool(fields) is not is_taken
    assert all(one.endswith(f"{role}.{key}") for one in fields)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_waiting_job_stays_queued_where_there_is_a_default_queue(name: str) -> None:
    around = Setting(runtime=RUNTIME, default_queue=True)
    without = labelled(ready(name), queue_name=None)
    assert told(without, ready(name), around) == [f"metadata.labels[{QUEUE}]"]
    assert told(labelled(ready(name), queue_name="other"), ready(name), around) == []


TIMEOUTS = "metadata.annotations[kueue.x-k8s.io/wait-for-pods-ready]"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"timeoutSeconds": 30}', ""),
        ('{"timeoutSeconds": 30, "recoveryTimeoutSeconds": 0}', ""),
        ('{"timeoutSeconds": 0}', "timeoutSeconds: expected a whole number from 1, got 0"),
        ('{"timeoutSeconds": true}', "timeoutSeconds: expected a whole number from 1, got True"),
        ('{"timeoutSeconds": 30, "recoveryTimeoutSeconds": -1}', "whole number from 0, got -1"),
        ('{"recoveryTimeoutSeconds": 30}', "timeoutSeconds is required"),
        (
            '{"timeoutSeconds": 61, "recoveryTimeoutSeconds": 1}',
            "timeoutSeconds 61 is more than 60",
        ),
        ('{"timeoutSeconds": 1, "recoveryTimeoutSeconds": 61}', "61 is more than 60"),
        ('{"timeout": 30}', "'timeout' is not a field of it"),
        ("30", "expected a JSON object, got '30'"),
        ("[" * 900, "expected a JSON object"),
    ],
)
def test_timeouts_of_a_job_are_judged(text: str, what: str) -> None:
    document = noted(ready("batch/job"), wait_for_pods_ready=text)
    fw = framework_of(document)
    assert fw is not None
    found = job_problems(fw, document, None, Setting(longest_ready_s=60))
    assert [one.field for one in found] == ([TIMEOUTS] if what else [])
    assert all(what in one.message for one in found)
    assert job_problems(fw, document, None, Setting()) == [], "in the older line it has no meaning"


def test_timeouts_of_a_running_job_stay_as_they_are() -> None:
    before = noted(ready("batch/job"), wait_for_pods_ready='{"timeoutSeconds": 30}')
    after = noted(ready("batch/job"), wait_for_pods_ready='{"timeoutSeconds": 40}')
    for one in (before, after):
        one["spec"]["suspend"] = False
    fw = framework_of(after)
    assert fw is not None
    around = Setting(longest_ready_s=60)
    assert [one.field for one in job_problems(fw, after, before, around)] == [TIMEOUTS]
    after["spec"]["suspend"] = True
    assert job_problems(fw, after, before, around) == []


def in_templates(document: dict[str, Any], notes: dict[str, str]) -> dict[str, Any]:
    """The job with these annotations on every pod template of it."""

    def changed(value: Any) -> Any:
        if isinstance(value, list):
            return [changed(one) for one in value]
        if not isinstance(value, dict):
            return value
        made = {key: changed(one) for key, one in value.items()}
        if isinstance(at(value, ("spec", "containers")), list):
            made["metadata"] = {**(made.get("metadata") or {}), "annotations": notes}
        return made

    found = deepcopy(document)
    found["spec"] = changed(found["spec"])
    return found


WITH_TEMPLATES = [name for name in SAMPLES if "spark" not in name and "trainjob" not in name]
BOTH = {f"{PREFIX}podset-required-topology": "rack", f"{PREFIX}podset-preferred-topology": "block"}
SLICE = {
    f"{PREFIX}podset-required-topology": "rack",
    f"{PREFIX}podset-slice-required-topology": "host",
    f"{PREFIX}podset-slice-size": "1000",
}


@pytest.mark.parametrize("name", WITH_TEMPLATES)
@pytest.mark.parametrize(
    "notes",
    [
        BOTH,
        SLICE,
        {f"{PREFIX}podset-required-topology": "not a level"},
        {f"{PREFIX}podset-unconstrained-topology": "false"},
        {f"{PREFIX}podset-slice-required-topology": "host"},
        {f"{PREFIX}podset-slice-size": "2"},
        {f"{PREFIX}podset-group-name": "g"},
    ],
    ids=["two", "a large slice", "a level", "false", "no size", "no slice", "a group alone"],
)
def test_topology_annotations_are_judged_in_every_kind(name: str, notes: dict[str, str]) -> None:
    document = in_templates(ready(name), notes)
    assert told(document), "refused"
    assert told(document, document) == [], "what is stored already may be written"
    unqueued = labelled(document, queue_name=None)
    assert told(unqueued) == []


def test_a_topology_may_be_right() -> None:
    notes = {**SLICE, f"{PREFIX}podset-slice-size": "1"}
    assert told(in_templates(ready("batch/job"), notes)) == []


CONSTRAINTS = f"{PREFIX}podset-slice-required-topology-constraints"


@pytest.mark.parametrize(
    ("notes", "least", "refused"),
    [
        ({**SLICE, f"{PREFIX}podset-slice-size": "3"}, "", False),
        ({**SLICE, f"{PREFIX}podset-slice-size": "3"}, "2", True),
        ({**SLICE, f"{PREFIX}podset-slice-size": "2"}, "2", False),
        ({CONSTRAINTS: '[{"topology": "rack", "size": 3}]'}, "", False),
        ({CONSTRAINTS: '[{"topology": "rack", "size": 3}]'}, "2", True),
        (
            {CONSTRAINTS: '[{"topology": "rack", "size": 3}, {"topology": "h", "size": 1}]'},
            "",
            True,
        ),
        (
            {CONSTRAINTS: '[{"topology": "rack", "size": 4}, {"topology": "h", "size": 1}]'},
            "",
            False,
        ),
    ],
)
def test_only_the_last_slice_may_be_smaller(
    notes: dict[str, str], least: str, refused: bool
) -> None:
    """The sample has four pods."""
    document = in_templates(ready("batch/job"), notes)
    if least:
        document = noted(document, job_min_parallelism=least)
    assert bool(told(document)) == refused


def test_rules_of_spreading_are_judged_where_they_count() -> None:
    key = f"{PREFIX}podset-topology-spreading"
    rules = '{"rules": [{"topologyKey": "rack", "maxShareAllowingPlacement": "45%"}]}'
    spreads = Setting(spreads=True)
    right = in_templates(ready("batch/job"), {key: rules})
    wrong = in_templates(ready("batch/job"), {key: "{}"})
    assert told(right, None, spreads) == []
    assert told(wrong, None, spreads) == [f"pod set main: metadata.annotations[{key}]"]
    assert told(wrong) == [], "in 0.19 it has no meaning"
    together = {f"{PREFIX}podset-group-name": "g", f"{PREFIX}podset-required-topology": "rack"}
    group = in_templates(ready("jobset.x-k8s.io/jobset"), {**together, key: rules})
    assert told(group, None, spreads) == []
    jobs = group["spec"]["replicatedJobs"]
    template = jobs[-1]["template"]["spec"]["template"]
    template["metadata"]["annotations"] = together
    assert len(jobs) > 1
    assert len(told(group, None, spreads)) == 1


def test_a_rayjob_deletes_its_own_cluster() -> None:
    document = sample("ray.io/rayjob")
    document["spec"].pop("shutdownAfterJobFinishes", None)
    assert told(document) == ["spec.shutdownAfterJobFinishes"]
    headless = ready("ray.io/rayjob")
    headless["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"] = []
    assert told(headless) == ["spec.rayClusterSpec.headGroupSpec.template.spec.containers"]


RAY = {
    "ray.io/raycluster": "spec",
    "ray.io/rayjob": "spec.rayClusterSpec",
    "ray.io/rayservice": "spec.rayClusterConfig",
}


def placed(path: str, value: Any) -> dict[str, Any]:
    for step in reversed(path.split(".")):
        value = {step: value}
    made: dict[str, Any] = value
    return made


@pytest.mark.parametrize("name", RAY)
def test_a_cluster_that_scales_itself_is_elastic(name: str) -> None:
    path = f"{RAY[name]}.enableInTreeAutoscaling"
    document = merged(ready(name), placed(path, True))
    assert told(document) == [path]
    assert told(noted(document, elastic_job="true")) == []


@pytest.mark.parametrize("name", RAY)
def test_a_running_elastic_cluster_keeps_the_gates_of_its_pods(name: str) -> None:
    """A client that writes the list of groups again would let the pods run without quota."""
    document = noted(ready(name), elastic_job="true")
    fw = framework_of(document)
    assert fw is not None
    held = merged(document, on_create(fw, document))
    running = merged(held, placed(".".join(map(str, fw.suspend)), False))
    groups = f"{RAY[name]}.workerGroupSpecs"
    first, second = at(held, tuple(groups.split(".")))
    bare = deepcopy(first)
    del bare["template"]["spec"]["schedulingGates"]
    lost = merged(running, placed(groups, [bare, second]))
    assert told(lost, running) == [f"{groups}.0.template.spec.schedulingGates"]
    resized = merged(running, placed(groups, [{**first, "replicas": 9}, second]))
    assert told(resized, running) == []
    assert told(lost, lost) == [], "it was stored before"
    stopped = merged(lost, placed(".".join(map(str, fw.suspend)), True))
    assert told(stopped, running) == []


def test_a_rayjob_has_one_cluster_and_one_head() -> None:
    document = ready("ray.io/rayjob")
    document["spec"]["clusterSelector"] = {"ray.io/cluster": "other"}
    assert told(document) == ["spec.clusterSelector"]
    del document["spec"]["rayClusterSpec"]
    assert told(document) == [], "it is not queued"
    second = ready("ray.io/rayjob")
    second["spec"]["rayClusterSpec"]["workerGroupSpecs"][1]["groupName"] = "head"
    assert told(second) == ["spec.rayClusterSpec.workerGroupSpecs[1].groupName"]


@pytest.mark.parametrize(
    ("follows", "spec", "fields"),
    [
        ("true", {"completionMode": "Indexed", "completions": 4}, []),
        ("false", {}, []),
        ("yes", {}, [f"metadata.annotations[{PREFIX}job-completions-equal-parallelism]"]),
        ("true", {"completionMode": "Indexed"}, ["spec.completions"]),
        ("true", {"completions": 4}, [f"metadata.annotations[{PREFIX}job-completions-equal-parallelism]"]),
    ],
)  # fmt: skip
def test_completions_that_follow_the_pods(
    follows: str, spec: dict[str, Any], fields: list[str]
) -> None:
    document = noted(ready("batch/job"), job_completions_equal_parallelism=follows)
    assert told(merged(document, {"spec": spec})) == fields


GROUP = {f"{PREFIX}pod-group-name": "g"}
TOTAL = {f"{PREFIX}pod-group-total-count": "2"}


def one_pod(labels: dict[str, str], annotations: dict[str, str]) -> dict[str, Any]:
    head = {"labels": {QUEUE: "q", **labels}, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": head, "spec": pod()["spec"]}


@pytest.mark.parametrize(
    ("labels", "annotations", "fields"),
    [
        (GROUP, TOTAL, []),
        (GROUP, {}, [f"metadata.annotations[{PREFIX}pod-group-total-count]"]),
        ({}, TOTAL, [f"metadata.labels[{PREFIX}pod-group-name]"]),
        ({}, {**TOTAL, f"{PREFIX}pod-suspending-parent": "statefulset"}, []),
        (GROUP, {f"{PREFIX}pod-group-total-count": "0"}, [f"metadata.annotations[{PREFIX}pod-group-total-count]"]),
        ({f"{PREFIX}pod-group-name": "G_1"}, TOTAL, [f"metadata.labels[{PREFIX}pod-group-name]"]),
        ({f"{PREFIX}managed": "no"}, {}, [f"metadata.labels[{PREFIX}managed]"]),
    ],
)  # fmt: skip
def test_pods_say_how_they_are_queued(
    labels: dict[str, str], annotations: dict[str, str], fields: list[str]
) -> None:
    assert told(one_pod(labels, annotations)) == fields


def test_a_queued_pod_stays_in_its_group() -> None:
    held = {**GROUP, f"{PREFIX}managed": "true"}
    old = one_pod(held, {**TOTAL, f"{PREFIX}retriable-in-group": "false"})
    assert told(old, old) == []
    assert told(labelled(old, pod_group_name="h"), old) == [
        f"metadata.labels[{PREFIX}pod-group-name]"
    ]
    assert told(labelled(old, managed=None), old) == [f"metadata.labels[{PREFIX}managed]"]
    again = noted(old, retriable_in_group="true")
    assert told(again, old) == [f"metadata.annotations[{PREFIX}retriable-in-group]"]
    assert told(noted(one_pod({}, {}), retriable_in_group="true"), one_pod({}, {})) == []


def test_gates_are_named_at_creation_and_only_removed() -> None:
    gated = noted(ready("batch/job"), admission_gated_by="a.io/x")
    assert told(gated) == []
    assert told(noted(ready("batch/job"), admission_gated_by="nonsense")) != []
    assert told(ready("batch/job"), gated) == []
    assert told(gated, ready("batch/job")) != []


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
def test_a_set_of_pods_is_not_taken_from_its_queue(kind: str) -> None:
    old = job("apps/v1", kind, {"replicas": 2, "template": pod()})
    assert told(labelled(old, queue_name=None), old) == [f"metadata.labels[{QUEUE}]"]
    assert told(labelled(old, queue_name="other"), old) == []
    up = {**old, "status": {"readyReplicas": 1}}
    assert told(labelled(up, queue_name="other"), up) == [f"metadata.labels[{QUEUE}]"]


def test_the_groups_of_a_leaderworkerset_keep_their_size() -> None:
    old, new = workers(), workers()
    new["spec"]["leaderWorkerTemplate"]["size"] = 6
    assert told(new, old) == ["spec.leaderWorkerTemplate.size"]
    for one in (old, new):
        del one["metadata"]["labels"][QUEUE]
    assert told(new, old) == []


def test_every_kind_with_a_field_to_suspend_it_was_tried() -> None:
    suspended = {one.name for one in frameworks() if one.suspend}
    assert suspended <= set(SAMPLES)


@pytest.mark.parametrize(
    ("dynamic", "elastic", "field", "executors"),
    [
        ({"enabled": True, "maxExecutors": 9}, False, "enabled", 3),
        ({"enabled": False, "maxExecutors": 9}, True, "", 3),
        ({"enabled": True}, True, "maxExecutors", 3),
        ({"enabled": True, "maxExecutors": 9}, True, "", 9),
        ({"enabled": True, "maxExecutors": 1}, True, "", 3),
    ],
)
def test_the_most_executors_of_a_spark_application_count(
    dynamic: dict[str, Any], elastic: bool, field: str, executors: int
) -> None:
    """Executors beyond `instances` would run without quota."""
    document = ready("sparkoperator.k8s.io/sparkapplication")
    document["spec"]["dynamicAllocation"] = dynamic
    document["spec"]["executor"]["instances"] = 3
    if elastic:
        document = noted(document, elastic_job="true")
    assert told(document) == ([f"spec.dynamicAllocation.{field}"] if field else [])
    fw = framework_of(document)
    assert fw is not None
    counts = {one["name"]: one["count"] for one in pod_sets(fw, document)}
    assert counts == {"driver": 1, "executor": executors}
