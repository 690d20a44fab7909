"""The pending queue against a model that sorts everything anew each time."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from queuecontroller.scheduler.model.flavor_resources import FlavorResources
from queuecontroller.scheduler.model.objects import QueueingStrategy
from queuecontroller.scheduler.model.workload_info import WorkloadInfo
from queuecontroller.scheduler.pending.fifo import PendingQueue, order_of
from tests.queue.builders import workload

NAMES = st.sampled_from([f"w{i}" for i in range(6)])


class PendingMachine(RuleBasedStateMachine):
    """Names may come back as new versions; sizes are the shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = PendingQueue("q", QueueingStrategy.BEST_EFFORT_FIFO)
        self.numbers = FlavorResources()
        self.present: dict[str, WorkloadInfo] = {}
        self.waiting: dict[str, int] = {}
        self.aside_shapes: set[object] = set()
        self.aside: set[str] = set()
        self.sticky: str | None = None
        self.freed = 0
        self.now = 0
        self.clock = 0

    def expected(self) -> WorkloadInfo | None:
        ready = [
            info
            for name, info in self.present.items()
            if name not in self.waiting
            and name not in self.aside
            and info.shape not in self.aside_shapes
        ]
        sticky = [info for info in ready if info.workload.name == self.sticky]
        return min(sticky or ready, key=order_of, default=None)

    def head(self) -> WorkloadInfo | None:
        return self.queue.head(self.freed, self.now)

    @rule(name=NAMES, size=st.integers(1, 2), priority=st.integers(0, 1), wait=st.integers(0, 2))
    def push(self, name: str, size: int, priority: int, wait: int) -> None:
        self.clock += 1
        one = workload(name, "q", size, priority=priority, created_ns=self.clock)
        info = WorkloadInfo(one, "q", self.numbers)
        self._forget(name)
        self.queue.push(info, self.now + wait, self.now)
        self.present[name] = info
        if wait:
            self.waiting[name] = self.now + wait
        else:
            self._holders_by_node(name)

    def _holders_by_node(self, name: str) -> None:
        """One older than all of its shape may find what the others did not, so it is looked at."""
        mine = self.present[name]
        line = [
            info
            for other, info in self.present.items()
            if info.shape == mine.shape and other not in self.waiting and other not in self.aside
        ]
        if min(line, key=order_of) is mine:
            self.aside_shapes.discard(mine.shape)

    def _forget(self, name: str) -> None:
        self.present.pop(name, None)
        self.waiting.pop(name, None)
        self.aside.discard(name)
        if self.sticky == name:
            self.sticky = None

    @rule(name=NAMES)
    def remove(self, name: str) -> None:
        self.queue.remove(WorkloadInfo(workload(name, "q", 1), "q", self.numbers).key)
        self._forget(name)

    @rule()
    def cannot_start(self) -> None:
        info = self.head()
        if info is not None:
            self.queue.mark_shape_inadmissible(info, ("WaitingForQuota", "no quota"))
            self.aside_shapes.add(info.shape)

    @rule()
    def is_misconfigured(self) -> None:
        info = self.head()
        if info is not None:
            self.queue.mark_inadmissible(info)
            self.aside.add(info.workload.name)

    @rule()
    def preempts(self) -> None:
        info = self.head()
        if info is not None:
            self.queue.keep_first(info)
            self.sticky = info.workload.name

    @rule()
    def quota_is_freed(self) -> None:
        self.freed += 1
        self.aside_shapes.clear()
        self.aside.clear()

    @rule()
    def time_passes(self) -> None:
        self.now += 1
        over = [name for name, due in self.waiting.items() if due <= self.now]
        for name in over:
            del self.waiting[name]
            self._holders_by_node(name)

    @invariant()
    def the_head_is_the_first_of_who_may_start(self) -> None:
        assert self.head() is self.expected()
        due = self.queue.wakes_at_ns()
        assert due is None or due > self.now
        if self.waiting:
            assert due is not None
            assert due <= min(self.waiting.values())

    @invariant()
    def everyone_is_listed_once(self) -> None:
        assert {info.workload.name for info in self.queue.everyone()} == set(self.present)
        listed = [*self.queue.active(), *self.queue.inadmissible()]
        assert sorted(map(order_of, listed)) == sorted(map(order_of, self.present.values()))


PendingMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
TestPending = PendingMachine.TestCase


def test_those_of_one_shape_keep_it_once() -> None:
    """The part of a shape that comes from a room is most of it."""
    queue = PendingQueue("q", QueueingStrategy.BEST_EFFORT_FIFO)
    every = [WorkloadInfo(workload(name, "q", 1), "q", FlavorResources()) for name in "ab"]
    for number, info in enumerate(every):
        info.room_shape = ("says", int("1000"))
        queue.push(info, now_ns=number)
    first, second = every
    assert first.shape is second.shape
    assert first.room_shape is second.room_shape
    assert first.shape[-1] is first.room_shape
