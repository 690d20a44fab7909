"""Any system call fails for want of descriptors or memory, and a limit on memory that is too small: the daemon may refuse
and may end; it does not hang, and what was granted stays.

strace makes the calls fail, one at a time: the n-th of its kind from now.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.adapters.api.client import Unreachable
from nodeagent.ports.clients import Refused
from tests.faults.grants import attached, processes, refused, registered
from tests.kit.daemon.harness import Daemon, daemon, until

DESCRIPTORS = (
    "openat,socket,accept4,accept,pidfd_open,dup,fcntl,pipe2,epoll_create1,eventfd2,memfd_create"
)
MEMORY = "mmap,mremap,brk,clone,clone3,vfork"
KNOWN = {0, 69, 70, 75, -signal.SIGABRT, -signal.SIGSEGV}
"""How it may end: 70 is a defect that it met, and systemd starts it again. A library that finds no memory aborts."""


KINDS = {"descriptors": (DESCRIPTORS, "EMFILE"), "memory": (MEMORY, "ENOMEM")}


def some(count: int) -> list[tuple[str, str, int]]:
    """Faults to inject, some of both kinds: the kind of call, its error, and the number of the call that fails."""
    chance = random.Random(count)
    kinds = list(KINDS.values())
    return [(*kinds[i % 2], chance.randrange(1, 60)) for i in range(count)]


def every(kind: str) -> list[tuple[str, str, int]]:
    """Faults to inject, of one kind: each of the first hundred calls fails once."""
    return [(*KINDS[kind], n) for n in range(1, 101)]


@pytest.mark.faults
@pytest.mark.root
@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("strace") is None, reason="root and strace make calls fail"
)
@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(some(4), id="some"),
        *(
            pytest.param(every(kind), id=kind, marks=[pytest.mark.faults, pytest.mark.timeout(900)])
            for kind in KINDS
        ),
    ],
)
def test_d4_a_call_that_fails_hangs_nobody_and_damages_nothing(
    faults: list[tuple[str, str, int]],
) -> None:
    with daemon() as node:
        job = registered(node, "before")
        ended: list[int] = []
        for calls, error, nth in faults:
            assert node.process is not None
            tracer = attached(node.process.pid, calls, f"error={error}:when={nth}")
            began_s = time.monotonic()
            try:
                for _ in range(6):
                    refused(node)  # or not: both are answers
            finally:
                tracer.terminate()
                tracer.wait(60)
            assert time.monotonic() - began_s < 60, "no call waits for ever"
            look = functools.partial(found_again, node, ended, f"{calls} {nth}")
            until("what ran is there", look)
        assert job.do("entry", 0)["generation"] % 2 == 1
        assert refused(node) == ""
        with node.client() as client:  # given just before it ended; we are their owner, and live
            for one in client.list_grants():
                if one.name != "before":
                    client.release_grant(one.grant)
        assert len(ended) < len(faults), "it ends with every call that fails"


@pytest.mark.root
@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("strace") is None, reason="root and strace make calls fail"
)
def test_a_region_that_cannot_be_removed_is_removed_later() -> None:
    with daemon() as node:
        job = registered(node, "before")
        grants = node.runtime / "grants"
        before = {path.name for path in grants.iterdir()}
        assert before
        assert node.process is not None
        tracer = attached(node.process.pid, "unlink,unlinkat,rmdir", "error=EIO")
        try:
            job.kill()
            until(
                "it cannot be removed",
                lambda: "cannot remove its region, will try again" in node.log.read_text(),
            )
            assert {path.name for path in grants.iterdir()} == before
        finally:
            tracer.terminate()
            tracer.wait(60)
        until("its region is removed", lambda: not list(grants.iterdir()))
        assert node.process.poll() is None


def found_again(node: Daemon, ended: list[int], what: str) -> bool:
    """Starts it again if it ended, which it may do a moment after the call that failed."""
    assert node.process is not None
    if node.process.poll() is not None:
        ended.append(node.process.returncode)
        assert ended[-1] in KNOWN, (what, node.log.read_text()[-2000:])
        node.start()
    try:
        return processes(node, "before") == 1
    except (Unreachable, Refused):
        return False


def controller() -> Path | None:
    """Where this host limits memory: version 1, or 2 with the controller given to groups."""
    old, new = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    if (old / "memory.limit_in_bytes").exists() or (old / "cgroup.procs").exists():
        return old
    control = new / "cgroup.subtree_control"
    return new if control.exists() and "memory" in control.read_text().split() else None


@contextlib.contextmanager
def limited(mebibytes: int) -> Iterator[Path]:
    root = controller()
    if os.geteuid() != 0 or root is None:
        pytest.skip("no cgroup limits memory here")
    group = root / f"sluice-test-{os.getpid()}-memory"
    group.mkdir()
    name = "memory.max" if (group / "memory.max").exists() else "memory.limit_in_bytes"
    (group / name).write_text(str(mebibytes << 20))
    try:
        yield group
    finally:
        until("the cgroup is empty", lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


def start_in(node: Daemon, group: Path) -> bool:
    """Start the daemon in a cgroup; True if it serves. The kernel may end it first."""
    words = ("sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh")
    served = node.log.read_text().count(" serving ")
    with node.log.open("ab") as log:
        node.process = subprocess.Popen(
            [
                *words,
                *(
                    sys.executable,
                    "-m",
                    "tests.kit.daemon.fake_node",
                    "--config",
                    str(node.config),
                ),
            ],
            stderr=log,
            env=node.environment(),
        )
    process = node.process
    until(
        "it serves or ends",
        lambda: process.poll() is not None or node.log.read_text().count(" serving ") > served,
    )
    return process.poll() is None


@pytest.mark.root
@pytest.mark.parametrize("mebibytes", [24, 64])
def test_d10_a_limit_on_memory_costs_no_grant(mebibytes: int) -> None:
    """It has no reserve to give up first: the kernel ends it, its unit starts it again, and what runs is found."""
    with daemon() as node:
        job = registered(node, "before")
        node.kill()
        with limited(mebibytes) as group:
            if start_in(node, group):
                for _ in range(5):
                    refused(node)
            assert job.do("entry", 0)["generation"] % 2 == 1, "the job has not noticed"
            if node.process is not None and node.process.poll() is None:
                node.kill()
            assert node.process is not None
            assert node.process.returncode in (-signal.SIGKILL, 1, 69, 70, 75, -signal.SIGABRT)
        node.start()
        assert processes(node, "before") == 1
        assert refused(node) == ""
