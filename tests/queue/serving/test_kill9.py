"""kill -9 of the controller at every step of an admission: nothing is lost, nothing is started twice."""

from __future__ import annotations

import asyncio
import itertools
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tests.kit.queue.controller import QueueController
from tests.queue.server.callers import WIRE
from tests.queue.serving.puppet import Puppet, until
from tests.queue.state.world import TEAMS

FAILING = (sys.executable, "-m", "tests.queue.serving.failing_serve")
LABELS = ("connect", "submit", "cycle", "confirm", "release")
STEPS = [
    *(f"{label}:staged" for label in LABELS),
    *(
        pytest.param(f"{label}:{when}", marks=pytest.mark.faults)
        for label in LABELS
        for when in ("before", "after")
    ),
]


@pytest.fixture
def controller(tmp_path: Path) -> QueueController:
    settings = ["nodes.lease_s=4", "nodes.report_s=0.3", "server.log_level=warning"]
    made = QueueController(tmp_path, settings=settings, program=FAILING)
    yield made  # type: ignore[misc]
    made.stop()


async def keep_alive(controller: QueueController, deaths: list[int]) -> None:
    """Restart the controller without the failpoint, as systemd does."""
    while True:
        assert controller.process is not None
        status = controller.process.poll()
        if status is not None:
            deaths.append(status)
            controller.launch()
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("step", STEPS)
def test_killed_at(step: str, controller: QueueController) -> None:
    controller.start()
    controller.apply(TEAMS)
    controller.stop()
    controller.launch(SLUICE_QUEUE_FAILPOINT=step)
    deaths: list[int] = []

    async def scene() -> None:
        alive = asyncio.create_task(keep_alive(controller, deaths))
        try:
            async with Puppet(controller.address) as node:
                grant = await asyncio.wait_for(node.wait("job"), 120)
                await until("it is known to run", lambda: not node.desk.trouble)
                node.keeper.end(grant)
                await until("nothing is left to tell", lambda: not node.ledger.works, 120)
                assert node.keeper.started == ["job"], "started exactly once"
                assert [one.attempt for one in node.ledger.done] == [1]
        finally:
            alive.cancel()

    asyncio.run(scene())
    assert deaths == [-signal.SIGKILL], f"the failpoint {step} was reached once: {controller.log}"
    (only,) = controller.workloads()
    assert only["status"]["phase"] == "Finished"
    assert only["status"]["attempt"] == 1
    assert controller.get("cq", "a")["status"]["reservingWorkloads"] == 0


def test_nothing_starts_after_the_lease_and_running_work_goes_on(
    controller: QueueController,
) -> None:
    controller.start()
    controller.apply(TEAMS)

    async def scene() -> None:
        async with Puppet(controller.address) as node:
            grant = await asyncio.wait_for(node.wait("first"), 120)
            controller.kill()
            late = asyncio.create_task(node.wait("late"))
            await until(
                "the lease has ended", lambda: not node.desk.book.may_start(node.desk._boot_ns())
            )
            assert grant in node.keeper.live()
            assert node.keeper.started == ["first"]
            assert node.keeper.signals == []
            assert not late.done()
            controller.start()
            await asyncio.wait_for(late, 120)
            assert node.keeper.started == ["first", "late"]
            assert grant in node.keeper.live()

    asyncio.run(scene())


def test_a_job_that_ends_while_the_controller_is_away_is_told_later(
    controller: QueueController,
) -> None:
    controller.start()
    controller.apply(TEAMS)

    async def scene() -> None:
        async with Puppet(controller.address) as node:
            grant = await asyncio.wait_for(node.wait("job"), 120)
            controller.kill()
            node.keeper.end(grant)
            await until(
                "it is remembered as over",
                lambda: [w.state for w in node.ledger.works.values()] == ["finished"],
            )
            controller.start()
            await until("it is told", lambda: not node.ledger.works)

    asyncio.run(scene())
    assert [one["status"]["phase"] for one in controller.workloads()] == ["Finished"]


def test_a_daemon_that_restarts_meanwhile_keeps_what_it_was_told(
    controller: QueueController,
) -> None:
    controller.start()
    controller.apply(TEAMS)

    async def scene() -> None:
        async with Puppet(controller.address) as node:
            grant = await asyncio.wait_for(node.wait("job"), 120)
        again = Puppet(controller.address, ledger=node.ledger)
        again.keeper.live()[grant] = "from the ledger of grants"
        async with again:
            await until("connected again", lambda: not again.desk.trouble)
            assert again.keeper.started == []
            assert [work.state for work in again.ledger.works.values()] == ["running"]
            again.keeper.end(grant)
            await until("it is told", lambda: not again.ledger.works)

    asyncio.run(scene())
    assert [one["status"]["phase"] for one in controller.workloads()] == ["Finished"]


def test_a_withdrawn_wait_leaves_the_line(controller: QueueController) -> None:
    controller.start()
    controller.apply(TEAMS)
    controller.cli("hold", "cq", "a")

    async def scene() -> None:
        async with Puppet(controller.address) as node:
            steps: list[object] = []
            waiting = asyncio.create_task(node.wait("job", steps))  # type: ignore[arg-type]
            await until(
                "it is told why", lambda: any("is stopped (Hold)" in s.reason for s in steps)
            )  # type: ignore[attr-defined]
            assert len(controller.workloads()) == 1
            waiting.cancel()
            await until("it is gone", lambda: controller.workloads() == [])

    asyncio.run(scene())


def submission(token: str) -> bytes:
    ask = WIRE.GpuAsk(gpus=1, memory_bytes=1 << 30, share_ppm=10_000)
    raw: bytes = WIRE.SubmitRequest(
        namespace="team-a", queue="q", ask=ask, token=token
    ).SerializeToString()
    return raw


async def submit_until_killed(
    controller: QueueController, tokens: Iterator[str], after: int
) -> dict[str, str]:
    """Many at once, until the controller was killed in the middle; the workloads of those that were answered."""
    answered: dict[str, str] = {}
    killed = asyncio.Event()

    async def client() -> None:
        # Connections of their own: what one call says must not depend on how others fare.
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(controller.address, options=options) as channel:
            call = channel.unary_unary(
                "/sluice.v1.Queues/Submit", response_deserializer=WIRE.WorkloadStatus.FromString
            )
            while not killed.is_set():
                token = next(tokens)
                try:
                    status = await call(submission(token), timeout=60)
                except grpc.RpcError:
                    assert killed.is_set(), "nothing fails before"
                    return
                answered[token] = status.workload
                if len(answered) == after:
                    killed.set()
                    await asyncio.to_thread(controller.kill)

    await asyncio.gather(*(client() for _ in range(25)))
    return answered


def test_every_submission_that_was_answered_is_there_after_a_kill_under_load(
    controller: QueueController,
) -> None:
    """Steps of many share a transaction, and an answer may come only after it."""
    controller.start()
    controller.apply(TEAMS)
    numbers = itertools.count()
    asked: list[str] = []

    def tokens() -> Iterator[str]:
        for number in numbers:
            asked.append(f"t{number}")
            yield asked[-1]

    answered: dict[str, str] = {}
    for after in (7, 61, 150):
        answered |= asyncio.run(submit_until_killed(controller, tokens(), after))
        controller.start()
        there = {f"team-a/{one['metadata']['name']}" for one in controller.workloads()}
        assert set(answered.values()) <= there, "answered and gone"
        assert len(there) <= len(asked)
    assert len(set(answered.values())) == len(answered)
    metrics = controller.http("/metrics")[1]
    assert "sluice_queue_steps_total" in metrics

    async def again() -> dict[str, str]:
        async with grpc.aio.insecure_channel(controller.address) as channel:
            call = channel.unary_unary(
                "/sluice.v1.Queues/Submit", response_deserializer=WIRE.WorkloadStatus.FromString
            )
            return {token: (await call(submission(token))).workload for token in asked}

    found = asyncio.run(again())
    assert {token: found[token] for token in answered} == answered, "a token is one submission"
    assert len(controller.workloads()) == len(asked), "and none was taken twice"
