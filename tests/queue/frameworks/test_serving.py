"""LeaderWorkerSet: a Workload for each group, and pods that find theirs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuecontroller.frameworks import (
    CreateWorkload,
    DeleteWorkload,
    Refuse,
    Setting,
    StartPod,
    UpdateWorkload,
    framework_of,
    join_group_patch,
    on_create,
    reconcile_pods,
    reconcile_set,
)
from queuecontroller.frameworks.patches import merged
from queuecontroller.frameworks.reconcile import ALONE
from tests.queue.frameworks.samples import QUEUE, job, pod, workers
from tests.queue.frameworks.spoiling import WRONG, paths, spoilt
from tests.queue.frameworks.world import admitted

INDEX = "leaderworkerset.sigs.k8s.io/group-index"
LEADER = "leaderworkerset.sigs.k8s.io/leader-name"


def made(document: Any, known: Any = (), around: Setting = ALONE) -> list[dict[str, Any]]:
    actions = [action for _, action in reconcile_set(document, known, around)]
    assert all(isinstance(one, CreateWorkload) for one in actions)
    return [one.document for one in actions if isinstance(one, CreateWorkload)]


def one_pod(name: str, index: str, worker: bool, **labels: str) -> dict[str, Any]:
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"uid-{name}",
            "labels": {INDEX: index, **labels},
            "annotations": {
                "kueue.x-k8s.io/pod-suspending-parent": "leaderworkerset.x-k8s.io/leaderworkerset",
                **({LEADER: "sample-0"} if worker else {}),
            },
        },
        "spec": pod()["spec"],
    }
    fw = framework_of(document)
    assert fw is not None
    return merged(document, on_create(fw, document))


def test_each_group_has_a_workload_of_its_leader_and_its_workers() -> None:
    first, second = made(workers())
    assert first["metadata"]["name"] != second["metadata"]["name"]
    assert len(first["metadata"]["name"]) <= 63
    assert first["metadata"]["annotations"]["kueue.x-k8s.io/component-workload-index"] == "0"
    assert [(one["name"], one["count"]) for one in first["spec"]["podSets"]] == [
        ("leader", 1),
        ("worker", 2),
    ]
    assert made(workers(), [first, second]) == []
    (main,) = made(workers(1, leader=False))
    assert [(one["name"], one["count"]) for one in main["spec"]["podSets"]] == [("main", 3)]


def test_groups_that_are_gone_lose_their_workloads_and_new_ones_get_theirs() -> None:
    known = made(workers())
    ((about, action),) = reconcile_set(workers(1), known)
    assert about == known[1]
    assert isinstance(action, DeleteWorkload)
    assert len(made(workers(4), known)) == 2
    assert [type(one) for _, one in reconcile_set(None, known)] == [DeleteWorkload, DeleteWorkload]


def test_groups_that_an_update_adds_for_a_while_are_counted() -> None:
    rolling = {"rolloutStrategy": {"rollingUpdateConfiguration": {"maxSurge": 1}}}
    document = {**workers(**rolling), "status": {"replicas": 3, "updatedReplicas": 1}}
    assert len(made(document)) == 3
    assert len(made({**document, "status": {"replicas": 3, "updatedReplicas": 2}})) == 2


def test_its_groups_lose_the_gates_that_it_lost() -> None:
    gates = "kueue.x-k8s.io/admission-gated-by"
    document = workers(1)
    document["metadata"]["annotations"] = {gates: "a.io/x"}
    known = made(document)
    assert known[0]["metadata"]["annotations"][gates] == "a.io/x"
    ((about, action),) = reconcile_set(workers(1), known)
    assert about == known[0]
    assert isinstance(action, UpdateWorkload)
    assert action.patch == {"metadata": {"annotations": {gates: None}}}


def test_a_set_without_a_queue_has_none() -> None:
    document = workers()
    del document["metadata"]["labels"][QUEUE]
    assert made(document) == []
    assert len(made(document, around=Setting(default_queue=True))) == 2


def test_its_pods_find_their_group_and_run_once_it_is_admitted() -> None:
    document = workers()
    workload = made(document)[0]
    pods = [one_pod("sample-0", "0", False), one_pod("sample-0-1", "0", True)]
    joined = [merged(one, join_group_patch(document, one)) for one in pods]
    assert [one["metadata"]["annotations"]["kueue.x-k8s.io/role-hash"] for one in joined] == [
        "leader",
        "worker",
    ]
    assert {one["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"] for one in joined} == {
        workload["metadata"]["name"]
    }
    assert join_group_patch(document, joined[0]) == {}
    assert reconcile_pods(joined, None) == []  # the set makes its Workload
    started = [
        one for one in reconcile_pods(joined, admitted(workload)) if isinstance(one, StartPod)
    ]
    assert started == [StartPod("sample-0", "leader"), StartPod("sample-0-1", "worker")]


@pytest.mark.parametrize("index", ["", "x", "-1", "123456789"])
def test_a_pod_without_a_number_waits_for_one(index: str) -> None:
    assert join_group_patch(workers(), one_pod("sample-0", index, False)) == {}


def test_a_wrong_size_is_told_by_the_field() -> None:
    document = workers()
    document["spec"]["leaderWorkerTemplate"]["size"] = 0
    ((_, refused),) = reconcile_set(document, [])
    assert isinstance(refused, Refuse)
    assert "spec.leaderWorkerTemplate.size: must be from 1 to" in str(refused.problems[0])


@pytest.mark.parametrize("replicas", [-1, 2_000_000_000, 2**63])
def test_a_wrong_number_of_groups_is_told_by_the_field(replicas: int) -> None:
    document = workers()
    document["spec"]["replicas"] = replicas
    ((_, refused),) = reconcile_set(document, [])
    assert isinstance(refused, Refuse)
    assert "spec.replicas: must be from 0 to" in str(refused.problems[0])


@given(data=st.data(), wrong=WRONG)
def test_a_wrong_value_anywhere(data: st.DataObject, wrong: Any) -> None:
    document = {**workers(), "status": {"replicas": 2, "updatedReplicas": 2}}
    spoiled = spoilt(document, data.draw(st.sampled_from(paths(document))), wrong)
    for _, action in reconcile_set(spoiled, made(document)):
        assert isinstance(action, CreateWorkload | DeleteWorkload | Refuse)


def test_a_template_that_names_a_queue_of_its_own_joins_all_the_same() -> None:
    document = workers()
    leader = one_pod("sample-0", "0", False, **{QUEUE: "another"})
    joined = merged(leader, join_group_patch(document, leader))
    assert joined["metadata"]["labels"][QUEUE] == document["metadata"]["labels"][QUEUE]
    assert (
        joined["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"]
        == made(document)[0]["metadata"]["name"]
    )
    assert join_group_patch(document, joined) == {}


@pytest.mark.parametrize("around", [ALONE, Setting(default_queue=True)])
def test_the_statefulsets_of_its_controller_are_not_queued(around: Setting) -> None:
    """Its controller makes them of the templates that the webhook has marked."""
    document = workers()
    fw = framework_of(document)
    assert fw is not None
    marked = merged(document, on_create(fw, document))["spec"]["leaderWorkerTemplate"]
    for part in ("leaderTemplate", "workerTemplate"):
        inner = job("apps/v1", "StatefulSet", {"replicas": 2, "template": marked[part]})
        inner["metadata"]["labels"] = {"leaderworkerset.sigs.k8s.io/name": "sample"}
        of_set = framework_of(inner)
        assert of_set is not None
        assert on_create(of_set, inner, around) == {}
