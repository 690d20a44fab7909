"""Choosing flavors: one table row a rule, with a scripted oracle for what preemption could do."""

from __future__ import annotations

import pytest

from queuecontroller.scheduler.flavors import FlavorAssigner, Price, is_preferred
from queuecontroller.scheduler.model.assignment import Mode, PreemptionMode
from queuecontroller.scheduler.model.flavor_resources import Fr
from queuecontroller.scheduler.model.objects import (
    FlavorFungibility,
    FungibilityPolicy,
    FungibilityPreference,
    PodSet,
    ResourceFlavor,
    ResourceGroup,
)
from queuecontroller.scheduler.model.partial_admission import search_counts
from queuecontroller.scheduler.model.reasons import PendingReason
from queuecontroller.scheduler.model.selectors import Taint, Toleration
from queuecontroller.scheduler.model.settings import EngineSettings
from queuecontroller.scheduler.model.workload_info import BEGIN, LastAssignment, WorkloadInfo
from queuecontroller.scheduler.quota.cluster_queue import ClusterQueueState
from tests.queue.builders import cluster_queue, group, preempting, quota, scheduler, workload


class Oracle:
    """Preempting always achieves the same."""

    def __init__(self, price: Price = (PreemptionMode.NO_CANDIDATES, 0)) -> None:
        self.price = price

    def simulate(self, queue: ClusterQueueState, info: WorkloadInfo, fr: Fr, amount: int) -> Price:
        return self.price


def fungible(
    borrow: str, preempt: str, preference: str = "BorrowingOverPreemption"
) -> FlavorFungibility:
    return FlavorFungibility(
        FungibilityPolicy(borrow), FungibilityPolicy(preempt), FungibilityPreference(preference)
    )


STOP, NEXT = "MayStopSearch", "TryNextFlavor"
OVER_BORROWING = "PreemptionOverBorrowing"
PREEMPT, RECLAIM = (PreemptionMode.PREEMPT, 0), (PreemptionMode.RECLAIM, 0)
NOBODY = (PreemptionMode.NO_CANDIDATES, 0)

# Two flavors of 10 in the own queue and 10 lent by another; "one" may be full or half full.
CASES = [
    pytest.param({}, 4, fungible(STOP, NEXT), NOBODY, "one", Mode.FIT, 0, id="the first that fits"),
    pytest.param({}, 12, fungible(STOP, NEXT), NOBODY, "one", Mode.FIT, 1, id="borrowing stops the search"),
    pytest.param({"one": 8}, 4, fungible(NEXT, NEXT), NOBODY, "two", Mode.FIT, 0, id="rather the next than borrow"),
    pytest.param({}, 12, fungible(NEXT, NEXT), NOBODY, "one", Mode.FIT, 1, id="of two that borrow the first"),
    pytest.param({"one": 20}, 4, fungible(STOP, NEXT), PREEMPT, "two", Mode.FIT, 0, id="rather the next than preempt"),
    pytest.param({"one": 20}, 4, fungible(STOP, STOP), PREEMPT, "one", Mode.PREEMPT, 0, id="preempting stops the search"),
    pytest.param({"one": 20}, 4, fungible(STOP, STOP), NOBODY, "two", Mode.FIT, 0, id="nobody to preempt never stops it"),
    pytest.param({"one": 20, "two": 10}, 4, fungible(NEXT, NEXT), PREEMPT, "two", Mode.FIT, 1, id="borrowing over preemption"),
    pytest.param({"one": 20, "two": 10}, 4, fungible(NEXT, NEXT, OVER_BORROWING), PREEMPT, "one", Mode.PREEMPT, 0, id="preemption over borrowing"),
    pytest.param({"one": 20, "two": 20}, 4, fungible(NEXT, NEXT), RECLAIM, "one", Mode.PREEMPT, 0, id="of two that preempt the first"),
]  # fmt: skip


def assigner(
    used: dict[str, int], fungibility: FlavorFungibility, price: Price
) -> tuple[FlavorAssigner, ClusterQueueState]:
    made = scheduler(
        cluster_queue(
            "own",
            group(one=quota(10), two=quota(10)),
            cohort="all",
            flavor_fungibility=fungibility,
            preemption=preempting(within="LowerPriority"),
        ),
        cluster_queue("other", group(one=quota(10), two=quota(10)), cohort="all"),
        flavors=("one", "two"),
    )
    queue = made.cache.queues["own"]
    for flavor, amount in used.items():
        queue.node.add(made.cache.numbers.number(flavor, "gpu"), amount)
    return FlavorAssigner(queue, Oracle(price), EngineSettings()), queue


def info(amount: int, queue: ClusterQueueState, **fields: object) -> WorkloadInfo:
    from queuecontroller.scheduler.model.flavor_resources import FlavorResources

    return WorkloadInfo(workload("w", "own", amount, **fields), queue.name, FlavorResources())


@pytest.mark.parametrize(
    ("used", "amount", "fungibility", "price", "flavor", "mode", "borrow"), CASES
)
def test_which_flavor(
    used: dict[str, int],
    amount: int,
    fungibility: FlavorFungibility,
    price: Price,
    flavor: str,
    mode: Mode,
    borrow: int,
) -> None:
    looking, queue = assigner(used, fungibility, price)
    found = looking.assign(info(amount, queue))
    got = found.pod_sets[0].flavors["gpu"]
    assert (got.flavor, found.mode, found.borrowing) == (flavor, mode, borrow)


@pytest.mark.parametrize(
    ("used", "amount", "reason"),
    [
        ({}, 21, PendingReason.EXCEEDS_MAX_QUOTA),
        ({"one": 20, "two": 20}, 11, PendingReason.WAITING_FOR_QUOTA),
    ],
)
def test_why_none(used: dict[str, int], amount: int, reason: PendingReason) -> None:
    looking, queue = assigner(used, fungible(STOP, NEXT), NOBODY)
    found = looking.assign(info(amount, queue))
    assert (found.mode, found.pending_reason, found.usage) == (Mode.NO_FIT, reason, {})


def test_a_search_goes_on_after_the_last_tried_flavor_also_after_quota_was_freed() -> None:
    looking, queue = assigner({}, fungible(STOP, NEXT), NOBODY)
    resumed = info(4, queue)
    resumed.last_assignment = LastAssignment([{"gpu": 0}])
    assert looking.assign(resumed).pod_sets[0].flavors["gpu"].flavor == "two"
    queue.node.root.freed += 1
    assert looking.assign(resumed).pod_sets[0].flavors["gpu"].flavor == "two"
    resumed.last_assignment = BEGIN
    assert looking.assign(resumed).pod_sets[0].flavors["gpu"].flavor == "one"


def test_a_search_that_comes_to_the_same_place_again_is_over() -> None:
    first, second, end = [{"gpu": 0}, {"gpu": -1}], [{"gpu": -1}, {"gpu": 0}], [{"gpu": -1}] * 2
    one = BEGIN.after(first, changed=True)
    assert one is not None
    assert one.after(end, changed=False) is None, "all flavors were tried"
    two = one.after(second, changed=False)
    assert two is not None
    assert two.after(first, changed=False) is None, "round in circles"
    assert two.after(first, changed=True) is not None, "after news it is a place like any other"


def test_nobody_to_preempt_is_no_better_than_borrowing_whatever_is_preferred() -> None:
    over_borrowing = FlavorFungibility(preference=FungibilityPreference.PREEMPTION_OVER_BORROWING)
    borrows, nobody = (PreemptionMode.FIT, 1), (PreemptionMode.NO_CANDIDATES, 0)
    somebody = (PreemptionMode.PREEMPT, 0)
    assert is_preferred(borrows, nobody, over_borrowing)
    assert not is_preferred(nobody, borrows, over_borrowing)
    assert is_preferred(somebody, borrows, over_borrowing)


SPOT = ResourceFlavor("spot", {"tier": "spot"}, (Taint("spot", "yes"),))
TOLERATES = (Toleration("spot", "Exists"),)


@pytest.mark.parametrize(
    ("pod_set", "flavor"),
    [
        pytest.param(PodSet("main", 1, {"gpu": 1}), "base", id="a taint is avoided"),
        pytest.param(
            PodSet("main", 1, {"gpu": 1}, tolerations=TOLERATES), "spot", id="a taint is tolerated"
        ),
        pytest.param(
            PodSet("main", 1, {"gpu": 1}, tolerations=TOLERATES, node_selector={"tier": "base"}),
            "base",
            id="labels must match",
        ),
    ],
)
def test_pods_must_be_able_to_run_on_the_flavor(pod_set: PodSet, flavor: str) -> None:
    made = scheduler(
        cluster_queue("own", group(spot=quota(10), base=quota(10))),
        flavors=(SPOT, ResourceFlavor("base", {"tier": "base"})),
    )
    looking = FlavorAssigner(made.cache.queues["own"], Oracle(), EngineSettings())
    found = looking.assign(info(1, made.cache.queues["own"], pod_sets=(pod_set,)))
    assert found.pod_sets[0].flavors["gpu"].flavor == flavor


@pytest.mark.parametrize(("unlimited", "mode"), [(True, Mode.FIT), (False, Mode.NO_FIT)])
def test_a_flavor_that_leaves_out_a_covered_resource(unlimited: bool, mode: Mode) -> None:
    whole = group(default=quota(10))
    both = ResourceGroup(("gpu", "mem"), whole.flavors)
    made = scheduler(cluster_queue("own", both))
    settings = EngineSettings(omitted_resource_is_unlimited=unlimited)
    looking = FlavorAssigner(made.cache.queues["own"], Oracle(), settings)
    pods = (PodSet("main", 1, {"gpu": 1, "mem": 10**12}),)
    assert looking.assign(info(1, made.cache.queues["own"], pod_sets=pods)).mode is mode


@pytest.mark.parametrize(
    ("fits_up_to", "found"), [(50, None), (49, (49, 10)), (30, (30, 6)), (20, (20, 4)), (19, None)]
)
def test_pod_sets_shrink_in_proportion(fits_up_to: int, found: tuple[int, int] | None) -> None:
    """Two pod sets of 50 and 10 that may go down to 20 and 4; the full size is tried elsewhere."""
    pod_sets = (PodSet("a", 50, {}, min_count=20), PodSet("b", 10, {}, min_count=4))

    def attempt(counts: object) -> tuple[int, int] | None:
        a, b = counts  # type: ignore[misc]
        return (a, b) if a <= fits_up_to and a < 50 else None

    got = search_counts(pod_sets, (50, 10), attempt)
    if found is None:
        assert got is None or got[0] == 49
    else:
        assert got is not None
        assert abs(got[0] - found[0]) <= 1
