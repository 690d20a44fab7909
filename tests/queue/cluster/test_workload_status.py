"""The book's decision written as a patch and read back: it says the same, and nothing twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from queuecontroller.cluster.status.workload_status import (
    patch_of,
    pending,
    resolved,
    unresolved,
)
from queuecontroller.kueueapi.manifests.workloads import GATED_BY, read_workload
from queuecontroller.scheduler.model.objects import (
    Admission,
    AdmissionCheckStatus,
    CheckState,
    Condition,
    PodSetAssignment,
    RequeueState,
    Workload,
)
from queuecontroller.state.workloads import conditions

BLOCKED = "BlockedOnPreemptionGates"
NOW_NS = 1_700_000_000_123_456_789
TEMPLATE = {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1500m"}}}]}}
DOCUMENT: dict[str, Any] = {
    "apiVersion": "kueue.x-k8s.io/v1beta2",
    "kind": "Workload",
    "metadata": {"namespace": "n", "name": "w", "generation": 3},
    "spec": {"queueName": "q", "podSets": [{"name": "main", "count": 2, "template": TEMPLATE}]},
}
GIVEN = Admission(
    "cq", (PodSetAssignment("main", 2, {"cpu": "f"}, {"cpu": 3000, "memory": 3 << 20}),)
)


def patched(document: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    status = {**document.get("status", {}), **patch}
    kept = {name: value for name, value in status.items() if value is not None}
    return {**document, "status": kept}


def written(
    workload: Workload, document: dict[str, Any] = DOCUMENT, waits: Condition | None = None
) -> dict[str, Any]:
    return patched(document, patch_of(document, read_workload(document), workload, waits, NOW_NS))


def admitted() -> Workload:
    workload = replace(read_workload(DOCUMENT), admission=GIVEN)
    return conditions.admitted(conditions.reserved(workload, "cq", NOW_NS), NOW_NS)


def test_an_admission_is_one_patch_and_reads_as_it_was_given() -> None:
    document = written(admitted())
    read = read_workload(document)
    assert read.admission == GIVEN
    assert [(one.type, one.status) for one in read.conditions] == [
        ("QuotaReserved", True),
        ("Admitted", True),
    ]
    assert document["status"]["conditions"][0]["observedGeneration"] == 3
    assert patch_of(document, read, admitted(), None, NOW_NS) == {}, "the same again is no patch"


def test_what_was_given_is_taken_back() -> None:
    document = written(admitted())
    away = conditions.evicting(admitted(), "Preempted", "for another", "InClusterQueue", NOW_NS)
    back = conditions.back_in_line(away, "Preempted", "for another", NOW_NS)
    after = written(back, document)
    assert "admission" not in after["status"]
    told = {one["type"]: one for one in after["status"]["conditions"]}
    assert told["Evicted"]["status"] == "True"
    assert told["Preempted"]["reason"] == "InClusterQueue"
    assert (told["Admitted"]["status"], told["Admitted"]["reason"]) == ("False", "NoReservation")
    assert told["QuotaReserved"]["status"] == "False"
    assert patch_of(after, read_workload(after), back, None, NOW_NS) == {}


def test_who_would_preempt_and_may_not_says_so_until_it_has_quota_or_is_evicted() -> None:
    document = {**DOCUMENT, "spec": {**DOCUMENT["spec"], "preemptionGates": [{"name": "g"}]}}
    workload = read_workload(document)
    waits = pending("AdmissionGated", "Workload requires preemption, but it's gated", NOW_NS)
    blocked = written(workload, document, waits)
    told = {one["type"]: one for one in blocked["status"]["conditions"]}
    assert told["QuotaReserved"]["reason"] == "AdmissionGated"
    assert (told[BLOCKED]["status"], told[BLOCKED]["reason"]) == ("True", "PreemptionGated")
    assert told[BLOCKED]["message"] == waits.message
    after = read_workload(blocked)
    assert patch_of(blocked, after, after, waits, NOW_NS) == {}
    no_room = pending("WaitingForQuota", "no quota", NOW_NS)
    assert read_workload(written(after, blocked, no_room)).is_true(BLOCKED)
    reserved = conditions.reserved(replace(after, admission=GIVEN), "cq", NOW_NS)
    assert not read_workload(written(reserved, blocked)).is_true(BLOCKED)


def test_admission_that_is_gated_is_not_taken_for_a_preemption_gate() -> None:
    head = {**DOCUMENT["metadata"], "annotations": {GATED_BY: "a.io/x"}}
    spec = {**DOCUMENT["spec"], "preemptionGates": [{"name": "g"}]}
    document = {**DOCUMENT, "metadata": head, "spec": spec}
    waits = pending("AdmissionGated", "Admission is gated by: a.io/x", NOW_NS)
    found = written(read_workload(document), document, waits)
    assert [one["type"] for one in found["status"]["conditions"]] == ["QuotaReserved"]


def test_an_eviction_closes_every_preemption_gate() -> None:
    since = "2026-11-28T10:00:00Z"
    gates = [{"name": one, "position": "Open", "lastTransitionTime": since} for one in "ab"]
    document = written(admitted())
    document["status"]["preemptionGates"] = gates
    away = conditions.evicting(admitted(), "Preempted", "for another", "InClusterQueue", NOW_NS)
    after = written(away, document)["status"]["preemptionGates"]
    assert [(one["name"], one["position"]) for one in after] == [("a", "Closed"), ("b", "Closed")]
    assert {one["lastTransitionTime"] for one in after} == {"2023-11-14T22:13:20Z"}


def test_why_it_waits_keeps_the_time_since_when_it_does() -> None:
    workload = read_workload(DOCUMENT)
    first = written(workload, waits=pending("WaitingForQuota", "1 more needed", NOW_NS))
    later_ns = NOW_NS + 60_000_000_000
    waits = pending("WaitingForQuota", "2 more needed", later_ns)
    second = written(workload, first, waits)
    one, two = (each["status"]["conditions"][0] for each in (first, second))
    assert two["message"] == "2 more needed"
    assert one["lastTransitionTime"] == two["lastTransitionTime"] == "2023-11-14T22:13:20Z"
    assert patch_of(second, read_workload(second), workload, waits, later_ns) == {}


def test_others_conditions_stay() -> None:
    theirs = {"type": "Theirs", "status": "True", "reason": "r", "message": "m"}
    document = {**DOCUMENT, "status": {"conditions": [theirs]}}
    assert theirs in written(admitted(), document)["status"]["conditions"]


def test_devices_that_cannot_be_counted_and_then_can_are_in_requeued() -> None:
    empty = Workload("", "", ())
    shown = replace(empty, conditions=(unresolved("no template", NOW_NS),))
    waits = pending("DRAResourcesUnresolved", "no template", NOW_NS)
    document = patched(DOCUMENT, patch_of(DOCUMENT, shown, shown, waits, NOW_NS))
    assert patch_of(document, shown, shown, waits, NOW_NS + 5 * 10**9) == {}
    read = read_workload(document)
    assert [(one.type, one.status, one.reason) for one in read.conditions] == [
        ("Requeued", False, "DRAResourcesUnresolved"),
        ("QuotaReserved", False, "DRAResourcesUnresolved"),
    ]
    later = written(resolved(read, NOW_NS), document)
    again = read_workload(later).condition("Requeued")
    assert again is not None
    assert (again.status, again.reason) == (True, "DRAResourcesResolved")
    assert (
        patch_of(later, read_workload(later), resolved(read, NOW_NS + 10**10), None, NOW_NS) == {}
    )
    assert resolved(admitted(), NOW_NS) == admitted()


def test_a_back_off_is_written_once_and_taken_away() -> None:
    late = replace(read_workload(DOCUMENT), requeue_state=RequeueState(2, NOW_NS))
    document = written(late)
    assert document["status"]["requeueState"] == {"count": 2, "requeueAt": "2023-11-14T22:13:20Z"}
    assert patch_of(document, read_workload(document), late, None, NOW_NS) == {}
    clean = replace(late, requeue_state=RequeueState())
    assert patch_of(document, read_workload(document), clean, None, NOW_NS) == {
        "requeueState": None
    }


def test_what_a_check_said_stays_with_it() -> None:
    said = {"name": "a", "state": "Ready", "message": "m", "podSetUpdates": [{"name": "main"}]}
    document = {**DOCUMENT, "status": {"admissionChecks": [said]}}
    wanted = replace(
        read_workload(document),
        admission_checks=(
            AdmissionCheckStatus("a", CheckState.READY, "m"),
            AdmissionCheckStatus("b", CheckState.PENDING),
        ),
    )
    found = written(wanted, document)["status"]["admissionChecks"]
    assert found[0] == said
    assert (found[1]["name"], found[1]["state"]) == ("b", "Pending")


@pytest.mark.parametrize(
    ("reason", "cause", "told"),
    [
        ("DeactivatedDueToAdmissionCheck", "", ("Deactivated", "AdmissionCheck")),
        ("PodsReadyTimeout", "WaitForStart", ("PodsReadyTimeout", "WaitForStart")),
        ("Preempted", "", ("Preempted", "")),
    ],
)
def test_evictions_are_counted_by_reason_and_what_stands_behind_it(
    reason: str, cause: str, told: tuple[str, str]
) -> None:
    document = written(admitted())
    counted = {"reason": told[0], "underlyingCause": told[1], "count": 2}
    other = {"reason": "Preempted", "underlyingCause": "other", "count": 1}
    document["status"]["schedulingStats"] = {"evictions": [counted, other]}
    away = conditions.evicting(admitted(), reason, "m", None, NOW_NS, cause)
    # The write of the eviction may be the one that takes its quota, too.
    back = conditions.back_in_line(away, reason, "m", NOW_NS)
    for workload in (away, back):
        stats = written(workload, document)["status"]["schedulingStats"]
        assert stats == {"evictions": [other, {**counted, "count": 3}]}
