"""Errands: one at a time for each object, none forgotten, failures later."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from queuecontroller.cluster.reconcilers.units import unit_of
from queuecontroller.cluster.status.events import KubernetesEvent
from queuecontroller.cluster.writers import workqueue
from queuecontroller.cluster.writers.event_recorder import EventRecorder
from queuecontroller.cluster.writers.workqueue import WorkQueue
from queuecontroller.state.figures import DEFECTS
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused
from sluicecommon.kubernetes.resources import PODS


def run(work_queue: WorkQueue[str], until: Callable[[], bool]) -> None:
    async def main() -> None:
        task = asyncio.create_task(work_queue.run())
        async with asyncio.timeout(30):
            while not until() and not task.done():
                await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())


def test_one_object_is_never_done_twice_at_once_and_several_are() -> None:
    busy: Counter[str] = Counter()
    most: Counter[str] = Counter()
    done: Counter[str] = Counter()
    together = 0

    async def do(key: str) -> None:
        nonlocal together
        busy[key] += 1
        most[key] = max(most[key], busy[key])
        together = max(together, sum(busy.values()))
        if not done[key]:
            work_queue.add(key)  # asked for while it is being done: once more
        await asyncio.sleep(0.002)
        busy[key] -= 1
        done[key] += 1

    work_queue: WorkQueue[str] = WorkQueue("t", do, 4)
    for key in "abcdef":
        work_queue.add(key)
        work_queue.add(key)
    run(work_queue, lambda: sum(done.values()) >= 12)
    assert done == Counter(dict.fromkeys("abcdef", 2))
    assert set(most.values()) == {1}
    assert together == 4


def failing(times: int, done: list[str]) -> Callable[[str], Awaitable[None]]:
    left = times

    async def do(key: str) -> None:
        nonlocal left
        if left:
            left -= 1
            raise ApiAway("away")
        done.append(key)

    return do


def test_what_failed_is_done_later() -> None:
    done: list[str] = []
    work_queue: WorkQueue[str] = WorkQueue("t", failing(3, done), 2)
    work_queue.add("a")
    run(work_queue, lambda: bool(done))
    assert (done, work_queue.failed_total, work_queue.done_total) == (["a"], 3, 1)
    assert len(work_queue) == 0


def test_the_urgent_goes_first() -> None:
    done: list[str] = []
    work_queue: WorkQueue[str] = WorkQueue("t", failing(0, done), 1)
    work_queue.add("later", urgent=False)
    work_queue.add("first")
    run(work_queue, lambda: len(done) == 2)
    assert done == ["first", "later"]


def test_asking_cuts_a_rest_short_and_not_the_pause_after_a_failure() -> None:
    done: list[str] = []
    work_queue: WorkQueue[str] = WorkQueue("t", failing(1, done), 1)

    async def main() -> None:
        task = asyncio.create_task(work_queue.run())
        work_queue.add_after("rests", 3600)
        work_queue.add("fails")
        while not work_queue.failed_total:
            await asyncio.sleep(0)
        work_queue.add("fails")
        work_queue.add("rests")
        while not done:
            await asyncio.sleep(0)
        assert done == ["rests"], "who failed has to wait"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())


def test_a_write_to_an_old_version_is_done_again_when_the_new_one_is_seen() -> None:
    """Its back-off grew to 30 s, so that one of 100 Jobs took a minute to be dispatched while the machine was busy."""
    done: list[int] = []

    async def do(key: str) -> None:
        done.append(work_queue.failed_total)
        if len(done) <= 12:
            raise ApiRefused(409, "Conflict", "the object has been modified")

    work_queue: WorkQueue[str] = WorkQueue("t", do, 1)

    async def main() -> None:
        task = asyncio.create_task(work_queue.run())
        work_queue.add("a")
        async with asyncio.timeout(30):
            for seen in range(1, 13):
                while work_queue.failed_total < seen:
                    await asyncio.sleep(0)
                await asyncio.sleep(0)
                began_s = asyncio.get_running_loop().time()
                work_queue.add("a")  # the watch brings the version of the other writer
                while len(done) <= seen:
                    await asyncio.sleep(0)
                assert asyncio.get_running_loop().time() - began_s < 10
            assert work_queue.done_total == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("key", "named"),
    [("n/w", "t n/w"), ((PODS, "n/p"), "t Pod n/p"), (unit_of(PODS, "n/p"), "t pod n/p")],
)
def test_a_failure_names_the_object(key: Any, named: str, caplog: pytest.LogCaptureFixture) -> None:
    done: list[Any] = []

    async def do(key: Any) -> None:
        done.append(key)
        if len(done) == 1:
            raise ApiAway("no answer")

    work_queue: WorkQueue[Any] = WorkQueue("t", do, 1)
    caplog.set_level("INFO")
    work_queue.add(key)
    run(work_queue, lambda: len(done) == 2)
    assert f"{named}: no answer" in caplog.text


@pytest.mark.parametrize(
    ("error", "longest_s"),
    [
        (ApiRefused(409, "Conflict", "changed"), workqueue.OUTDATED_PAUSE_S),
        (ApiRefused(409, "AlreadyExists", "exists"), workqueue.LONGEST_PAUSE_S),
        (ApiAway("no answer"), workqueue.LONGEST_PAUSE_S),
    ],
)
def test_the_pause_grows_to_its_bound(
    error: Exception, longest_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    done: list[str] = []

    async def do(key: str) -> None:
        if len(pauses) < 12:
            raise error
        done.append(key)

    work_queue: WorkQueue[str] = WorkQueue("t", do, 1)

    def at_once(key: str, seconds: float) -> None:
        pauses.append(seconds)
        asyncio.get_running_loop().call_soon(work_queue._is_due, key)

    monkeypatch.setattr(work_queue, "add_after", at_once)
    work_queue.add("a")
    run(work_queue, lambda: bool(done))
    assert pauses[0] == workqueue.FIRST_PAUSE_S
    assert pauses[-1] == longest_s


def test_what_is_asked_for_later_while_it_is_done_is_done_once_more() -> None:
    """The status of a queue that changes while it is being written: seen as counts that stayed."""
    done: list[str] = []

    async def do(key: str) -> None:
        if not done:
            work_queue.add_after(key, 0.01)
            await asyncio.sleep(0.002)
        done.append(key)

    work_queue: WorkQueue[str] = WorkQueue("t", do, 1)
    work_queue.add("a")
    run(work_queue, lambda: len(done) == 2)
    assert done == ["a", "a"]


def test_an_object_that_leads_to_a_defect_waits_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    done: list[str] = []

    async def do(key: str) -> None:
        if key == "odd" and "odd" not in tried:
            tried.append(key)
            raise TypeError("of what nobody thought")
        done.append(key)

    tried: list[str] = []
    before = DEFECTS[("defective",)]
    work_queue: WorkQueue[str] = WorkQueue("defective", do, 1)
    for key in ("odd", "even", "other"):
        work_queue.add(key)
    run(work_queue, lambda: len(done) == 3)
    assert done == ["even", "other", "odd"], "tried again, and last"
    assert (work_queue.failed_total, DEFECTS[("defective",)] - before) == (1, 1)
    assert "internal error, please report it" in caplog.text
    assert "of what nobody thought" in caplog.text


def test_it_ends_although_a_call_loses_the_cancellation() -> None:
    """A leader that waits for it would never lead again."""
    tried: list[str] = []

    async def do(key: str) -> None:
        tried.append(key)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ApiAway("no answer in time") from None

    async def work() -> bool:
        work_queue: WorkQueue[str] = WorkQueue("t", do, 2)
        work_queue.add("a")
        running = asyncio.create_task(work_queue.run())
        while not tried:
            await asyncio.sleep(0)
        running.cancel()
        done, _ = await asyncio.wait({running}, timeout=10)
        return bool(done)

    assert asyncio.run(work())


def test_a_recorder_of_events_ends_although_a_call_loses_the_cancellation() -> None:
    class Server:
        tried = 0

        async def create(self, *_: object) -> dict[str, Any]:
            self.tried += 1
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise ApiAway("no answer in time") from None
            raise AssertionError

    async def work() -> bool:
        server = Server()
        recorder = EventRecorder(cast(ApiClient, server), lambda: True, lambda: "x")
        recorder.record({"metadata": {"name": "p"}}, PODS, KubernetesEvent("Stopped", "why"))
        running = asyncio.create_task(recorder.run())
        while not server.tried:
            await asyncio.sleep(0)
        running.cancel()
        done, _ = await asyncio.wait({running}, timeout=10)
        return bool(done)

    assert asyncio.run(work())
