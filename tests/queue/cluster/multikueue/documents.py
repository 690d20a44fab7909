"""Workloads, jobs and copies of them for tests of MultiKueue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from queuecontroller.cluster.cache.multikueue import CONTROLLER

SETS = [{"name": "main", "count": 1, "template": {"spec": {"containers": [{"name": "c"}]}}}]
OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "ju", "controller": True}
AT = "2026-11-28T10:00:00Z"


def condition(name: str, at: str = AT, **more: str) -> dict[str, str]:
    head = {"type": name, "status": "True", "reason": name, "message": f"it is {name}"}
    return {**head, "lastTransitionTime": at, **more}


def workload(
    state: str = "Pending", conditions: Sequence[str] = ("QuotaReserved",), **status: Any
) -> dict[str, Any]:
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {
            "namespace": "n",
            "name": "w",
            "uid": "wu",
            "resourceVersion": "5",
            "labels": {"kueue.x-k8s.io/job-uid": "ju", "team": "a"},
            "ownerReferences": [OWNER],
        },
        "spec": {"podSets": SETS, "queueName": "q", "preemptionGates": [{"name": "g"}]},
        "status": {
            "admission": {"clusterQueue": "cq", "podSetAssignments": [{"name": "main"}]},
            "conditions": [condition(one) for one in conditions],
            "admissionChecks": [{"name": "mk", "state": state, "message": ""}],
            **status,
        },
    }


def job(**more: Any) -> dict[str, Any]:
    spec = {
        "suspend": True,
        "managedBy": CONTROLLER,
        "selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": "ju"}},
        "template": {
            "metadata": {"labels": {"batch.kubernetes.io/controller-uid": "ju", "a": "b"}},
            "spec": {"containers": [{"name": "c"}]},
        },
    }
    head = {"namespace": "n", "name": "j", "uid": "ju", "resourceVersion": "7"}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": head, "spec": {**spec, **more}}


def copy(*conditions: dict[str, str], **head: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "namespace": "n",
            "name": "w",
            "uid": "there",
            "resourceVersion": "1",
            "labels": {"kueue.x-k8s.io/multikueue-origin": "multikueue"},
            "finalizers": [],
            **head,
        },
        "spec": {"podSets": SETS, "queueName": "q"},
        "status": {"conditions": list(conditions), "preemptionGates": []},
    }


def job_there(**status: Any) -> dict[str, Any]:
    head = {
        "namespace": "n",
        "name": "j",
        "uid": "jthere",
        "resourceVersion": "1",
        "labels": {"kueue.x-k8s.io/prebuilt-workload-name": "w"},
        "finalizers": [],
    }
    return {"metadata": head, "status": status}
