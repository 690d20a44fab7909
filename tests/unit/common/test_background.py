"""Background tasks: a failure reaches `fatal`, the end of the owner is the end of its tasks."""

from __future__ import annotations

import asyncio
import logging

import pytest

from sluicecommon.background import BackgroundTasks


class Broken(Exception):
    pass


class Expected(Exception):
    pass


async def fails(error: BaseException) -> None:
    await asyncio.sleep(0)
    raise error


async def forever() -> None:
    await asyncio.Event().wait()


def test_an_error_is_logged_with_the_tasks_name_and_given_to_fatal(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fatal: list[BaseException] = []

    async def run() -> None:
        tasks = BackgroundTasks(fatal.append)
        tasks.spawn(fails(error), "watch of pods")
        await tasks.wait(10.0)
        await asyncio.sleep(0)

    error = Broken("no such thing")
    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    assert fatal == [error]
    assert caplog.messages == ["background task watch of pods failed: Broken: no such thing"]


@pytest.mark.parametrize("expected", [(), (Expected,)], ids=["all is fatal", "one is expected"])
def test_an_expected_error_is_left_to_the_caller_that_awaits_the_task(
    expected: tuple[type[BaseException], ...],
) -> None:
    fatal: list[BaseException] = []

    async def run() -> None:
        tasks = BackgroundTasks(fatal.append)
        with pytest.raises(Expected):
            await asyncio.shield(tasks.spawn(fails(Expected()), "one", expected))

    asyncio.run(run())
    assert bool(fatal) is not bool(expected)


def test_without_fatal_the_event_loop_handles_the_error() -> None:
    handled: list[object] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _loop, context: handled.append((context["message"], context["exception"]))
        )
        tasks = BackgroundTasks()
        tasks.spawn(fails(error), "event of a pod")
        await tasks.wait(10.0)
        await asyncio.sleep(0)

    error = Broken()
    asyncio.run(run())
    assert handled == [("background task event of a pod failed", error)]


def test_close_cancels_all_tasks_and_waits_for_them_also_for_those_that_one_starts_as_it_ends() -> (
    None
):
    ended: list[str] = []
    fatal: list[BaseException] = []

    async def run() -> None:
        tasks = BackgroundTasks(fatal.append)

        async def last() -> None:
            try:
                await forever()
            finally:
                ended.append("last")

        async def first() -> None:
            try:
                await forever()
            finally:
                tasks.spawn(last(), "last")
                await asyncio.sleep(0)
                ended.append("first")

        tasks.spawn(first(), "first")
        assert tasks.busy
        await asyncio.sleep(0)
        await tasks.close()
        assert not tasks.busy

    asyncio.run(run())
    assert (ended, fatal) == (["first", "last"], [])


def test_an_error_raised_while_a_task_is_cancelled_is_fatal_as_well() -> None:
    fatal: list[BaseException] = []

    async def breaks_at_its_end() -> None:
        try:
            await forever()
        finally:
            raise error

    async def run() -> None:
        tasks = BackgroundTasks(fatal.append)
        tasks.spawn(breaks_at_its_end(), "one")
        await asyncio.sleep(0)
        await tasks.close()

    error = Broken()
    asyncio.run(run())
    assert fatal == [error]


def test_a_cancelled_close_raises_cancelled_error() -> None:
    async def run() -> None:
        tasks = BackgroundTasks()
        may_end = asyncio.Event()

        async def slow() -> None:
            try:
                await forever()
            finally:
                await may_end.wait()

        tasks.spawn(slow(), "slow")
        await asyncio.sleep(0)
        closing = asyncio.create_task(tasks.close())
        await asyncio.sleep(0)
        closing.cancel()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await closing

    asyncio.run(run())


def test_wait_ends_at_its_timeout_and_cancels_nothing() -> None:
    async def run() -> None:
        tasks = BackgroundTasks()
        await tasks.wait(0.0)
        task = tasks.spawn(forever(), "endless")
        await tasks.wait(0.01)
        assert tasks.busy
        assert not task.done()
        tasks.cancel()
        await tasks.wait(10.0)
        assert task.cancelled()

    asyncio.run(run())
