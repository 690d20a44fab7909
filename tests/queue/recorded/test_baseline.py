"""Kueue's baseline scenario in virtual time: the same totals as Kueue's own engine had."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from queuecontroller.scheduler.model.settings import EngineSettings
from tests.kit.conformance import backlog
from tests.kit.conformance.baseline import (
    BASELINE,
    LARGE_SCALE,
    Scenario,
    VirtualRun,
    WorkloadClass,
    rank,
)
from tests.kit.conformance.recorded import open_text
from tests.queue.recorded.places import FOLDER

RECORDED = {
    False: FOLDER / "baseline-batch1s.jsonl.xz",
    True: FOLDER / "baseline-fair-batch1s.jsonl.xz",
}
SECOND_NS = 1_000_000_000


def recorded(path: Path) -> dict[str, Any]:
    with open_text(path) as lines:
        found: dict[str, Any] = json.loads(next(lines))
    return found


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
    if not fair:
        assert max(ours.waits_ms["large"]) == theirs["avgMsToFirstAdmission"]["large"] == 0
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


def test_a_thousand_queues_are_served_in_short_cycles() -> None:
    """A quarter of the large scenario; the bound is for a busy machine, the bench has the figures."""
    classes = tuple(replace(one, count=max(1, one.count // 4)) for one in LARGE_SCALE.classes)
    settings = EngineSettings(requeue_delay_ns=SECOND_NS)
    ours = VirtualRun(replace(LARGE_SCALE, classes=classes), settings).run()
    assert ours.admissions == ours.workloads + ours.preemptions
    assert ours.admissions / (ours.engine_ns / SECOND_NS) > 1000
    assert rank(ours.cycle_ns, 99) < 200_000_000


@pytest.mark.parametrize("alike", [False, True])
def test_a_line_ten_times_as_long_makes_no_cycle_ten_times_as_long(alike: bool) -> None:
    """One of three tries must be good: other processes take its share of the caches, which a long line needs more."""
    tries = []
    for _ in range(3):
        short, long = (backlog.measure(count, alike=alike, ends=20) for count in (1000, 10_000))
        assert long.pending > 9 * short.pending
        assert short.admissions >= 20
        tries.append((short.p50_ms, long.p50_ms))
        if long.p50_ms < 4 * short.p50_ms + 1:
            return
    pytest.fail(f"median of a cycle in ms, short and long: {tries}")


def test_a_backlog_of_nobody_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        backlog.main(["--workloads", "10"])
    assert ended.value.code == 2
    assert "--workloads: at least 1000" in capsys.readouterr().err
