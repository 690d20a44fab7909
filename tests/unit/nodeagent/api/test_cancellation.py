"""A task that is cancelled in the moment its wait ends is cancelled all the same.

`asyncio.wait_for` before Python 3.12 returns the result instead when the two meet, and the task goes
on as if it had not been cancelled. So each wait is cancelled at every step of the event loop after
what it waits for has come.
"""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest

from nodeagent.adapters.nvml.reader import ChildNvml
from nodeagent.ports.clients import Waiting
from nodeagent.settings.daemon import GrantSettings
from nodeagent.shell.api.service import Service
from nodeagent.shell.grants.keeper import Answer
from tests.kit.clock import ManualClock
from tests.kit.places import REPO

STEPS = range(6)
HOUR_NS = 3_600_000_000_000
ANSWER = Waiting(1, "no room")


def service() -> Service:
    """Only its clock is asked."""
    nobody = cast(Any, None)
    return Service(
        GrantSettings(),
        *[nobody] * 6,
        ManualClock(),
        frozenset(),
        lambda: True,
        str,
        nobody,
        nobody,
    )


async def cancelled_after(
    steps: int, wait: Coroutine[Any, Any, object], comes: Callable[[], None]
) -> asyncio.Task[object]:
    task = asyncio.create_task(wait)
    for _ in range(3):  # it waits
        await asyncio.sleep(0)
    assert not task.done()
    comes()
    for _ in range(steps):
        await asyncio.sleep(0)
    was_over = task.done()
    task.cancel()
    await asyncio.wait([task], timeout=60)
    assert task.done()
    assert task.cancelled() or was_over, "the cancellation was lost"
    return task


@pytest.mark.parametrize("steps", STEPS)
def test_of_a_request_whose_answer_comes(steps: int) -> None:
    async def scene() -> None:
        answers: asyncio.Queue[Answer] = asyncio.Queue()
        task = await cancelled_after(
            steps, service()._next_answer(answers, HOUR_NS), lambda: answers.put_nowait(ANSWER)
        )
        taken = [] if task.cancelled() else [task.result()]
        assert [*taken, *(answers.get_nowait() for _ in range(answers.qsize()))] == [ANSWER]

    asyncio.run(scene())


@pytest.mark.parametrize("steps", STEPS)
def test_of_a_reader_that_ends(steps: int) -> None:
    async def scene() -> None:
        ended = asyncio.Event()

        class Child:
            killed = 0
            pid = 1
            returncode = None

            def kill(self) -> None:
                self.killed += 1

            async def wait(self) -> int:
                await ended.wait()
                return -9

        child = Child()
        reader = ChildNvml("", 1.0, ManualClock())
        reader._child = cast(Any, child)
        await cancelled_after(steps, reader.close(), ended.set)
        assert child.killed == 1
        assert reader.pid is None

    asyncio.run(scene())


class JustInTime(asyncio.Queue[Answer]):
    """The answer comes in the moment the time ends."""

    async def get(self) -> Answer:
        self.put_nowait(ANSWER)
        raise TimeoutError


def test_an_answer_in_the_moment_the_time_ends_is_not_lost() -> None:
    async def scene() -> None:
        answers = JustInTime()
        assert await service()._next_answer(answers, HOUR_NS) == ANSWER
        assert answers.empty()

    asyncio.run(scene())


def test_a_wait_in_vain_gives_nothing() -> None:
    async def scene() -> None:
        assert await service()._next_answer(asyncio.Queue(), 1_000_000) is None

    asyncio.run(scene())


def calls_of_wait_for(path: Path) -> list[int]:
    return [
        node.lineno
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and node.attr == "wait_for"
        and isinstance(node.value, ast.Name)
        and node.value.id == "asyncio"
    ]


def test_nothing_that_runs_in_earnest_uses_wait_for() -> None:
    found = {
        str(path.relative_to(REPO)): lines
        for package in ("nodeagent", "queuecontroller")
        for path in (REPO / package).rglob("*.py")
        if "testing" not in path.parts and (lines := calls_of_wait_for(path))
    }
    assert found == {}
