"""The recorded decisions are taken again, and the runner sees a difference."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tests.kit.conformance.case import Verdict
from tests.kit.conformance.conformance import cases_of, main, run_case
from tests.queue.recorded.places import FOLDER

FILES = sorted(FOLDER.glob("*.json.xz"))
CASES = 126
MAX_EXCLUDED = 6


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.partition(".")[0])
def test_recorded_decisions_are_ours(path: Path) -> None:
    differing = {}
    for case in cases_of(path):
        outcome = run_case(case)
        if outcome.verdict is Verdict.DIFFERS:
            differing[case["name"]] = outcome.details
    assert not differing


def test_few_cases_are_excluded_and_each_says_why() -> None:
    outcomes = [run_case(case) for path in FILES for case in cases_of(path)]
    assert len(outcomes) == CASES
    excluded = [one for one in outcomes if one.verdict is Verdict.EXCLUDED]
    assert len(excluded) <= MAX_EXCLUDED
    assert all(len(one.details[0]) > 20 for one in excluded)


SMALL: dict[str, Any] = {
    "name": "one head that fits",
    "clusterQueues": [
        {
            "metadata": {"name": "cq"},
            "spec": {
                "namespaceSelector": {},
                "resourceGroups": [
                    {
                        "coveredResources": ["cpu"],
                        "flavors": [
                            {"name": "default", "resources": [{"name": "cpu", "nominalQuota": "4"}]}
                        ],
                    }
                ],
            },
        }
    ],
    "flavors": [{"metadata": {"name": "default"}}],
    "localQueues": [
        {"metadata": {"name": "lq", "namespace": "default"}, "spec": {"clusterQueue": "cq"}}
    ],
    "workloads": [
        {
            "metadata": {"name": "a", "namespace": "default"},
            "spec": {
                "queueName": "lq",
                "podSets": [
                    {
                        "name": "main",
                        "count": 2,
                        "template": {
                            "spec": {"containers": [{"resources": {"requests": {"cpu": "1500m"}}}]}
                        },
                    }
                ],
            },
        }
    ],
    "expected": {
        "assignments": {
            "default/a": {
                "clusterQueue": "cq",
                "podSetAssignments": [
                    {
                        "name": "main",
                        "count": 2,
                        "flavors": {"cpu": "default"},
                        "resourceUsage": {"cpu": "3"},
                    }
                ],
            }
        },
        "events": [
            {"Key": {"Namespace": "default", "Name": "a"}, "Reason": "QuotaReserved"},
            {"Key": {"Namespace": "default", "Name": "a"}, "Reason": "Admitted"},
        ],
        "left": {},
        "inadmissibleLeft": {},
        "skippedPreemptions": {},
    },
}


def test_a_case_that_agrees_agrees() -> None:
    assert run_case(SMALL).verdict is Verdict.AGREED


def altered(*path: Any, to: object) -> dict[str, Any]:
    case = copy.deepcopy(SMALL)
    at: Any = case["expected"]
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = to
    return case


PODS = ("assignments", "default/a", "podSetAssignments", 0)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(altered("assignments", to={}), id="not admitted"),
        pytest.param(altered(*PODS, "count", to=1), id="another count"),
        pytest.param(altered(*PODS, "flavors", to={"cpu": "spot"}), id="another flavor"),
        pytest.param(altered(*PODS, "resourceUsage", to={"cpu": "2999m"}), id="other usage"),
        pytest.param(altered("events", 0, "Reason", to="WaitingForQuota"), id="another reason"),
        pytest.param(altered("left", to={"cq": ["default/a"]}), id="still queued"),
        pytest.param(altered("inadmissibleLeft", to={"cq": ["default/a"]}), id="set aside"),
        pytest.param(altered("skippedPreemptions", to={"cq": 1}), id="a skipped preemption"),
    ],
)
def test_every_recorded_part_is_compared(case: dict[str, Any]) -> None:
    assert run_case(case).verdict is Verdict.DIFFERS


def test_a_case_nobody_can_run_is_a_difference() -> None:
    assert run_case({"name": "what is this"}).verdict is Verdict.DIFFERS


@pytest.mark.parametrize(
    ("cases_in_file", "status"),
    [([SMALL], 0), ([SMALL, altered("left", to={"cq": ["default/a"]})], 1), ("none", 2)],
)
def test_the_exit_status_tells(
    tmp_path: Path, cases_in_file: object, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cases.json"
    path.write_text(json.dumps({"cases": cases_in_file}), encoding="utf-8")
    assert main([str(path)]) == status
    assert ("total: " in capsys.readouterr().out) is (status != 2)
