"""Changes by the webhook when a queued object is created, and the fields that an admission adds to
its pods."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from queuecontroller.frameworks import (
    External,
    Holding,
    PodSetInfo,
    Setting,
    external_frameworks,
    framework_named,
    framework_of,
    frameworks,
    group_of_set,
    is_suspended,
    on_create,
    pod_set_infos,
    queues_its_own,
    workload_name,
    workload_of,
)
from queuecontroller.frameworks.patches import ABSENT, at, merged
from sluicecommon.reader import ManifestError
from tests.queue.frameworks.samples import QUEUE, RUNTIME, SAMPLES, job, pod, sample

DEPLOYMENT = job("apps/v1", "Deployment", {"replicas": 3, "template": pod()})


@pytest.mark.parametrize("name", SAMPLES)
def test_a_queued_job_is_suspended_when_it_is_made(name: str) -> None:
    document = sample(name)
    fw = framework_of(document)
    assert fw is not None
    assert on_create(fw, document) == {}
    holder = document
    for step in fw.suspend[:-1]:
        holder = holder[step]
    del holder[fw.suspend[-1]]
    assert not is_suspended(fw, document)
    assert is_suspended(fw, merged(document, on_create(fw, document)))


@pytest.mark.parametrize("launcher_works", [False, True])
def test_workers_are_numbered_from_one_where_the_launcher_is_one(launcher_works: bool) -> None:
    document = sample("kubeflow.org/mpijob")
    fw = framework_of(document)
    assert fw is not None
    document["spec"]["runLauncherAsWorker"] = launcher_works
    made = merged(document, on_create(fw, document))
    head = at(made, ("spec", "mpiReplicaSpecs", "Worker", "template", "metadata"))
    offset = at(head, ("annotations", "kueue.x-k8s.io/pod-index-offset"))
    assert offset == ("1" if launcher_works else ABSENT)
    del document["spec"]["mpiReplicaSpecs"]["Worker"]
    assert on_create(fw, document) == {}, "a launcher alone"


def test_numbers_that_would_make_many_objects_are_refused_at_once() -> None:
    most = 2**31 - 1
    document = sample("jobset.x-k8s.io/jobset")
    fw = framework_of(document)
    assert fw is not None
    one = document["spec"]["replicatedJobs"][0]
    one["replicas"] = most
    one["template"]["spec"] |= {"parallelism": most, "completions": most}
    with pytest.raises(ManifestError, match="more than 2147483647"):
        workload_of(fw, document, queue="q")
    wrapped = sample("workload.codeflare.dev/appwrapper")
    inner = wrapped["spec"]["components"][0]
    for _ in range(20):
        inner = {"template": {**wrapped, "spec": {"components": [inner]}}}
    wrapped["spec"]["components"] = [inner]
    fw = framework_of(wrapped)
    assert fw is not None
    with pytest.raises(ManifestError):
        workload_of(fw, wrapped, queue="q")


def test_names_made_of_a_name_with_dots_are_good() -> None:
    document = sample("batch/job")
    document["metadata"]["name"] = "train.v1.2"
    fw = framework_of(document)
    assert fw is not None
    assert workload_name(fw, document).startswith("job-train.v1.2-")
    for name in ("a.b", "a." * 40 + "b"):
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", group_of_set(name))
        assert len(group_of_set(name)) <= 63, "it is the value of a label"


def test_a_job_without_a_queue_gets_the_default_one_where_there_is_one() -> None:
    document = sample("batch/job")
    del document["metadata"]["labels"]
    document["spec"]["suspend"] = False
    fw = framework_of(document)
    assert fw is not None
    assert on_create(fw, document) == {}
    assert on_create(fw, document, Setting(default_queue=True)) == {
        "metadata": {"labels": {QUEUE: "default"}},
        "spec": {"suspend": True},
    }


def test_a_deployment_passes_its_queue_and_priority_on_to_its_pods() -> None:
    document = {**DEPLOYMENT, "metadata": {**DEPLOYMENT["metadata"]}}
    document["metadata"]["labels"] = {QUEUE: "queue", "kueue.x-k8s.io/priority-class": "high"}
    fw = framework_of(document)
    assert fw is not None
    patch = on_create(fw, document)
    assert patch == {
        "spec": {
            "template": {
                "metadata": {
                    "annotations": {"kueue.x-k8s.io/pod-suspending-parent": "deployment"},
                    "labels": {QUEUE: "queue", "kueue.x-k8s.io/priority-class": "high"},
                }
            }
        }
    }
    assert on_create(fw, merged(document, patch)) == {}


def test_the_pods_of_a_statefulset_are_one_group() -> None:
    document = {**DEPLOYMENT, "kind": "StatefulSet"}
    fw = framework_of(document)
    assert fw is not None
    head = merged(document, on_create(fw, document))["spec"]["template"]["metadata"]
    assert head["annotations"] == {
        "kueue.x-k8s.io/pod-suspending-parent": "statefulset",
        "kueue.x-k8s.io/pod-group-total-count": "3",
        "kueue.x-k8s.io/pod-group-fast-admission": "true",
        "kueue.x-k8s.io/pod-group-serving": "true",
        "kueue.x-k8s.io/role-hash": "main",
        "kueue.x-k8s.io/pod-group-pod-index-label": "apps.kubernetes.io/pod-index",
    }
    assert head["labels"][QUEUE] == "queue"
    assert "kueue.x-k8s.io/pod-group-name" not in head["labels"], "the set's UID is not known yet"


def of_set(name: str, uid: str, **labels: str) -> dict[str, Any]:
    """A pod as the StatefulSet controller creates it, after the webhook."""
    document = job("v1", "Pod", pod()["spec"])
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name, "uid": uid}
    document["metadata"] |= {
        "labels": {QUEUE: "queue", **labels},
        "annotations": {"kueue.x-k8s.io/pod-suspending-parent": "statefulset"},
        "ownerReferences": [{**owner, "controller": True}],
    }
    fw = framework_of(document)
    assert fw is not None
    return merged(document, on_create(fw, document))


def test_two_statefulsets_of_one_name_have_groups_of_their_own() -> None:
    groups = [
        of_set("db", uid)["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"]
        for uid in ("u-1", "u-2", "u-1")
    ]
    assert groups == [group_of_set("db", uid) for uid in ("u-1", "u-2", "u-1")]
    assert groups[0] != groups[1]
    old = {"kueue.x-k8s.io/pod-group-name": group_of_set("db")}
    kept = of_set("db", "u-1", **old)["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"]
    assert kept == group_of_set("db"), "a template from before keeps its group"


def test_a_pod_that_its_parent_marks_is_held_whatever_its_queue() -> None:
    document = job("v1", "Pod", pod()["spec"])
    document["metadata"]["labels"] = {}
    document["metadata"]["annotations"] = {"kueue.x-k8s.io/pod-suspending-parent": "deployment"}
    fw = framework_of(document)
    assert fw is not None
    assert is_suspended(fw, merged(document, on_create(fw, document)))


def test_a_pod_on_a_node_is_past_holding() -> None:
    document = job("v1", "Pod", {**pod()["spec"], "nodeName": "node"})
    fw = framework_of(document)
    assert fw is not None
    assert on_create(fw, document) == {}


def test_names_of_workloads_are_kueues() -> None:
    fw = framework_named("batch/job")
    assert fw is not None
    document = {"metadata": {"name": "name", "uid": "uid"}}
    assert workload_name(fw, document) == "job-name-ef3a1"
    long = {"metadata": {"name": "n" * 300, "uid": "uid"}}
    assert len(workload_name(fw, long)) == 253
    assert len(workload_name(fw, long, longest=63)) == 63
    assert workload_name(fw, document, extra="2") != workload_name(fw, document)
    with pytest.raises(ManifestError, match=r"metadata\.name: is required"):
        workload_name(fw, {})


def test_a_workload_has_what_its_job_says() -> None:
    document = sample("batch/job")
    document["metadata"]["labels"] |= {
        "kueue.x-k8s.io/priority-class": "high",
        "kueue.x-k8s.io/max-exec-time-seconds": "90",
        "team": "blue",
        "other": "x",
    }
    document["metadata"]["annotations"] = {"provreq.kueue.x-k8s.io/max": "1", "note": "x"}
    document["spec"]["completionMode"] = "Indexed"
    document["spec"]["template"]["metadata"]["annotations"] = {
        "kueue.x-k8s.io/podset-required-topology": "rack",
        "kueue.x-k8s.io/podset-slice-size": "2",
    }
    fw = framework_of(document)
    assert fw is not None
    made = workload_of(fw, document, queue="queue", priority=9, labels_to_copy=["team", "none"])
    head, spec = made["metadata"], made["spec"]
    assert head["labels"] == {"team": "blue", "kueue.x-k8s.io/job-uid": "0c5e"}
    assert head["annotations"] == {"provreq.kueue.x-k8s.io/max": "1"}
    assert head["ownerReferences"] == [
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": "sample",
            "uid": "0c5e",
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
    assert (spec["queueName"], spec["priority"], spec["maximumExecutionTimeSeconds"]) == (
        "queue",
        9,
        90,
    )
    assert spec["podSets"][0]["topologyRequest"] == {
        "required": "rack",
        "podSetSliceSize": 2,
        "podIndexLabel": "batch.kubernetes.io/job-completion-index",
    }


@pytest.mark.parametrize("part", ["containers", "initContainers"])
def test_an_environment_variable_is_in_the_workload_once_and_as_the_kubelet_takes_it(
    part: str,
) -> None:
    document = sample("batch/job")
    env = [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}, {"name": "A", "value": "3"}]
    spec = document["spec"]["template"]["spec"]
    spec[part] = [{"name": "main", "image": "i", "env": env}, {"name": "other", "image": "i"}]
    fw = framework_of(document)
    assert fw is not None
    made = workload_of(fw, document, queue="queue")["spec"]["podSets"][0]["template"]["spec"]
    assert made[part][0]["env"] == [{"name": "A", "value": "3"}, {"name": "B", "value": "2"}]
    assert made[part][1] == spec[part][1]
    assert spec[part][0]["env"] == env, "the job stays as it is"


CLASS = "kueue.x-k8s.io/priority-class"


@pytest.mark.parametrize("name", SAMPLES)
def test_a_job_without_a_class_gets_the_default_one_if_there_is_one(name: str) -> None:
    document = sample(name)
    document["metadata"].get("labels", {}).pop(CLASS, None)
    fw = framework_of(document)
    assert fw is not None
    labels = ("metadata", "labels", CLASS)
    without = Setting(runtime=RUNTIME)
    assert at(merged(document, on_create(fw, document, without)), labels) is ABSENT
    with_class = replace(without, default_class=True)
    made = merged(document, on_create(fw, document, with_class))
    assert at(made, labels) == "default"
    assert on_create(fw, made, with_class) == {}
    stored = merged(document, on_create(fw, document, without))
    assert on_create(fw, stored, with_class, is_new=False) == {}, "its pods would be replaced"
    document["metadata"].setdefault("labels", {})[CLASS] = "high"
    assert at(merged(document, on_create(fw, document, with_class)), labels) == "high"


def test_pods_of_a_queued_parent_get_no_class_of_their_own() -> None:
    head = {"annotations": {"kueue.x-k8s.io/pod-suspending-parent": "deployment"}}
    document = job("v1", "Pod", pod()["spec"], **head)
    fw = framework_of(document)
    assert fw is not None
    made = merged(document, on_create(fw, document, Setting(default_class=True)))
    assert at(made, ("metadata", "labels", CLASS)) is ABSENT


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"metadata": {"labels": {"kueue.x-k8s.io/max-exec-time-seconds": "0"}}},
            "metadata.labels.kueue.x-k8s.io/max-exec-time-seconds: expected a whole number from 1, got '0'",
        ),
        (
            {"metadata": {"annotations": {"kueue.x-k8s.io/job-min-parallelism": "5"}}},
            "metadata.annotations.kueue.x-k8s.io/job-min-parallelism: expected a whole number "
            "up to parallelism (4), got '5'",
        ),
        ({"spec": {"template": 3}}, "spec.template: expected fields, got 3"),
    ],
    ids=["a time limit of 0", "more pods at least than at most", "a template that is a number"],
)
def test_what_is_wrong_is_told_by_the_field(change: dict[str, Any], message: str) -> None:
    document = merged(sample("batch/job"), change)
    fw = framework_of(document)
    assert fw is not None
    with pytest.raises(ManifestError) as told:
        workload_of(fw, document, queue="queue")
    assert message in str(told.value)


def test_two_pod_sets_of_one_name_are_refused() -> None:
    document = sample("ray.io/raycluster")
    document["spec"]["workerGroupSpecs"][1]["groupName"] = "SMALL"
    fw = framework_of(document)
    assert fw is not None
    with pytest.raises(ManifestError, match="two pod sets are named 'small'"):
        workload_of(fw, document, queue="queue")


def test_sparks_roles_ask_for_what_their_fields_say() -> None:
    document = sample("sparkoperator.k8s.io/sparkapplication")
    fw = framework_of(document)
    assert fw is not None
    _, executor = workload_of(fw, document, queue="queue")["spec"]["podSets"]
    assert executor["template"]["spec"]["containers"][0]["resources"] == {
        "requests": {"cpu": "2", "memory": "1408Mi"},
        "limits": {"nvidia.com/gpu": "1"},
    }


@pytest.mark.parametrize(
    ("role", "spec", "memory"),
    [
        ({"memory": "512m"}, {}, "896Mi"),
        ({"memory": "2g"}, {}, "2432Mi"),
        ({"memory": "8g"}, {}, "9011Mi"),
        ({"memory": "8g"}, {"type": "Python"}, "11468Mi"),
        ({"memory": "2g", "memoryOverhead": "1g"}, {}, "3072Mi"),
        ({"memory": "2g"}, {"memoryOverheadFactor": "0.5"}, "3072Mi"),
    ],
)
def test_what_spark_adds_to_the_memory_of_its_pods_counts(
    role: dict[str, Any], spec: dict[str, Any], memory: str
) -> None:
    document = sample("sparkoperator.k8s.io/sparkapplication")
    document["spec"] |= {**spec, "executor": {"instances": 1, **role}}
    fw = framework_of(document)
    assert fw is not None
    _, executor = workload_of(fw, document, queue="queue")["spec"]["podSets"]
    requests = executor["template"]["spec"]["containers"][0]["resources"]["requests"]
    assert requests["memory"] == memory


def head_of(document: dict[str, Any]) -> list[tuple[str, dict[str, str]]]:
    fw = framework_of(document)
    assert fw is not None
    head = workload_of(fw, document, queue="queue")["spec"]["podSets"][0]
    return [
        (one["name"], one["resources"]["requests"])
        for one in head["template"]["spec"]["containers"][1:]
    ]


def test_containers_that_kuberay_adds_to_the_head_count() -> None:
    cluster = sample("ray.io/raycluster")
    assert head_of(cluster) == []
    cluster["spec"]["enableInTreeAutoscaling"] = True
    assert head_of(cluster) == [("autoscaler", {"cpu": "500m", "memory": "512Mi"})]
    cluster["spec"]["autoscalerOptions"] = {"resources": {"requests": {"cpu": "2"}}}
    assert head_of(cluster) == [("autoscaler", {"cpu": "2"})]
    ray = sample("ray.io/rayjob")
    ray["spec"]["submissionMode"] = "SidecarMode"
    assert head_of(ray) == [("ray-job-submitter", {"cpu": "500m", "memory": "200Mi"})]


def test_a_trainjob_asks_for_what_its_runtime_and_its_own_fields_say() -> None:
    document = sample("trainer.kubeflow.org/trainjob")
    fw = framework_of(document)
    assert fw is not None
    _, node = workload_of(fw, document, queue="queue", runtime=RUNTIME)["spec"]["podSets"]
    spec = node["template"]["spec"]
    assert spec["containers"][0]["resources"] == {"requests": {"cpu": "2"}}
    assert spec["nodeSelector"] == {"zone": "a", "disk": "fast"}
    with pytest.raises(ManifestError, match=r"spec\.runtimeRef: 'torch' does not exist"):
        workload_of(fw, document, queue="queue")


FLAVORS = {
    "spot": {
        "spec": {
            "nodeLabels": {"pool": "spot"},
            "tolerations": [{"key": "spot", "operator": "Exists"}],
        }
    },
    "big": {"spec": {"nodeLabels": {"size": "big"}}},
    "odd": {"spec": {"nodeLabels": {"pool": "odd"}}},
}


def admitted_workload(**flavors: str) -> dict[str, Any]:
    return {
        "metadata": {"name": "w"},
        "spec": {"queueName": "lq", "podSets": [{"name": "main", "count": 4, "template": {}}]},
        "status": {
            "admission": {
                "clusterQueue": "cq",
                "podSetAssignments": [{"name": "main", "flavors": flavors, "count": 3}],
            },
            "admissionChecks": [
                {
                    "name": "check",
                    "podSetUpdates": [
                        {
                            "name": "main",
                            "labels": {"a": "b"},
                            "nodeSelector": {"booked": "1"},
                            "tolerations": [{"key": "spot", "operator": "Exists"}],
                        }
                    ],
                }
            ],
        },
    }


def test_an_admission_gives_what_flavors_checks_and_placement_say() -> None:
    workload = admitted_workload(cpu="spot", memory="spot", gpu="big")
    (info,) = pod_set_infos(workload, FLAVORS, {"main": {"kubernetes.io/hostname": "n1"}}, ["gate"])
    assert info == PodSetInfo(
        "main",
        3,
        {
            "kueue.x-k8s.io/podset": "main",
            "kueue.x-k8s.io/cluster-queue-name": "cq",
            "kueue.x-k8s.io/local-queue-name": "lq",
            "a": "b",
        },
        {"kueue.x-k8s.io/workload": "w"},
        {"pool": "spot", "size": "big", "booked": "1", "kubernetes.io/hostname": "n1"},
        ({"key": "spot", "operator": "Exists"},),
        ("gate",),
    )


def test_flavors_that_contradict_each_other_are_told() -> None:
    with pytest.raises(ManifestError, match="pool=odd, where it is spot already"):
        pod_set_infos(admitted_workload(cpu="spot", gpu="odd"), FLAVORS)


def test_the_table_has_kueues_names_and_no_two_rows_of_a_kind() -> None:
    names = [one.name for one in frameworks()]
    assert len(names) == 18
    assert len(set(names)) == 18
    types = [(version, one.kind) for one in frameworks() for version in one.api_versions]
    assert len(types) == len(set(types))
    for one in frameworks():
        assert bool(one.suspend) == (one.holding is Holding.SUSPEND)
        assert one.plural == f"{one.kind.lower()}s"
        assert at({}, one.suspend) is not None


def test_what_an_external_framework_owns_is_not_queued_twice() -> None:
    external = external_frameworks(["Thing.v1.example.com"], "externalFrameworks")
    assert external == (External("example.com", "Thing"),)
    thing = {"apiVersion": "example.com/v2", "kind": "Thing"}
    assert queues_its_own(thing, external)
    assert not queues_its_own(thing)
    assert queues_its_own({"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet"})
    assert not queues_its_own({"apiVersion": 3, "kind": []}, external)
    with pytest.raises(ManifestError, match=r"at\[1\]: 'thing' is not of the form Kind\.version"):
        external_frameworks(["Thing.v1.example.com", "thing"], "at")
