"""Reconciliation of a job and its Workload comes to an end, from wherever it begins, and never lets
anything run that holds no quota. Long, since all kinds of jobs go through the same checks."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuecontroller.frameworks import (
    CreateWorkload,
    DeleteWorkload,
    Finished,
    FinishWorkload,
    PriorityClass,
    Refuse,
    ReleaseQuota,
    ResetStartTime,
    Restore,
    SetPodsReady,
    Setting,
    Start,
    Suspend,
    UpdateReclaimable,
    UpdateWorkload,
    framework_of,
    is_active,
    reconcile,
)
from queuecontroller.frameworks.comparing import holds
from queuecontroller.frameworks.patches import ABSENT, at, merged
from queuecontroller.frameworks.state import finished, pods_ready, reclaimable
from sluicecommon.reader import Problem
from tests.queue.frameworks.samples import QUEUE, SAMPLES, sample
from tests.queue.frameworks.world import AROUND, World, admitted, evicted, with_condition


def kinds(actions: list[Any]) -> list[type]:
    return [type(one) for one in actions]


def waiting(name: str) -> World:
    world = World(sample(name))
    world.settle()
    assert world.workload is not None
    return world


def running(name: str) -> World:
    world = waiting(name)
    assert world.workload is not None
    world.workload = admitted(world.workload)
    world.settle()
    assert world.running
    return world


@pytest.mark.parametrize("name", SAMPLES)
def test_a_job_is_held_let_run_and_finished(name: str) -> None:
    world = World(sample(name))
    assert kinds(world.settle()) == [CreateWorkload]
    assert world.workload is not None
    world.workload = admitted(world.workload)
    assert set(kinds(world.settle())) <= {Start, SetPodsReady}
    assert world.running
    assert world.pools == len(SAMPLES[name][1])
    if name.startswith("ray.io/ray") and name != "ray.io/rayjob":
        return  # these never end
    assert world.document is not None
    finish(world.document)
    (last,) = world.settle()
    assert isinstance(last, FinishWorkload)
    assert last.finished.success


def finish(document: dict[str, Any]) -> None:
    status = document.setdefault("status", {})
    kind = document["kind"]
    if kind == "RayJob":
        status |= {"jobDeploymentStatus": "Complete"}
    elif kind == "AppWrapper":
        status["phase"] = "Succeeded"
    elif kind == "SparkApplication":
        status["applicationState"] = {"state": "COMPLETED"}
    else:
        types = {"Job": "Complete", "TrainJob": "Complete", "JobSet": "Completed"}
        status["conditions"] = [{"type": types.get(kind, "Succeeded"), "status": "True"}]


@pytest.mark.parametrize("name", SAMPLES)
def test_an_evicted_job_is_stopped_put_back_and_waits(name: str) -> None:
    world = running(name)
    assert world.workload is not None
    world.workload = evicted(world.workload)
    done = kinds(world.settle())
    assert done[0] is Suspend
    assert ReleaseQuota in done
    assert set(done) <= {Suspend, ResetStartTime, Restore, ReleaseQuota}
    assert world.document is not None
    for key in ("metadata", "spec"):
        assert world.document[key] == sample(name)[key]
    world.workload = admitted(world.workload)
    assert Start in kinds(world.settle())


@pytest.mark.parametrize("name", SAMPLES)
def test_a_job_whose_workload_was_deleted_is_stopped_and_queued_anew(name: str) -> None:
    world = running(name)
    world.workload = None
    done = kinds(world.settle())
    assert done[0] is Suspend
    assert done[-1] is CreateWorkload
    assert world.document is not None
    assert world.document["spec"] == sample(name)["spec"]


@pytest.mark.parametrize("name", SAMPLES)
def test_a_workload_that_is_being_deleted_is_let_go_when_nothing_runs(name: str) -> None:
    world = running(name)
    assert world.workload is not None
    world.workload["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    done = kinds(world.settle())
    assert done.index(Suspend) < done.index(DeleteWorkload) < done.index(CreateWorkload)


@pytest.mark.parametrize("name", SAMPLES)
def test_the_workload_of_a_deleted_job_goes(name: str) -> None:
    world = running(name)
    world.document = None
    assert kinds(world.settle()) == [DeleteWorkload]


def test_a_job_made_without_a_webhook_is_suspended_first() -> None:
    document = sample("batch/job")
    document["spec"]["suspend"] = False
    assert kinds(World(document).settle()) == [Suspend, CreateWorkload]


def test_a_job_without_a_queue_is_left_alone() -> None:
    document = sample("batch/job")
    del document["metadata"]["labels"][QUEUE]
    document["spec"]["suspend"] = False
    assert World(document).settle() == []
    assert World(document, around=Setting(parent_managed=True)).settle() == []


@pytest.mark.parametrize(
    ("around", "queue"),
    [(Setting(default_queue=True), "default"), (Setting(without_queue=True), None)],
    ids=["its namespace has a default queue", "jobs without a queue are held too"],
)
def test_a_job_without_a_queue_is_held_where_that_is_wanted(
    around: Setting, queue: str | None
) -> None:
    document = sample("batch/job")
    del document["metadata"]["labels"][QUEUE]
    world = World(document, around=around)
    assert kinds(world.settle()) == [CreateWorkload]
    assert world.workload is not None
    assert world.workload["spec"].get("queueName") == queue


def test_a_job_of_multikueue_waits_for_quota_like_another() -> None:
    document = sample("batch/job")
    document["spec"]["managedBy"] = "kueue.x-k8s.io/multikueue"
    assert kinds(World(document).settle()) == [CreateWorkload]


def test_an_evicted_job_of_multikueue_does_not_wait_for_pods_that_another_cluster_had() -> None:
    world = running("batch/job")
    assert world.document is not None
    assert world.workload is not None
    world.document["spec"]["managedBy"] = "kueue.x-k8s.io/multikueue"
    world.document["status"] |= {"active": 1, "startTime": "2026-11-22T10:00:00Z"}
    world.workload["status"]["conditions"].append(
        {"type": "Evicted", "status": "True", "reason": "AdmissionCheck", "message": "lost"}
    )
    assert ReleaseQuota in kinds(world.settle())


def test_a_rayjob_on_a_cluster_that_is_there_makes_no_workload() -> None:
    document = sample("ray.io/rayjob")
    document["spec"]["clusterSelector"] = {"ray.io/cluster": "there"}
    assert World(document).settle() == []


def test_the_workload_follows_queue_priority_and_time_limit_while_it_waits() -> None:
    world = waiting("batch/job")
    world.around = Setting(priority_of=lambda named: 7 if named else None)
    assert world.document is not None
    world.document["metadata"]["labels"] |= {
        QUEUE: "other",
        "kueue.x-k8s.io/priority-class": "high",
        "kueue.x-k8s.io/max-exec-time-seconds": "60",
    }
    (action,) = world.settle()
    assert action == UpdateWorkload(
        {
            "spec": {
                "queueName": "other",
                "maximumExecutionTimeSeconds": 60,
                "priority": 7,
                "priorityClassRef": {
                    "group": "kueue.x-k8s.io",
                    "kind": "WorkloadPriorityClass",
                    "name": "high",
                },
            }
        },
        "its job has changed",
    )


GATES = "kueue.x-k8s.io/admission-gated-by"


@pytest.mark.parametrize(
    ("job", "workload", "left"),
    [
        pytest.param("a.io/x", "a.io/x,b.io/y", "a.io/x", id="one agreed"),
        pytest.param(None, "a.io/x,b.io/y", None, id="all agreed"),
        pytest.param("a.io/x,b.io/y", "b.io/y", "b.io/y", id="none comes back"),
    ],
)
def test_a_waiting_workload_loses_the_gates_that_its_job_lost(
    job: str | None, workload: str, left: str | None
) -> None:
    world = waiting("batch/job")
    assert world.document is not None
    assert world.workload is not None
    if job is not None:
        world.document["metadata"]["annotations"] = {GATES: job}
    world.workload["metadata"]["annotations"] = {GATES: workload}
    world.settle()
    assert world.workload["metadata"]["annotations"].get(GATES) == left


def test_the_priority_class_of_a_running_job_may_change() -> None:
    world = running("batch/job")
    world.around = Setting(priority_of=lambda named: 7 if named and named.name == "high" else None)
    assert world.document is not None
    world.document["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = "nothing"
    (refused,) = world.settle()
    assert isinstance(refused, Refuse)
    assert refused.reason == "WorkloadPriorityClassNotFound"
    world.document["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = "high"
    (action,) = world.settle()
    assert isinstance(action, UpdateWorkload)
    assert action.patch["spec"]["priority"] == 7
    assert action.patch["spec"]["priorityClassRef"]["name"] == "high"


def no_class(named: PriorityClass | None) -> int | None:
    return None


@pytest.mark.parametrize(
    ("name", "kind"),
    [*((one, "WorkloadPriorityClass") for one in SAMPLES), ("batch/job", "PriorityClass")],
)
def test_a_job_of_a_class_that_does_not_exist_has_no_workload_until_it_does(
    name: str, kind: str
) -> None:
    document = sample(name)
    world = World(document, around=replace(AROUND, priority_of=no_class))
    if kind == "WorkloadPriorityClass":
        document["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = "low"
    else:
        document["spec"]["template"]["spec"]["priorityClassName"] = "low"
    refused = Refuse((Problem("", f'{kind} "low" not found'),), f"{kind}NotFound")
    actions = [one for one in world.settle() if not isinstance(one, Suspend)]
    assert actions == [refused] * len(actions)
    assert actions
    assert world.workload is None
    world.around = replace(AROUND, priority_of=lambda named: 7 if named else None)
    world.settle()
    assert world.workload is not None
    assert world.workload["spec"]["priority"] == 7


def test_a_waiting_workload_keeps_its_class_while_the_job_names_one_that_does_not_exist() -> None:
    world = waiting("batch/job")
    world.around = Setting(priority_of=no_class)
    assert world.document is not None
    assert world.workload is not None
    world.document["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = "nothing"
    (refused,) = world.settle()
    assert isinstance(refused, Refuse)
    assert "priorityClassRef" not in world.workload["spec"]


def test_a_workload_without_a_queue_names_none() -> None:
    document = sample("batch/job")
    del document["metadata"]["labels"][QUEUE]
    fw = framework_of(document)
    assert fw is not None
    actions = reconcile(fw, document, None, Setting(without_queue=True))
    (made,) = (one.document for one in actions if isinstance(one, CreateWorkload))
    assert "queueName" not in made["spec"]
    assert reconcile(fw, document, made, Setting(without_queue=True)) == []


def test_a_job_of_a_namespace_that_is_not_selected_is_left_alone() -> None:
    document = sample("batch/job")
    assert kinds(World(document).settle()) != []
    world = World(sample("batch/job"), around=Setting(namespace_selected=False))
    assert world.settle() == []


def test_changed_pods_change_a_workload_that_waits() -> None:
    world = waiting("batch/job")
    assert world.document is not None
    world.document["spec"]["parallelism"] = 2
    (action,) = world.settle()
    assert isinstance(action, UpdateWorkload)
    assert action.patch["spec"]["podSets"][0]["count"] == 2


def test_changed_pods_stop_a_job_that_runs_and_queue_it_anew() -> None:
    world = running("jobset.x-k8s.io/jobset")
    assert world.document is not None
    world.document["spec"]["replicatedJobs"][1]["replicas"] = 3
    done = kinds(world.settle())
    assert done[0] is Suspend
    assert DeleteWorkload in done
    assert done[-1] is CreateWorkload
    assert at(world.workload, ("spec", "podSets", 1, "count")) == 9
    assert world.pools == 0


@pytest.mark.parametrize("least", ["2", "0"])
@pytest.mark.parametrize(("pods", "kept"), [(2, True), (3, False)])
def test_a_job_that_another_controller_started_with_fewer_pods_goes_on(
    pods: int, kept: bool, least: str
) -> None:
    document = sample("batch/job")
    document["metadata"]["annotations"] = {"kueue.x-k8s.io/job-min-parallelism": least}
    world = World(document)
    world.settle()
    assert world.workload is not None
    world.workload = admitted(world.workload)
    world.workload["status"]["admission"]["podSetAssignments"] = [{"name": "main", "count": 2}]
    document["spec"] |= {"suspend": False, "parallelism": pods}
    document["spec"]["template"]["spec"]["nodeSelector"] = {"pool": "spot"}
    world.document = document
    assert (Suspend not in kinds(world.settle())) == kept


def test_timeouts_of_a_waiting_job_are_followed_and_those_of_a_running_one_are_not() -> None:
    def timeouts(text: str | None) -> dict[str, Any]:
        return {"metadata": {"annotations": {"kueue.x-k8s.io/wait-for-pods-ready": text}}}

    document = merged(sample("batch/job"), timeouts('{"timeoutSeconds": 30}'))
    world = World(document)
    world.settle()
    path = ("metadata", "annotations", "kueue.x-k8s.io/wait-for-pods-ready")
    assert at(world.workload, path) == '{"timeoutSeconds": 30}'
    world.document = merged(world.document, timeouts('{"timeoutSeconds": 40}'))
    assert kinds(world.settle()) == [UpdateWorkload]
    assert at(world.workload, path) == '{"timeoutSeconds": 40}'
    world.document = merged(world.document, timeouts(None))
    assert kinds(world.settle()) == [UpdateWorkload]
    assert at(world.workload, path) is ABSENT


def test_done_pods_give_back_their_quota_and_readiness_is_told() -> None:
    world = running("batch/job")
    assert world.document is not None
    world.document["status"] |= {"succeeded": 6, "ready": 2}
    assert world.settle() == [UpdateReclaimable({"main": 2}), SetPodsReady(True)]
    world.document["status"] |= {"ready": 0, "succeeded": 1}
    assert world.settle() == [UpdateReclaimable({}), SetPodsReady(False)]


def test_a_prebuilt_workload_is_taken_over() -> None:
    built = waiting("batch/job").workload
    assert built is not None
    built["metadata"] = {"name": "built", "namespace": "team"}
    document = sample("batch/job")
    document["metadata"]["labels"]["kueue.x-k8s.io/prebuilt-workload-name"] = "built"
    world = World(document)
    world.settle()
    assert world.workload is None
    (refused,) = world.step()
    assert isinstance(refused, Refuse)
    assert "built does not exist" in str(refused.problems[0])
    world.workload = built
    (action,) = world.settle()
    assert isinstance(action, UpdateWorkload)
    world.workload = admitted(world.workload)
    assert Start in kinds(world.settle())


def test_a_prebuilt_workload_of_other_pods_is_finished() -> None:
    built = waiting("batch/job").workload
    assert built is not None
    built["spec"]["podSets"][0]["count"] = 9
    document = sample("batch/job")
    document["metadata"]["labels"]["kueue.x-k8s.io/prebuilt-workload-name"] = "built"
    world = World(document, built)
    assert world.settle() == [
        FinishWorkload(Finished(False, "OutOfSync", "its pods are not those of the job"))
    ]


CLAIMS = [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
RACK, NODE = ({"required": one} for one in ("rack", "kubernetes.io/hostname"))
REQUIRED = "kueue.x-k8s.io/podset-required-topology"


@pytest.mark.parametrize(
    ("spec", "annotations", "built_with"),
    [
        ({"resources": {"requests": {"cpu": "64"}}}, {}, {}),
        ({"resourceClaims": CLAIMS}, {}, {}),
        ({}, {REQUIRED: "kubernetes.io/hostname"}, {"topologyRequest": RACK}),
        ({}, {REQUIRED: "rack"}, {}),
        ({}, {}, {"topologyRequest": RACK}),
    ],
    ids=["resources of the pod", "claims", "another level", "no level", "a level that none asks for"],
)  # fmt: skip
def test_a_prebuilt_workload_asks_for_all_that_its_job_does(
    spec: dict[str, Any], annotations: dict[str, str], built_with: dict[str, Any]
) -> None:
    """kueue#14436 and #14585: it would reserve less quota than its pods use, or place them elsewhere."""
    built = waiting("batch/job").workload
    assert built is not None
    built["spec"]["podSets"][0].update(built_with)
    document = sample("batch/job")
    document["metadata"]["labels"]["kueue.x-k8s.io/prebuilt-workload-name"] = "built"
    template = document["spec"]["template"]
    template["spec"].update(spec)
    template.setdefault("metadata", {}).setdefault("annotations", {}).update(annotations)
    assert World(document, built).settle() == [
        FinishWorkload(Finished(False, "OutOfSync", "its pods are not those of the job"))
    ]


def test_a_prebuilt_workload_may_name_its_slices_either_way() -> None:
    built = waiting("batch/job").workload
    assert built is not None
    built["metadata"] = {"name": "built", "namespace": "team"}
    slices = {"podSetSliceRequiredTopology": "rack", "podSetSliceSize": 1}
    listed = {"podsetSliceRequiredTopologyConstraints": [{"topology": "rack", "size": 1}]}
    built["spec"]["podSets"][0]["topologyRequest"] = {"required": "zone", **listed}
    document = sample("batch/job")
    document["metadata"]["labels"]["kueue.x-k8s.io/prebuilt-workload-name"] = "built"
    template = document["spec"]["template"]
    template.setdefault("metadata", {}).setdefault("annotations", {}).update(
        {
            REQUIRED: "zone",
            "kueue.x-k8s.io/podset-slice-required-topology": slices["podSetSliceRequiredTopology"],
            "kueue.x-k8s.io/podset-slice-size": str(slices["podSetSliceSize"]),
        }
    )
    (action,) = World(document, built).settle()
    assert isinstance(action, UpdateWorkload)


def test_a_prebuilt_workload_of_another_job_is_not_taken() -> None:
    built = waiting("batch/job").workload
    assert built is not None
    built["metadata"]["ownerReferences"][0]["uid"] = "other"
    document = sample("batch/job")
    document["metadata"]["labels"]["kueue.x-k8s.io/prebuilt-workload-name"] = "built"
    (refused,) = World(document, built).step()
    assert isinstance(refused, Refuse)


def test_what_cannot_be_read_is_an_action_too() -> None:
    document = sample("batch/job")
    document["spec"]["parallelism"] = "many"
    (refused,) = World(document).step()
    assert isinstance(refused, Refuse)
    assert [str(one) for one in refused.problems] == [
        "spec.parallelism: expected a whole number, got 'many'"
    ]


WORKLOADS = st.sampled_from(
    ["none", "waiting", "reserved", "admitted", "evicted", "going", "deleting", "finished", "other"]
)


@settings(max_examples=400)
@given(
    name=st.sampled_from(sorted(SAMPLES)),
    state=WORKLOADS,
    was_started=st.booleans(),
    suspended=st.booleans(),
    queued=st.booleans(),
    ended=st.booleans(),
    job_going=st.booleans(),
)
def test_it_comes_to_an_end_from_everywhere(
    name: str,
    state: str,
    was_started: bool,
    suspended: bool,
    queued: bool,
    ended: bool,
    job_going: bool,
) -> None:
    world = running(name) if was_started else waiting(name)
    document, workload = world.document, world.workload
    assert document is not None
    assert workload is not None
    fw = framework_of(document)
    assert fw is not None
    ended = ended and fw.succeeded is not None
    holder = document
    for step in fw.suspend[:-1]:
        holder = holder[step]
    holder[fw.suspend[-1]] = suspended
    if not queued:
        del document["metadata"]["labels"][QUEUE]
    if ended:
        finish(document)
    if job_going:
        document["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    base = deepcopy(workload)
    base.pop("status", None)
    world.workload = {
        "none": None,
        "waiting": base,
        "reserved": with_condition(base, "QuotaReserved", True),
        "admitted": admitted(base),
        "evicted": evicted(base),
        "going": evicted(admitted(base)),
        "deleting": {**base, "metadata": {**base["metadata"], "deletionTimestamp": "2026-01-01"}},
        "finished": with_condition(base, "Finished", True),
        "other": {**base, "spec": {**base["spec"], "podSets": []}},
    }[state]
    world.history.clear()
    done = world.settle()
    assert not {Start, Suspend} <= set(kinds(done)), "stopped and started without a reason"
    if world.running and not (ended or job_going) and queued:
        assert world.workload is not None
        assert holds(world.workload, "Admitted")
        assert not holds(world.workload, "Evicted")
    if ended and world.workload is not None and state != "deleting":
        assert holds(world.workload, "Finished")
    assert reconcile(fw, world.document, world.workload, world.around) == []


def test_a_spark_application_that_is_submitted_again_is_not_over() -> None:
    world = running("sparkoperator.k8s.io/sparkapplication")
    assert world.document is not None
    fw = framework_of(world.document)
    assert fw is not None
    world.document["status"] = {"applicationState": {"state": "SUBMISSION_FAILED"}}
    assert finished(fw, world.document) is None
    world.document["status"] = {"applicationState": {"state": "FAILED"}}
    assert finished(fw, world.document) is not None


def test_a_rayjob_that_ray_refuses_has_failed() -> None:
    document = sample("ray.io/rayjob")
    fw = framework_of(document)
    assert fw is not None
    document["status"] = {"jobDeploymentStatus": "ValidationFailed", "message": "no head"}
    ended = finished(fw, document)
    assert ended is not None
    assert not ended.success


@pytest.mark.parametrize(("up", "ready"), [(0, False), (1, True)])
def test_a_spark_application_is_ready_with_its_fewest_executors(up: int, ready: bool) -> None:
    document = sample("sparkoperator.k8s.io/sparkapplication")
    fw = framework_of(document)
    assert fw is not None
    document["spec"]["executor"]["instances"] = 3
    states = {f"e-{number}": "RUNNING" for number in range(up)}
    document["status"] = {"applicationState": {"state": "RUNNING"}, "executorState": states}
    assert not pods_ready(fw, document)
    document["spec"]["dynamicAllocation"] = {"enabled": True, "minExecutors": 1}
    assert pods_ready(fw, document) is ready


@pytest.mark.parametrize(
    ("status", "free"),
    [
        ({"succeeded": 1, "failedIndexes": "2,3"}, {"main": 3}),
        ({"failedIndexes": "1-3"}, {"main": 3}),
        ({"failedIndexes": "0"}, {"main": 1}),
        ({"failedIndexes": ""}, {}),
        ({"failedIndexes": "x-"}, {}),
    ],
)
def test_indexes_that_failed_for_good_give_back_their_quota(
    status: dict[str, Any], free: dict[str, int]
) -> None:
    document = sample("batch/job")
    fw = framework_of(document)
    assert fw is not None
    document["spec"] |= {"parallelism": 4, "completions": 4, "completionMode": "Indexed"}
    assert reclaimable(fw, {**document, "status": status}) == free


@pytest.mark.parametrize(
    ("name", "status", "active"),
    [
        ("batch/job", {"active": 0, "terminating": 2}, True),
        ("batch/job", {"active": 0, "terminating": 0}, False),
        ("ray.io/raycluster", {}, False),
        ("ray.io/raycluster", {"state": "ready"}, True),
        ("ray.io/raycluster", {"state": "suspended", "suspended": "False"}, True),
        ("ray.io/raycluster", {"state": "suspended", "suspended": "True"}, False),
    ],
)
def test_a_suspended_job_is_active_until_its_last_pod_is_gone(
    name: str, status: dict[str, Any], active: bool
) -> None:
    """A RayCluster that was resumed is "suspended" until all its pods run; its conditions say more."""
    document = sample(name)
    if "suspended" in status:
        suspended = {"type": "RayClusterSuspended", "status": status.pop("suspended")}
        status["conditions"] = [suspended]
    document["status"] = status
    fw = framework_of(document)
    assert fw is not None
    assert is_active(fw, document) is active


def test_quota_is_kept_while_jobs_that_the_job_made_have_pods() -> None:
    """A JobSet that was suspended states no active Jobs while their pods still terminate."""
    world = running("jobset.x-k8s.io/jobset")
    assert world.workload is not None
    world.workload = evicted(world.workload)
    world.around = Setting(made_jobs_active=lambda: True)
    assert ReleaseQuota not in kinds(world.settle())
    world.around = Setting()
    assert ReleaseQuota in kinds(world.settle())


@pytest.mark.parametrize("name", SAMPLES)
def test_a_job_whose_pods_are_checkpointed_is_not_suspended_until_that_fails(name: str) -> None:
    world = running(name)
    assert world.workload is not None
    world.workload = with_condition(
        evicted(world.workload), "Checkpointed", False, reason="CheckpointRequested"
    )
    assert world.settle() == []
    given = world.workload["status"].pop("admission")
    world.workload = with_condition(world.workload, "QuotaReserved", False)
    world.workload["status"]["checkpointed"] = given
    world.workload = with_condition(world.workload, "Checkpointed", True, reason="Checkpointed")
    assert world.settle() == []
    assert world.running
    restoring = with_condition(world.workload, "Evicted", False)
    restoring = with_condition(restoring, "Checkpointed", False, reason="Restoring")
    del restoring["status"]["checkpointed"]
    failed = with_condition(world.workload, "Checkpointed", False, reason="CheckpointFailed")
    world.workload = restoring
    assert world.settle() == []
    world.workload = admitted(restoring)
    assert set(kinds(world.settle())) <= {SetPodsReady}
    world.workload = failed
    fw = framework_of(sample(name))
    assert fw is not None
    assert kinds(reconcile(fw, world.document, world.workload, world.around)) == [Suspend]


@pytest.mark.parametrize("name", SAMPLES)
def test_what_a_checkpointed_job_kept_is_free_once_its_pods_have_stopped(name: str) -> None:
    world = waiting(name)
    assert world.workload is not None
    world.workload = evicted(world.workload)
    world.workload["status"]["checkpointed"] = {"clusterQueue": "cq"}
    fw = framework_of(sample(name))
    assert fw is not None
    made = reconcile(fw, world.document, world.workload, world.around)
    assert ReleaseQuota in kinds(made)
