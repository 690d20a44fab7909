"""A small part of kills.py in every run; `make test-faults` does all of it."""

from __future__ import annotations

import os

import pytest

from tests.faults import kills


@pytest.mark.faults
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="grants by mount need root")
def test_some_kills_lose_double_and_overshoot_nothing() -> None:
    wanted = {"tenant": 40, "daemon": 3, "nvml child": 3, "controller": 4}
    result = kills.run(wanted, seed=5)
    assert dict(result.kills) == wanted
    assert result.held, result.plain()
    assert result.jobs >= 4
    assert result.looks >= 6


def test_what_went_wrong_is_counted() -> None:
    result = kills.Result(lost=["a"], doubled=["b", "c"])
    assert not result.held
    assert (result.plain()["lost"], result.plain()["doubled"], result.plain()["overshoot"]) == (
        1,
        2,
        0,
    )
    assert not kills.Result(idle=["a"]).held
    assert kills.Result().held


def test_the_full_run_kills_two_thousand() -> None:
    assert sum(kills.FULL.values()) >= 2000
    assert set(kills.FULL) == {"tenant", "daemon", "nvml child", "ebpf child", "controller"}
