"""Counters of workloads follow Kueue's rules."""

from __future__ import annotations

from dataclasses import replace

import pytest

from queuecontroller.scheduler.model.objects import (
    Admission,
    AdmissionCheckStatus,
    CheckState,
    Workload,
)
from queuecontroller.state.figures import Counts, Figures, Histogram, Place, Waits
from queuecontroller.state.workloads import conditions
from queuecontroller.state.workloads.counting import Counting
from tests.queue.builders import SECOND, workload

QUEUED_S, RESERVED_S, ADMITTED_S, READY_S, EVICTED_S, STOPPED_S = 10, 13, 14, 24, 54, 56


def counted(checks: bool = False) -> tuple[Figures, Counting, Workload]:
    """One that was queued, admitted and ready, by times of its own."""
    figures = Figures()
    counting = Counting(figures)
    one = workload("w", "lq", 1, created_ns=QUEUED_S * SECOND, priority_class="high")
    if checks:
        ready = AdmissionCheckStatus("check", CheckState.READY)
        one = replace(one, admission_checks=(ready,))
    counting.reserved(one, "cq", RESERVED_S * SECOND)
    one = conditions.reserved(one, "cq", RESERVED_S * SECOND, admission=Admission("cq", ()))
    one = conditions.admitted(one, ADMITTED_S * SECOND)
    counting.admitted(one, "cq", ("team", "all"), ADMITTED_S * SECOND)
    after = conditions.with_condition(one, "PodsReady", True, "Started", "", READY_S * SECOND)
    counting.changed(one, after, READY_S * SECOND)
    return figures, counting, after


def only(waits: Waits) -> tuple[tuple[str, ...], float]:
    ((labels, found),) = waits.items()
    assert isinstance(found, Histogram)
    assert sum(found.counts) == 1
    return labels, found.total


def test_no_wait_is_negative_where_the_clock_is_behind_the_api_servers() -> None:
    figures = Figures()
    counting = Counting(figures)
    one = workload("w", "lq", 1, created_ns=QUEUED_S * SECOND)
    counting.reserved(one, "cq", (QUEUED_S - 5) * SECOND)
    one = conditions.reserved(one, "cq", QUEUED_S * SECOND, admission=Admission("cq", ()))
    counting.admitted(one, "cq", (), (QUEUED_S - 5) * SECOND)
    one = conditions.admitted(one, QUEUED_S * SECOND)
    after = conditions.with_condition(
        one, "PodsReady", True, "Started", "", (QUEUED_S - 4) * SECOND
    )
    counting.changed(one, after, (QUEUED_S - 4) * SECOND)
    for waits in (
        figures.reserve_wait,
        figures.admit_wait,
        figures.ready_wait,
        figures.admitted_ready,
    ):
        assert only(waits.cluster)[1] == only(waits.local)[1] == 0.0


def test_every_wait_is_measured_from_where_kueue_measures_it() -> None:
    figures, _, _ = counted(checks=True)
    for waits, seconds in (
        (figures.reserve_wait, RESERVED_S - QUEUED_S),
        (figures.admit_wait, ADMITTED_S - QUEUED_S),
        (figures.checks_wait, ADMITTED_S - RESERVED_S),
        (figures.ready_wait, READY_S - QUEUED_S),
        (figures.admitted_ready, READY_S - ADMITTED_S),
    ):
        assert only(waits.cluster) == (("cq", "high"), seconds)
        assert only(waits.local) == (("lq", "ns", "high"), seconds)
    assert dict(figures.admitted_below) == {("team", "high"): 1, ("all", "high"): 1}
    assert not counted()[0].checks_wait.cluster, "it has no checks"


def test_a_recovery_and_the_whole_execution_are_measured() -> None:
    figures, counting, one = counted()
    lost = conditions.with_condition(one, "PodsReady", False, "WaitForRecovery", "", 30 * SECOND)
    counting.changed(one, lost, 30 * SECOND)
    assert not figures.recovery_wait.cluster
    again = conditions.with_condition(lost, "PodsReady", True, "Recovered", "", 37 * SECOND)
    counting.changed(lost, again, 37 * SECOND)
    assert only(figures.recovery_wait.cluster) == (("cq", "high"), 7)
    assert only(figures.recovery_wait.local) == (("lq", "ns", "high"), 7)
    counting.finished(replace(again, past_execution_s=100), 50 * SECOND)
    assert only(figures.execution.cluster) == (("cq", "high"), 100 + 50 - ADMITTED_S)
    assert only(figures.execution.local) == (("lq", "ns", "high"), 100 + 50 - ADMITTED_S)
    figures.forget("ClusterQueue", "", "cq")
    assert not figures.execution.cluster
    assert not figures.recovery_wait.cluster


def test_an_eviction_is_counted_and_once_for_the_same_reason_and_cause() -> None:
    figures, counting, one = counted()
    counting.evicted(one, "cq", "PodsReadyTimeout", "WaitForStart", EVICTED_S * SECOND)
    told = ("cq", "PodsReadyTimeout", "WaitForStart")
    assert dict(figures.evicted.cluster) == {(*told, "high"): 1}
    assert only(figures.ready_evicted) == (told, EVICTED_S - READY_S)
    counting.evicted(one, "cq", "PodsReadyTimeout", "WaitForStart", EVICTED_S * SECOND)
    counting.evicted(one, "cq", "DeactivatedDueToAdmissionCheck", "", EVICTED_S * SECOND)
    deactivated = ("cq", "Deactivated", "AdmissionCheck", "high")
    assert dict(figures.evicted.cluster) == {(*told, "high"): 2, deactivated: 1}
    assert dict(figures.evicted_once.cluster) == {(*told, "high"): 1, deactivated: 1}


def test_what_was_written_down_before_is_not_once_more() -> None:
    figures, counting, one = counted()
    counting.evicted_before = lambda key: {("Preempted", "")}
    counting.evicted(one, "cq", "Preempted", "", EVICTED_S * SECOND)
    assert sum(figures.evicted.cluster.values()) == 1
    assert not figures.evicted_once.cluster


def test_one_that_is_queued_again_waits_from_then() -> None:
    figures, counting, one = counted()
    one = conditions.evicting(one, "Preempted", "m", "InClusterQueue", EVICTED_S * SECOND)
    counting.stopped(one, STOPPED_S * SECOND)
    assert only(figures.eviction_latency) == (("cq", "Preempted"), STOPPED_S - EVICTED_S)
    waiting = conditions.back_in_line(one, "Preempted", "m", STOPPED_S * SECOND)
    counting.reserved(waiting, "cq", (STOPPED_S + 5) * SECOND)
    (found,) = figures.reserve_wait.cluster.values()
    assert found.total == RESERVED_S - QUEUED_S + 5


def test_pods_that_recover_are_not_ready_for_the_first_time() -> None:
    figures, counting, one = counted()
    failed = conditions.with_condition(one, "PodsReady", False, "WaitForRecovery", "", 30 * SECOND)
    again = conditions.with_condition(failed, "PodsReady", True, "Recovered", "", 31 * SECOND)
    counting.changed(failed, again, 31 * SECOND)
    assert only(figures.ready_wait.cluster)[1] == READY_S - QUEUED_S


def test_queues_that_come_and_go_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queuecontroller.state.figures.MAX_SERIES", 3)
    counts, waits = Counts(), Waits()
    for number in range(10):
        counts.add(f"q{number}")
        waits.add(1.0, f"q{number}")
    assert list(counts) == list(waits) == [("q7",), ("q8",), ("q9",)]


def test_series_end_with_their_queue() -> None:
    figures = Figures()
    for queue, local, namespace in (("a", "q", "n"), ("b", "q", "m")):
        place = Place(queue, local, namespace, "")
        for one in (figures.reserved, figures.finished):
            one.add(place)
        figures.admission(place, 1.0, 1)
        figures.gate_removal.add(1.0, "gate", queue, "false")
        figures.admitted_below.add(f"cohort-{queue}", "")
    figures.forget("ClusterQueue", "", "a")
    assert set(figures.reserved.cluster) == set(figures.admit_wait.cluster) == {("b", "")}
    assert set(figures.gate_removal) == {("gate", "b", "false")}
    assert len(figures.reserved.local) == 2
    figures.forget("LocalQueue", "n", "q")
    assert set(figures.finished.local) == {("q", "m", "")}
    figures.forget("Cohort", "", "cohort-b")
    assert set(figures.admitted_below) == {("cohort-a", "")}
    figures.reserved.add(Place("a", "q", "n", ""))
    assert figures.reserved.cluster["a", ""] == 1, "one of that name counts from zero"
