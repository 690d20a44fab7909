"""The shared memory in the hands of a tenant that means harm, and processes that stop, change and come back."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import mmap
import os
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeagent import native
from nodeagent.adapters.processes.identity import read_process
from nodeagent.adapters.processes.pidfd import SystemProcesses
from nodeagent.adapters.region import layout as c
from nodeagent.adapters.region.store import RegionLibrary
from tests.faults.programs import build
from tests.faults.programs.same_pid import fork_as
from tests.kit import measure
from tests.kit.daemon.harness import (
    Daemon,
    Tenant,
    daemon,
    neighbour_is_well,
    registered,
    until,
)
from tests.kit.node import Node, running
from tests.kit.places import REPO, SIM, SLUICE
from tests.kit.workplace import workplace

MIB = 1 << 20
needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="a tmpfs for each grant, clone3 with a pid and strace need root"
)


@pytest.fixture(scope="module")
def node() -> Iterator[Daemon]:
    with daemon('[detection]\ngrants = "observe"\n') as made:
        yield made


def view(node: Daemon, name: str) -> Any:
    (grant,) = [grant for grant in node.grants() if grant.name == name]
    return grant


@needs_root
@pytest.mark.root
def test_b2_the_file_cannot_be_grown_into_the_nodes_memory(node: Daemon) -> None:
    tenant = registered(node, "grows")
    assert tenant.do("grow", 8 * MIB) == errno.ENOSPC
    tenant.do("truncate", 1 << 30)  # costs nothing: a hole
    until("it is counted", lambda: view(node, "grows").tamper_events_total >= 1)
    until("it has its size back", lambda: tenant.do("size") == c.USAGE_BYTES)
    neighbour_is_well(node)
    tenant.kill()


@pytest.mark.parametrize(
    ("offset", "length"),
    [(0, 4096), (4096, 4096), (0, c.USAGE_BYTES)],
    ids=["the header", "its slot", "all of it"],
)
def test_b3_a_hole_is_zeroes_and_harms_its_own_grant_alone(
    node: Daemon, offset: int, length: int
) -> None:
    name = f"hole-{offset}-{length}"
    tenant = registered(node, name)
    tenant.do("set", 0, "charged_bytes", 1 << 29)
    until("it is seen", lambda: view(node, name).devices[0].memory_used_bytes == 1 << 29)
    assert tenant.do("punch", offset, length) == 0
    if offset == 0:
        until("it is counted", lambda: view(node, name).tamper_events_total >= 1)
    if offset + length > 4096:
        until("what is zero is shown so", lambda: not view(node, name).devices[0].memory_used_bytes)
    neighbour_is_well(node)
    assert tenant.do("register")["error"] == 0, "it may come again"
    tenant.do("set", 1, "charged_bytes", 1 << 28)
    until("and is counted", lambda: view(node, name).devices[0].memory_used_bytes >= 1 << 28)
    assert tenant.do("size") == c.USAGE_BYTES
    tenant.kill()


HEADER = [(field[0], getattr(c.UsageHeader, field[0])) for field in c.UsageHeader._fields_[:4]]


def test_b5_a_changed_header_is_counted_and_believed_nowhere(node: Daemon) -> None:
    tenant = registered(node, "header")
    launches = tampers = 0
    for field, at in HEADER:
        for value in ("00", "ff", "80"):
            tenant.do("write", at.offset, value * at.size)
            if field in ("magic", "major"):
                tampers += 1
                until(
                    f"{field} is counted",
                    lambda least=tampers: view(node, "header").tamper_events_total >= least,
                )
            # Whatever stands there: figures go on being read.
            launches += 1
            tenant.do("set", 0, "launches", launches)
            until(
                "it is read on",
                lambda want=launches: view(node, "header").devices[0].launches_total == want,
            )
    assert launches >= 9
    neighbour_is_well(node)
    tenant.kill()


SIGNALS = ("kill", "tkill", "tgkill", "pidfd_send_signal", "rt_sigqueueinfo", "rt_tgsigqueueinfo")


@needs_root
@pytest.mark.root
def test_b6_a_slot_in_the_name_of_a_stranger_brings_him_no_signal(tmp_path: Path) -> None:
    """The daemon is configured to kill forgers: it ends the forger, and strace sees no signal to
    any other process."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed: the daemon's signals are NOT looked at")
    with stranger() as victim, daemon('[detection]\ngrants = "kill"\n') as node:
        assert node.process is not None
        log = tmp_path / "signals"
        tracer = subprocess.Popen(
            [
                *("strace", "-f", "-yy", "-e", f"trace={','.join(SIGNALS)}", "-o", log),
                *("-p", str(node.process.pid)),
            ],
            stderr=subprocess.DEVNULL,
        )
        try:
            until("strace is there", lambda: traced(node.process.pid))  # type: ignore[union-attr]
            forger = registered(node, "forger")
            for slot, pid in enumerate((1, victim.pid, os.getpid(), node.process.pid), start=1):
                forger.do("claim", slot)
                forger.do("disguise", slot, pid)
            until("the claims are gone", lambda: forger_is_refused(forger, 4))
            # Then with lies everywhere, until it is ended for them.
            with contextlib.suppress(AssertionError, BrokenPipeError, OSError):
                for _ in range(2000):
                    forger.do("garbage")
            own = node.run("--gpumem", "1Gi", "--cores", "5", "--name", "honest")
            assert own.do("register")["error"] == 0
            assert victim.poll() is None
        finally:
            tracer.terminate()
            tracer.wait(60)
        targets = pids_signalled(log.read_text())
        assert targets <= {forger.pid}, log.read_text()


@contextlib.contextmanager
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def traced(pid: int) -> bool:
    return "TracerPid:\t0" not in Path(f"/proc/{pid}/status").read_text()


def forger_is_refused(forger: Tenant, slots: int) -> bool:
    try:
        return all(forger.do("claimed", slot) == 0 for slot in range(1, slots + 1))
    except (AssertionError, BrokenPipeError):
        return True  # ended for it already


def pids_signalled(log: str) -> set[int]:
    """Signal 0 only checks whether the process exists."""
    found = set()
    for line in log.splitlines():
        if re.search(r", 0(,|\))", line) and "SIG" not in line:
            continue
        by_fd = re.search(r"pidfd_send_signal\(\d+<pid:(\d+)", line)
        by_pid = re.search(r"\b(?:kill|tkill|tgkill|rt_\w+)\((\d+)", line)
        match = by_fd or by_pid
        if match:
            found.add(int(match[1]))
        elif "pidfd_send_signal(" in line:
            found.add(-1)  # an unknown target is no known one
    return found


@pytest.mark.parametrize(
    ("line", "pids"),
    [
        ("1 kill(77, SIGKILL) = 0", {77}),
        ("1 kill(77, 0) = 0", set()),
        ("1 pidfd_send_signal(9<pid:42>, SIGSTOP, NULL, 0) = 0", {42}),
        ("1 pidfd_send_signal(9<anon_inode:[pidfd]>, SIGSTOP, NULL, 0) = 0", {-1}),
        ("1 tgkill(5, 6, SIGTERM) = 0", {5}),
    ],
)
def test_signals_are_found_in_what_strace_writes(line: str, pids: set[int]) -> None:
    assert pids_signalled(line) == pids


@pytest.mark.parametrize("rounds", [40, pytest.param(1000, marks=pytest.mark.faults)])
def test_b10_a_stopped_process_holds_up_nobodys_allocations(rounds: int) -> None:
    def once() -> float:
        done = subprocess.run(
            [build.stopper(), str(rounds), "7"], capture_output=True, text=True, timeout=250
        )
        result = json.loads(done.stdout)
        assert done.returncode == 0, result
        assert result["rounds"] == rounds
        return result["p99_stopped_ns"] / result["p99_before_ns"]

    # One fewer who writes: the others may only get faster. The margin is for a busy machine.
    measure.within(2.0, once)


@needs_root
@pytest.mark.root
@pytest.mark.parametrize("times", [60, pytest.param(1000, marks=pytest.mark.faults)])
def test_b12_a_process_that_becomes_another_again_and_again_keeps_to_one_slot(times: int) -> None:
    with workplace() as directory, running(directory, gpus="1xh100-80gb") as node:
        job = node_job(node, "again", build.execer(), SIM / "libcuda.so.1", times, 256 * MIB)
        most = 0
        assert job.stdout is not None
        while not select.select([job.stdout], [], [], 0)[0]:
            grant = node.grant("again")
            most = max(most, grant["processes"] if grant else 0)
        assert job.stdout.readline() == "done\n"
        assert most <= 2, "the one that was and the one that is"
        until("one process is left", lambda: (node.grant("again") or {}).get("processes") == 1)

        def used() -> int:
            (device,) = (node.grant("again") or {})["devices"]
            return int(device["memory_used_bytes"])

        until("its memory is charged", lambda: used() >= 256 * MIB)
        assert used() < 1024 * MIB, "charged once"
        job.kill()
        job.wait(60)
        until("all is given back", lambda: not node.grants())


def node_job(node: Node, name: str, *command: object) -> subprocess.Popen[str]:
    flags = ("--name", name, "--gpumem", "2Gi", "--cores", "50")
    return subprocess.Popen(
        [SLUICE, "run", *flags, "--", *map(str, command)],
        env=node.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@needs_root
@pytest.mark.root
@pytest.mark.parametrize("times", [200, pytest.param(2000, marks=pytest.mark.faults)])
def test_b13_the_pid_of_a_dead_process_is_never_taken_for_it(times: int) -> None:
    processes = SystemProcesses()
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    told_apart = 0
    for _ in range(times):
        fork_as(pid, signal.pause)
        first = read_process(pid)
        handle = processes.find(pid, first.starttime_ticks)
        assert handle is not None
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        fork_as(pid, signal.pause)
        second = read_process(pid)
        assert not handle.alive(), "the handle is of the process, not of its number"
        assert not handle.signal(signal.SIGKILL)
        if second.starttime_ticks != first.starttime_ticks:  # they are 10 ms long
            told_apart += 1
            assert processes.find(pid, first.starttime_ticks) is None
        later = processes.find(pid, second.starttime_ticks)
        assert later is not None
        assert later.alive(), "the one that lives was not touched"
        handle.close()
        later.close()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        if not told_apart:
            time.sleep(0.011)  # the length of a tick is the input here
    assert told_apart > 0


@needs_root
@pytest.mark.root
def test_b13_a_daemon_that_slept_meanwhile_takes_nobody_for_the_dead(node: Daemon) -> None:
    """The tenant dies and a stranger has its pid before the daemon looks again."""
    assert node.process is not None
    tenant = registered(node, "reused")
    tenant.do("set", 0, "charged_bytes", 1 << 29)
    until("it is seen", lambda: view(node, "reused").devices[0].memory_used_bytes == 1 << 29)
    node.process.send_signal(signal.SIGSTOP)
    try:
        tenant.kill()
        fork_as(tenant.pid, signal.pause)
    finally:
        node.process.send_signal(signal.SIGCONT)
    try:
        until("its grant ends", lambda: all(grant.name != "reused" for grant in node.grants()))
        assert os.waitpid(tenant.pid, os.WNOHANG) == (0, 0), "the stranger lives"
        neighbour_is_well(node)
    finally:
        os.kill(tenant.pid, signal.SIGKILL)
        os.waitpid(tenant.pid, 0)


def test_b14_one_who_writes_rubbish_everywhere_costs_its_neighbour_nothing() -> None:
    settings = '[detection]\ngrants = "observe"\n'
    with (
        workplace() as directory,
        running(directory, gpus="1xh100-80gb", settings=settings) as node,
    ):
        neighbour = node.run_tenant(
            "neighbour",
            *("--kernel-ns", "1000000", "--warm", "1", "--seconds", "3600", "--report", "1"),
            flags=("--gpumem", "4Gi", "--cores", "40"),
            measured=True,
        )
        until("it runs", lambda: (node.grant("neighbour") or {}).get("processes"))
        vandal = node_job(node, "vandal", sys.executable, "-c", VANDAL)
        try:
            until("it is at it", lambda: (node.grant("vandal") or {}).get("tamper_events_total"))

            def share() -> list[float]:
                return [neighbour.report(time.monotonic_ns() + 1_000_000_000)]

            measure.shares(share, [0.4], 0.02)
            assert vandal.poll() is None
            assert neighbour.process.poll() is None
        finally:
            vandal.kill()
            vandal.wait(60)


VANDAL = f"""
import sys; sys.path.insert(0, {str(REPO)!r})
import os
from pathlib import Path
from tests.kit.daemon.tenant import TenantProcess
from nodeagent.adapters.region import layout as c
tenant = TenantProcess(Path(os.environ["SLUICE_GRANT_DIR"]))
assert tenant.register()["error"] == 0
while True:
    os.pwrite(tenant.usage_fd, b"\\xff" * c.USAGE_BYTES, 0)
"""


class Page:
    """A policy page in a file, as a child that is killed and we see it."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(c.POLICY_BYTES))
        self.library = RegionLibrary(native.locate().region_library)
        with path.open("r+b") as file:
            self.map = mmap.mmap(file.fileno(), c.POLICY_BYTES)
        self.policy = c.Policy.from_buffer(self.map)
        self.draft = c.Policy()
        self.draft.header.device_count = 1
        self.draft.dev[0] = line(1)
        self.library.call("sluice_policy_publish", self.policy, ctypes.byref(self.draft))
        self.read = self.library._lib.sluice_policy_read_device

    def consistent(self) -> int:
        """The number all words of the line say; 0: it is being written, the reader keeps its last copy."""
        got = c.PolicyDevice()
        result = self.read(ctypes.byref(self.policy), 0, ctypes.byref(got))
        if result != 0:
            return 0
        number = int(got.memory_limit_bytes)
        assert (
            bytes(got)[: c.PolicyDevice.share_ppm.offset]
            == (bytes(line(number))[: c.PolicyDevice.share_ppm.offset])
        ), "words of two different limits"
        return number


def line(number: int) -> c.PolicyDevice:
    return c.PolicyDevice(
        memory_limit_bytes=number,
        physical_bytes=number,
        burst_ns=number,
        inflight_ns=number,
        chunk_ns=number,
    )


@pytest.mark.parametrize("kills", [60, pytest.param(1500, marks=pytest.mark.faults)])
def test_b15_killed_while_it_publishes_readers_keep_a_whole_page(
    tmp_path: Path, kills: int
) -> None:
    page = Page(tmp_path / "policy.shm")
    chance = random.Random(kills)
    torn = 0
    for n in range(kills):
        before = page.policy.control.epoch
        child = subprocess.Popen([build.publisher(), tmp_path / "policy.shm"])
        until("it writes", lambda was=before: page.policy.control.epoch > was)
        time.sleep(chance.uniform(0, 0.004))  # the moment of the kill is the input
        child.kill()
        assert child.wait(60) == -signal.SIGKILL
        torn += not page.consistent()
        # What the next daemon does when it adopts the region.
        page.library.call("sluice_policy_recover", page.policy, ctypes.byref(page.draft))
        assert page.consistent() == 1
        page.library.call("sluice_policy_set_limits", page.policy, 0, line(77_000_000 + n))
        assert page.consistent() == 77_000_000 + n
    if kills > 1000:
        assert torn > 0, "no kill hit the middle of a write: nothing was tried"
