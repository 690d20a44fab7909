"""Series that a soak reports as growing, and series that it does not."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.soak.slopes import FEWEST, RULES, Watch, slope

MIB = 1 << 20


def noisy(values: list[float], by: float) -> list[float]:
    chance = random.Random(1)
    return [value * (1 + chance.uniform(-by, by)) for value in values]


@pytest.mark.parametrize("figure", sorted(RULES))
def test_a_leak_is_told_from_noise(figure: str) -> None:
    base = {"resident_bytes": 80.0 * MIB, "disk_bytes": 8.0 * MIB, "latency_s": 0.01}.get(
        figure, 50
    )
    level = noisy([base] * 400, 0.03)
    still = slope(f"daemon {figure}", level)
    assert still is not None
    assert still.flat, str(still)
    allowed = still.allowed
    leak = [value + 2.5 * allowed * i / 400 for i, value in enumerate(level)]
    found = slope(f"daemon {figure}", leak)
    assert found is not None
    assert not found.flat, str(found)
    assert "GROWS" in str(found)


def test_a_start_and_single_peaks_are_no_leak() -> None:
    samples = [20.0 * MIB + min(i, 60) * MIB for i in range(400)]
    for at in (200, 250, 300):
        samples[at] *= 5
    found = slope("daemon resident_bytes", samples)
    assert found is not None
    assert found.flat, str(found)


def test_less_and_less_is_flat() -> None:
    found = slope("daemon descriptors", [1000.0 - i for i in range(400)])
    assert found is not None
    assert found.flat


def test_of_few_samples_nothing_is_said() -> None:
    assert slope("daemon descriptors", [float(i) for i in range(FEWEST - 1)]) is None


def test_the_figures_of_a_process_are_taken(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 100_000)
    watch = Watch(tmp_path)
    kept = []
    for number in range(FEWEST):
        kept.append(open("/dev/null"))  # noqa: SIM115  # a leak, on purpose
        watch.sample(os.getpid(), 0.001 * (number % 3))
    for file in kept:
        file.close()
    by_name = {one.name: one for one in watch.slopes()}
    assert not by_name["daemon descriptors"].flat
    assert by_name["daemon disk_bytes"].flat
    assert by_name["daemon disk_bytes"].first >= 100_000
