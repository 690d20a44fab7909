"""Clocks that step, clocks of their own, and all processes stopped for a while: grants stay, shares are as before, and no workload
makes up for the time he was not there.

The machine's own clock is never moved: the wall clock of the programs under test is led by a library before theirs, and
monotonic clocks by a time namespace.
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.faults.programs import build
from tests.kit import measure
from tests.kit.node import Node, Tenant, running, until
from tests.kit.places import TENANT, preloaded
from tests.kit.queue.controller import QueueController
from tests.kit.workplace import workplace
from tests.queue.state.world import TEAMS

HOUR_S, DECADE_S = 3600, 10 * 365 * 86_400
NS = 1_000_000_000
ENDLESS = ("--kernel-ns", "1000000", "--warm", "1", "--seconds", "3600", "--report", "0.5")


@dataclass
class NodeByAClock(Node):
    """Its daemon, its commands and its tenants see the wall clock that `step` sets."""

    led: dict[str, str] = field(default_factory=dict)

    def environment(self, **more: str) -> dict[str, str]:
        return super().environment(**(self.led | more))


class Clock:
    def __init__(self, directory: Path) -> None:
        self.file = directory / "clock"
        self.step(0)
        self.variables = {
            "LD_PRELOAD": preloaded(build.wallclock()),
            "WALLCLOCK_FILE": str(self.file),
        }

    def step(self, seconds: int) -> None:
        with open(self.file, "r+b" if self.file.exists() else "wb") as file:
            file.write(struct.pack("<q", seconds))


def share_of(tenant: Tenant) -> list[float]:
    return [tenant.report(time.monotonic_ns() + NS // 2)]


def limits(node: Node) -> list[Any]:
    return sorted(
        (g["name"], g["state"], g["processes"], d["memory_limit_bytes"], d["share_ratio"])
        for g in node.grants()
        for d in g["devices"]
    )


ALL_STEPS = (HOUR_S, -HOUR_S, DECADE_S, -DECADE_S)
some_steps = pytest.mark.parametrize(
    "steps",
    [(DECADE_S, -HOUR_S), pytest.param(ALL_STEPS, marks=pytest.mark.faults)],
    ids=["two", "four"],
)


@pytest.mark.faults
@some_steps
def test_c1_the_wall_clock_steps_and_nothing_else_does(steps: tuple[int, ...]) -> None:
    with workplace() as directory:
        clock = Clock(directory)
        node = NodeByAClock(directory / "node", gpus="1xh100-80gb", led=clock.variables)
        try:
            node.start()
            job = node.run_tenant(
                "job", *ENDLESS, flags=("--gpumem", "4Gi", "--cores", "30"), measured=True
            )
            until("it runs", lambda: (node.grant("job") or {}).get("processes"))
            told_before = time.time()
            before = limits(node)
            measure.shares(lambda: share_of(job), [0.3], 0.03)
            for step in steps:
                clock.step(step)
                measure.shares(lambda: share_of(job), [0.3], 0.03)
                assert limits(node) == before
                beside = node.run_tenant(
                    "beside", "--launches", "5", flags=("--gpumem", "1Gi", "--cores", "5")
                )
                assert beside.result()["exit"] == 0, f"a grant after a step of {step} s"
                until("it is over", lambda: node.grant("beside") is None)
                # A life of the daemon under this clock: what it wrote is found by the next, whatever year it is there.
                node.kill_daemon()
                node.start()
                assert limits(node) == before
                node.cli("resize", "job", "--cores", "31")
                node.cli("resize", "job", "--cores", "30")
            # The clock was moved: what the daemon logged in those years has their dates.
            seen = [event["at_unix_s"] for event in node.cli_json("events")]
            assert not seen or min(seen) < told_before
            assert abs(time.time() - told_before) < 3600, "and the machine's own was not"
            measure.shares(lambda: share_of(job), [0.3], 0.03)
        finally:
            node.stop()


@some_steps
def test_c1_the_queue_goes_by_clocks_that_do_not_step(steps: tuple[int, ...]) -> None:
    """Leases, order and quota, with the controller and the node led."""
    with workplace() as directory:
        clock = Clock(directory)
        controller = QueueController(
            directory / "queue",
            settings=["nodes.lease_s=4", "nodes.report_s=0.5"],
            environment=clock.variables,
        )
        node = NodeByAClock(
            directory / "node",
            gpus="1xh100-80gb",
            settings=f'[queue]\nserver = "{controller.address}"\nnode_name = "n1"\nnamespace = "team-a"\n',
            led=clock.variables,
        )
        flags = ("--queue", "q", "--gpumem", "4Gi", "--cores", "20")
        try:
            controller.start()
            controller.apply(TEAMS)
            node.start()
            job = node.run("steady", "sleep", "600", flags=flags)
            until("it runs", lambda: node.grant("steady"))
            for number, step in enumerate(steps):
                clock.step(step)
                late = node.run(f"late-{number}", "true", flags=flags)
                assert late.process.wait(60) == 0, f"after a step of {step} s"
                assert job.process.poll() is None
                assert controller.http("/readyz")[0] == 200
            rows = {
                w["metadata"]["name"].rsplit("-", 1)[0]: w["status"] for w in controller.workloads()
            }
            assert rows["steady"]["phase"] == "Running"
            assert {row["attempt"] for row in rows.values()} == {1}, "no workload started twice"
            assert "Restored" not in controller.log
        finally:
            node.stop()
            controller.stop()


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with workplace() as directory, running(directory, gpus="1xh100-80gb") as made:
        yield made


@contextlib.contextmanager
def job_of(node: Node, name: str, *command: object, cores: str = "20") -> Iterator[Tenant]:
    flags = ("--gpumem", "4Gi", "--cores", cores)
    words = [str(word) for word in command] or [str(TENANT), *ENDLESS]
    job = node.run(name, *words, flags=flags, measured=True)
    try:
        until("it runs", lambda: (node.grant(name) or {}).get("processes"))
        yield job
    finally:
        job.kill()
        until("its grant is over", lambda: node.grant(name) is None)


def time_namespaces() -> bool:
    return os.geteuid() == 0 and Path("/proc/self/ns/time").exists()


@pytest.mark.root
@pytest.mark.skipif(not time_namespaces(), reason="time namespaces need root and Linux 5.6")
def test_c2_a_clock_of_ones_own_buys_no_time() -> None:
    """The same share as all others, and no burst at the start. Ahead only: the simulated GPU's timeline goes by the
    host's clock, and a program behind it would wait for the GPU; tests/properties/test_gate.py has clocks that run
    backwards. A node of its own, as the timeline stays where the latest clock was."""
    ahead_s = "100000"
    namespace = ("unshare", "--time", "--monotonic", ahead_s, "--boottime", ahead_s, "--fork")
    work = ("--kernel-ns", "1000000", "--warm", "0", "--seconds", "3")
    with workplace() as directory, running(directory, gpus="1xh100-80gb") as node:
        seen = []
        for _ in range(measure.TRIES):
            words = (*namespace, "--kill-child", TENANT, *work)
            job = node.run("ahead", *words, flags=("--gpumem", "4Gi", "--cores", "20"))
            answer = job.result(60)
            assert answer["exit"] == 0
            seen.append(answer["share_ratio"])
        assert max(seen) <= 0.23, "no try has more than its 20 %"
        assert max(seen) >= 0.12, f"what it may have, less what a busy machine takes: {seen}"


LATE_S = 0.25
"""GPU time that a figure may lack: of the second before the daemon was asked, at the share of a fifth, and a burst."""


def busy_s(node: Node, name: str) -> float:
    (device,) = (node.grant(name) or {})["devices"]
    return float(device["busy_seconds_total"])


def frozen(processes: list[int], seconds: float) -> None:
    """Stopped for so long: the length is the input here."""
    for pid in processes:
        os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        for pid in processes:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("seconds", [4, pytest.param(30, marks=pytest.mark.faults)])
def test_c3_who_was_frozen_with_everybody_does_not_make_up_for_it(
    node: Node, seconds: float
) -> None:
    """The job counts as on a machine that was suspended; at most a burst's allowance is on top of
    the share."""
    assert node.daemon is not None
    with job_of(node, "slept") as job:
        measure.shares(lambda: share_of(job), [0.2], 0.03)
        daemon = psutil.Process(node.daemon.pid)
        everybody = [one.pid for one in daemon.children(recursive=True)] + [daemon.pid]
        began_s = time.monotonic()
        before_s = busy_s(node, "slept")
        frozen([job.process.pid, *everybody], seconds)
        time.sleep(1.5)  # the window in which it could make up for it
        after_s = busy_s(node, "slept")
        awake_s = time.monotonic() - began_s - seconds
        assert after_s > before_s, "it goes on"
        assert after_s - before_s <= 0.2 * awake_s + LATE_S
        measure.shares(lambda: share_of(job), [0.2], 0.03)
        assert job.process.poll() is None


@pytest.mark.faults
@pytest.mark.parametrize("seconds", [5, pytest.param(30, marks=pytest.mark.faults)])
def test_c4_while_the_daemon_is_stopped_jobs_go_on_at_their_rate(
    node: Node, seconds: float
) -> None:
    assert node.daemon is not None
    with job_of(node, "steady") as job:
        measure.shares(lambda: share_of(job), [0.2], 0.03)
        began_s = time.monotonic()
        before_s = busy_s(node, "steady")
        os.kill(node.daemon.pid, signal.SIGSTOP)
        try:
            while time.monotonic() < began_s + seconds:
                measure.shares(lambda: share_of(job), [0.2], 0.03)
        finally:
            os.kill(node.daemon.pid, signal.SIGCONT)
        measure.shares(lambda: share_of(job), [0.2], 0.03)
        after_s = busy_s(node, "steady")
        took_s = time.monotonic() - began_s
        assert after_s - before_s <= 0.2 * took_s + LATE_S, "no burst either"


WATCHDOG_S = 2.0


@pytest.mark.faults
def test_d8_a_daemon_that_hangs_says_so_by_its_silence(tmp_path: Path) -> None:
    """The daemon notifies systemd's watchdog while all is well and stops when it hangs; the restart
    that systemd does then is done by hand here, and a job does not notice. The unit itself is in
    tests/packages/test_machine.py."""
    import socket

    with workplace() as directory, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(str(directory / "notify"))
        told.settimeout(60)
        node = NodeByAClock(
            directory / "node",
            gpus="1xh100-80gb",
            led={
                "NOTIFY_SOCKET": str(directory / "notify"),
                "WATCHDOG_USEC": str(int(WATCHDOG_S * 1e6)),
            },
        )
        try:
            node.start()
            job = node.run_tenant("job", *ENDLESS, flags=("--gpumem", "4Gi", "--cores", "30"))
            until("it runs", lambda: (node.grant("job") or {}).get("processes"))
            while b"WATCHDOG=1" not in told.recv(4096):
                pass
            assert node.daemon is not None
            os.kill(node.daemon.pid, signal.SIGSTOP)
            daemon = psutil.Process(node.daemon.pid)
            until("it has stopped", lambda: daemon.status() == psutil.STATUS_STOPPED)
            told.settimeout(0)
            with contextlib.suppress(BlockingIOError):
                while told.recv(4096):
                    pass
            told.settimeout(2 * WATCHDOG_S)
            with pytest.raises(TimeoutError):
                told.recv(4096)
            node.kill_daemon()
            node.start()
            assert (node.grant("job") or {})["processes"] == 1
            assert job.report(time.monotonic_ns()) > 0.1
        finally:
            node.stop()


def test_the_clock_that_is_led_is_seen_by_python(tmp_path: Path) -> None:
    clock = Clock(tmp_path)
    clock.step(DECADE_S)
    program = "import time; print(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | clock.variables,
        capture_output=True,
        text=True,
        check=True,
    )
    wall, boot = map(float, done.stdout.split())
    assert wall - time.time() == pytest.approx(DECADE_S, abs=60)
    assert boot == pytest.approx(time.clock_gettime(time.CLOCK_BOOTTIME), abs=60)
