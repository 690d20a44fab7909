"""Evictions on a workload's own account, one table row a rule, and the back-off's law."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuecontroller.scheduler.lifecycle import (
    Eviction,
    PodsReadySettings,
    backoff_ns,
    due_at_ns,
    due_eviction,
    reason_and_cause,
)
from queuecontroller.scheduler.model.objects import (
    AdmissionCheckStatus,
    CheckState,
    ClusterQueue,
    Condition,
    LocalQueue,
    RequeueState,
    StopPolicy,
    Workload,
)
from queuecontroller.scheduler.model.workload_info import queue_order_ns
from tests.queue.builders import SECOND, workload

ADMITTED = Condition("Admitted", True, changed_ns=100 * SECOND)
READY = Condition("PodsReady", True, changed_ns=110 * SECOND)
FAILED = Condition("PodsReady", False, "WaitForRecovery", changed_ns=150 * SECOND)
WAITS = PodsReadySettings(timeout_s=30, recovery_timeout_s=10, backoff_limit_count=2)
REJECTED = AdmissionCheckStatus("check", CheckState.REJECTED)
RETRY = AdmissionCheckStatus("check", CheckState.RETRY)
DRAINED = StopPolicy.HOLD_AND_DRAIN


@pytest.mark.parametrize(
    ("fields", "now_s", "reason", "deactivates"),
    [
        pytest.param({}, 129, None, False, id="pods still have time"),
        pytest.param({}, 130, "PodsReadyTimeout", False, id="pods were not ready in time"),
        pytest.param({"conditions": (ADMITTED, READY)}, 999, None, False, id="pods are ready"),
        pytest.param({"conditions": (ADMITTED, FAILED)}, 159, None, False, id="pods may recover"),
        pytest.param({"conditions": (ADMITTED, FAILED)}, 160, "PodsReadyTimeout", False, id="pods did not recover"),
        pytest.param({"conditions": ()}, 999, None, False, id="quota alone starts no clock"),
        pytest.param({"requeue_state": RequeueState(2)}, 130, "DeactivatedDueToRequeuingLimitExceeded", True, id="too many attempts"),
        pytest.param({"max_execution_s": 20}, 119, None, False, id="it may run on"),
        pytest.param({"max_execution_s": 20}, 120, "DeactivatedDueToMaximumExecutionTimeExceeded", True, id="it ran too long"),
        pytest.param({"active": False}, 1, "Deactivated", True, id="somebody deactivated it"),
        pytest.param({"admission_checks": (RETRY,)}, 1, "AdmissionCheck", False, id="a check wants a retry"),
        pytest.param({"admission_checks": (RETRY, REJECTED)}, 1, "DeactivatedDueToAdmissionCheck", True, id="a rejection outweighs a retry"),
    ],
)  # fmt: skip
def test_when_a_workload_has_to_stop(
    fields: dict[str, object], now_s: int, reason: str | None, deactivates: bool
) -> None:
    one = workload("w", "q", 1, **{"conditions": (ADMITTED,), **fields})
    found = due_eviction(one, now_s * SECOND, WAITS)
    assert (found and str(found.reason)) == reason
    assert (found is not None and found.deactivates) is deactivates


UNBOUND = Condition("PodsReady", False, "WaitForScheduling", changed_ns=100 * SECOND)
BOUND = Condition("PodsReady", False, "WaitForStart", changed_ns=104 * SECOND)
SHORT = PodsReadySettings(timeout_s=30, unscheduled_timeout_s=5)


@pytest.mark.parametrize(
    ("ready", "settings", "due_s", "cause"),
    [
        (UNBOUND, SHORT, 105, "WaitForScheduling"),
        (UNBOUND, WAITS, 130, "WaitForScheduling"),
        (BOUND, SHORT, 134, "WaitForStart"),
        (BOUND, WAITS, 130, "WaitForStart"),
    ],
    ids=["on no node", "no limit of its own", "from when all are on nodes", "from the admission"],
)
def test_pods_that_are_on_no_node_have_a_timeout_of_their_own(
    ready: Condition, settings: PodsReadySettings, due_s: int, cause: str
) -> None:
    one = workload("w", "q", 1, conditions=(ADMITTED, ready))
    assert due_at_ns(one, settings) == due_s * SECOND
    due = due_eviction(one, due_s * SECOND, settings)
    assert due is not None
    assert (due.reason, due.cause) == ("PodsReadyTimeout", cause)


@pytest.mark.parametrize("conditions", [(ADMITTED,), (ADMITTED, FAILED)], ids=["start", "recovery"])
@pytest.mark.parametrize("wide", [WAITS, PodsReadySettings()], ids=["also for all", "alone"])
def test_a_workloads_own_timeouts_count_before_those_for_all(
    wide: PodsReadySettings, conditions: tuple[Condition, ...]
) -> None:
    own = replace(wide, own=True)
    one = workload("w", "q", 1, conditions=conditions, ready_timeouts_s=(50, 60))
    due_s = 150 if conditions == (ADMITTED,) else 210
    assert due_at_ns(one, own) == due_s * SECOND
    assert due_eviction(one, due_s * SECOND - 1, own) is None
    due = due_eviction(one, due_s * SECOND, own)
    assert due is not None
    assert due.reason == "PodsReadyTimeout"
    assert ("50 s" if due_s == 150 else "60 s") in due.message
    without = workload("w", "q", 1, conditions=conditions)
    assert due_at_ns(one, wide) == due_at_ns(without, wide), "not in the older line"


def test_a_recovery_timeout_of_its_own_of_0_is_none() -> None:
    one = workload("w", "q", 1, conditions=(ADMITTED, FAILED), ready_timeouts_s=(50, 0))
    assert due_at_ns(one, replace(WAITS, own=True)) is None


@pytest.mark.parametrize(
    ("fields", "now_s", "told"),
    [
        pytest.param({}, 130, ("PodsReadyTimeout", "WaitForStart"), id="never ready"),
        pytest.param({"conditions": (ADMITTED, FAILED)}, 160, ("PodsReadyTimeout", "WaitForRecovery"), id="not ready any more"),
        pytest.param({"requeue_state": RequeueState(2)}, 130, ("Deactivated", "RequeuingLimitExceeded"), id="too many attempts"),
        pytest.param({"max_execution_s": 20}, 120, ("Deactivated", "MaximumExecutionTimeExceeded"), id="it ran too long"),
        pytest.param({"admission_checks": (REJECTED,)}, 1, ("Deactivated", "AdmissionCheck"), id="a check rejected it"),
        pytest.param({"active": False}, 1, ("Deactivated", ""), id="somebody deactivated it"),
        pytest.param({"admission_checks": (RETRY,)}, 1, ("AdmissionCheck", ""), id="a check wants a retry"),
    ],
)  # fmt: skip
def test_what_stands_behind_an_eviction_is_told_in_kueues_words(
    fields: dict[str, object], now_s: int, told: tuple[str, str]
) -> None:
    one = workload("w", "q", 1, **{"conditions": (ADMITTED,), **fields})
    due = due_eviction(one, now_s * SECOND, WAITS)
    assert due is not None
    evicted = Condition("Evicted", True, str(due.reason), due.message, cause=due.cause)
    assert reason_and_cause(evicted) == told


@pytest.mark.parametrize(
    ("cluster", "local", "reason"),
    [
        (StopPolicy.HOLD, StopPolicy.HOLD, None),
        (DRAINED, StopPolicy.NONE, "ClusterQueueStopped"),
        (StopPolicy.NONE, DRAINED, "LocalQueueStopped"),
    ],
)
def test_only_draining_stops_who_runs(
    cluster: StopPolicy, local: StopPolicy, reason: str | None
) -> None:
    found = due_eviction(
        workload("w", "q", 1),
        0,
        PodsReadySettings(),
        ClusterQueue("q", stop_policy=cluster),
        LocalQueue("ns", "q", "q", local),
    )
    assert (found and str(found.reason)) == reason


def test_without_a_timeout_pods_have_all_the_time() -> None:
    one = workload("w", "q", 1, conditions=(ADMITTED,))
    assert due_eviction(one, 10**6 * SECOND, PodsReadySettings()) is None
    assert due_at_ns(one, PodsReadySettings()) is None


@given(st.integers(1, 500), st.integers(1, 100), st.integers(1, 10_000))
def test_back_off_doubles_up_to_the_maximum(attempt: int, base_s: int, max_s: int) -> None:
    settings = PodsReadySettings(backoff_base_s=base_s, backoff_max_s=max_s)
    exact = min(base_s * 2 ** (attempt - 1), max_s) * SECOND
    assert exact <= backoff_ns(attempt, "ns/w", settings) <= exact + exact // 10_000


@given(st.integers(0, 400), st.sampled_from([None, 5, 40]), st.booleans())
def test_time_alone_changes_the_answer_only_when_told(
    now_s: int, max_execution_s: int | None, ready: bool
) -> None:
    conditions = (ADMITTED, READY) if ready else (ADMITTED,)
    one = workload("w", "q", 1, conditions=conditions, max_execution_s=max_execution_s)
    due_ns = due_at_ns(one, WAITS)
    found: Eviction | None = due_eviction(one, now_s * SECOND, WAITS)
    assert (found is not None) is (due_ns is not None and now_s * SECOND >= due_ns)
    if found is not None and found.requeue is not None:
        assert found.requeue.requeue_at_ns is not None
        assert found.requeue.requeue_at_ns > now_s * SECOND


@pytest.mark.parametrize(
    ("reason", "by_eviction", "order_ns"),
    [
        ("PodsReadyTimeout", True, 7),
        ("PodsReadyTimeout", False, 3),
        ("AdmissionCheck", True, 7),
        ("AdmissionCheck", False, 7),
        ("Preempted", True, 3),
    ],
)
def test_the_place_of_an_evicted_workload_in_its_queue(
    reason: str, by_eviction: bool, order_ns: int
) -> None:
    evicted = Condition("Evicted", True, reason, "", 7)
    one = Workload("ns", "w", (), created_ns=3, conditions=(evicted,))
    assert queue_order_ns(one, by_eviction=by_eviction) == order_ns
