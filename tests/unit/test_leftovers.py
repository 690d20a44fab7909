"""The check at the end of a run finds what was left, and only what this run made."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from tests.kit import leftovers

WAITS = [sys.executable, "-c", "print(flush=True); input()"]
"""Prints a line once its own code runs: shortly after exec the kernel shows no environment of a process yet."""


def test_a_process_left_is_named_until_it_is_gone() -> None:
    sleeper = subprocess.Popen(WAITS, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    stranger = subprocess.Popen(
        WAITS,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={k: v for k, v in os.environ.items() if f"{k}={v}" != leftovers.MARK},
    )
    try:
        for process in (sleeper, stranger):
            assert process.stdout is not None
            assert process.stdout.readline()
        named = [line.split(":")[0] for line in leftovers.left()]
        assert f"process {sleeper.pid}" in named
        assert f"process {stranger.pid}" not in named
    finally:
        for process in (sleeper, stranger):
            process.communicate(b"\n")
    assert f"process {sleeper.pid}" not in [line.split(":")[0] for line in leftovers.left()]


def test_a_directory_left_is_named_until_it_is_gone() -> None:
    with tempfile.TemporaryDirectory() as made:
        assert f"directory {made}" in leftovers.left()
    assert f"directory {made}" not in leftovers.left()
