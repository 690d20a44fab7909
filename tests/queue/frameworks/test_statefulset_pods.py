"""Pods of a queued StatefulSet: one Workload, which goes on hold and moves with the set."""

from __future__ import annotations

from typing import Any

from queuecontroller.frameworks import (
    CreateWorkload,
    DeleteWorkload,
    MovePod,
    ReleasePod,
    ResumeWorkload,
    Setting,
    UpdateWorkload,
    reconcile_pods,
)
from queuecontroller.frameworks.patches import merged
from tests.queue.frameworks.samples import QUEUE
from tests.queue.frameworks.world import admitted, made_pod, with_condition

SERVING = {
    "kueue.x-k8s.io/pod-group-fast-admission": "true",
    "kueue.x-k8s.io/pod-group-serving": "true",
    "kueue.x-k8s.io/role-hash": "main",
}
OF_DB = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "u-db"}


def of_db(replicas: int, queue: str = "queue") -> Setting:
    head = {"name": "db", "uid": "u-db", "labels": {QUEUE: queue}}
    document = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": head}
    return Setting(group_total=replicas, group_owner=OF_DB, group_document=document)


def made_for(pod_: dict[str, Any], around: Setting) -> dict[str, Any]:
    (action,) = reconcile_pods([pod_], None, around)
    assert isinstance(action, CreateWorkload)
    return action.document


def test_the_workload_of_a_statefulset_names_it() -> None:
    document = made_for(made_pod("db-0", "g", 3, **SERVING), of_db(3))
    assert document["metadata"]["labels"]["kueue.x-k8s.io/job-uid"] == "u-db"
    assert document["metadata"]["ownerReferences"][0] == OF_DB


def test_a_workload_on_hold_is_queued_again_with_its_first_pod() -> None:
    one = made_pod("db-0", "g", 3, **SERVING)
    held = with_condition(made_for(one, of_db(3)), "QuotaReserved", False, reason="OnHold")
    assert ResumeWorkload() in reconcile_pods([one], held, of_db(3))
    smaller = reconcile_pods([one], held, of_db(2))
    assert [type(each) for each in smaller] == [DeleteWorkload], "another size is another Workload"


def test_the_last_pods_of_a_set_that_is_scaled_to_zero_end_and_its_workload_stays() -> None:
    one = made_pod("db-0", "g", 3, **SERVING)
    workload = admitted(made_for(one, of_db(3)))
    one["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    one["spec"]["schedulingGates"] = []
    assert [type(each) for each in reconcile_pods([one], workload, of_db(0))] == [ReleasePod]


def test_waiting_pods_move_with_their_statefulset_to_another_queue() -> None:
    one = made_pod("db-0", "g", 1, **SERVING)
    workload = made_for(one, of_db(1, "wrong"))
    assert workload["spec"]["queueName"] == "wrong"
    actions = reconcile_pods([one], workload, of_db(1, "right"))
    (update,) = (each for each in actions if isinstance(each, UpdateWorkload))
    assert update.patch == {"spec": {"queueName": "right"}}
    (move,) = (each for each in actions if isinstance(each, MovePod))
    assert move.patch == {"metadata": {"labels": {QUEUE: "right"}}}
    moved = merged(one, move.patch)
    assert reconcile_pods([moved], merged(workload, update.patch), of_db(1, "right")) == []
    running = admitted(workload)
    actions = reconcile_pods([one], running, of_db(1, "right"))
    assert not any(isinstance(each, UpdateWorkload | MovePod) for each in actions)
