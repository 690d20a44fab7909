"""LocalQueues that are ordered by their usage: heads, victims, and results. The file is long because all of it needs the
same histories of usage."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import replace

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from queuecontroller.scheduler.model.objects import (
    AdmissionCheckRule,
    AdmissionMode,
    ClusterQueue,
    Cohort,
    LocalQueue,
    QueueingStrategy,
    Workload,
)
from queuecontroller.scheduler.model.settings import AdmissionFairSharing
from queuecontroller.scheduler.quota.usage_history import FIGURE_UNIT
from queuecontroller.scheduler.scheduler import Scheduler
from tests.queue.builders import (
    SECOND,
    cluster_queue,
    group,
    preempting,
    quota,
    scheduler,
    started,
    workload,
)

MINUTE = 60_000_000_000
SHARING = AdmissionFairSharing(10 * MINUTE, 5 * MINUTE)
BY_USAGE = AdmissionMode.BY_USAGE
STRICT = QueueingStrategy.STRICT_FIFO


def shared(
    nominal: int = 4,
    weights: tuple[int, ...] = (1000, 1000),
    sharing: AdmissionFairSharing | None = SHARING,
    **fields: object,
) -> Scheduler:
    """One ClusterQueue `cq` with the LocalQueues a, b, ..., by usage."""
    fields.setdefault("admission_mode", BY_USAGE)
    made = scheduler(cluster_queue("cq", group(default=quota(nominal)), **fields))
    for name, weight in zip("abcdefgh", weights, strict=False):
        made.put_local_queue(LocalQueue("ns", name, "cq", fair_weight_milli=weight))
    made.share_admission(sharing, 0)
    made.settle()
    return made


def submit(made: Scheduler, *some: Workload, now_ns: int = 0) -> None:
    for one in some:
        made.submit(one, now_ns)


def run(made: Scheduler, now_ns: int) -> list[str]:
    """Every workload that starts at this moment, in order."""
    found: list[str] = []
    while True:
        result = made.cycle(now_ns)
        found += [one.info.workload.name for one in result.reserved]
        if not (result.reserved or result.preempted or result.more):
            return found


def line(queue: str, count: int, amount: int = 1, created_ns: int = 0) -> list[Workload]:
    """`count` workloads in a LocalQueue, named a0, a1, ..., one a nanosecond."""
    return [workload(f"{queue}{n}", queue, amount, created_ns=created_ns + n) for n in range(count)]


# -- who is next ----------------------------------------------------------------------------------


def test_who_has_used_less_goes_first_though_it_came_later() -> None:
    made = shared(nominal=2)
    submit(made, *line("a", 2))
    assert run(made, 1) == ["a0", "a1"]
    submit(made, *line("a", 2, created_ns=2), *line("b", 2, created_ns=1000), now_ns=MINUTE)
    for name in ("a0", "a1"):
        made.delete(workload(name, "a", 1).key, MINUTE)
    submit(made, workload("old", "a", 1, created_ns=1))
    assert run(made, MINUTE) == ["b0", "b1"]


def test_priority_does_not_go_before_usage() -> None:
    made = shared(nominal=1)
    submit(made, *line("a", 1))
    assert run(made, 1) == ["a0"]
    submit(made, workload("urgent", "a", 1, priority=100), workload("plain", "b", 1))
    made.delete(workload("a0", "a", 1).key, MINUTE)
    assert run(made, MINUTE) == ["plain"]


def test_equal_usage_leaves_it_to_priority_and_time() -> None:
    made = shared(nominal=1)
    submit(
        made,
        workload("young", "a", 1, created_ns=5),
        workload("old", "b", 1, created_ns=4),
        workload("high", "a", 1, created_ns=6, priority=1),
    )
    assert run(made, 1) == ["high"]
    other = shared(nominal=1)
    submit(other, workload("young", "a", 1, created_ns=5), workload("old", "b", 1, created_ns=4))
    assert run(other, 1) == ["old"]


def test_a_burst_counts_at_once() -> None:
    """The entry penalty: without it `a` would take everything until usage is sampled again."""
    made = shared(nominal=6)
    submit(made, *line("a", 6), *line("b", 6, created_ns=100))
    assert run(made, 1) == ["a0", "b0", "a1", "b1", "a2", "b2"]


def test_a_large_one_pays_for_its_size() -> None:
    made = shared(nominal=7)
    submit(made, *line("a", 4, amount=3), *line("b", 4, created_ns=100))
    assert run(made, 1) == ["a0", "b0", "b1", "b2", "b3"]


def test_weights_divide_what_was_used() -> None:
    made = shared(nominal=8, weights=(3000, 1000))
    submit(made, *line("a", 8), *line("b", 8, created_ns=100))
    # After each: a 1/3, b 1, a 2/3, a 1 = b, a came first, ...
    assert run(made, 1) == ["a0", "b0", "a1", "a2", "a3", "b1", "a4", "a5"]


def test_weight_zero_goes_when_nobody_else_waits() -> None:
    made = shared(nominal=3, weights=(0, 1000))
    submit(made, *line("a", 2), *line("b", 2, created_ns=100))
    assert run(made, 1) == ["b0", "b1", "a0"]


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(shared(nominal=2, sharing=None), id="no admissionFairSharing configured"),
        pytest.param(shared(nominal=2, admission_mode=AdmissionMode.NONE), id="no admission scope"),
        pytest.param(shared(2, sharing=AdmissionFairSharing(0)), id="a half-life of 0"),
    ],
)
def test_otherwise_time_decides(made: Scheduler) -> None:
    submit(made, *line("a", 4), *line("b", 4, created_ns=100))
    assert run(made, 1) == ["a0", "a1"]


def test_a_blocked_one_lets_the_next_queue_pass_only_under_best_effort() -> None:
    for strategy, then in ((QueueingStrategy.BEST_EFFORT_FIFO, ["a0"]), (STRICT, [])):
        made = shared(nominal=4, queueing_strategy=strategy)
        submit(made, *line("a", 1, amount=2))
        assert run(made, 1) == ["a0"]
        submit(made, workload("wide", "b", 3), workload("narrow", "a", 1))
        assert run(made, 2) == [name.replace("a0", "narrow") for name in then], strategy


def test_under_strict_fifo_the_block_moves_when_usage_has_decayed() -> None:
    """b has used nothing, c something of late. b's head is too wide; once what it holds has made
    b the heavier user, c's comes first, at a moment that the engine reports."""
    made = shared(nominal=4, weights=(1000, 1000, 1000), queueing_strategy=STRICT)
    submit(made, *line("c", 1, amount=2), *line("b", 1))
    assert run(made, 1) == ["b0", "c0"]
    made.delete(workload("c0", "c", 2).key, 2)
    submit(made, workload("wide", "b", 4), workload("narrow", "c", 1))
    assert run(made, 3) == []
    history = made.history
    assert history is not None
    assert history.figure("ns/b") < history.figure("ns/c")
    due_ns = made.next_wake_ns()
    assert due_ns is not None
    assert due_ns % (5 * MINUTE) == 0
    before_ns = due_ns - 5 * MINUTE
    assert history.figure_at("ns/b", before_ns) <= history.figure_at("ns/c", before_ns)
    assert history.figure_at("ns/b", due_ns) > history.figure_at("ns/c", due_ns)
    assert run(made, before_ns) == []
    assert made.next_wake_ns() == due_ns
    assert run(made, due_ns) == ["narrow"]


def test_where_the_order_stays_nothing_is_woken() -> None:
    made = shared(nominal=1, queueing_strategy=STRICT)
    submit(made, *line("a", 2), *line("b", 2))
    assert run(made, 1) == ["a0"]
    assert run(made, 2) == []
    assert made.next_wake_ns() is None


def test_another_weight_counts_at_once() -> None:
    made = shared(nominal=4, queueing_strategy=STRICT)
    submit(made, *line("a", 1), *line("b", 1, amount=2))
    assert run(made, 1) == ["a0", "b0"]
    submit(made, workload("wide", "a", 4), workload("narrow", "b", 1))
    assert run(made, 2) == []
    made.put_local_queue(LocalQueue("ns", "a", "cq", fair_weight_milli=100))
    made.settle()
    assert run(made, 3) == ["narrow"]


def test_back_off_and_homes_are_kept_when_the_mode_changes() -> None:
    made = shared(nominal=2)
    resting = workload("resting", "a", 1)
    resting = replace(resting, requeue_state=replace(resting.requeue_state, requeue_at_ns=MINUTE))
    submit(made, resting, *line("b", 1))
    spec = made.cache.queues["cq"].spec
    for mode in (AdmissionMode.NONE, BY_USAGE):
        made.cache.put_cluster_queue(replace(spec, admission_mode=mode))
        made.settle()
        assert len(made.pending["cq"]) == 2
        assert resting.key in made.pending["cq"]
        assert made.pending["cq"].get(resting.key) is not None
    assert run(made, 1) == ["b0"]
    assert made.next_wake_ns() == MINUTE
    assert run(made, MINUTE) == ["resting"]


def test_a_workload_that_changes_its_queue_changes_its_line() -> None:
    made = shared(nominal=1)
    submit(made, workload("one", "a", 1), workload("one", "b", 1))
    assert [info.workload.queue_name for info in made.pending["cq"].everyone()] == ["b"]


# -- who makes way --------------------------------------------------------------------------------


@pytest.mark.parametrize("room_for", ["classic", "fair"])
def test_the_queue_that_used_most_makes_way_first(room_for: str) -> None:
    policy = preempting(within="LowerPriority")
    made = shared(nominal=3, weights=(1000, 1000, 1000), preemption=policy)
    if room_for == "fair":
        made.settings = replace(made.settings, fair_sharing=True)
    submit(made, *line("a", 2), now_ns=0)
    assert run(made, 0) == ["a0", "a1"]
    submit(made, *line("b", 1, created_ns=50), now_ns=MINUTE)
    assert run(made, MINUTE) == ["b0"]
    # By priority and time alone b0, admitted last, would have to go.
    submit(made, workload("urgent", "c", 1, priority=10), now_ns=MINUTE)
    gone = [one.target.workload.name for one in made.cycle(2 * MINUTE).preempted]
    assert gone == ["a0"]


def test_in_another_queue_that_borrows_the_one_that_used_most_makes_way_first() -> None:
    lender = cluster_queue(
        "lender", group(default=quota(1)), cohort="all", preemption=preempting(reclaim="Any")
    )
    borrower = cluster_queue(
        "borrower", group(default=quota(1)), cohort="all", admission_mode=BY_USAGE
    )
    made = scheduler(lender, borrower)
    for name in "ab":
        made.put_local_queue(LocalQueue("ns", name, "borrower"))
    made.share_admission(SHARING, 0)
    made.settle()
    submit(made, *line("a", 1))
    assert run(made, 0) == ["a0"]
    submit(made, *line("b", 1), now_ns=6 * MINUTE)
    assert run(made, 6 * MINUTE) == ["b0"]
    submit(made, workload("mine", "lender", 1), now_ns=7 * MINUTE)
    result = made.cycle(7 * MINUTE)
    assert [one.target.workload.name for one in result.preempted] == ["a0"]


def test_what_was_freed_for_a_preemptor_goes_to_nobody_who_used_less() -> None:
    """Otherwise that one would be preempted in its turn."""
    made = shared(nominal=2, preemption=preempting(within="LowerPriority"))
    submit(made, *line("a", 2))
    assert run(made, 0) == ["a0", "a1"]
    submit(made, workload("urgent", "a", 2, priority=10), workload("light", "b", 1), now_ns=1)
    gone = [one.target.workload for one in made.cycle(1).preempted]
    gone += [one.target.workload for one in made.cycle(1).preempted]
    assert [one.name for one in gone] == ["a0", "a1"]
    for number, one in enumerate(gone):
        made.release(one.key, 2)
        made.submit(one, 2)
        assert run(made, 2) == (["urgent"] if number else [])
    assert made.history is not None
    assert made.history.figure("ns/b") < made.history.figure("ns/a")


# -- cohorts --------------------------------------------------------------------------------------


def cohort(mode: AdmissionMode, weight: int = 1000) -> Scheduler:
    """Three ClusterQueues that borrow what the cohort has."""

    def queue(name: str, fair_weight_milli: int = 1000) -> ClusterQueue:
        fields = {"cohort": "all", "fair_weight_milli": fair_weight_milli}
        return cluster_queue(name, group(default=quota(0)), **fields)

    made = scheduler(
        queue("x"),
        queue("y", weight),
        cohorts=(Cohort("all", resource_groups=(group(default=quota(2)),), admission_mode=mode),),
    )
    made.share_admission(SHARING, 0)
    made.settle()
    return made


@pytest.mark.parametrize(
    ("mode", "order"),
    [(AdmissionMode.NONE, ["x1", "y0"]), (BY_USAGE, ["y0", "x1"])],
    ids=["by time without a scope", "by usage under one"],
)
def test_borrowers_of_a_cohort_are_served_by_usage(mode: AdmissionMode, order: list[str]) -> None:
    made = cohort(mode)
    submit(made, *line("x", 1))
    assert run(made, 0) == ["x0"]
    made.delete(workload("x0", "x", 1).key, MINUTE)
    submit(made, workload("x1", "x", 1, created_ns=1), workload("y0", "y", 1, created_ns=2))
    assert started(made, MINUTE) == order


def test_the_weight_of_a_cluster_queue_divides_what_it_used() -> None:
    for weight, first in ((1000, "x1"), (9000, "y1")):
        made = cohort(BY_USAGE, weight)
        submit(made, *line("x", 1), *line("y", 1))
        assert run(made, 0) == ["x0", "y0"]
        for name, at_ns in (("x0", MINUTE), ("y0", 2 * MINUTE)):  # y has used more
            made.delete(workload(name, name[0], 1).key, at_ns)
        submit(made, workload("x1", "x", 1, created_ns=8), workload("y1", "y", 1, created_ns=9))
        assert started(made, 2 * MINUTE)[0] == first


# -- over long runs -------------------------------------------------------------------------------


def admitted_time(
    weights: tuple[int, ...],
    lengths_ns: tuple[int, ...],
    sizes: tuple[int, ...],
    nominal: int,
    until_ns: int,
    sharing: AdmissionFairSharing = SHARING,
) -> list[int]:
    """GPU time by LocalQueue, when each always has work waiting, with jobs of its own length and
    size."""
    made = shared(nominal, weights, sharing)
    names = "abcdefgh"[: len(weights)]
    counts = itertools.count()
    job_of: dict[str, int] = {}
    ends: list[tuple[int, str]] = []
    total = [0] * len(weights)

    def refill(at: int, now_ns: int) -> None:
        name = f"{names[at]}{next(counts)}"
        job_of[name] = at
        submit(made, workload(name, names[at], sizes[at], created_ns=now_ns), now_ns=now_ns)

    for at in range(len(weights)):
        for _ in range(nominal):
            refill(at, 0)
    now_ns = 0
    while now_ns < until_ns:
        for name in run(made, now_ns):
            at = job_of[name]
            # 80 to 120 % of its length: in step, all slots would go to one queue after the other.
            runs_ns = lengths_ns[at] * (8 + int(name[1:]) // len(weights) % 5) // 10
            heapq.heappush(ends, (now_ns + runs_ns, name))
            total[at] += runs_ns * sizes[at]
            refill(at, now_ns)
        now_ns = ends[0][0]
        while ends and ends[0][0] == now_ns:
            _, name = heapq.heappop(ends)
            made.delete(workload(name, names[job_of[name]], 1).key, now_ns)
    return total


QUEUES = st.lists(
    st.tuples(st.sampled_from([500, 1000, 2000, 3000]), st.integers(1, 5), st.integers(1, 2)),
    min_size=2,
    max_size=4,
)


# Without shrinking: a failure is a matter of arithmetic, and one example takes a while.
@settings(max_examples=3, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(QUEUES, st.sampled_from([1, 300]))
@example([(1000, 1, 1), (1000, 5, 1)], 300)
@example([(1000, 1, 1), (1000, 5, 1)], 1)
def test_over_a_long_time_what_is_admitted_follows_the_weights(
    queues: list[tuple[int, int, int]], interval_s: int
) -> None:
    """Whatever the lengths (1 to 5 minutes) and sizes of the jobs: of what a job costs, its time
    and one sampling interval, each LocalQueue gets its weight's part. With an interval that is
    short for the jobs that is admitted time. The half-life is longer than any job, or there would
    be nothing to go by."""
    weights, minutes, sizes = zip(*queues, strict=True)
    lengths = tuple(n * MINUTE for n in minutes)
    sharing = AdmissionFairSharing(60 * MINUTE, interval_s * SECOND)
    total = admitted_time(weights, lengths, sizes, 12, 800 * MINUTE, sharing)
    due = [
        weight * length / (length + interval_s * SECOND)
        for weight, length in zip(weights, lengths, strict=True)
    ]
    for mine, expected in zip(total, due, strict=True):
        assert mine / sum(total) == pytest.approx(expected / sum(due), abs=0.06)


def test_one_who_was_away_does_not_get_the_past_back_for_long() -> None:
    """Ten half-lives of absence are worth no more than the history that is left: then it is
    even again."""
    made = shared(nominal=4)
    history = made.history
    assert history is not None
    submit(made, *line("a", 4))
    assert run(made, 0) == ["a0", "a1", "a2", "a3"]
    now_ns = 100 * MINUTE
    assert history.figure_at("ns/a", now_ns) == pytest.approx(4 * FIGURE_UNIT, rel=0.01)
    for n in range(4):
        made.delete(workload(f"a{n}", "a", 1).key, now_ns)
    submit(made, *line("b", 4, created_ns=50), *line("a", 4, created_ns=10))
    assert run(made, now_ns) == ["b0", "b1", "b2", "b3"]
    later_ns = now_ns + 60 * MINUTE
    assert history.figure_at("ns/a", later_ns) < history.figure_at("ns/b", later_ns)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.integers(0, 20)), max_size=25))
def test_quota_is_kept_and_the_least_user_is_served_first(
    arrivals: list[tuple[int, int, int]],
) -> None:
    made = shared(nominal=4, weights=(1000, 1000, 1000))
    history = made.history
    assert history is not None
    now_ns = 0
    running: list[str] = []
    for number, (at, amount, minutes) in enumerate(arrivals):
        now_ns += minutes * MINUTE
        if running and minutes % 3 == 0:
            made.delete(workload(running.pop(0), "a", 1).key, now_ns)
        submit(made, workload(f"w{number}", "abc"[at], amount, created_ns=now_ns), now_ns=now_ns)
        while True:
            history.sample(now_ns)
            figure = {name: history.figure(f"ns/{name}") for name in "abc"}
            waiting = made.pending["cq"].everyone()
            left = 4 - sum(made.cache.queues["cq"].node.usage.values())
            assert left >= 0
            fitting = [
                figure[info.workload.queue_name]
                for info in waiting
                if info.workload.pod_sets[0].requests["gpu"] <= left
            ]
            result = made.cycle(now_ns)
            for one in result.reserved:
                assert figure[one.info.workload.queue_name] == min(fitting)
                running.append(one.info.workload.name)
            if not result.reserved and not result.more:
                assert not fitting, "a workload fits and is not started"
                break


def test_those_alike_hear_why_none_can_start_in_whichever_line_they_stand() -> None:
    made = shared(nominal=1)
    submit(made, *line("a", 2, amount=2), *line("b", 2, amount=2))
    heard = set()
    for _ in range(4):
        heard |= {str(key) for key in made.cycle(1).unreported}
    assert heard == {"ns/a0", "ns/a1", "ns/b0", "ns/b1"}
    for name in ("a1", "b0", "b1"):
        found = made.why_like_others(workload(name, name[0], 2).key)
        assert found is not None
        assert found[0] == "ExceedsMaxQuota"


# -- from when on usage counts -----------------------------------------------------------------


@pytest.mark.parametrize("from_reservation", [True, False])
def test_usage_counts_from_the_reservation_or_from_admission(from_reservation: bool) -> None:
    sharing = replace(SHARING, from_reservation=from_reservation)
    check = AdmissionCheckRule("c")
    made = shared(nominal=4, sharing=sharing, admission_checks=(check,))
    submit(made, workload("a0", "a", 1), now_ns=1)
    assert run(made, 1) == ["a0"]
    assert made.history is not None
    penalty = made.history.figure_at("ns/a", 1)
    assert penalty > 0, "a reservation counts at once"
    later = made.history.figure_at("ns/a", 10 * MINUTE)
    assert (later > penalty) is from_reservation
    made.admitted(workload("a0", "a", 1).key, 10 * MINUTE)
    assert made.history.figure_at("ns/a", 20 * MINUTE) > later
    made.release(workload("a0", "a", 1).key, 20 * MINUTE)
    assert made.history.figure_in_the_end("ns/a") == 0


def test_what_holds_quota_counts_anew_when_the_anchor_changes() -> None:
    made = shared(
        sharing=replace(SHARING, from_reservation=False),
        admission_checks=(AdmissionCheckRule("c"),),
    )
    submit(made, workload("a0", "a", 1))
    assert run(made, 1) == ["a0"]
    assert made.history is not None
    assert made.history.figure_in_the_end("ns/a") == 0
    made.share_admission(SHARING, MINUTE)
    assert made.history.figure_in_the_end("ns/a") > 0
