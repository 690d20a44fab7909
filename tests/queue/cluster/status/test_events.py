"""Which events a write of ours is worth, by Kueue's reasons and types."""

from __future__ import annotations

from typing import Any

import pytest

from queuecontroller.cluster.status.events import KubernetesEvent, of_preemptor, of_workload
from queuecontroller.cluster.writers.event_recorder import EventRecorder
from sluicecommon.kubernetes.resources import PODS

JOB = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": True}


def workload(*conditions: tuple[str, bool, str, str], job: bool = False) -> dict[str, Any]:
    return {
        "metadata": {"name": "w", "namespace": "n", "uid": "u", **({"ownerReferences": [JOB]} if job else {})},
        "spec": {"maximumExecutionTimeSeconds": 60},
        "status": {
            "admission": {"clusterQueue": "cq"},
            "conditions": [
                {"type": kind, "status": "True" if on else "False", "reason": reason, "message": text}
                for kind, on, reason, text in conditions
            ],
        },
    }  # fmt: skip


WAITS = ("QuotaReserved", False, "WaitingForQuota", "1 more needed")
RESERVED = ("QuotaReserved", True, "QuotaReserved", "")
ADMITTED = ("Admitted", True, "Admitted", "")


def told(before: dict[str, Any], after: dict[str, Any], details: bool = False) -> list[str]:
    return [
        f"{'Warning' if one.warning else 'Normal'} {one.reason}"
        for one in of_workload(before, after)
        if details or not one.detail
    ]


@pytest.mark.parametrize("job", [False, True])
def test_an_admission_is_told_once_and_in_full_to_who_asks(job: bool) -> None:
    before, after = workload(job=job), workload(RESERVED, ADMITTED, job=job)
    assert told(before, after) == ([] if job else ["Normal Admitted"]), "a job hears Started"
    assert told(before, after, True) == ["Normal QuotaReserved", "Normal Admitted"]


def test_why_somebody_waits_is_a_detail() -> None:
    other = (*WAITS[:3], "2 more needed")
    assert told(workload(), workload(WAITS)) == []
    assert told(workload(), workload(WAITS), True) == ["Warning WaitingForQuota"]
    assert told(workload(WAITS), workload(other), True) == ["Warning WaitingForQuota"]
    assert told(workload(WAITS), workload(WAITS), True) == []


def test_gates_are_recorded_when_they_close_and_when_they_open() -> None:
    gated = ("QuotaReserved", False, "AdmissionGated", "Admission is gated by: a.io/x")
    assert told(workload(), workload(gated)) == ["Normal AdmissionGated"]
    (event,) = of_workload(workload(), workload(gated))
    assert event.message == "Workload admission is gated by: a.io/x"
    assert told(workload(gated), workload(gated)) == []
    assert told(workload(gated), workload(WAITS)) == ["Normal AdmissionGateCleared"]


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("Preempted", ["Normal EvictedDueToPreempted"]),
        ("Deactivated", ["Normal EvictedDueToDeactivated"]),
        (
            "DeactivatedDueToMaximumExecutionTimeExceeded",
            [
                "Warning MaximumExecutionTimeExceeded",
                "Normal EvictedDueToDeactivatedDueToMaximumExecutionTimeExceeded",
            ],
        ),
        (
            "DeactivatedDueToAdmissionCheck",
            ["Warning AdmissionCheckRejected", "Normal EvictedDueToDeactivatedDueToAdmissionCheck"],
        ),
        ("AdmissionCheck", ["Normal EvictedDueToAdmissionCheck"]),
    ],
)
def test_an_eviction_says_why(reason: str, said: list[str]) -> None:
    after = workload(RESERVED, ADMITTED, ("Evicted", True, reason, "m"))
    assert told(workload(RESERVED, ADMITTED), after) == said


def test_who_preempts_hears_whom() -> None:
    found = of_preemptor(workload(RESERVED))
    assert found == KubernetesEvent(
        "PreemptedWorkload", "Preempted workload n/w (UID: u) in ClusterQueue cq"
    )


@pytest.mark.parametrize("everything", [False, True])
def test_details_are_for_who_asks(everything: bool) -> None:
    recorder = EventRecorder(None, lambda: True, lambda: "x", everything)  # type: ignore[arg-type]
    recorder.record(workload(), PODS, KubernetesEvent("CreatedWorkload", "", detail=True))
    recorder.record(workload(), PODS, KubernetesEvent("Started", ""))
    assert len(recorder._waiting) == (2 if everything else 1)
