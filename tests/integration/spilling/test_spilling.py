"""Grants of 60 % of a card each, which take turns on it by way of the host's memory."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.integration.spilling.jobs import (
    Job,
    around_sluice,
    checkpointing,
    control,
    hangs,
    in_background,
    used_gib,
)
from tests.kit.node import Node, running, until
from tests.kit.workplace import workplace

SHARE = ("--gpumem", "60%", "--cores", "60")
HELD_GIB = 2
"""Little enough for the memory of the machine that runs this."""
ROOMY = "[checkpoint]\nspare_host_memory_mib = 0\n"
SMALL = "a100-40gb:1g.5gb"
"""A card that two jobs of HELD_GIB do not fit on: the driver says so, too."""


@pytest.fixture
def ends() -> Iterator[ExitStack]:
    with ExitStack() as it:
        yield it


@pytest.fixture
def node(ends: ExitStack) -> Node:
    return start(ends)


def start(ends: ExitStack, settings: str = ROOMY, gpus: str = "1xh100-80gb") -> Node:
    directory = ends.enter_context(workplace())
    return ends.enter_context(running(directory, gpus=gpus, settings=settings))


def job(node: Node, ends: ExitStack, name: str, *flags: str) -> Job:
    it = Job(node, name, *(flags or SHARE))
    ends.callback(it.end)
    return it


def spill(node: Node, name: str) -> None:
    done = node.cli("pause", "--spill", name, check=False)
    assert done.returncode == 0, done.stderr


def refused(node: Node, *words: str) -> str:
    done = node.cli(*words, check=False)
    assert done.returncode != 0
    return done.stderr


@pytest.mark.parametrize("gpus", ["1xh100-80gb", SMALL])
def test_two_grants_take_turns_on_a_card_that_has_room_for_one(ends: ExitStack, gpus: str) -> None:
    node = start(ends, gpus=gpus)
    first = job(node, ends, "first").ready()
    assert first.do("hold", HELD_GIB) == 0
    assert "free" in refused(node, "run", *SHARE, "--", "true"), "no room beside it"
    until("NVML shows it", lambda: used_gib(node) >= HELD_GIB)
    spill(node, "first")
    assert first.state() == "spilled"
    until("NVML shows the card empty", lambda: used_gib(node) == 0)
    assert first.grant()["devices"][0]["memory_used_bytes"] >= HELD_GIB << 30, "charged as before"
    metrics = node.metrics()
    assert 'sluice_spills_total{result="spilled"} 1' in metrics
    assert "sluice_spilled_memory_bytes 0" not in metrics
    second = job(node, ends, "second").ready()
    assert second.do("hold", HELD_GIB) == 0
    assert second.do("work", 1_000_000) == 0
    waiting = first.asked("content")
    text = refused(node, "resume", "first")
    assert "are not free on GPU 0" in text
    assert first.state() == "spilled"
    second.end()
    until("the second is gone", lambda: node.grant("second") is None)
    assert not waiting, "its calls wait"
    node.cli("resume", "first")
    assert first.state() == "active"
    until("it has what it had", lambda: waiting)
    assert waiting == [True]
    assert first.do("work", 1_000_000) == 0
    until("NVML shows it again", lambda: used_gib(node) >= HELD_GIB)
    events = node.cli("events").stdout
    assert "is on the host" in events
    assert "is back on its GPUs" in events


def test_what_is_spilled_is_known_after_a_restart_and_comes_back(
    node: Node, ends: ExitStack
) -> None:
    first = job(node, ends, "first").ready()
    assert first.do("hold", HELD_GIB) == 0
    spill(node, "first")
    node.kill_daemon()
    node.start()
    assert first.state() == "spilled"
    second = job(node, ends, "second").ready()
    assert second.do("hold", HELD_GIB) == 0, "its room is another's"
    second.end()
    until("the second is gone", lambda: node.grant("second") is None)
    node.cli("resume", "first")
    assert first.do("content") is True


STEPS = [
    *("Checkpoint", "Restore"),
    *(pytest.param(one, marks=pytest.mark.faults) for one in ("Lock", "Unlock")),
]


@pytest.mark.parametrize("step", STEPS)
def test_a_daemon_killed_at_any_step_carries_on(node: Node, ends: ExitStack, step: str) -> None:
    """The driver takes its time for that step, and the daemon is killed meanwhile."""
    first = job(node, ends, "first").ready()
    assert first.do("hold", HELD_GIB) == 0
    back = step in ("Restore", "Unlock")
    if back:
        spill(node, "first")
    control(node, f"hang=cuCheckpointProcess{step}")
    words = ("resume", "first") if back else ("pause", "--spill", "first")
    asked = in_background(node, ends, *words)
    first.becomes("returning" if back else "spilling")
    until("the driver hangs", hangs(node))
    node.kill_daemon()
    control(node)
    node.start()
    first.becomes("active" if back else "spilled")
    assert asked.wait(60) != 0
    if not back:
        node.cli("resume", "first")
    assert first.do("content") is True
    assert first.do("work", 1_000_000) == 0
    assert node.cli("run", "--gpumem", "10Gi", "--cores", "10", "--", "true").returncode == 0
    assert "free" in refused(node, "run", *SHARE, "--", "true"), "its room is its own again"


def test_a_job_that_is_killed_while_it_is_spilled_leaves_nothing(
    node: Node, ends: ExitStack
) -> None:
    first = job(node, ends, "first").ready()
    assert first.do("hold", HELD_GIB) == 0
    spill(node, "first")
    first.end()
    until("its grant has ended", lambda: not node.grants())
    until("the card is empty", lambda: used_gib(node) == 0)
    assert "sluice_spilled_memory_bytes 0" in node.metrics()
    again = job(node, ends, "again").ready()
    assert again.do("hold", HELD_GIB) == 0


def test_a_kernel_that_does_not_end_keeps_its_job_on_the_card(ends: ExitStack) -> None:
    node = start(ends, ROOMY + "lock_timeout_s = 0.3\n")
    first = job(node, ends, "first").ready()
    assert first.do("hold", HELD_GIB) == 0
    assert first.do("forever") == 0
    assert "did not complete in time" in refused(node, "pause", "--spill", "first")
    assert first.state() == "active", "as it was before"
    assert first.do("alloc", 1) == 0
    assert 'sluice_spills_total{result="failed"} 1' in node.metrics()


def test_managed_memory_cannot_be_spilled_and_the_job_goes_on(node: Node, ends: ExitStack) -> None:
    first = job(node, ends, "first").ready()
    assert first.do("hold", 1) == 0
    assert first.do("managed") == 0
    assert "managed memory" in refused(node, "pause", "--spill", "first")
    assert first.state() == "active"
    assert first.do("content") is True


def test_a_driver_that_breaks_the_process_is_said_to(node: Node, ends: ExitStack) -> None:
    first = job(node, ends, "first").ready()
    assert first.do("hold", 1) == 0
    assert first.do("managed") == 0
    control(node, "checkpoint_breaks=1")
    text = refused(node, "pause", "--spill", "first")
    assert "cannot be restored, end it" in text
    assert first.state() == "paused"
    first.end()
    until("its grant has ended", lambda: not node.grants())


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ("[checkpoint]\nenabled = false\n", "checkpoint.enabled = false"),
        ("[checkpoint]\nhost_memory_percent = 0.1\n", "checkpoint.host_memory_percent = 0.1"),
        (ROOMY.replace("_mib = 0", "_mib = 100000000"), "checkpoint.spare_host_memory_mib"),
    ],
)
def test_what_the_host_cannot_take_is_refused_by_name(
    ends: ExitStack, settings: str, why: str
) -> None:
    node = start(ends, settings)
    first = job(node, ends, "first").ready()
    assert first.do("hold", HELD_GIB) == 0
    assert why in refused(node, "pause", "--spill", "first")
    assert first.state() == "active"


def test_a_driver_without_it_is_refused_by_name_and_doctor_says_so(ends: ExitStack) -> None:
    os.environ["SLUICE_SIM_DRIVER_VERSION"] = "565.57.01"
    ends.callback(os.environ.pop, "SLUICE_SIM_DRIVER_VERSION")
    directory = ends.enter_context(workplace())
    (directory / "gpu").mkdir()
    (directory / "gpu" / "control").write_text("driver_version=565.57.01\n")
    node = ends.enter_context(running(directory, gpus="1xh100-80gb"))
    first = job(node, ends, "first").ready()
    assert first.do("hold", 1) == 0
    assert "release 570 and later" in refused(node, "pause", "--spill", "first")
    doctor = node.cli("doctor", check=False).stdout
    assert "checkpoints" in doctor
    assert "release 570 and later" in doctor


def test_one_that_was_stopped_would_answer_nobody(node: Node, ends: ExitStack) -> None:
    first = job(node, ends, "first").ready()
    assert first.do("hold", 1) == 0
    os.kill(first.pid(), signal.SIGSTOP)
    try:
        assert "SIGSTOP" in refused(node, "pause", "--spill", "first")
    finally:
        os.kill(first.pid(), signal.SIGCONT)
    assert first.do("content") is True


def test_one_that_is_brought_back_around_sluice_has_its_room_again(
    node: Node, ends: ExitStack
) -> None:
    """A call that waits for work waits at the interposer, not in the driver, which would have let
    it go by now."""
    first = job(node, ends, "first").ready()
    assert first.do("hold", HELD_GIB) == 0
    spill(node, "first")
    until("NVML shows the card empty", lambda: used_gib(node) == 0)
    waiting = first.asked("synchronise")
    checkpointing(node, first.pid(), "Restore", "Unlock")
    assert first.state() == "spilled"
    assert not waiting
    until("the daemon sees it", lambda: first.state() == "paused")
    until("it has waited", lambda: waiting)
    assert waiting == [0]
    text = "was not brought back by this daemon"
    until("it is told", lambda: text in node.cli("events").stdout)
    assert "free" in refused(node, "run", *SHARE, "--", "true"), "its room is its own again"
    node.cli("resume", "first")
    assert first.do("content") is True


def test_nobody_new_comes_into_a_grant_that_is_spilled_and_it_is_not_released(
    node: Node, ends: ExitStack
) -> None:
    first = job(node, ends, "first").ready()
    assert first.do("hold", 1) == 0
    assert first.do("child") == 0
    spill(node, "first")
    assert first.do("child") != 0
    assert "spilled" in refused(node, "release", "first")


def test_whoever_has_taken_the_room_of_the_card_itself_is_named(
    node: Node, ends: ExitStack
) -> None:
    """A program around Sluice: the book has room, the card has none."""
    first = job(node, ends, "first").ready()
    assert first.do("hold", HELD_GIB) == 0
    spill(node, "first")
    around = around_sluice(node, ends, 78)
    until("it holds the card", lambda: used_gib(node) >= 78)
    text = refused(node, "resume", "first")
    assert "a process uses more there than was granted" in text
    assert first.state() == "spilled"
    around.kill()
    around.wait()
    until("the card is empty", lambda: used_gib(node) == 0)
    node.cli("resume", "first")
    assert first.do("content") is True
