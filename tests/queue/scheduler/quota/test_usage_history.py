"""Usage history of LocalQueues: numbers worked by hand, and laws for any history."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.model.settings import WEIGHT_UNIT, AdmissionFairSharing
from queuecontroller.scheduler.quota.decay import ONE
from queuecontroller.scheduler.quota.usage_history import (
    FIGURE_UNIT,
    LAST,
    UsageHistory,
    UsageRecord,
)

MINUTE = 60_000_000_000
HALF_LIFE = 10 * MINUTE
SHARING = AdmissionFairSharing(HALF_LIFE, 5 * MINUTE)
JOB, OTHER = WorkloadKey("ns/job"), WorkloadKey("ns/other")


def made(sharing: AdmissionFairSharing = SHARING, **weights: int) -> UsageHistory:
    history = UsageHistory(sharing)
    for name, weight in (weights or {"q": 1000}).items():
        history.put_queue(f"ns/{name}", weight, "cq")
    return history


def usage(history: UsageHistory, at_ns: int, queue: str = "ns/q") -> float:
    return history.figure_at(queue, at_ns) / FIGURE_UNIT


def test_what_is_in_use_counts_half_after_one_half_life() -> None:
    history = made()
    history.hold(JOB, "ns/q", {"gpu": 4}, 0)
    assert usage(history, 0) == 0
    assert usage(history, HALF_LIFE) == 2  # 4 * (1 - 1/2)
    assert usage(history, 2 * HALF_LIFE) == 3  # 4 * (1 - 1/4)
    assert history.figure_in_the_end("ns/q") == 4 * FIGURE_UNIT


def test_what_was_in_use_is_forgotten_by_half_each_half_life() -> None:
    history = made()
    history.hold(JOB, "ns/q", {"gpu": 4}, 0)
    history.release(JOB, 2 * HALF_LIFE)
    assert usage(history, 2 * HALF_LIFE) == 3
    assert usage(history, 3 * HALF_LIFE) == 1.5
    assert usage(history, 5 * HALF_LIFE) == 0.375
    assert history.figure_in_the_end("ns/q") == 0


def test_the_entry_penalty_is_the_use_of_one_sampling_interval() -> None:
    history = made()
    # 1 - 2**-(5/10) = 0.292893..., in units of 2**-64: 2**64 - 13043817825332782212
    part = ONE - 13043817825332782212
    assert history.penalty({"gpu": 4, "cpu": 0}) == {"gpu": 4 * part}
    history.hold(JOB, "ns/q", {"gpu": 4}, 0, penalized={"gpu": 4})
    assert usage(history, 0) == pytest.approx(1.171573, abs=1e-6)
    # 4 + (1.171573 - 4) / 2
    assert usage(history, HALF_LIFE) == pytest.approx(2.585786, abs=1e-6)
    # As much as one that has run since one interval before, and pays nothing.
    early = made()
    early.hold(JOB, "ns/q", {"gpu": 4}, 0)
    assert history.figure_at("ns/q", HALF_LIFE) == pytest.approx(
        early.figure_at("ns/q", HALF_LIFE + 5 * MINUTE), rel=1e-15
    )


def test_resources_count_by_weight_cpu_in_cores_and_the_queue_divides() -> None:
    weights = {"cpu": 2 * WEIGHT_UNIT, "memory": 0}
    history = made(AdmissionFairSharing(HALF_LIFE, 5 * MINUTE, weights), q=2000)
    history.hold(JOB, "ns/q", {"cpu": 1500, "memory": 1 << 30, "gpu": 3}, 0)
    # (2 * 1.5 + 0 * 2**30 + 1 * 3) / 2 in the end, half of it after one half-life
    assert history.figure_in_the_end("ns/q") == 3 * FIGURE_UNIT
    assert usage(history, HALF_LIFE) == 1.5


def test_without_a_weight_a_queue_comes_last_whatever_it_used() -> None:
    history = made(none=0, most=1)
    history.hold(JOB, "ns/most", {"memory": 2**63 - 1}, 0)
    history.hold(OTHER, "ns/none", {"gpu": 1}, 0)
    assert history.figure_in_the_end("ns/most") < LAST <= history.figure_at("ns/none", 0)
    assert history.figure_at("ns/none", 0) < history.figure_at("ns/none", HALF_LIFE)


def test_without_a_half_life_nothing_is_remembered() -> None:
    history = made(AdmissionFairSharing(0))
    history.hold(JOB, "ns/q", {"gpu": 4}, 0, penalized={"gpu": 4})
    history.release(JOB, HALF_LIFE)
    assert usage(history, HALF_LIFE) == 0
    assert history.consumed("ns/q") == ({}, HALF_LIFE)


def test_order_is_renewed_at_sampling_moments_and_when_usage_changes() -> None:
    history = made()
    history.hold(JOB, "ns/q", {"gpu": 4}, MINUTE)
    assert not history.sample(4 * MINUTE)
    assert history.figure("ns/q") == 0
    assert history.sample(HALF_LIFE + MINUTE)
    at_ten = history.figure("ns/q")
    assert at_ten == history.figure_at("ns/q", HALF_LIFE)
    assert not history.sample(HALF_LIFE + 4 * MINUTE)
    assert history.figure("ns/q") == at_ten
    history.hold(OTHER, "ns/q", {"gpu": 1}, HALF_LIFE + 4 * MINUTE)
    assert history.figure("ns/q") == history.figure_at("ns/q", HALF_LIFE + 4 * MINUTE)
    consumed, at_ns = history.consumed("ns/q")
    assert at_ns == HALF_LIFE + 4 * MINUTE
    # 4 * (1 - 2**-1.3), thirteen minutes after the begin
    assert consumed["gpu"] / ONE == pytest.approx(2.375496, abs=1e-6)


def test_another_half_life_counts_from_when_it_is_set() -> None:
    history = made()
    history.hold(JOB, "ns/q", {"gpu": 4}, 0)
    history.configure(AdmissionFairSharing(HALF_LIFE // 10, 5 * MINUTE), HALF_LIFE)
    assert usage(history, HALF_LIFE) == 2
    assert usage(history, HALF_LIFE + MINUTE) == 3


def test_what_runs_when_nothing_is_known_counts_as_if_it_always_had() -> None:
    history = made()
    history.hold(JOB, "ns/q", {"gpu": 4}, MINUTE)
    history.restore(())
    assert usage(history, MINUTE) == 4
    assert history.take_changed() == {"ns/q": UsageRecord("ns/q", MINUTE, {"gpu": 4 * ONE})}


def test_the_history_of_a_deleted_queue_goes_with_its_last_workload() -> None:
    history = made()
    history.hold(JOB, "ns/q", {"gpu": 4}, 0)
    history.drop_queue("ns/q")
    assert usage(history, HALF_LIFE) == 2
    history.take_changed()
    history.release(JOB, HALF_LIFE)
    assert usage(history, HALF_LIFE) == 0
    assert history.take_changed() == {"ns/q": None}


STEPS = st.lists(
    st.tuples(
        st.integers(0, 3 * HALF_LIFE),
        st.sampled_from([JOB, OTHER, WorkloadKey("ns/third")]),
        st.none() | st.integers(0, 2**40),
    ),
    min_size=1,
    max_size=12,
)


def play(history: UsageHistory, steps: list[tuple[int, WorkloadKey, int | None]]) -> int:
    """Starts and ends workloads; the time it ends."""
    now_ns = 0
    for passed, key, amount in steps:
        now_ns += passed
        if amount is None:
            history.release(key, now_ns)
        else:
            history.hold(key, "ns/q", {"gpu": amount}, now_ns, penalized={"gpu": amount})
    return now_ns


@given(STEPS, st.integers(0, HALF_LIFE), st.integers(0, HALF_LIFE))
def test_without_use_it_only_falls(
    steps: list[tuple[int, WorkloadKey, int | None]], first: int, more: int
) -> None:
    history = made()
    end_ns = play(history, [*steps, *((0, key, None) for _, key, _ in steps)])
    before = history.figure_at("ns/q", end_ns + first)
    after = history.figure_at("ns/q", end_ns + first + more)
    assert 0 <= after <= before
    if more >= 1_000_000_000 and before > FIGURE_UNIT:
        assert after < before


@given(STEPS, st.integers(1, 12), st.integers(0, 10 * HALF_LIFE))
def test_a_restart_changes_nothing(
    steps: list[tuple[int, WorkloadKey, int | None]], at: int, later: int
) -> None:
    """Everything is lost but what was written and who holds quota."""
    straight, broken = made(), made()
    end_ns = play(straight, steps)
    began_ns = play(broken, steps[:at])
    written: Mapping[str, UsageRecord | None] = broken.take_changed()
    holds: dict[WorkloadKey, int] = {}
    for _, key, amount in steps[:at]:
        holds.pop(key, None)
        if amount is not None:
            holds[key] = amount
    restarted = made()
    for key, amount in holds.items():
        restarted.hold(key, "ns/q", {"gpu": amount}, began_ns + later)
    restarted.restore(record for record in written.values() if record is not None)
    assert restarted.take_changed() == {}
    now_ns = began_ns
    for passed, key, amount in steps[at:]:
        now_ns += passed
        if amount is None:
            restarted.release(key, now_ns)
        else:
            restarted.hold(key, "ns/q", {"gpu": amount}, now_ns, penalized={"gpu": amount})
    for at_ns in (end_ns, end_ns + later):
        assert restarted.figure_at("ns/q", at_ns) == straight.figure_at("ns/q", at_ns)


@settings(max_examples=50)
@given(st.lists(st.integers(1, HALF_LIFE), min_size=1, max_size=20), st.integers(1, 2**40))
def test_looking_often_is_looking_once(gaps: list[int], amount: int) -> None:
    """Changes in between that leave the usage as it is round down, by a unit each at most."""
    once, often = made(), made()
    for history in (once, often):
        history.hold(JOB, "ns/q", {"gpu": amount}, 0)
    now_ns = 0
    for gap in gaps:
        now_ns += gap
        often.hold(OTHER, "ns/q", {"gpu": 0}, now_ns)
        often.release(OTHER, now_ns)
    a, b = once.figure_at("ns/q", now_ns), often.figure_at("ns/q", now_ns)
    assert abs(a - b) <= len(gaps) * (amount + 1) * 2 * 1000 * WEIGHT_UNIT
