"""Workloads with an admission check that a ProvisioningRequest answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from queuecontroller.cluster.status.workload_status import UNANSWERED

BEFORE = "2026-11-23T09:00:00Z"


def pod_set(name: str, request: str = "1", **more: Any) -> dict[str, Any]:
    resources = {"requests": {"cpu": request}, **more}
    container = {"name": "c", "image": name, "resources": resources}
    return {"name": name, "count": 2, "template": {"spec": {"containers": [container]}}}


def workload(
    state: str = "Pending",
    *pod_sets: dict[str, Any],
    conditions: Sequence[str] = ("QuotaReserved",),
    **check: Any,
) -> dict[str, Any]:
    every = pod_sets or (pod_set("main"),)
    given = [{"name": one["name"], "count": one["count"]} for one in every]
    asked = {"name": "nodes", "state": state, "message": UNANSWERED, "lastTransitionTime": BEFORE}
    return {
        "metadata": {"namespace": "n", "name": "w", "uid": "wu", "annotations": {}},
        "spec": {"podSets": list(every)},
        "status": {
            "admission": {"clusterQueue": "q", "podSetAssignments": given},
            "conditions": [{"type": one, "status": "True"} for one in conditions],
            "admissionChecks": [{**asked, **check}],
        },
    }
