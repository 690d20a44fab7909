"""The check at the end of a run finds what was left, and only what this run made."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from tests.kit import leftovers


def test_a_process_left_is_named_until_it_is_gone() -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    stranger = subprocess.Popen(
        [sys.executable, "-c", "input()"],
        stdin=subprocess.PIPE,
        env={k: v for k, v in os.environ.items() if f"{k}={v}" != leftovers.MARK},
    )
    try:
        named = [line.split(":")[0] for line in leftovers.left()]
        assert f"process {sleeper.pid}" in named
        assert f"process {stranger.pid}" not in named
    finally:
        for process in (sleeper, stranger):
            process.communicate()
    assert f"process {sleeper.pid}" not in [line.split(":")[0] for line in leftovers.left()]


def test_a_directory_left_is_named_until_it_is_gone() -> None:
    with tempfile.TemporaryDirectory() as made:
        assert f"directory {made}" in leftovers.left()
    assert f"directory {made}" not in leftovers.left()
