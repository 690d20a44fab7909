"""SIGKILL at any instruction of reserve-then-verify: never over the limit, nothing leaked. See torture.c."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.interpose import regions


def torture(kills: int, seed: int, variant: str = "plain") -> dict[str, Any]:
    (program,) = regions.build(f"torture_{variant}")
    done = subprocess.run(
        [program, str(kills), str(seed)], capture_output=True, text=True, timeout=280
    )
    lines = done.stdout.strip().splitlines()
    assert lines, done.stderr
    result: dict[str, Any] = json.loads(lines[-1])
    assert done.returncode == 0, f"{result}\n{done.stderr}"
    assert "Sanitizer" not in done.stderr, done.stderr
    return result


def assert_kept(result: dict[str, Any], kills: int) -> None:
    assert result["kills"] == kills
    assert result["overshoots"] == 0, "what processes held was over the limit"
    assert result["undercharged"] == 0, "a stopped process held more than it was charged for"
    assert result["leaked_bytes"] == 0, "something stayed charged after every process was reaped"
    # and it was a test: the limit was reached, refused, and looked at all the while
    assert result["worst_bytes"] > 0.99 * result["limit_bytes"]
    assert result["denied"] > kills
    assert result["checks"] > 10 * kills
    assert result["stopped_checks"] >= kills // 16


@pytest.mark.parametrize(
    ("kills", "seed"),
    [(200, 1), *(pytest.param(1000, seed, marks=pytest.mark.faults) for seed in (1, 2))],
)
def test_kills_never_pass_the_limit_and_leak_nothing(kills: int, seed: int) -> None:
    assert_kept(torture(kills, seed), kills)


def test_kills_under_the_thread_sanitizer() -> None:
    assert_kept(torture(300, 3, "tsan"), 300)


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(10, 12))
def test_20_000_kills_never_pass_the_limit_and_leak_nothing(seed: int) -> None:
    for part in range(2):
        assert_kept(torture(10_000, 100 * seed + part), 10_000)
