"""Background tasks of one owner: started by name, reported when they fail, cancelled together.

asyncio.TaskGroup is bound to one `async with` block; the owners here start tasks from callbacks
and end them in `close`. asyncio itself reports a failed task only when it is collected as garbage,
which never happens while its owner holds a reference.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")


class BackgroundTasks:
    def __init__(self, fatal: Callable[[BaseException], None] | None = None) -> None:
        """`fatal` is called with the error of each task that fails. Without it the error goes to
        the event loop's exception handler, where a task's unhandled error would go anyway."""
        self._fatal = fatal
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def busy(self) -> bool:
        """True while a task has not ended yet."""
        return bool(self._tasks)

    def spawn(
        self,
        work: Coroutine[Any, Any, T],
        name: str,
        expected: tuple[type[BaseException], ...] = (),
    ) -> asyncio.Task[T]:
        """Start `work` as a task; `name` is for the log. An error of one of the `expected` types is
        left to the caller that awaits the task, and is neither logged nor fatal."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)

        def ended(task: asyncio.Task[T]) -> None:
            self._tasks.discard(task)
            error = None if task.cancelled() else task.exception()
            if error is not None and not isinstance(error, expected):
                self._report(name, error)

        task.add_done_callback(ended)
        return task

    def _report(self, name: str, error: BaseException) -> None:
        if self._fatal is None:
            message = f"background task {name} failed"
            context = {"message": message, "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
            return
        log.error("background task %s failed: %s: %s", name, type(error).__name__, error)
        self._fatal(error)

    async def wait(self, timeout_s: float) -> None:
        """Wait until the tasks of this moment have ended, for `timeout_s` at most."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=timeout_s)

    def cancel(self) -> None:
        """Cancel all tasks, without waiting for their end."""
        for task in list(self._tasks):
            task.cancel()

    async def close(self) -> None:
        """Cancel all tasks and wait until they have ended.

        An error that a task raises while it is cancelled is reported as any other is. A caller that
        is cancelled while it waits here gets its CancelledError.
        """
        while self._tasks:  # A task may start another while it ends.
            self.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
