"""Pods that are queued themselves, alone and as groups."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuecontroller.frameworks import (
    CreateWorkload,
    DeletePod,
    DeleteWorkload,
    FinishWorkload,
    PodSetInfo,
    Refuse,
    ReleasePod,
    Setting,
    StartPod,
    UpdateReclaimable,
    UpdateWorkload,
    WaitForReplacements,
    framework_of,
    is_suspended,
    on_create,
    reconcile_pods,
    role_of,
    start_pod_patch,
)
from queuecontroller.frameworks.comparing import condition_of, holds
from queuecontroller.frameworks.patches import merged
from tests.queue.frameworks.pods.cluster import Cluster, group_of_three, kinds
from tests.queue.frameworks.samples import pod
from tests.queue.frameworks.world import TOTAL, admitted, evicted, made_pod, with_condition

GATES = "kueue.x-k8s.io/admission-gated-by"


def test_a_pod_is_held_when_it_is_made() -> None:
    one = made_pod("a")
    assert one["spec"]["schedulingGates"] == [{"name": "kueue.x-k8s.io/admission"}]
    assert one["metadata"]["finalizers"] == ["kueue.x-k8s.io/managed"]
    assert one["metadata"]["labels"]["kueue.x-k8s.io/managed"] == "true"
    fw = framework_of(one)
    assert fw is not None
    assert is_suspended(fw, one)
    assert on_create(fw, one) == {}


@pytest.mark.parametrize("group", ["", "group"])
def test_every_pod_that_is_held_has_the_hash_of_its_role(group: str) -> None:
    one = made_pod("a", group, 1)
    assert one["metadata"]["annotations"]["kueue.x-k8s.io/role-hash"] == role_of(one)


@pytest.mark.parametrize("wish", ["required", "preferred", "unconstrained"])
def test_a_pod_that_asks_for_a_topology_is_gated_for_it_until_it_starts(wish: str) -> None:
    value = "true" if wish == "unconstrained" else "rack"
    one = made_pod("a", **{f"kueue.x-k8s.io/podset-{wish}-topology": value})
    gates = [each["name"] for each in one["spec"]["schedulingGates"]]
    assert gates == ["kueue.x-k8s.io/admission", "kueue.x-k8s.io/topology"]
    assert "schedulingGates" not in merged(one, start_pod_patch(one, PodSetInfo("main")))["spec"]


def test_a_pod_without_a_queue_is_taken_as_it_is() -> None:
    one = made_pod("a")
    bare = {**one, "metadata": {"name": "a"}, "spec": pod()["spec"]}
    fw = framework_of(bare)
    assert fw is not None
    assert on_create(fw, bare) == {}


def test_a_pod_runs_once_it_is_admitted_and_is_let_go_when_it_has_ended() -> None:
    cluster = Cluster(made_pod("a"))
    assert kinds(cluster.settle()) == [CreateWorkload]
    assert cluster.sets == [("main", 1)]
    assert cluster.running == []
    cluster.admit()
    assert kinds(cluster.settle()) == [StartPod]
    assert cluster.running == ["a"]
    assert cluster.pods["a"]["spec"]["nodeSelector"] == {"pool": "spot"}
    cluster.end("a", "Succeeded")
    assert kinds(cluster.settle()) == [FinishWorkload, ReleasePod]


def test_an_evicted_pod_is_deleted_and_its_workload_with_it() -> None:
    cluster = Cluster(made_pod("a"))
    cluster.settle()
    cluster.admit()
    cluster.settle()
    assert cluster.workload is not None
    cluster.workload = evicted(cluster.workload)
    done = kinds(cluster.settle())
    assert done[0] is DeletePod
    assert done[-1] is DeleteWorkload
    assert cluster.pods == {}
    assert cluster.workload is None


def test_a_pod_that_its_user_deletes_while_it_waits_is_let_go() -> None:
    cluster = Cluster(made_pod("a"))
    cluster.settle()
    cluster.delete("a")
    assert set(kinds(cluster.settle())) == {ReleasePod, DeleteWorkload}
    assert (cluster.pods, cluster.workload) == ({}, None)


def test_a_group_waits_for_all_its_pods_and_has_a_pod_set_for_each_role() -> None:
    cluster = Cluster(made_pod("a", "group", 3), made_pod("b", "group", 3, cpu="2"))
    assert cluster.settle() == []
    cluster.pods["c"] = made_pod("c", "group", 3, cpu="2")
    assert kinds(cluster.settle()) == [CreateWorkload]
    assert cluster.workload is not None
    assert cluster.workload["metadata"]["name"] == "group"
    assert len(cluster.workload["metadata"]["ownerReferences"]) == 3
    assert sorted(count for _, count in cluster.sets) == [1, 2]
    assert {name for name, _ in cluster.sets} == {role_of(one) for one in cluster.pods.values()}
    cluster.admit()
    assert kinds(cluster.settle()) == [StartPod] * 3
    assert sorted(cluster.running) == ["a", "b", "c"]


def test_a_group_that_need_not_wait_is_counted_in_full_by_its_first_pod() -> None:
    fast = {"kueue.x-k8s.io/pod-group-fast-admission": "true"}
    cluster = Cluster(made_pod("a", "group", 3, **fast))
    assert kinds(cluster.settle()) == [CreateWorkload]
    assert [count for _, count in cluster.sets] == [3]
    cluster.admit()
    assert StartPod in kinds(cluster.settle())
    cluster.pods["b"] = made_pod("b", "group", 3, **fast)
    assert set(kinds(cluster.settle())) == {StartPod, UpdateWorkload}
    assert cluster.running == ["a", "b"]


def test_pods_beyond_the_groups_count_are_deleted_and_those_that_run_are_kept() -> None:
    cluster = group_of_three()
    cluster.pods["d"] = made_pod("d", "group", 3)
    done = cluster.settle()
    assert done[0] == DeletePod("d", "the group has its pods")
    assert sorted(cluster.pods) == ["a", "b", "c"]


def test_a_group_is_done_when_as_many_pods_as_it_has_succeeded() -> None:
    cluster = group_of_three()
    cluster.end("a", "Succeeded")
    assert UpdateReclaimable in kinds(cluster.settle())
    for name in "bc":
        cluster.end(name, "Succeeded")
    done = cluster.settle()
    (finish,) = [one for one in done if isinstance(one, FinishWorkload)]
    assert finish.finished.success
    assert finish.finished.message == "Pods succeeded: 3/3"
    assert kinds(done).count(ReleasePod) == 3


def test_a_failed_pod_is_kept_until_another_takes_its_place() -> None:
    cluster = group_of_three()
    cluster.end("a", "Failed")
    assert cluster.settle() == [WaitForReplacements(True)]
    cluster.pods["d"] = made_pod("d", "group", 3)
    done = kinds(cluster.settle())
    assert StartPod in done
    assert ReleasePod in done
    assert WaitForReplacements in done
    assert sorted(cluster.running) == ["b", "c", "d"]


def test_a_group_that_is_not_to_be_retried_fails_when_its_last_pod_ends() -> None:
    cluster = group_of_three()
    cluster.pods["a"]["metadata"]["annotations"]["kueue.x-k8s.io/retriable-in-group"] = "false"
    for name, phase in (("a", "Failed"), ("b", "Succeeded")):
        cluster.end(name, phase)
    assert FinishWorkload not in kinds(cluster.settle())
    cluster.end("c", "Failed")
    (finish,) = [one for one in cluster.settle() if isinstance(one, FinishWorkload)]
    assert (finish.finished.success, finish.finished.message) == (False, "Pods succeeded: 1/3")


def test_a_serving_group_goes_on_with_new_pods() -> None:
    notes = {
        "kueue.x-k8s.io/pod-group-fast-admission": "true",
        "kueue.x-k8s.io/pod-group-serving": "true",
        "kueue.x-k8s.io/role-hash": "main",
    }
    cluster = Cluster(made_pod("s-0", "set", 2, **notes))
    cluster.settle()
    assert cluster.sets == [("main", 2)]
    cluster.admit()
    cluster.settle()
    cluster.pods["s-1"] = made_pod("s-1", "set", 2, **notes)
    cluster.settle()
    assert cluster.running == ["s-0", "s-1"]
    cluster.end("s-0", "Failed")
    assert ReleasePod in kinds(cluster.settle())  # or its StatefulSet could not make it anew
    cluster.delete("s-0")
    assert sorted(cluster.pods) == ["s-1"]
    cluster.pods["s-0"] = made_pod("s-0", "set", 2, **notes)
    cluster.settle()
    assert sorted(cluster.running) == ["s-0", "s-1"]


@pytest.mark.parametrize("text", [None, "", "many", "-1", "99999999", "2000000000"])
def test_a_group_without_a_count_is_refused_by_the_field(text: str | None) -> None:
    one = made_pod("a", "group", 3)
    if text is None:
        del one["metadata"]["annotations"][TOTAL]
    else:
        one["metadata"]["annotations"][TOTAL] = text
    (refused,) = reconcile_pods([one], None)
    assert isinstance(refused, Refuse)
    assert TOTAL in str(refused.problems[0])


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["add", "delete", "Succeeded", "Failed", "admit", "evict", "drop"]),
        st.sampled_from("abcd"),
    ),
    max_size=14,
)


@settings(max_examples=300)
@given(events=EVENTS, group=st.booleans(), serving=st.booleans())
def test_whatever_happens_it_comes_to_an_end_and_nothing_runs_without_quota(
    events: list[tuple[str, str]], group: bool, serving: bool
) -> None:
    notes = {"kueue.x-k8s.io/pod-group-serving": "true"} if serving else {}
    cluster = Cluster()
    for event, name in events:
        if event == "add" and name not in cluster.pods and (group or not cluster.pods):
            cluster.pods[name] = made_pod(name, "group" if group else "", 2, **notes)
        elif event == "delete" and name in cluster.pods:
            cluster.delete(name)
        elif event in ("Succeeded", "Failed") and name in cluster.running:
            cluster.end(name, event)
        elif cluster.workload is not None and not holds(cluster.workload, "Finished"):
            if event == "admit":
                cluster.admit()
            elif event == "evict" and holds(cluster.workload, "Admitted"):
                cluster.workload = evicted(cluster.workload)
            elif event == "drop":
                cluster.workload = None
        cluster.settle()
        quota = cluster.workload is not None and holds(cluster.workload, "Admitted")
        assert quota or not cluster.running
        assert len(cluster.running) <= (2 if group else 1)
        leaving = [one for one in cluster.pods.values() if "deletionTimestamp" in one["metadata"]]
        kept = [one for one in leaving if is_evicted(one)] if cluster.workload is not None else []
        assert not kept or (group and not serving)
        ended = [one for one in leaving if one.get("status", {}).get("phase") == "Succeeded"]
        rest = [one for one in leaving if one not in ended and one not in kept]
        assert not rest, "a deleted pod stays"


def is_evicted(pod: dict[str, Any]) -> bool:
    reason = condition_of(pod, "TerminationTarget").get("reason")
    return str(reason).startswith("WorkloadEvictedDueTo")


def ran(*names: str, group: str = "") -> Cluster:
    """Pods that run, with the Workload that let them."""
    cluster = Cluster(*(made_pod(one, group, len(names) if group else 0) for one in names))
    cluster.settle()
    assert cluster.workload is not None
    cluster.workload = admitted(cluster.workload)
    cluster.settle()
    return cluster


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param("evicted", "WorkloadEvictedDueToPreempted", id="its Workload was evicted"),
        pytest.param("deleted", "WorkloadDeleted", id="its Workload is being deleted"),
        pytest.param("gone", "NoMatchingWorkload", id="it has no Workload any more"),
        pytest.param("waits", "NotAdmitted", id="its Workload is not admitted any more"),
    ],
)
@pytest.mark.parametrize("group", ["", "g"])
def test_a_pod_that_is_stopped_is_told_why(change: str, reason: str, group: str) -> None:
    cluster = ran("a", "bb", group=group) if group else ran("a")
    workload = cluster.workload
    assert workload is not None
    match change:
        case "evicted":
            workload = evicted(workload)
            for one in workload["status"]["conditions"]:
                if one["type"] == "Evicted":
                    one.update(reason="Preempted", message="for another")
        case "deleted":
            workload["metadata"]["deletionTimestamp"] = "2026-01-02T00:00:00Z"
        case "waits":
            workload = with_condition(workload, "Admitted", False)
        case "gone":
            workload = None
    actions = reconcile_pods(cluster.pods.values(), workload)
    stops = [one for one in actions if isinstance(one, DeletePod)]
    assert {one.pod for one in stops} == set(cluster.pods)
    assert {one.reason for one in stops} == {reason}
    if change == "evicted":
        assert {one.why for one in stops} == {"for another"}


def test_who_makes_pods_anew_owns_their_workload_too() -> None:
    above = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "uid-db"}
    around = Setting(group_total=1, group_owner=above)
    one = made_pod("db-0", "set", 1)
    (create,) = reconcile_pods([one], None, around)
    assert isinstance(create, CreateWorkload)
    owners = create.document["metadata"]["ownerReferences"]
    assert [each["kind"] for each in owners] == ["StatefulSet", "Pod"]
    without = deepcopy(create.document)
    without["metadata"]["ownerReferences"] = owners[1:]
    (adopted,) = reconcile_pods([one], without, around)
    assert isinstance(adopted, UpdateWorkload), "of a Workload that was made before"
    assert adopted.patch["metadata"]["ownerReferences"] == [owners[1], above]
    assert reconcile_pods([one], create.document, around) == []


def test_a_group_waits_for_the_gates_of_its_statefulset() -> None:
    one = made_pod("db-0", "g", 1, **{"kueue.x-k8s.io/pod-group-fast-admission": "true"})
    gated = {"metadata": {"name": "db", "annotations": {GATES: "a.io/x,b.io/y"}}}
    around = Setting(group_total=1, group_document=gated)
    (action,) = reconcile_pods([one], None, around)
    assert isinstance(action, CreateWorkload)
    assert action.document["metadata"]["annotations"][GATES] == "a.io/x,b.io/y"
    fewer = {"metadata": {"name": "db", "annotations": {GATES: "b.io/y"}}}
    (action,) = (
        one
        for one in reconcile_pods(
            [one], action.document, Setting(group_total=1, group_document=fewer)
        )
        if isinstance(one, UpdateWorkload)
    )
    assert action.patch == {"metadata": {"annotations": {GATES: "b.io/y"}}}
