"""Reading /proc of a process whose name was chosen to look like the rest of the line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from nodeagent.adapters.processes.identity import read_process
from nodeagent.adapters.processes.pidfd import SystemProcesses
from nodeagent.adapters.processes.proc_facts import ProcInspector

RENAMES = """
import sys
for line in sys.stdin:
    with open("/proc/self/comm", "wb") as name:
        name.write(bytes.fromhex(line))
    print("renamed", flush=True)
"""
NAMES = (
    b") R 1 1 1 1 (",
    b") T 1 (a",
    b"a\rUid:\t0\t0\t0",
    b"a\nUid:\t0\t0\t0",
    b"a\x0cNSpid:\t1",
    b"((((",
    b"\xff\xfe",
    b" ",
)
"""15 bytes at most."""


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", RENAMES]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as one:
        yield one
        one.kill()


def test_a_name_changes_nothing_that_is_read_beside_it(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    before = read_process(process.pid)
    facts = ProcInspector().facts(process.pid)
    image = SystemProcesses().image_of(process.pid)
    for name in NAMES:
        process.stdin.write(name.hex() + "\n")
        process.stdin.flush()
        assert process.stdout.readline() == "renamed\n"
        assert read_process(process.pid) == before, name
        assert ProcInspector().facts(process.pid) == facts, name
        assert SystemProcesses().image_of(process.pid) == image, name
