"""A submission whose answer is lost: it is one submission, the session that comes after keeps it, and it runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from nodeagent.ports.clients import Refused
from nodeagent.ports.queue import LinkLost
from tests.kit.queue.controller import QueueController
from tests.queue.serving.puppet import Puppet, PuppetHandle, until
from tests.queue.state.world import TEAMS


class Losing:
    """A link that loses the answer to the first submission, and the session with it."""

    def __init__(self, node: Puppet) -> None:
        self._node = node
        self._link = node.desk._link
        self.lost = 0
        self.named: list[list[str]] = []
        """Workloads reported as waiting, session by session."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    async def submit(self, submission: Any) -> Any:
        status = await self._link.submit(submission)
        if self.lost:
            return status
        self.lost += 1
        before = len(self.named)
        self._node.desk._broken.set()
        while len(self.named) == before:  # the next session begins before it is tried again
            await asyncio.sleep(0.01)
        raise LinkLost("the answer did not come")

    async def connect(self, fence: Any, held: Any, waiting: Any, capacity: Any) -> Any:
        self.named.append(list(waiting))
        return await self._link.connect(fence, held, waiting, capacity)


def test_a_submission_without_an_answer_outlives_the_session(tmp_path: Path) -> None:
    controller = QueueController(tmp_path, settings=["nodes.report_s=0.2", "nodes.lease_s=4"])

    async def scene() -> tuple[list[str], Losing]:
        async with Puppet(controller.address) as node:
            losing = Losing(node)
            node.desk._link = losing  # type: ignore[assignment]
            await asyncio.wait_for(node.wait("job"), 60)
            return node.keeper.started, losing

    try:
        controller.start()
        controller.apply(TEAMS)
        started, losing = asyncio.run(scene())
        assert losing.lost == 1
        assert [name.startswith("team-a/job-") for name in losing.named[-1]] == [True]
        assert len(started) == 1
        (row,) = controller.workloads()
        assert row["status"]["attempt"] == 1
    finally:
        controller.stop()


def test_a_process_whose_connection_ended_is_let_in_without_a_defect(tmp_path: Path) -> None:
    """Its handle was closed before its wait ended, and a decision in between ended the daemon."""
    controller = QueueController(tmp_path, settings=["nodes.report_s=0.2", "nodes.lease_s=4"])

    async def scene() -> None:
        async with Puppet(controller.address) as node:
            handle, steps = PuppetHandle(), []  # type: ignore[var-annotated]
            wait = asyncio.create_task(node.wait("job", steps, handle))
            await until("it waits", lambda: steps)
            handle.close()
            await asyncio.to_thread(controller.cli, "resume", "cq", "a")
            await asyncio.wait_for(wait, 60)
            with pytest.raises(Refused, match="closed its connection"):
                await node.wait("late", handle=handle)

    try:
        controller.start()
        controller.apply(TEAMS)
        controller.cli("hold", "cq", "a")
        asyncio.run(scene())
    finally:
        controller.stop()
