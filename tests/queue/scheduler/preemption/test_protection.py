"""Protection from preemption: workloads that were admitted a moment ago or have a protected class
are spared; the preemptor is retried in time."""

from __future__ import annotations

import pytest

from queuecontroller.scheduler.model.settings import EngineSettings, PreemptionProtection
from queuecontroller.scheduler.scheduler import Scheduler
from tests.queue.builders import (
    SECOND,
    cluster_queue,
    group,
    preempting,
    quota,
    scheduler,
    workload,
)

MINUTE = 60 * SECOND


def lent(fair: bool = False, delay_ns: int = 0, **protection: int) -> Scheduler:
    """All of 8 is used by `borrower`, which was given 4 at 10 s and 4 at 20 s; nothing of it by `owner`."""
    policy = preempting(within="LowerPriority", reclaim="Any")
    made = scheduler(
        cluster_queue("owner", group(default=quota(4)), cohort="all", preemption=policy),
        cluster_queue("borrower", group(default=quota(4)), cohort="all", preemption=policy),
        settings=EngineSettings(
            fair_sharing=fair,
            requeue_delay_ns=delay_ns,
            protection=PreemptionProtection(**protection),  # type: ignore[arg-type]
        ),
    )
    for number in (1, 2):
        made.submit(workload(f"b{number}", "borrower", 4, created_ns=number, priority=0), 0)
        assert [one.info.workload.name for one in made.cycle(10 * number * SECOND).reserved] == [
            f"b{number}"
        ]
    return made


def asks(made: Scheduler, at_s: int, queue: str = "owner", priority: int = 0) -> list[str]:
    """Victims of a workload of 4."""
    made.submit(workload("new", queue, 4, created_ns=99, priority=priority), at_s * SECOND)
    return goes(made, at_s)


def goes(made: Scheduler, at_s: int) -> list[str]:
    return [one.target.workload.name for one in made.cycle(at_s * SECOND).preempted]


@pytest.mark.parametrize("fair", [False, True])
def test_without_protection_the_youngest_goes_at_once(fair: bool) -> None:
    assert asks(lent(fair), 21) == ["b2"]


@pytest.mark.parametrize("fair", [False, True])
def test_what_was_lent_comes_back_when_the_first_is_protected_no_longer(fair: bool) -> None:
    made = lent(fair, reclaim_ns=MINUTE)
    assert asks(made, 21) == []
    assert made.next_wake_ns() == 70 * SECOND, "b1 was admitted at 10 s"
    assert goes(made, 69) == []
    assert goes(made, 70) == ["b1"], "b2 came later and is protected until 80 s"


def test_each_reason_has_its_own_time() -> None:
    assert asks(lent(fair_sharing_ns=MINUTE, within_queue_ns=MINUTE), 21) == ["b2"]
    made = lent(within_queue_ns=MINUTE)
    assert asks(made, 21, queue="borrower", priority=9) == []
    assert goes(made, 70) == ["b1"]


def test_fair_sharing_protects_from_a_smaller_share_and_not_from_the_owner_of_the_quota() -> None:
    def shared() -> Scheduler:
        policy = preempting(reclaim="Any")
        made = scheduler(
            cluster_queue("one", group(default=quota(0)), cohort="all", preemption=policy),
            cluster_queue("two", group(default=quota(0)), cohort="all", preemption=policy),
            cluster_queue("bank", group(default=quota(8)), cohort="all", preemption=policy),
            settings=EngineSettings(
                fair_sharing=True, protection=PreemptionProtection(fair_sharing_ns=MINUTE)
            ),
        )
        for number in (1, 2):
            made.submit(workload(f"b{number}", "two", 4, created_ns=number), 0)
            assert len(made.cycle(10 * number * SECOND).reserved) == 1
        return made

    made = shared()
    assert asks(made, 21, queue="one") == []
    assert goes(made, 70) == ["b1"]
    assert asks(shared(), 21, queue="bank") == ["b2"]


def test_a_protected_class_never_goes() -> None:
    made = scheduler(
        cluster_queue("q", group(default=quota(4)), preemption=preempting(within="LowerPriority")),
        settings=EngineSettings(protection=PreemptionProtection(classes=frozenset({"infra"}))),
    )
    made.submit(workload("old", "q", 4, priority_class="infra"))
    assert len(made.cycle(SECOND).reserved) == 1
    assert asks(made, 10**6, queue="q", priority=9) == []
    assert made.next_wake_ns() is None, "waiting does not help"


def test_who_waits_for_its_checks_has_not_begun() -> None:
    made = lent(reclaim_ns=MINUTE)
    for key in ("ns/b1", "ns/b2"):
        info = made.holding(key)  # type: ignore[arg-type]
        assert info is not None
        info.admitted_ns = None
    assert asks(made, 21) == ["b2"]
    made = lent(reclaim_ns=MINUTE)
    made.admitted("ns/b1", 1000 * SECOND)  # type: ignore[arg-type]
    made.admitted("ns/b2", 1000 * SECOND)  # type: ignore[arg-type]
    assert asks(made, 1001) == []


def test_a_change_of_the_times_is_heard_at_once() -> None:
    made = lent(reclaim_ns=MINUTE)
    assert asks(made, 21) == []
    made.protect(PreemptionProtection())
    assert goes(made, 22) == ["b2"]


def test_freed_quota_that_is_collected_first_changes_nothing_of_it() -> None:
    made = lent(delay_ns=SECOND, reclaim_ns=MINUTE)
    assert asks(made, 21) == []
    assert [one for at in (69, 70, 71, 72) for one in goes(made, at)] == ["b1"]
