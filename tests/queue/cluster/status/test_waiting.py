"""A job or pod that waits has one event for each new reason."""

from __future__ import annotations

from typing import Any

from queuecontroller.cluster.status.waiting import MAX_OWNERS, WaitingReasons, owners_to_tell

JOB = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u-j", "controller": True}


def workload(reason: str, message: str = "m", status: str = "False", **more: Any) -> dict[str, Any]:
    head = {"name": "w", "namespace": "t", "uid": more.pop("uid", "u-w"), "ownerReferences": [JOB]}
    conditions = [{"type": "QuotaReserved", "status": status, "reason": reason, "message": message}]
    if more.pop("finished", False):
        conditions.append({"type": "Finished", "status": "True", "reason": "r", "message": ""})
    return {"metadata": {**head, **more}, "status": {"conditions": conditions if reason else []}}


NEW = workload("")


def recorded(*states: dict[str, Any]) -> list[tuple[str, bool]]:
    waiting, found, before = WaitingReasons(), [], NEW
    for after in states:
        if (event := waiting.changed(before, after)) is not None:
            found.append((event.reason, event.warning))
        before = after
    return found


def test_each_new_reason_is_one_warning_whatever_the_amounts() -> None:
    quota, more = workload("WaitingForQuota", "1 more"), workload("WaitingForQuota", "2 more")
    never = workload("ExceedsMaxQuota")
    assert recorded(quota, more, quota, never, more) == [
        ("WaitingForQuota", True),
        ("ExceedsMaxQuota", True),
        ("WaitingForQuota", True),
    ]


def test_an_evaluation_under_way_is_no_reason() -> None:
    quota, under_way = workload("WaitingForQuota"), workload("PendingEvaluation")
    assert recorded(under_way, quota, under_way, quota) == [("WaitingForQuota", True)]


def test_it_waits_again_after_it_has_run() -> None:
    quota, runs = workload("WaitingForQuota"), workload("QuotaReserved", status="True")
    assert recorded(quota, runs, quota) == [("WaitingForQuota", True)] * 2
    other = workload("WaitingForQuota", uid="u-2")
    assert recorded(quota, other) == [("WaitingForQuota", True)] * 2, "of that name, another"
    leaving = workload("WaitingForQuota", deletionTimestamp="2026-11-22T10:00:00Z")
    assert recorded(workload("WaitingForQuota", finished=True), leaving) == []


def test_a_new_leader_does_not_repeat_what_the_status_had() -> None:
    quota = workload("WaitingForQuota", "1 more")
    waiting = WaitingReasons()
    assert waiting.changed(quota, workload("WaitingForQuota", "2 more")) is None
    event = waiting.changed(quota, workload("Misconfigured", "LocalQueue lq doesn't exist"))
    assert event is not None
    assert event.message == "waits in its queue (Workload w): LocalQueue lq doesn't exist"


def test_the_job_is_told_or_the_first_pods_of_a_group() -> None:
    ((kind, owner),) = owners_to_tell(workload("WaitingForQuota"))
    assert (kind.kind, kind.api_version) == ("Job", "batch/v1")
    assert owner["metadata"] == {"name": "j", "uid": "u-j", "namespace": "t"}
    pods = [
        {"apiVersion": "v1", "kind": "Pod", "name": f"p{n}", "uid": f"u{n}"}
        for n in range(MAX_OWNERS + 1)
    ]
    found = list(owners_to_tell(workload("WaitingForQuota", ownerReferences=pods)))
    assert [one["metadata"]["name"] for _, one in found] == [f"p{n}" for n in range(MAX_OWNERS)]
    unknown = {"apiVersion": "a.io/v2", "kind": "Mine", "name": "m", "uid": "u", "controller": True}
    ((kind, _),) = owners_to_tell(workload("WaitingForQuota", ownerReferences=[unknown]))
    assert (kind.api_version, kind.kind) == ("a.io/v2", "Mine")
