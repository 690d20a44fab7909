"""Compares the memory charged to a grant with the memory that the simulated GPU really gave away,
after each step of random programs.

The programs are processes under the shim: they allocate in every way there is, free in any order, make and destroy
contexts, and are killed. The truth is the device's own, read by a process outside of the grant. Whole granules agree to
the byte. Blocks up to 1 MiB are charged by size class while the device takes the pages they share: the device may be
ahead by less than one page of 2 MiB for each class that a context has in use.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.interpose.memory.world import act, world


def run(directory: Path, seed: int, steps: int, ragged: bool) -> None:
    rng = random.Random(seed)
    with world(directory) as here:
        for number in range(steps):
            what = act(here, rng, ragged)
            here.check(f"seed {seed}, step {number}, {what}", ragged)
        while here.clients:
            here.kill(0)
        here.check("all dead", ragged)
        assert here.region.charged() == 0


@pytest.mark.parametrize(
    "steps",
    [
        300,
        pytest.param(1000, marks=pytest.mark.faults),
        pytest.param(10_000, marks=[pytest.mark.full, pytest.mark.timeout(3000)]),
    ],
)
@pytest.mark.parametrize("ragged", [False, True], ids=["whole granules", "any size"])
def test_charges_equal_the_devices_truth_after_each_step(
    tmp_path: Path, ragged: bool, steps: int
) -> None:
    run(tmp_path, seed=20, steps=steps, ragged=ragged)


@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 60), ragged=st.booleans())
def test_no_short_program_is_charged_wrongly(
    tmp_path: Path, seed: int, steps: int, ragged: bool
) -> None:
    run(tmp_path / f"{seed}-{steps}-{ragged}", seed, steps, ragged)
