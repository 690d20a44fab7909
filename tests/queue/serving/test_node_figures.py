"""The queue's figures on a node's /metrics, against a controller that the test drives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nodeagent.core.metrics import catalogue as m
from nodeagent.core.metrics import own as own_metrics
from nodeagent.ports.queue import (
    Capacity,
    Decision,
    Desired,
    Detection,
    Fence,
    LinkLost,
    NotOffered,
    PodUsage,
    QueueStatus,
    Usage,
    Welcome,
    Work,
    WorkState,
)
from nodeagent.ports.views import NodeView, QueueView
from nodeagent.settings.daemon import QueueSettings
from nodeagent.shell.queue.manager import QueueManager
from sluicecommon.prometheus import Exposition
from tests.queue.serving.puppet import CountingKeeper, FixedCapacity, MemoryLedger, Spills

SECOND = 1_000_000_000
EMPTY = NodeView((), (), (), 0, None, None, None, 0, "1")


class Controller:
    """A QueueLink. Its term is settable; `lost` ends the session."""

    def __init__(self) -> None:
        self.term, self.revision = 4, 10
        self.decisions: tuple[Decision, ...] = ()
        self.lost = asyncio.Event()
        self.reports: list[tuple[int, bool]] = []
        """Number of each report, and whether the node stops."""
        self.news: asyncio.Queue[tuple[int, int, Decision | None]] = asyncio.Queue()

    async def connect(
        self, fence: Fence, held: Sequence[Work], waiting: Sequence[str], capacity: Capacity
    ) -> Welcome:
        self.lost.clear()
        return Welcome("c", self.term, 1, self.revision, 15.0, 3600.0, self.decisions)

    async def report(
        self,
        fence: Fence,
        sequence: int,
        capacity: Capacity,
        usage: Sequence[Usage | PodUsage],
        detections: Sequence[Detection],
        *,
        stopping: bool = False,
    ) -> Welcome:
        self.reports.append((sequence, stopping))
        if not stopping:
            raise LinkLost("no report is due for an hour")
        return Welcome("c", self.term, 1, self.revision, 15.0, 3600.0)

    async def watch(self, fence: Fence) -> AsyncIterator[tuple[int, int, Decision | None, str]]:
        while True:
            over = asyncio.ensure_future(self.lost.wait())
            news = asyncio.ensure_future(self.news.get())
            done, left = await asyncio.wait({over, news}, return_when=asyncio.FIRST_COMPLETED)
            for one in left:
                one.cancel()
            if over in done:
                raise LinkLost("cut")
            yield news.result()

    async def follow_waiting(
        self, fence: Fence, workloads: Sequence[str]
    ) -> AsyncIterator[list[QueueStatus]]:
        raise NotOffered("not here")
        yield []

    async def report_works(self, fence: Fence, works: Sequence[Work]) -> list[bool]:
        return [True] * len(works)

    async def close(self) -> None:
        pass


class Node:
    def __init__(self) -> None:
        self.now_ns = 1_000 * SECOND
        self.link = Controller()
        self.failures: list[BaseException] = []
        self.desk = QueueManager(
            QueueSettings(server="c:1", node_name="n1"),
            self.link,  # type: ignore[arg-type]  # as much of a link as the desk uses here
            MemoryLedger(),
            CountingKeeper(),  # type: ignore[arg-type]
            FixedCapacity(),  # type: ignore[arg-type]
            boot_ns=lambda: self.now_ns,
            user_name=str,
            events=lambda number: [],
            spills=Spills(),
            fatal=self.failures.append,
        )

    async def __aenter__(self) -> Node:
        await self.desk.start()
        return self

    async def __aexit__(self, *what: object) -> None:
        await self.desk.close()
        assert self.failures == []

    @property
    def view(self) -> QueueView:
        return self.desk.view()

    async def until(self, condition: Callable[[QueueView], bool]) -> QueueView:
        async with asyncio.timeout(60):
            while not condition(self.view):
                await asyncio.sleep(0.01)
        return self.view


def samples(view: QueueView) -> dict[str, float]:
    page = Exposition(m.CATALOGUE, 10_000)
    own_metrics.fill(page, replace(EMPTY, queue=view), {})
    return {
        sample.name + "".join(sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page.text(False).decode())
        for sample in family.samples
        if sample.name.startswith("sluice_queue_link_")
    }


def offered(revision: int, **more: Any) -> Decision:
    return Decision("team/w", "", "u", 1, revision, Desired.RUN, **more)


@pytest.mark.parametrize("serves_kubelet", [True, False])
def test_the_controller_is_told_that_a_daemon_which_serves_a_kubelet_ends(
    serves_kubelet: bool,
) -> None:
    async def scene() -> None:
        async with Node() as node:
            node.desk.announces_stop = serves_kubelet
            await node.until(lambda view: view.connected)
        assert node.link.reports == ([(1, True)] if serves_kubelet else [])
        assert node.desk.stop_announced is serves_kubelet

    asyncio.run(scene())


def test_without_a_session_nobody_is_told_that_the_daemon_ends() -> None:
    async def scene() -> None:
        node = Node()
        node.desk.announces_stop = True
        await node.desk.close()
        assert (node.link.reports, node.desk.stop_announced) == ([], False)

    asyncio.run(scene())


def test_a_node_that_never_had_a_session_says_so() -> None:
    async def scene() -> None:
        node = Node()
        found = samples(node.view)
        assert found["sluice_queue_link_connected"] == 0
        assert found["sluice_queue_link_lease_seconds"] == 0
        assert "sluice_queue_link_session_age_seconds" not in found
        assert "sluice_queue_link_silent_seconds" not in found
        assert found["sluice_queue_link_sessions_total"] == 0
        states = {name for name in found if name.startswith("sluice_queue_link_decisions")}
        assert len(states) == len(WorkState), "each state has a figure, also of nothing"

    asyncio.run(scene())


def test_ages_lease_and_decisions_of_a_session() -> None:
    async def scene() -> None:
        async with Node() as node:
            node.link.decisions = (offered(10),)
            await node.until(lambda view: view.connected)
            node.now_ns += 5 * SECOND
            found = samples(node.view)
            assert found["sluice_queue_link_connected"] == 1
            assert found["sluice_queue_link_session_age_seconds"] == 5
            assert found["sluice_queue_link_silent_seconds"] == 5
            assert found["sluice_queue_link_lease_seconds"] == 10
            assert found["sluice_queue_link_term"] == 4
            assert found["sluice_queue_link_revision"] == 10
            assert found["sluice_queue_link_decisionsoffered"] == 1
            assert found["sluice_queue_link_decisionsrunning"] == 0
            node.link.news.put_nowait((4, 11, None, ""))
            await node.until(lambda view: view.silent_s == 0)
            node.now_ns += 20 * SECOND
            assert node.view.lease_left_s == 0
            assert node.view.session_s == 25

    asyncio.run(scene())


def test_a_predecessor_is_fenced_and_counted() -> None:
    async def scene() -> None:
        async with Node() as node:
            await node.until(lambda view: view.connected)
            node.now_ns += 2 * SECOND
            node.link.term = 3  # it answers again, after its successor
            node.link.news.put_nowait((3, 12, offered(12), ""))
            view = await node.until(lambda view: view.fenced_total == 1)
            assert view.silent_s == 2, "it said nothing that counts"
            await node.until(lambda view: view.fenced_total == 2)
            found = samples(node.view)
            assert found["sluice_queue_link_connected"] == 0
            assert found["sluice_queue_link_fenced_messages_total"] == 2
            assert found["sluice_queue_link_term"] == 4
            assert found["sluice_queue_link_decisionsoffered"] == 0, "not obeyed"
            node.link.term = 5
            view = await node.until(lambda view: view.connected)
            assert (view.term, view.sessions_total) == (5, 2)

    asyncio.run(scene())


def test_a_session_that_is_cut_has_no_age_and_its_silence_goes_on() -> None:
    async def scene() -> None:
        async with Node() as node:
            await node.until(lambda view: view.connected)
            node.now_ns += 3 * SECOND
            node.link.lost.set()
            view = await node.until(lambda view: not view.connected)
            assert (view.session_s, view.silent_s) == (None, 3)

    asyncio.run(scene())


def test_a_node_without_a_queue_has_no_such_series() -> None:
    page = Exposition(m.CATALOGUE, 10_000)
    own_metrics.fill(page, EMPTY, {})
    lines = page.text(False).decode().splitlines()
    assert not [line for line in lines if line.startswith("sluice_queue_link")]
    assert [line for line in lines if line.startswith("sluice_build_info")]
