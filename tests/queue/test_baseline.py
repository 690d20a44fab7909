"""Kueue's baseline scenario in virtual time: the same totals as Kueue's own engine had."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from queuecontroller.engine.settings import EngineSettings
from queuecontroller.testing.baseline import (
    BASELINE,
    Scenario,
    VirtualRun,
    WorkloadClass,
)

from .test_conformance import FOLDER

RECORDED = {
    False: FOLDER / "kueue" / "baseline-batch1s.jsonl.gz",
    True: FOLDER / "kueue" / "baseline-fair-batch1s.jsonl.gz",
}
SECOND_NS = 1_000_000_000


def recorded(path: Path) -> dict[str, Any]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        found: dict[str, Any] = json.loads(next(lines))
    return found


@pytest.mark.skipif(
    not all(path.exists() for path in RECORDED.values()),
    reason=f"no recorded baseline in {FOLDER}; set SLUICE_CONFORMANCE",
)
@pytest.mark.parametrize(
    ("fair", "wait_tolerance"),
    [
        (False, 0.02),
        # The recorded run gives each cycle a millisecond; under fair sharing, where equal shares
        # alternate, that shifts who runs into whom. Totals agree, single waits by a few percent.
        (True, 0.05),
    ],
)
def test_the_totals_are_kueues(fair: bool, wait_tolerance: float) -> None:
    theirs = recorded(RECORDED[fair])
    settings = EngineSettings(fair_sharing=fair, requeue_delay_ns=SECOND_NS)
    ours = VirtualRun(BASELINE, settings).run()
    assert ours.workloads == theirs["workloads"]
    assert ours.admissions == pytest.approx(theirs["admissions"], rel=0.02)
    assert ours.preemptions == pytest.approx(theirs["evictions"], rel=0.02)
    assert ours.makespan_ms == pytest.approx(theirs["virtualMakespanMs"], rel=0.02)
    for name in ("medium", "small"):
        waits = ours.waits_ms[name]
        expected = theirs["avgMsToFirstAdmission"][name]
        assert sum(waits) / len(waits) == pytest.approx(expected, rel=wait_tolerance)


@pytest.mark.parametrize("fair", [False, True])
def test_everyone_runs_in_the_end_and_twice_the_same(fair: bool) -> None:
    few = Scenario(2, 3, (
        WorkloadClass("small", 30, 1, 50, 200, 50),
        WorkloadClass("large", 6, 20, 200, 500, 300),
    ))  # fmt: skip
    settings = EngineSettings(fair_sharing=fair, requeue_delay_ns=SECOND_NS // 4)
    first, second = (VirtualRun(few, settings).run() for _ in range(2))
    assert {name: len(waits) for name, waits in first.waits_ms.items()} == {
        "small": 180,
        "large": 36,
    }
    assert first.admissions == first.workloads + first.preemptions
    assert first.waits_ms == second.waits_ms
