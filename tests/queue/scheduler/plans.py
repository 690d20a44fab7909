"""Clusters by chance, and what happens in them."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from queuecontroller.scheduler.model.objects import (
    AdmissionMode,
    Cohort,
    LocalQueue,
    QueueingStrategy,
)
from queuecontroller.scheduler.model.settings import AdmissionFairSharing, EngineSettings
from queuecontroller.scheduler.scheduler import Scheduler
from tests.queue.builders import (
    SECOND,
    cluster_queue,
    group,
    preempting,
    quota,
    scheduler,
)

LIMIT = st.none() | st.integers(0, 6)
WITHIN = st.sampled_from(["Never", "LowerPriority", "LowerOrNewerEqualPriority"])
RECLAIM = st.sampled_from(["Never", "LowerPriority", "Any"])
BORROW = st.sampled_from(["Never", "LowerPriority"])
COHORT = st.sampled_from([None, "left", "right", "top"])


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    queue = st.tuples(
        st.integers(0, 6), LIMIT, LIMIT, COHORT, st.booleans(), WITHIN, RECLAIM, BORROW
    )
    queues = draw(st.lists(queue, min_size=1, max_size=4))
    at = st.integers(0, len(queues) - 1)
    arrival = st.tuples(at, st.integers(1, 8), st.integers(-1, 2), st.integers(0, 5))
    arrivals = draw(st.lists(arrival, min_size=1, max_size=14))
    return Plan(draw(st.booleans()), draw(st.booleans()), tuple(queues), tuple(arrivals))


def build(plan: Plan, preserve: bool = True) -> Scheduler:
    """Build a scheduler of the plan; with `by_usage`, each ClusterQueue has a second LocalQueue,
    `q0-x` and so on."""
    mode = AdmissionMode.BY_USAGE if plan.by_usage else AdmissionMode.NONE
    queues = [
        cluster_queue(
            f"q{i}",
            group(default=quota(nominal, borrow, lend), spot=quota(nominal // 2)),
            cohort=cohort,
            queueing_strategy=(
                QueueingStrategy.STRICT_FIFO if strict else QueueingStrategy.BEST_EFFORT_FIFO
            ),
            preemption=preempting(within, reclaim, borrows),
            admission_mode=mode,
        )
        for i, (nominal, borrow, lend, cohort, strict, within, reclaim, borrows) in enumerate(
            plan.queues
        )
    ]
    cohorts = (
        Cohort("top", resource_groups=(group(default=quota(2)),), admission_mode=mode),
        Cohort("left", parent="top"),
        Cohort("right", parent="top", resource_groups=(group(default=quota(1, 3, 1)),)),
    )
    made = scheduler(
        *queues,
        cohorts=cohorts,
        flavors=("default", "spot"),
        settings=EngineSettings(fair_sharing=plan.fair, preserve_scan_progress=preserve),
    )
    if plan.by_usage:
        for one in queues:
            made.put_local_queue(LocalQueue("ns", f"{one.name}-x", one.name))
        made.share_admission(AdmissionFairSharing(60 * SECOND, SECOND), 0)
        made.settle()
    return made


@dataclass(frozen=True)
class Plan:
    fair: bool
    by_usage: bool
    queues: tuple[tuple[int, int | None, int | None, str | None, bool, str, str, str], ...]
    arrivals: tuple[tuple[int, int, int, int], ...]
    """(queue, amount, priority, what happens after: cycles and finishes)"""
