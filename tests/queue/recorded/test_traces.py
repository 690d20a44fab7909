"""Whole runs recorded beside Kueue are played again, and the runner sees a difference."""

from __future__ import annotations

import copy
import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from queuecontroller.cli.main import main as simulate
from tests.kit.conformance.traces import Outcome, Verdict, main, records, run_line
from tests.queue.recorded.places import FOLDER

FILES = [FOLDER / "traces.jsonl.xz"]
RUNS = 400
MAX_EXPLAINED_RATIO = 0.03


@pytest.mark.parametrize("path", FILES, ids=["traces"])
def test_recorded_runs_are_ours_second_by_second(path: Path) -> None:
    outcomes = {str(record["name"]): run_line(record) for record in records(path)}
    assert len(outcomes) == RUNS
    differing = {name: one for name, one in outcomes.items() if one.verdict is Verdict.DIFFERS}
    assert not differing
    counts = Counter(one.verdict for one in outcomes.values())
    assert counts[Verdict.EXPLAINED] <= MAX_EXPLAINED_RATIO * len(outcomes)
    assert all(one.because for one in outcomes.values() if one.verdict is Verdict.EXPLAINED)


def test_a_workload_that_never_fits_does_not_hold_up_the_next(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The smallest of the differences that the recorded runs showed."""
    assert simulate(["simulate", "-o", "json", "-f", str(FOLDER / "head-of-line.yaml")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["admitted"] == ["default/b"]
    assert set(found["pending"]) == {"default/a"}


def queue(nominal: str) -> dict[str, Any]:
    resources = [{"name": "cpu", "nominalQuota": nominal}]
    return {
        "metadata": {"name": "q"},
        "spec": {
            "namespaceSelector": {},
            "resourceGroups": [
                {"coveredResources": ["cpu"], "flavors": [{"name": "f", "resources": resources}]}
            ],
        },
    }


def job(name: str, at: int, runs: int, cpu: str) -> dict[str, Any]:
    container = {"name": "c", "resources": {"requests": {"cpu": cpu}}}
    template = {"spec": {"containers": [container], "restartPolicy": "Never"}}
    return {
        "at": at,
        "runs": runs,
        "object": {
            "metadata": {"name": name, "namespace": "default", "uid": name},
            "spec": {
                "queueName": "l",
                "priority": 0,
                "active": True,
                "podSets": [{"name": "main", "count": 1, "template": template}],
            },
        },
    }


def admitted(at: int, name: str) -> dict[str, Any]:
    return {"t": at, "op": "A", "w": name, "cq": "q", "d": {"main": "1 cpu=f"}}


RECORD: dict[str, Any] = {
    "name": "one after the other",
    "scenario": {
        "fairSharing": False,
        "flavors": [{"metadata": {"name": "f"}, "spec": {}}],
        "cohorts": [],
        "clusterQueues": [queue("2")],
        "localQueues": [
            {"metadata": {"name": "l", "namespace": "default"}, "spec": {"clusterQueue": "q"}}
        ],
        "workloads": [job("one", 1, 5, "2"), job("two", 2, 3, "1")],
    },
    "kueue": {
        "livelock_at": None,
        "pending": [],
        "trace": [
            admitted(1, "one"),
            {"t": 6, "op": "F", "w": "one"},
            admitted(6, "two"),
            {"t": 9, "op": "F", "w": "two"},
        ],
    },
}


def test_a_run_that_agrees_is_equal() -> None:
    assert run_line(RECORD).verdict is Verdict.EQUAL


@pytest.mark.parametrize(
    ("index", "entry"),
    [
        (0, admitted(2, "one")),
        (2, {**admitted(6, "two"), "d": {"main": "1 cpu=g"}}),
        (3, {"t": 10, "op": "F", "w": "two"}),
    ],
    ids=["another second", "another flavor", "a later end"],
)
def test_a_run_that_does_not_agree_is_told_with_its_second(
    index: int, entry: dict[str, Any]
) -> None:
    record = copy.deepcopy(RECORD)
    record["kueue"]["trace"][index] = entry
    outcome = run_line(record)
    assert outcome.verdict is Verdict.DIFFERS
    assert outcome.details[0].startswith("second ")
    assert not outcome.because


def test_after_a_livelock_of_kueue_nothing_is_compared() -> None:
    record = copy.deepcopy(RECORD)
    record["kueue"]["trace"][3]["t"] = 10
    record["kueue"]["livelock_at"] = 9
    assert run_line(record).verdict is Verdict.EQUAL


def test_the_exit_status_tells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = copy.deepcopy(RECORD)
    other["kueue"]["trace"].pop()
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl.gz"
    good.write_text(json.dumps(RECORD) + "\n", encoding="utf-8")
    with gzip.open(bad, "wt", encoding="utf-8") as file:
        file.write(json.dumps(other) + "\n")
    assert main([str(good)]) == 0
    assert "total: 1 equal, 0 explained, 0 differs, of 1" in capsys.readouterr().out
    assert main([str(good), str(bad)]) == 1
    assert "only ours:  F two" in capsys.readouterr().out
    (tmp_path / "none.jsonl").write_text("[]\n", encoding="utf-8")
    assert main([str(tmp_path / "none.jsonl")]) == 2
    assert "cannot be used" in capsys.readouterr().err


def test_a_slice_that_a_larger_one_takes_the_place_of_ends_then_and_not_again() -> None:
    record = copy.deepcopy(RECORD)
    larger = job("larger", 3, 4, "2")
    name = "kueue.x-k8s.io/workload-slice-replacement-for"
    larger["object"]["metadata"]["annotations"] = {name: "default/small"}
    record["scenario"]["workloads"] = [job("small", 1, 5, "1"), larger]
    record["kueue"]["trace"] = [
        admitted(1, "small"),
        {"t": 3, "op": "F", "w": "small"},
        admitted(3, "larger"),
        {"t": 7, "op": "F", "w": "larger"},
    ]
    assert run_line(record) == Outcome(Verdict.EQUAL)
