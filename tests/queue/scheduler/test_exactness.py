"""Skipping is exact: the engine decides as one that looks at every workload in every cycle."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from queuecontroller.scheduler.model.decisions import CycleResult
from queuecontroller.scheduler.model.limit_range import Bounds, LimitRange
from queuecontroller.scheduler.model.objects import (
    Cohort,
    LocalQueue,
    QueueingStrategy,
    RequeueState,
    ResourceFlavor,
    StopPolicy,
    WorkloadKey,
)
from queuecontroller.scheduler.model.settings import EngineSettings
from queuecontroller.scheduler.model.workload_info import WorkloadInfo
from queuecontroller.scheduler.preemption.classic import classic_targets
from queuecontroller.scheduler.preemption.search import PreemptionContext
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
from tests.queue.scheduler.plain_engine import (
    PlainQueue,
    PlainQueueOfSingles,
    PlainScheduler,
    as_plain,
    plain_preemption,
    plain_targets,
)

LIMIT = st.none() | st.integers(0, 6)
WITHIN = st.sampled_from(["Never", "LowerPriority", "LowerOrNewerEqualPriority"])
RECLAIM = st.sampled_from(["Never", "LowerPriority", "Any"])
BORROW = st.sampled_from(["Never", "LowerPriority"])
THRESHOLD = st.none() | st.integers(-1, 1)
COHORT = st.sampled_from([None, "left", "right", "top", "top"])

QueuePlan = tuple[int, int | None, int | None, str | None, bool, str, str, str, int | None]


def queue_plans(cohorts: st.SearchStrategy[str | None] = COHORT) -> st.SearchStrategy[QueuePlan]:
    return st.tuples(
        st.integers(0, 6), LIMIT, LIMIT, cohorts, st.booleans(), WITHIN, RECLAIM, BORROW, THRESHOLD
    )


@dataclass(frozen=True)
class Program:
    settings: EngineSettings
    queues: tuple[QueuePlan, ...]
    steps: tuple[tuple[str, int, int, int], ...]
    """(what, which queue or workload, amount, priority)"""


OBJECTS = ("move", "door", "parent", "flavor", "limits")
"""Steps that change other objects."""
WHAT = st.sampled_from(
    ["submit"] * 6
    + ["cycle"] * 5
    + ["finish"] * 3
    + ["delete", "rest", "wait", "quota", "labels", *OBJECTS]
)
STEP = st.tuples(WHAT, st.integers(0, 7), st.integers(1, 5), st.integers(-1, 2))


@st.composite
def programs(
    draw: st.DrawFn,
    cohorts: st.SearchStrategy[str | None] = COHORT,
    most_queues: int = 5,
    delays_ns: tuple[int, ...] = (0, 0, 2 * SECOND),
    most_heads: tuple[int, ...] = (1, 2, 64),
) -> Program:
    chosen = EngineSettings(
        fair_sharing=draw(st.booleans()),
        requeue_delay_ns=draw(st.sampled_from(delays_ns)),
        max_heads_per_cycle=draw(st.sampled_from(most_heads)),
    )
    queues = draw(st.lists(queue_plans(cohorts), min_size=1, max_size=most_queues))
    steps = draw(st.lists(STEP, min_size=20, max_size=60))
    return Program(chosen, tuple(queues), tuple(steps))


def _queue(number: int, plan: QueuePlan, more: int = 0) -> object:
    nominal, borrow, lend, cohort, strict, within, reclaim, borrows, threshold = plan
    nominal += more
    return cluster_queue(
        f"q{number}",
        group(default=quota(nominal, borrow, lend), spot=quota(nominal // 2)),
        cohort=cohort,
        queueing_strategy=(
            QueueingStrategy.STRICT_FIFO if strict else QueueingStrategy.BEST_EFFORT_FIFO
        ),
        preemption=preempting(within, reclaim, borrows, threshold),
    )


def build(program: Program, kind: type[Scheduler] = Scheduler) -> Scheduler:
    cohorts = (
        Cohort("top", resource_groups=(group(default=quota(2)),)),
        Cohort("left", parent="top"),
        Cohort("right", parent="top", resource_groups=(group(default=quota(1, 3, 1)),)),
    )
    empty = scheduler(cohorts=cohorts, flavors=("default", "spot"))
    made = kind(program.settings)
    made.cache = empty.cache
    made.put_namespace("ns", {})
    for number, plan in enumerate(program.queues):
        made.cache.put_cluster_queue(_queue(number, plan))  # type: ignore[arg-type]
        made.put_local_queue(LocalQueue("ns", f"q{number}", f"q{number}"))
    made.settle()
    return made


class Player:
    """Plays a program on one engine; the shell's part of it is the same for all of them."""

    def __init__(self, program: Program, made: Scheduler) -> None:
        self.program = program
        self.made = made
        self.now_ns = SECOND
        self.count = 0
        self.names: list[str] = []
        self.holding: list[WorkloadKey] = []
        self.stopping: list[WorkloadKey] = []
        self.extra: dict[int, int] = {}
        self.cohorts: dict[int, str | None] = {}
        self.may_move = any(plan[3] for plan in program.queues)
        self.told: dict[WorkloadKey, object] = {}
        """Last status recorded for each pending workload."""

    def step(self, what: str, which: int, amount: int, priority: int) -> object:
        made = self.made
        if what in ("submit", "rest"):
            self.count += 1
            until_ns = self.now_ns + amount * SECOND // 2 if what == "rest" else None
            name = f"w{self.count}"
            self.names.append(name)
            one = workload(
                name, f"q{which % len(self.program.queues)}", amount, priority=priority,
                created_ns=self.count, uid=name, requeue_state=RequeueState(1, until_ns),
            )  # fmt: skip
            made.submit(one, self.now_ns)
        elif what == "cycle":
            return self.cycle()
        elif what == "finish":
            self.finish()
        elif what == "delete" and self.names:
            key = WorkloadKey(f"ns/{self.names[which % len(self.names)]}")
            self._forget(key)
            made.delete(key, self.now_ns)
        elif what == "wait":
            self.now_ns += amount * SECOND // 2
        elif what == "quota":
            number = which % len(self.program.queues)
            self.extra[number] = self.extra.get(number, 0) + amount - 3
            self._put_queue(number)
            made.settle(self.now_ns)
        elif what == "labels":
            made.put_namespace("ns", {"now": str(self.now_ns)})
        elif what in OBJECTS:
            self._change(what, which, amount)
            made.settle(self.now_ns)
        return None

    def _put_queue(self, number: int) -> None:
        plan = list(self.program.queues[number])
        more = max(-plan[0], self.extra.get(number, 0))  # type: ignore[operator,type-var]
        plan[3] = self.cohorts.get(number, plan[3])
        self.made.cache.put_cluster_queue(_queue(number, tuple(plan), more))  # type: ignore[arg-type]

    def _change(self, what: str, which: int, amount: int) -> None:
        """Other objects come, go and change."""
        made, number = self.made, which % len(self.program.queues)
        other = amount % len(self.program.queues)
        if what == "move" and self.may_move:
            self.cohorts[number] = [None, "left", "right", "top", "new"][amount - 1]
            self._put_queue(number)
        elif what == "door":
            closed = StopPolicy.HOLD if which % 3 == 0 else StopPolicy.NONE
            to = f"q{other}" if which % 3 == 1 else f"q{number}"
            made.put_local_queue(LocalQueue("ns", f"q{number}", to, closed))
        elif what == "parent" and self.may_move:
            parent = [None, "right", "top", "left", "new"][amount - 1]
            made.cache.put_cohort(Cohort("left", parent=parent))
        elif what == "flavor":
            if amount < 3:
                made.cache.drop_flavor("spot")
            else:
                made.cache.put_flavor(ResourceFlavor("spot"))
        elif what == "limits":
            made.put_limit_ranges("ns", [LimitRange((Bounds("Pod", maximum={"gpu": amount}),))])

    def _forget(self, key: WorkloadKey) -> None:
        for keys in (self.holding, self.stopping):
            if key in keys:
                keys.remove(key)

    def finish(self) -> None:
        """The preempted stop first and queue again; else the oldest ends."""
        if self.stopping:
            key = self.stopping[0]
            self._forget(key)
            info = self.made.release(key, self.now_ns)
            assert info is not None
            self.made.submit(replace(info.workload, requeue_state=RequeueState()), self.now_ns)
        elif self.holding:
            key = self.holding[0]
            self._forget(key)
            self.made.delete(key, self.now_ns)

    def cycle(self) -> object:
        return self.carried_out(self.made.cycle(self.now_ns))

    def carried_out(self, result: CycleResult) -> object:
        self.holding += [one.info.key for one in result.reserved]
        self.stopping += [one.target.key for one in result.preempted]
        self.told.update(
            (one.info.key, (one.reason, one.message, one.preempting)) for one in result.pending
        )
        return (
            [(one.info.key, one.admission()) for one in result.reserved],
            [(one.target.key, one.reason, one.preemptor.key) for one in result.preempted],
        )

    def settle_down(self) -> list[object]:
        """Cycles as the shell does: while one decides something or says that another may."""
        told = []
        for _ in range(60):
            result = self.made.cycle(self.now_ns)
            told.append(self.carried_out(result))
            if not (result.reserved or result.preempted or result.more):
                return told
        raise AssertionError("it never comes to rest")


def plain(program: Program, queue: type[PlainQueue] = PlainQueue) -> Scheduler:
    with as_plain(queue):
        return build(program, PlainScheduler)


@settings(max_examples=250, deadline=None)
@given(programs(most_heads=(64,)))
def test_every_cycle_decides_as_if_everybody_had_been_looked_at(program: Program) -> None:
    ours, theirs = Player(program, build(program)), Player(program, plain(program))
    heads = 0
    for step in program.steps:
        told = ours.step(*step)
        with ExitStack() as plainly:
            plainly.enter_context(as_plain())
            plainly.enter_context(plain_preemption())
            assert theirs.step(*step) == told
        assert ours.told == theirs.told
        heads += isinstance(told, tuple) and bool(told[1])
        due_ns = ours.made.next_wake_ns()
        for name, queue in theirs.made.pending.items():
            if theirs.made.cache.why_inactive(name) is not None:
                continue
            must_ns = queue.wakes_at_ns()
            assert must_ns is None or (due_ns is not None and due_ns <= must_ns), "it overslept"
    event(f"cycles that preempt: {min(heads, 3)}")


@settings(max_examples=150, deadline=None)
@given(programs(st.none(), most_queues=1, delays_ns=(0,)))
def test_a_shape_that_cannot_start_is_each_of_them_that_cannot(program: Program) -> None:
    """Where no other queue goes on meanwhile, looking at the workloads of a shape one by one only
    takes more cycles. (With a requeue delay, a new one would pass those of its shape that were not
    told yet that quota was freed.)"""
    ours = Player(program, build(program))
    theirs = Player(program, plain(program, PlainQueueOfSingles))
    for step in program.steps:
        ours.step(*step)
        ours.settle_down()
        with as_plain(PlainQueueOfSingles):
            theirs.step(*step)
            theirs.settle_down()
        assert ours.holding == theirs.holding
        assert ours.stopping == theirs.stopping


@settings(max_examples=150, deadline=None)
@given(programs())
def test_when_a_cycle_says_that_there_is_no_more_there_is_no_more(program: Program) -> None:
    player = Player(program, build(program))
    for step in program.steps:
        player.step(*step)
        player.settle_down()
        for _ in range(len(program.queues) + 2):
            result = player.made.cycle(player.now_ns)
            assert (result.reserved, result.preempted) == ([], [])
            player.carried_out(result)


@settings(max_examples=150, deadline=None)
@given(programs(delays_ns=(0,)))
def test_whom_a_changed_object_does_not_touch_had_nothing_to_gain(program: Program) -> None:
    """After any change, looking at every workload in all trees again brings nothing that the trees it
    touches did not."""
    player = Player(program, build(program))
    made = player.made
    for step in program.steps:
        player.step(*step)
        player.settle_down()
        if step[0] not in (*OBJECTS, "quota", "labels"):
            continue
        assert figures(made) == figures(anew(made)), "as if all of it were built at once"
        for line in made.pending.values():
            for info in line.everyone():
                local = made.local_queue(info.workload.local_queue)
                assert made._why_unqueued(info.workload, local) is None
                assert local is not None
                assert (line.name, info.cluster_queue) == (local.cluster_queue,) * 2
        for one, _ in made._unqueued.values():
            assert made._why_unqueued(one, made.local_queue(one.local_queue)) is not None
        for name, line in made.pending.items():
            line.requeue_inadmissible()
            made._tree_of(name).pending_changed = True
        for _ in range(len(program.queues) + 2):
            result = made.cycle(player.now_ns)
            assert (result.reserved, result.preempted) == ([], [])
            player.carried_out(result)


def anew(made: Scheduler) -> Scheduler:
    """The same objects, and who holds quota, in an engine that never knew others."""
    fresh = Scheduler(made.settings)
    ours, theirs = made.cache, fresh.cache
    theirs.numbers = ours.numbers
    for flavor in ours.flavors.values():
        theirs.put_flavor(flavor)
    for cohort in ours._cohort_specs.values():
        theirs.put_cohort(cohort)
    for queue in ours._queue_specs.values():
        theirs.put_cluster_queue(queue)
    theirs.settle()
    for state in ours.queues.values():
        for info in state.workloads.values():
            theirs.add_workload(info)
    return fresh


def figures(made: Scheduler) -> object:
    """All that decisions read from the trees."""
    cache = made.cache
    nodes = {
        (name, node.name): (
            node.height,
            [one.name for one in node.children],
            {fr: (c.used, c.quota, c.potential, c.limit) for fr, c in node.cells.items() if c.quota or c.used},
        )
        for name, state in cache.queues.items()
        for node in state.node.path
    }  # fmt: skip
    doors = {name: cache.why_inactive(name) for name in cache.queues}
    held = {
        name: [info.key for _, info in cache.holders.of(state.node, state.node.cells)]
        for name, state in cache.queues.items()
    }
    return list(cache.queues), nodes, doors, held


@settings(max_examples=250, deadline=None)
@given(programs(), st.integers(1, 9), st.integers(-1, 3))
def test_targets_are_those_of_the_search_one_by_one(
    program: Program, amount: int, priority: int
) -> None:
    player = Player(program, build(program))
    for step in program.steps:
        player.step(*step)
    cache = player.made.cache
    found = 0
    for queue in cache.queues.values():
        one = workload("asks", queue.name, amount, priority=priority, created_ns=3)
        info = WorkloadInfo(one, queue.name, cache.numbers)
        for frs in ({0}, {1}, {0, 1}):
            usage = dict.fromkeys(frs, amount)
            context = PreemptionContext(
                cache, queue, info, frozenset(frs), usage, player.now_ns  # type: ignore[arg-type]
            )  # fmt: skip
            before = {node: node.usage for node in queue.node.root.subtree()}
            ours = classic_targets(context, player.made.settings)
            assert ours == plain_targets(context, player.made.settings)
            assert before == {node: node.usage for node in queue.node.root.subtree()}
            found += bool(ours)
    event(f"found: {min(found, 3)}")


@pytest.mark.parametrize("trees", [3, 30])
def test_a_cycle_asks_only_the_trees_where_something_happened(trees: int) -> None:
    queues = [cluster_queue(f"q{i}", group(default=quota(1))) for i in range(trees)]
    made = scheduler(*queues)
    for i in range(trees):
        for number in range(3):
            made.submit(workload(f"w{i}-{number}", f"q{i}", 1, created_ns=number + 1))
    while made.cycle(SECOND).heads:
        pass
    asked: list[str] = []
    for name, queue in made.pending.items():

        def head(freed: int, now_ns: int, name: str = name, real: object = queue.head) -> object:
            asked.append(name)
            return real(freed, now_ns)  # type: ignore[operator]

        made._round.trees[made.cache.queues[name].node.root].members = [_Spy(queue, head)]  # type: ignore[list-item]
    assert made.cycle(SECOND).heads == 0
    assert asked == []
    made.delete(WorkloadKey("ns/w1-0"))
    assert [one.info.workload.name for one in made.cycle(SECOND).reserved] == ["w1-1"]
    assert asked == ["q1"]


class _Spy:
    def __init__(self, queue: object, head: object) -> None:
        self._queue, self.head = queue, head

    def __len__(self) -> int:
        return len(self._queue)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> object:
        return getattr(self._queue, name)
