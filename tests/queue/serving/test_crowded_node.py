"""Hundreds of processes wait on one node: its session lives, each is sent its place, each may give up."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from nodeagent.ports.clients import Waiting
from nodeagent.ports.queue import NotOffered
from tests.kit.queue.controller import QueueController
from tests.queue.serving.puppet import Puppet, until
from tests.queue.state.world import TEAMS

CLOSED = TEAMS.replace("nominalQuota: 2", "nominalQuota: 0")


@pytest.fixture
def controller(tmp_path: Path) -> QueueController:
    settings = ["nodes.lease_s=10", "nodes.report_s=0.5", "server.log_level=warning"]
    made = QueueController(tmp_path, settings=settings)
    yield made  # type: ignore[misc]
    made.stop()


def standing(controller: QueueController) -> int:
    status = controller.get("cq", "a")["status"]
    found: int = status["pendingWorkloads"]
    return found


@pytest.mark.parametrize("many", [300, pytest.param(1000, marks=pytest.mark.faults)])
def test_many_wait_on_one_node(controller: QueueController, many: int) -> None:
    controller.start()
    controller.apply(CLOSED)

    async def scene() -> None:
        async with Puppet(controller.address) as node:
            await until("it is connected", lambda: not node.desk.trouble)
            told: list[list[Waiting]] = [[] for _ in range(many)]
            waits = [asyncio.create_task(node.wait(f"j{i}", told[i])) for i in range(many)]

            def places() -> set[int]:
                return {steps[-1].position for steps in told if steps}

            await until("each knows its place", lambda: places() == set(range(1, many + 1)), 120)
            assert standing(controller) == many

            # The first of the line gives up: all behind it move, and get their new places.
            first = next(i for i, steps in enumerate(told) if steps[-1].position == 1)
            waits[first].cancel()
            told[first] = []
            await until("all have moved", lambda: places() == set(range(1, many)), 120)

            assert node.desk.trouble == ""
            assert node.desk.view().sessions_total == 1, "no report was late for all who wait"
            heard_s = node.desk.view().silent_s
            assert heard_s is not None
            assert heard_s < 10, "the lease was never in danger"

            for task in waits:
                task.cancel()
            await until("no workload waits any more", lambda: not standing(controller), 120)
            assert node.desk.view().sessions_total == 1
            assert node.keeper.started == []

    asyncio.run(scene())
    assert json.loads(controller.cli("get", "workloads", "-o", "json").stdout)["items"] == []


def test_who_waits_on_a_node_starts_when_there_is_quota(controller: QueueController) -> None:
    """All the way through the one stream and the batches: sent a wait, then a start, each once."""
    controller.start()
    controller.apply(CLOSED)

    async def scene() -> None:
        async with Puppet(controller.address) as node:
            await until("it is connected", lambda: not node.desk.trouble)
            told: list[list[Waiting]] = [[] for _ in range(5)]
            waits = [asyncio.create_task(node.wait(f"j{i}", told[i])) for i in range(5)]
            await until("they wait", lambda: all(s and s[-1].position for s in told))
            await asyncio.to_thread(
                controller.apply, TEAMS.replace("nominalQuota: 2", "nominalQuota: 9")
            )
            for grant in await asyncio.wait_for(asyncio.gather(*waits), 60):
                node.keeper.end(grant)
            await until("nothing is left to tell", lambda: not node.ledger.works)
            assert sorted(node.keeper.started) == [f"j{i}" for i in range(5)]

    asyncio.run(scene())
    assert {one["status"]["phase"] for one in controller.workloads()} == {"Finished"}


def test_a_controller_of_the_release_before_is_asked_one_by_one(
    controller: QueueController, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller.start()
    controller.apply(TEAMS)

    async def scene() -> None:
        async with Puppet(controller.address) as node:
            link = node.desk._link
            calls: list[str] = []
            follow, call = link.follow, link._call  # type: ignore[attr-defined]

            async def no_stream(*what: object) -> object:
                raise NotOffered("no such method")
                yield  # a generator, as the real one

            def follow_one(workload: str, uid: str) -> object:
                calls.append("follow")
                return follow(workload, uid)

            async def call_old(path: str, *more: object) -> object:
                calls.append(path.rpartition("/")[2])
                # The real server answers a method that it has not as it answers this one.
                path = path.replace("/Tell", "/Unheard")
                link._methods.setdefault(path, link._methods["/sluice.v1.QueueNodes/Tell"])  # type: ignore[attr-defined]
                return await call(path, *more)

            monkeypatch.setattr(link, "follow_waiting", no_stream)
            monkeypatch.setattr(link, "follow", follow_one)
            monkeypatch.setattr(link, "_call", call_old)
            node.desk._broken.set()  # a session that knows of none of it
            grant = await asyncio.wait_for(node.wait("job"), 60)
            node.keeper.end(grant)
            await until("it is told", lambda: not node.ledger.works)
            assert "follow" in calls
            assert calls.count("Tell") == 1, "asked once, then never again in this session"
            assert {"Confirm", "Release"} & set(calls)

    asyncio.run(scene())
    assert [one["status"]["phase"] for one in controller.workloads()] == ["Finished"]
