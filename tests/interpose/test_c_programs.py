"""The C test programs, plain and under the sanitizers. Each program checks itself; here they are built and run."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from nodeagent.adapters.region import layout as c
from tests.interpose import regions
from tests.interpose.regions import GIB, MIB, Region

VARIANTS = ("plain", "asan", "tsan")
REPORTS = ("Sanitizer", "runtime error:")
LIMIT = 512 * MIB
ENFORCE_BOTH = c.FLAG_ENFORCE_MEMORY | c.FLAG_ENFORCE_SM
CHUNK_NS = 1_000_000
"""Most credit in ns that a thread draws at once: alone on its GPU."""


def run(program: str, variant: str, *args: str, env: dict[str, str] | None = None) -> str:
    (path,) = regions.build(f"{program}_{variant}")
    command = [str(path), *args]
    if variant == "tsan" and shutil.which("setarch"):
        # TSan wants its shadow where a kernel with many bits of randomness may already have something
        probe = subprocess.run(["setarch", platform.machine(), "-R", "true"], capture_output=True)
        if probe.returncode == 0:
            command = ["setarch", platform.machine(), "-R", *command]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=240,
        env={
            **(env or os.environ),
            "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0",
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "TSAN_OPTIONS": "halt_on_error=0",
        },
    )
    report = done.stdout + done.stderr
    assert done.returncode == 0, report[-4000:]
    assert not any(word in report for word in REPORTS), report[-4000:]
    return done.stdout


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_region_keeps_its_promises(variant: str) -> None:
    """Publishing, checking, the seqlock, slots, hostile contents, reserve-then-verify by threads."""
    run("region_test", variant)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_pointer_table_costs_the_same_at_50_000_allocations(variant: str) -> None:
    probes = json.loads(run("ptrmap_test", variant).strip().splitlines()[-1])
    assert probes["live_50000"] < 2.5
    assert probes["after_a_million"] <= probes["live_50000"] + 0.01


@pytest.mark.parametrize("threads", [4, 8], ids=lambda n: f"{n} threads")
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("variant", VARIANTS)
def test_random_allocations_are_charged_to_the_byte(
    tmp_path: Path, variant: str, seed: int, threads: int
) -> None:
    """The threads of the second half never get more than the limit out of the driver, not for a
    moment.

    Keeps the reproducer of a pool that gave 1.5 GB to eight threads under a limit of 512 MiB: each counted the
    pool's unused memory as its own, and a reading made before another thread's growth lowered the charge.
    """
    region = Region(tmp_path / "grant", limits=(LIMIT,))
    steps = "20000" if threads == 4 else "200"
    out = run("accounting_test", variant, steps, str(seed), str(threads), env=region.environment())
    result = json.loads(out.strip().splitlines()[-1])
    assert result["charged"] == 0
    assert 0 < result["peak"] <= LIMIT
    assert region.total("charged_bytes") == 0
    assert region.total("peak_bytes") <= LIMIT
    assert region.total("allocs") > 1000


@pytest.mark.parametrize("threads", [1, 4, 8], ids=lambda n: f"{n} threads")
@pytest.mark.parametrize("variant", VARIANTS)
def test_launches_are_all_counted_and_none_stays_in_flight(
    tmp_path: Path, variant: str, threads: int
) -> None:
    """Contexts come and go with work in flight, threads switch GPUs, limits change all the while.

    The daemon takes charged and not completed for a busy tenant: what is left of it here would look busy for ever.
    """
    region = Region(tmp_path / "grant", limits=(4 * GIB, 4 * GIB), flags=ENFORCE_BOTH)
    out = run(
        *("launch_test", variant, str(threads), "3000"),
        env=region.environment(STUB_DEVICES="2"),
    )
    result = json.loads(out.strip().splitlines()[-1])
    assert region.total("launches", 0) + region.total("launches", 1) == result["launches"]
    for device, busy_ns in enumerate(result["busy_ns"]):
        consumed = region.total("consumed_ns", device)
        in_flight = consumed - region.total("completed_ns", device)
        assert 0 <= in_flight <= CHUNK_NS, "the last thread's credit"
        # A thread that loses its CPU between an event and the launch makes a sample too long, and the first one of a
        # shape is believed. All prices are forgotten every 256 launches, and where no other grant is on the GPU a few
        # launches of unknown length are not waited for: what of them a destroyed context takes along is not charged.
        assert 0.9 * busy_ns <= consumed <= 2 * busy_ns + CHUNK_NS


@pytest.mark.parametrize("threads", [1, 4], ids=lambda n: f"{n} threads")
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_book_of_who_is_ahead_survives_siblings_that_lie_and_die(
    tmp_path: Path, variant: str, threads: int
) -> None:
    """Each thread of ours asks and launches; five others play the grant's other processes."""
    region = Region(tmp_path / "grant", limits=(GIB,), flags=ENFORCE_BOTH)
    out = run("siblings_test", variant, str(threads), "1500", env=region.environment())
    assert json.loads(out.strip().splitlines()[-1])["deaths"] > 0


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_clock_that_is_behind_follows_the_daemons(variant: str) -> None:
    run("clock_test", variant)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_charge_moves_to_another_slot_with_driver_calls_under_way(
    tmp_path: Path, variant: str, seed: int
) -> None:
    """Keeps the reproducer of an allocation that was inside the driver while the slot changed: charged in the old
    slot, in none of the tables yet, and so nowhere once it was there."""
    region = Region(tmp_path / "grant", limits=(LIMIT,), flags=ENFORCE_BOTH)
    out = run("move_test", variant, "100", str(seed), env=region.environment())
    assert json.loads(out.strip().splitlines()[-1])["allocations"] > 100


@pytest.mark.full
@pytest.mark.parametrize("seed", range(100, 120))
def test_random_allocations_at_length(tmp_path: Path, seed: int) -> None:
    region = Region(tmp_path / "grant", limits=(LIMIT,))
    out = run("accounting_test", "plain", "400000", str(seed), "8", env=region.environment())
    assert json.loads(out.strip().splitlines()[-1])["peak"] <= LIMIT
