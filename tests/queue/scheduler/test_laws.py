"""Laws that hold whatever happens: random queues, random arrivals, finishes and preemptions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuecontroller.scheduler.flavors import FlavorAssigner
from queuecontroller.scheduler.model.assignment import Mode
from queuecontroller.scheduler.model.decisions import CycleResult
from queuecontroller.scheduler.model.objects import (
    QueueingStrategy,
    WorkloadKey,
)
from queuecontroller.scheduler.model.settings import EngineSettings
from queuecontroller.scheduler.model.workload_info import BEGIN
from queuecontroller.scheduler.pending.fifo import order_of
from queuecontroller.scheduler.preemption.classic import classic_targets
from queuecontroller.scheduler.preemption.fair import fair_targets
from queuecontroller.scheduler.preemption.search import Preemptor
from queuecontroller.scheduler.quota.holders import rank_of
from tests.queue.builders import (
    SECOND,
    cluster_queue,
    group,
    quota,
    scheduler,
    workload,
)
from tests.queue.scheduler.plans import Plan, build, plans

MAX_CYCLES = 400


class Run:
    """Plays a plan and checks every law after every step."""

    def __init__(self, plan: Plan, preserve: bool = True) -> None:
        self.made = build(plan, preserve)
        self.holding: list[str] = []
        self.log: list[object] = []
        self.stopping: list[str] = []
        for number, (queue, amount, priority, then) in enumerate(plan.arrivals):
            second = "-x" if plan.by_usage and amount % 2 else ""
            one = workload(
                f"w{number}", f"q{queue}{second}", amount, priority=priority,
                created_ns=number + 1, uid=f"u{number}",
            )  # fmt: skip
            self.made.submit(one)
            for _ in range(then % 3):
                self.cycle()
            if then >= 3:
                self.finish_one()

    def cycle(self) -> CycleResult:
        before = {
            name: [info.key for info in queue.everyone()]
            for name, queue in self.made.pending.items()
        }
        result = self.made.cycle(SECOND)
        for one in result.reserved:
            assert one.info.key not in self.holding, "admitted twice"
            self.holding.append(one.info.key)
            queue = self.made.pending[one.info.cluster_queue]
            if queue.strategy is QueueingStrategy.STRICT_FIFO:
                assert one.info.key == before[queue.name][0], "a workload was passed over"
        self.stopping += [one.target.key for one in result.preempted]
        assert len(set(self.stopping)) == len(self.stopping), "told to stop twice"
        self.log.append(
            (
                [(one.info.key, one.admission()) for one in result.reserved],
                [(one.target.key, one.reason, one.preemptor.key) for one in result.preempted],
                [(one.info.key, one.reason) for one in result.pending],
            )
        )
        self.check()
        return result

    def finish_one(self) -> None:
        """The preempted stop first, else the oldest ends. Those preempted queue again."""
        if self.stopping:
            key = self.stopping.pop(0)
            info = self.made.release(WorkloadKey(key))
            assert info is not None
            self.made.submit(info.workload)
        elif self.holding:
            key = self.holding[0]
            self.made.delete(WorkloadKey(key))
        else:
            return
        self.holding.remove(key)
        self.check()

    def check(self) -> None:
        cache = self.made.cache
        for root in {queue.node.root for queue in cache.queues.values()}:
            for fr in root.subtree_quota:
                borrowing = {
                    node
                    for node in root.cluster_queues()
                    if node is not root and node.used(fr) > node.subtree_quota.get(fr, 0)
                }
                assert set(root.borrowing([fr])) == borrowing, "who borrows is known"
                for node in root.cluster_queues():
                    holding = sorted(cache.queues[node.name].workloads.values(), key=rank_of)
                    listed = [info.key for _, info in cache.holders.of(node, [fr])]
                    assert listed == [info.key for info in holding if fr in info.usage], (
                        "holders are listed once, in order"
                    )
        for queue in self.made.cache.queues.values():
            node = queue.node
            total: dict[int, int] = {}
            for info in queue.workloads.values():
                for fr, amount in info.usage.items():
                    total[fr] = total.get(fr, 0) + amount
            assert {fr: n for fr, n in node.usage.items() if n} == {
                fr: n for fr, n in total.items() if n
            }, "usage is the sum of who holds it"
            for one in node.path:
                for fr, amount in one.usage.items():
                    if one.parent is None:
                        assert amount <= one.subtree_quota.get(fr, 0), "more than there is"
                    elif fr in one.borrowing_limit:
                        most = one.subtree_quota[fr] + one.borrowing_limit[fr]
                        assert amount <= most, "borrowed more than allowed"
            pending = {info.key for info in self.made.pending[queue.name].everyone()}
            assert not pending & set(queue.workloads), "pending and holding at once"


@settings(max_examples=120, deadline=None)
@given(plans())
def test_no_law_is_broken(plan: Plan) -> None:
    Run(plan)


@settings(max_examples=150, deadline=None)
@given(plans(), st.booleans())
def test_every_sequence_of_cycles_ends(plan: Plan, preserve: bool) -> None:
    """Preemption never goes on for ever, although a preempted workload stops and queues again at
    once, none ever ends, and no head asks for one cycle more without a reason."""
    run = Run(plan, preserve)
    for _ in range(MAX_CYCLES):
        while run.stopping:
            run.finish_one()
        result = run.cycle()
        if not (result.reserved or result.preempted or result.more):
            return
    pytest.fail(f"still deciding after {MAX_CYCLES} cycles: {run.log[-4:]}")


@settings(max_examples=40, deadline=None)
@given(plans())
def test_the_same_events_give_the_same_decisions(plan: Plan) -> None:
    assert Run(plan).log == Run(plan).log


@settings(max_examples=120, deadline=None)
@given(plans())
def test_nobody_set_aside_could_start(plan: Plan) -> None:
    """Once cycles decide nothing more, looking at all of them again finds none that just fits. (A
    search that goes on where it was may have passed over what became free since, as in Kueue.)"""
    run = Run(plan, preserve=False)
    for _ in range(60):
        result = run.cycle()
        if result.reserved or result.preempted:
            continue
        if run.stopping:
            run.finish_one()
        elif not result.heads:
            break
    else:
        return  # StrictFIFO heads are looked at in every cycle
    made = run.made
    preemptor = Preemptor(made.cache, made.settings, classic_targets, fair_targets, SECOND)
    for name, queue in made.pending.items():
        if queue.strategy is QueueingStrategy.STRICT_FIFO:
            continue
        assigner = FlavorAssigner(made.cache.queues[name], preemptor, made.settings)
        for info in queue.everyone():
            info.last_assignment = BEGIN
            assert assigner.assign(info).mode is not Mode.FIT, (name, info.key)


@settings(max_examples=120, deadline=None)
@given(plans())
def test_looking_for_targets_leaves_no_trace_and_the_targets_are_enough(plan: Plan) -> None:
    run = Run(plan)
    made = run.made
    preemptor = Preemptor(made.cache, made.settings, classic_targets, fair_targets, SECOND)
    for name, queue in made.pending.items():
        state = made.cache.queues[name]
        assigner = FlavorAssigner(state, preemptor, made.settings)
        for info in queue.everyone():
            info.last_assignment = BEGIN
            assignment = assigner.assign(info)
            if assignment.mode is not Mode.PREEMPT:
                run.check()
                continue
            targets = preemptor.targets(state, info, assignment)
            run.check()
            if not targets:
                continue
            nodes = [made.cache.queues[one.info.cluster_queue].node for one in targets]
            for node, one in zip(nodes, targets, strict=True):
                node.remove_usage(one.info.usage)
            assert state.node.fits(assignment.usage), "not enough"
            for node, one in zip(nodes, targets, strict=True):
                node.add_usage(one.info.usage)
            for node, one in zip(nodes[:-1], targets[:-1], strict=True):
                assert not _fits_without(nodes, targets, node, one, state, assignment), "too many"


def _fits_without(nodes, targets, spared, one, state, assignment) -> bool:  # type: ignore[no-untyped-def]
    gone = [pair for pair in zip(nodes, targets, strict=True) if pair[1] is not one]
    for node, target in gone:
        node.remove_usage(target.info.usage)
    fits = state.node.fits(assignment.usage)
    for node, target in gone:
        node.add_usage(target.info.usage)
    return bool(fits)


@pytest.mark.parametrize("fair", [False, True])
def test_equal_workloads_start_in_order_of_arrival(fair: bool) -> None:
    made = scheduler(
        cluster_queue("q", group(default=quota(3))), settings=EngineSettings(fair_sharing=fair)
    )
    for number in range(20):
        made.submit(workload(f"w{number:02}", "q", 1, created_ns=number + 1))
    order: list[str] = []
    for _ in range(60):
        found = made.cycle(SECOND).reserved
        if not found:
            made.delete(WorkloadKey(f"ns/{order[-3]}"))
        order += [one.info.workload.name for one in found]
        if not made.pending["q"]:
            break
    assert order == [f"w{number:02}" for number in range(20)]
    assert sorted(order_of(info) for info in made.cache.queues["q"].workloads.values())
