"""Queued jobs that make way by a checkpoint: the real controller and the real daemon over the simulated driver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.integration.spilling.jobs import Job, used_gib
from tests.kit.node import Node, running, until
from tests.kit.queue import queues
from tests.kit.queue.controller import QueueController, serving
from tests.kit.workplace import workplace

HELD_GIB = 2
JOB = ("--queue", "team/train", "--gpumem", "60%", "--cores", "60")
CHECKPOINT = (*JOB, "--on-preemption", "checkpoint")
URGENT = (*JOB, "--priority-class", "urgent")
QUEUES = queues.manifests(
    queues.flavor("h100"),
    queues.priority_class("urgent", 1000),
    queues.namespace("team"),
    queues.cluster_queue(
        "team", "h100", {queues.GPU: 1}, "preemption: {withinClusterQueue: LowerPriority}"
    ),
    queues.local_queue("train", "team", "team"),
)


@pytest.fixture
def ends() -> Iterator[ExitStack]:
    with ExitStack() as it:
        yield it


@pytest.fixture
def controller(ends: ExitStack) -> QueueController:
    directory = ends.enter_context(workplace())
    settings = ["nodes.report_s=0.5", "workloads.grace_s=1"]
    it = ends.enter_context(serving(directory / "queue", settings=settings))
    it.apply(QUEUES)
    return it


@pytest.fixture
def node(ends: ExitStack, controller: QueueController) -> Node:
    settings = (
        f'[queue]\nserver = "{controller.address}"\nnode_name = "n1"\n'
        "[checkpoint]\nspare_host_memory_mib = 0\n"
    )
    directory = ends.enter_context(workplace())
    it = ends.enter_context(running(directory, gpus="1xh100-80gb", settings=settings))
    until("the node is in the queue", lambda: "Ready" in controller.cli("get", "nodes").stdout)
    return it


def submit(node: Node, ends: ExitStack, name: str, *flags: str) -> Job:
    it = Job(node, name, *flags)
    ends.callback(it.end)
    return it


def test_a_job_makes_way_with_its_memory_and_goes_on_where_it_was(
    controller: QueueController, node: Node, ends: ExitStack
) -> None:
    first = submit(node, ends, "first", *CHECKPOINT).ready()
    assert first.do("hold", HELD_GIB) == 0
    urgent = submit(node, ends, "urgent", *URGENT).ready()
    assert first.state() == "spilled"
    until("the urgent one has the card alone", lambda: used_gib(node) < 2)
    assert urgent.do("hold", HELD_GIB) == 0
    assert urgent.do("work", 1_000_000) == 0
    assert "Paused" in controller.cli("get", "workloads", "-n", "team").stdout
    done = node.cli("resume", "first", check=False)
    assert "paused by the queue" in done.stderr
    urgent.end()
    first.becomes("active")
    assert first.do("content") is True
    assert first.do("work", 1_000_000) == 0


def test_a_daemon_that_is_killed_while_one_is_spilled_brings_it_back_later(
    controller: QueueController, node: Node, ends: ExitStack
) -> None:
    first = submit(node, ends, "first", *CHECKPOINT).ready()
    assert first.do("hold", HELD_GIB) == 0
    urgent = submit(node, ends, "urgent", *URGENT).ready()
    assert first.state() == "spilled"
    node.kill_daemon()
    urgent.end()
    node.start()
    first.becomes("active")
    assert first.do("content") is True


def test_one_that_cannot_be_checkpointed_is_stopped_and_the_reason_is_said(
    controller: QueueController, node: Node, ends: ExitStack
) -> None:
    first = submit(node, ends, "first", *CHECKPOINT).ready()
    assert first.do("hold", HELD_GIB) == 0
    assert first.do("managed") == 0
    urgent = submit(node, ends, "urgent", *URGENT).ready()
    assert first.process.wait(60) != 0
    assert node.grant("first") is None
    assert urgent.do("hold", HELD_GIB) == 0
    assert "managed memory" in node.cli("events").stdout
    log = (node.directory / "daemon.log").read_text()
    assert "checkpoint failed, the work is stopped" in log
