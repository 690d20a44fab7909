"""A call that takes long is done a slice at a time, others go in between, and all of it is applied or none."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from queuecontroller.kueueapi.manifests import jobs
from queuecontroller.server.api.client import OBJECTS_A_CALL
from queuecontroller.server.callers.fair_calls import SLICE_S, TURNS_S, FairCalls
from queuecontroller.server.callers.listeners import Connection, Listeners
from queuecontroller.state.access import Caller, Denied
from queuecontroller.state.applying import MAX_BY_USER, MAX_PROBLEMS, Reading, at_once
from queuecontroller.state.objects import submission
from queuecontroller.state.objects.submission import Refused
from sluicecommon.reader import ManifestError
from tests.queue.state.texts import WORKLOAD
from tests.queue.state.world import World, documents

ANN, EVE = Caller(user="ann", shown="ann"), Caller(user="eve", shown="eve")
CAROL = Caller(user="carol", admin=True, shown="carol")
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: many, namespace: team-a, labels: {kueue.x-k8s.io/queue-name: q}}
spec:
  replicas: 100000
  template: {spec: {containers: [{name: c, resources: {limits: {nvidia.com/gpu: 1}}}]}}
"""


def workload(name: str, **spec: Any) -> dict[str, Any]:
    (found,) = documents(WORKLOAD.replace("name: w,", f"name: {name},"))
    found["spec"] |= spec
    return found


# --- turns ---------------------------------------------------------------------------------------


class Ticks:
    """A clock that goes on with each piece of work."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def long_call(clock: Ticks, order: list[str], who: str, steps: int) -> Any:
    def call() -> Generator[None, None, str]:
        for _ in range(steps):
            clock.now_s += SLICE_S / 2
            order.append(who)
            yield
        return who

    return call


def test_an_honest_call_waits_for_a_slice_of_a_long_one_and_not_for_all_of_it() -> None:
    clock, order = Ticks(), []  # type: ignore[var-annotated]

    async def play() -> list[str]:
        turns = FairCalls(clock)
        long = asyncio.create_task(turns.run(EVE, long_call(clock, order, "eve", 1000)))
        while not order:
            await asyncio.sleep(0)
        await turns.run(ANN, lambda: order.append("ann"))
        return [await long]

    assert asyncio.run(play()) == ["eve"]
    assert order.count("eve") == 1000
    most = int(2 * TURNS_S / (SLICE_S / 2))
    assert order.index("ann") <= most < 1000, "two passes of the loop, and not all of it"


def test_a_caller_with_two_calls_gets_its_answers_in_order() -> None:
    clock, order = Ticks(), []  # type: ignore[var-annotated]

    async def play() -> None:
        turns = FairCalls(clock)
        await asyncio.gather(
            turns.run(EVE, long_call(clock, order, "first", 10)),
            turns.run(EVE, lambda: order.append("second")),
        )

    asyncio.run(play())
    assert order == ["first"] * 10 + ["second"]


def test_what_a_later_slice_raises_is_its_callers_and_the_others_go_on() -> None:
    def fails() -> Generator[None, None, None]:
        yield
        raise Denied("no")

    async def play() -> str:
        turns = FairCalls()
        with pytest.raises(Denied):
            await turns.run(EVE, fails)
        return await turns.run(ANN, lambda: "served")

    assert asyncio.run(play()) == "served"


def test_nothing_more_is_done_for_a_caller_that_has_gone() -> None:
    clock, order, closed = Ticks(), [], []  # type: ignore[var-annotated]

    def call() -> Generator[None, None, None]:
        try:
            yield from long_call(clock, order, "eve", 1000)()
        finally:
            closed.append(True)

    async def play() -> None:
        turns = FairCalls(clock)
        long: asyncio.Task[None] = asyncio.create_task(turns.run(EVE, call))
        while not order:
            await asyncio.sleep(0)
        long.cancel()
        await asyncio.gather(long, return_exceptions=True)
        await turns.run(ANN, lambda: None)
        while not closed:
            await asyncio.sleep(0)

    asyncio.run(play())
    assert len(order) < 50


def test_who_has_enough_calls_waiting_is_not_read_until_they_are_answered(tmp_path: Any) -> None:
    async def play() -> None:
        doors = Listeners(64, tmp_path, lambda uid: EVE)
        mine, other, late = (
            Connection("10.0.0.1", 0.0, True, own=Path(f"c{number}"), target=Path("grpc"))
            for number in range(3)
        )
        doors.prove(mine, EVE)
        doors.prove(other, ANN)
        doors.busy(EVE, True)
        doors.busy(EVE, True)
        doors.prove(late, EVE)
        stopped = mine.stopped_for, other.stopped_for, late.stopped_for
        assert stopped == ({"busy"}, set(), {"busy"})
        doors.busy(EVE, False)
        assert (mine.stopped_for, late.stopped_for) == (set(), set())
        await doors.close()

    asyncio.run(play())


def test_a_caller_is_read_again_once_its_calls_are_few_whatever_they_were() -> None:
    told: list[tuple[str, bool]] = []

    async def play() -> None:
        turns = FairCalls(busy=lambda caller, enough: told.append((caller.shown, enough)))
        await asyncio.gather(*(turns.run(EVE, lambda: None) for _ in range(20)))
        await turns.run(ANN, lambda: None)

    asyncio.run(play())
    assert ("eve", True) in told
    assert told[-1] == ("eve", False)
    assert "ann" not in {who for who, _ in told}


# --- what is read and what is put ----------------------------------------------------------------


def read(world: World, caller: Caller, *found: dict[str, Any]) -> Reading:
    return at_once(world.book.applying.read(found, caller))


def names(world: World) -> list[str]:
    return sorted(world.book.workloads.records)


def test_reading_changes_nothing_and_stops_after_each_object() -> None:
    world = World()
    steps = world.book.applying.read([workload(f"w{i}") for i in range(10)], EVE)
    assert sum(1 for _ in steps) == 10
    assert names(world) == []


def test_what_another_took_meanwhile_is_his_and_nothing_of_the_call_is_applied() -> None:
    world = World()
    reading = read(world, EVE, workload("first"), workload("mine", active=False))
    world.step("apply", lambda book, now: book.apply([workload("mine")], False, now, ANN))
    with pytest.raises(Denied):
        world.step("apply", lambda book, now: book.put(reading, False, now))
    assert names(world) == ["team-a/mine"]
    assert world.book.workloads.records[names(world)[0]].workload.active  # type: ignore[index]


def test_a_fence_that_was_put_up_meanwhile_holds() -> None:
    world = World()
    reading = read(world, EVE, workload("w"))
    fence = {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "LocalQueue",
        "metadata": {
            "name": "q",
            "namespace": "team-a",
            "annotations": {"sluice.dev/users": "ann"},
        },
        "spec": {"clusterQueue": "a"},
    }
    world.step("apply", lambda book, now: book.apply([fence], False, now))
    with pytest.raises(Refused, match="may not use"):
        world.step("apply", lambda book, now: book.put(reading, False, now))
    assert names(world) == []


def test_what_was_deleted_meanwhile_is_made_anew_and_belongs_to_who_applied_it() -> None:
    world = World()
    world.step("apply", lambda book, now: book.apply([workload("w")], False, now, EVE))
    reading = read(world, EVE, workload("w", active=False))
    world.step("delete", lambda book, now: book.delete(("Workload", "team-a", "w"), "", now))
    done = world.step("apply", lambda book, now: book.put(reading, False, now))
    assert [one.action for one in done] == ["created"]
    (record,) = world.book.workloads.records.values()
    assert (record.user, record.workload.active) == ("eve", False)


def test_a_call_of_a_user_is_bounded_and_an_admins_is_not() -> None:
    world = World()
    many = [workload(f"w{i}") for i in range(MAX_BY_USER + 1)]
    with pytest.raises(Refused, match=f"more than {MAX_BY_USER} workloads"):
        world.step("apply", lambda book, now: book.apply(many, False, now, EVE))
    assert names(world) == []
    assert len(world.book.apply(many[1:], False, 1, EVE)) == MAX_BY_USER
    assert len(world.book.apply(many, False, 1, CAROL)) == MAX_BY_USER + 1
    assert OBJECTS_A_CALL <= MAX_BY_USER, "what our own client sends at once is taken"


def test_a_hundred_thousand_replicas_are_refused_before_they_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They took seconds of the one event loop, and the answer was no."""
    world = World()
    made: list[object] = []
    original = jobs.workloads_of

    def making(*given: Any) -> Any:
        made.append(given)
        return original(*given)

    monkeypatch.setattr(submission, "workloads_of", making)
    with pytest.raises(Refused, match="requires an admin"):
        world.book.apply(documents(DEPLOYMENT), False, 1, EVE)
    assert made == []
    fewer = documents(DEPLOYMENT.replace("100000", "3"))
    assert len(world.book.apply(fewer, False, 1, EVE)) == 3
    elsewhere = documents(
        DEPLOYMENT.replace("labels: {kueue.x-k8s.io/queue-name: q}", "labels: {}")
    )
    (found,) = world.book.apply(elsewhere, False, 1, EVE)
    assert found.action == "passed over", "none of the queue's business, however many"


def test_mistakes_without_end_are_not_read_to_the_end() -> None:
    world = World()
    wrong = [workload("j\nX") for _ in range(5 * MAX_PROBLEMS)]
    with pytest.raises(ManifestError) as told:
        world.book.apply(wrong, False, 1, EVE)
    assert MAX_PROBLEMS <= len(told.value.problems) < 2 * MAX_PROBLEMS
    assert "object 1:" in str(told.value.problems[0])
