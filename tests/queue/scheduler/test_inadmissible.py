"""Workloads that are not nominated or not admitted, whatever quota there is, and the reason, one
rule a test."""

from __future__ import annotations

import pytest

from queuecontroller.scheduler.model.limit_range import Bounds, LimitRange
from queuecontroller.scheduler.model.objects import (
    AdmissionCheckRule,
    AdmissionCheckStatus,
    CheckState,
    Condition,
    LocalQueue,
    QueueingStrategy,
    RequeueState,
    StopPolicy,
    WorkloadKey,
)
from queuecontroller.scheduler.model.reasons import PendingReason
from queuecontroller.scheduler.model.selectors import LabelSelector, Requirement
from tests.queue.builders import (
    SECOND,
    group,
    preempting,
    queue_with,
    quota,
    scheduler,
    started,
    used,
    workload,
)

STRICT = {"queueing_strategy": QueueingStrategy.STRICT_FIFO}
EIGHT = group(default=quota(8))
NOT_MINE = LabelSelector((Requirement("team", "In", ("x",)),))


def key(name: str) -> WorkloadKey:
    return WorkloadKey(f"ns/{name}")


@pytest.mark.parametrize(
    "fields", [{"namespace_selector": None}, {"namespace_selector": NOT_MINE, **STRICT}]
)
def test_a_namespace_the_queue_does_not_serve(fields: dict[str, object]) -> None:
    made = scheduler(queue_with(**fields))
    made.submit(workload("w", "q", 1))
    (waiting,) = made.cycle(SECOND).pending
    assert waiting.reason is PendingReason.MISCONFIGURED
    assert ("namespaceSelector: {}" in waiting.message) is (
        fields.get("namespace_selector") is None
    )
    assert made.pending["q"].is_inadmissible(waiting.info)
    made.put_namespace("ns", {"team": "x"})
    assert started(made) == (["w"] if fields.get("namespace_selector") else [])


def test_bounds_of_the_namespace_hold_before_quota_is_taken() -> None:
    made = scheduler(queue_with())
    made.put_limit_ranges("ns", [LimitRange((Bounds("Pod", maximum={"gpu": 2}),))])
    made.submit(workload("w", "q", 3))
    (waiting,) = made.cycle(SECOND).pending
    assert (waiting.reason, "at most 2" in waiting.message) == (PendingReason.MISCONFIGURED, True)
    made.put_limit_ranges("ns", [LimitRange((Bounds("Pod", maximum={"gpu": 3}),))])
    assert started(made) == ["w"]


@pytest.mark.parametrize("policy", [StopPolicy.HOLD, StopPolicy.HOLD_AND_DRAIN])
def test_a_stopped_queue_starts_nothing_until_it_goes_on(policy: StopPolicy) -> None:
    made = scheduler(queue_with(stop_policy=policy))
    made.submit(workload("w", "q", 1))
    assert made.cycle(SECOND).heads == 0
    made.cache.put_cluster_queue(queue_with())
    made.settle()
    assert started(made) == ["w"]


def test_a_stopped_local_queue_takes_nothing() -> None:
    made = scheduler(queue_with())
    made.put_local_queue(LocalQueue("ns", "q", "q", StopPolicy.HOLD))
    made.submit(workload("w", "q", 1))
    assert started(made) == []
    assert "stopped" in (made.why_unqueued(key("w")) or "")
    made.put_local_queue(LocalQueue("ns", "q", "q"))
    made.settle()
    assert started(made) == ["w"]


@pytest.mark.parametrize(
    ("what", "why"),
    [
        (workload("w", "nowhere", 1), "LocalQueue nowhere doesn't exist"),
        (workload("w", "q", 1, active=False), "deactivated"),
        (workload("w", "q", 1, gated_by="a.io/x"), "Admission is gated by: a.io/x"),
    ],
)
def test_a_workload_without_a_queue_says_why(what: object, why: str) -> None:
    made = scheduler(queue_with())
    made.submit(what)  # type: ignore[arg-type]
    assert why in (made.why_unqueued(key("w")) or "")


def test_a_gated_workload_starts_once_its_last_gate_is_gone() -> None:
    made = scheduler(queue_with())
    made.submit(workload("w", "q", 1, gated_by="a.io/x"))
    assert started(made) == []
    made.submit(workload("w", "q", 1))
    assert started(made) == ["w"]


def test_a_running_workload_whose_priority_was_lowered_is_preempted() -> None:
    made = scheduler(queue_with(preemption=preempting("LowerPriority")))
    made.submit(workload("runs", "q", 8, priority=5))
    (decision,) = made.cycle(SECOND).reserved
    made.submit(workload("waits", "q", 8, priority=3))
    assert not made.cycle(2 * SECOND).preempted
    made.submit(workload("runs", "q", 8, priority=1, admission=decision.admission()))
    (preempted,) = made.cycle(3 * SECOND).preempted
    assert preempted.target.workload.name == "runs"


def test_a_queue_with_an_unknown_flavor_starts_nothing_until_it_is_known() -> None:
    made = scheduler(queue_with(), flavors=())
    made.submit(workload("w", "q", 1))
    assert made.cycle(SECOND).heads == 0
    assert "default" in (made.cache.why_inactive("q") or "")


@pytest.mark.parametrize(
    ("rules", "states", "ready"),
    [
        ((), {}, True),
        (("check",), {}, False),
        (("check",), {"check": CheckState.PENDING}, False),
        (("check",), {"check": CheckState.READY}, True),
    ],
)
def test_admission_waits_for_checks_but_quota_does_not(
    rules: tuple[str, ...], states: dict[str, CheckState], ready: bool
) -> None:
    checks = tuple(AdmissionCheckRule(name) for name in rules)
    made = scheduler(queue_with(admission_checks=checks))
    statuses = tuple(AdmissionCheckStatus(name, state) for name, state in states.items())
    made.submit(workload("w", "q", 1, admission_checks=statuses))
    (one,) = made.cycle(SECOND).reserved
    assert one.checks_ready is ready
    assert used(made, "q") == {"default/gpu": 1}


def test_a_check_for_another_flavor_is_not_waited_for() -> None:
    rule = AdmissionCheckRule("check", ("other",))
    made = scheduler(queue_with(admission_checks=(rule,)))
    made.submit(workload("w", "q", 1))
    assert made.cycle(SECOND).reserved[0].checks_ready


def test_a_workload_in_back_off_comes_when_its_time_has_come() -> None:
    made = scheduler(queue_with())
    made.submit(workload("w", "q", 1, requeue_state=RequeueState(1, 5 * SECOND)), SECOND)
    assert made.next_wake_ns() == 5 * SECOND
    assert started(made, 4 * SECOND) == []
    assert started(made, 5 * SECOND) == ["w"]


def test_the_time_of_a_pods_ready_eviction_is_the_time_that_queues() -> None:
    made = scheduler(queue_with())
    evicted = Condition("Evicted", True, "PodsReadyTimeout", changed_ns=9)
    made.submit(workload("evicted", "q", 8, created_ns=1, conditions=(evicted,)))
    made.submit(workload("younger", "q", 8, created_ns=5))
    assert started(made) == ["younger"]


def test_those_alike_hear_once_why_none_of_them_can_start() -> None:
    made = scheduler(queue_with())
    for name in ("a", "b", "c"):
        made.submit(workload(name, "q", 9))
    made.submit(workload("small", "q", 8))
    first = made.cycle(SECOND)
    (waiting,) = [one for one in first.pending if one.info.key == key("a")]
    assert set(first.unreported) >= {key("b"), key("c")}
    assert key("small") not in first.unreported
    for name in ("b", "c"):
        assert made.why_like_others(key(name)) == (str(waiting.reason), waiting.message)
    assert made.cycle(2 * SECOND).unreported == []
    made.submit(workload("late", "q", 9), 3 * SECOND)
    assert made.why_like_others(key("late")) == (str(waiting.reason), waiting.message)
