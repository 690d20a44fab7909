"""Verdict of `make test-faults` on its own run: it can fail."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from tests.faults import __main__ as runner
from tests.faults.__main__ import Kills, Recorder, held, outcome_of, red_lines, summary
from tests.faults.list.cases import CASES, Case
from tests.faults.long_forms import EARLIER, passed_earlier, pytest_collection_modifyitems

CLEAN = {"lost": 0, "doubled": 0, "overshoot": 0, "idle": 0}


def told(recorder: Recorder, test: str, outcome: str, when: str = "call") -> None:
    report = SimpleNamespace(
        nodeid=f"tests/{test}[one]",
        outcome=outcome,
        when=when,
        skipped=outcome == "skipped",
        longrepr=("file", 1, "no root")
        if outcome == "skipped"
        else SimpleNamespace(reprcrash=SimpleNamespace(message="assert 1 == 2\nmore")),
    )
    recorder.pytest_runtest_logreport(report)


def test_the_worst_of_a_cases_tests_is_its_outcome() -> None:
    recorder = Recorder()
    for test, outcome in (
        ("a.py::one", "passed"),
        ("a.py::two", "skipped"),
        ("a.py::bad", "failed"),
    ):
        told(recorder, test, outcome)
    case = lambda *tests: outcome_of(Case("X1", "a → b", tests), recorder)["outcome"]  # noqa: E731
    assert case("a.py::one", "a.py::two") == "passed"
    assert case("a.py::two") == "not run"
    assert case("a.py::never") == "not run"
    assert case("a.py::one", "a.py::bad") == "failed"
    assert outcome_of(Case("X1", "a → b", ("a.py::two",)), recorder)["reasons"] == {
        "a.py::two": "no root"
    }


def test_one_parameter_that_fails_fails_it_and_so_does_a_fixture() -> None:
    recorder = Recorder()
    told(recorder, "a.py::one", "passed")
    told(recorder, "a.py::one", "failed")
    told(recorder, "a.py::two", "failed", when="setup")
    assert (recorder.of("a.py::one"), recorder.of("a.py::two")) == ("failed", "failed")


def everything_passed() -> Recorder:
    recorder = Recorder()
    for case in CASES:
        for test in case.tests:
            told(recorder, test, "passed")
    return recorder


def answer(recorder: Recorder, killed: dict[str, Any]) -> dict[str, Any]:
    return summary(recorder, killed, 0.0)


def test_it_holds_only_when_every_case_ran_and_nothing_was_lost() -> None:
    good = answer(everything_passed(), CLEAN) | {"without_a_test": []}
    assert held(good)
    assert not held(good | {"kills": CLEAN | {"lost": 1}})
    assert not held(good | {"kills": CLEAN | {"idle": 1}})
    assert not held(good | {"kills": {"failed": "exit 1"}})
    assert not held(good | {"failed": ["A1"]})
    assert not held(good | {"not_run": ["A1"]})
    assert not held(good | {"without_a_test": ["A1"]})
    assert not held(answer(Recorder(), CLEAN)), "nothing ran"


def test_what_is_red_is_named_by_its_case_and_its_reason() -> None:
    recorder = everything_passed()
    told(recorder, CASES[0].tests[0], "failed")
    told(recorder, "faults/list/test_runner.py::of_no_case", "failed")
    made = answer(recorder, CLEAN | {"lost": 2, "first": ["a grant"]})
    assert not held(made)
    a1 = f"{CASES[0].id} ({CASES[0].what}): tests/{CASES[0].tests[0]}[one]: assert 1 == 2"
    assert red_lines(made) == [
        a1,
        "tests/faults/list/test_runner.py::of_no_case[one]: assert 1 == 2",
        "kills: 2 lost: ['a grant']",
    ]
    assert made["by_case"]["A1"]["failures"] == {f"tests/{CASES[0].tests[0]}[one]": "assert 1 == 2"}
    nothing = red_lines(answer(Recorder(), {"failed": "exit 1"}))
    assert len(nothing) == made["run"] + 1
    assert "did not run: none of its tests was found" in nothing[0]
    assert nothing[-1] == "kills: exit 1"
    assert red_lines(answer(everything_passed(), CLEAN)) == []


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import time; time.sleep(600)", "not done 1 s after the tests (seed 5)"),
        ("raise SystemExit('at once')", "exit 1 without a result (seed 5): at once"),
        ("print('no json')", "exit 0 without a result (seed 5)"),
        ("print('[1]')", "it printed [1]"),
    ],
)
def test_kills_that_say_nothing_are_a_failure_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, said: str
) -> None:
    python = tmp_path / "python"
    (tmp_path / "program").write_text(program)
    python.write_text(
        f"#!/bin/sh\nexec {shlex.join([sys.executable, str(tmp_path / 'program')])}\n"
    )
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(runner, "KILLS_LOG", tmp_path / "log")
    monkeypatch.setattr(runner, "KILLS_S", 1 if "sleep" in program else 60)
    assert Kills(5, 1.0).result() == {"failed": said}


def test_the_long_form_of_a_test_is_enough() -> None:
    def item(nodeid: str, *marks: str, parameters: bool = True) -> SimpleNamespace:
        spec = SimpleNamespace(marks=[SimpleNamespace(name=mark) for mark in marks])
        return SimpleNamespace(nodeid=nodeid, **({"callspec": spec} if parameters else {}))

    short, long = item("a.py::one[6]"), item("a.py::one[60]", "faults")
    others = [item("a.py::two[6]"), item("b.py::one[6]"), item("a.py::three", parameters=False)]
    left, gone = [short, long, *others], []
    hook = SimpleNamespace(pytest_deselected=lambda items: gone.extend(items))
    pytest_collection_modifyitems(SimpleNamespace(hook=hook), left)
    assert left == [long, *others]
    assert gone == [short]


def test_the_counts_add_up() -> None:
    made = answer(everything_passed(), CLEAN)
    assert made["cases"] == 79
    assert made["run"] == made["passed"] == sum(bool(case.tests) for case in CASES)
    whole = made["run"] + len(made["not_applicable"]) + len(made["without_a_test"])
    assert whole == 79


def test_what_passed_in_an_earlier_suite_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[0].tests[0]
    outcomes = {f"tests/{case}[one]": "passed", "tests/a.py::two": "failed", "tests/a.py::three": "skipped"}  # fmt: skip
    (tmp_path / "pytest-1.json").write_text(json.dumps({"outcomes": outcomes}))
    monkeypatch.setenv(EARLIER, str(tmp_path))
    passed_earlier.cache_clear()
    items = [SimpleNamespace(nodeid=one) for one in [*outcomes, "tests/a.py::new"]]
    try:
        pytest_collection_modifyitems(MagicMock(), items)
        assert [one.nodeid for one in items] == ["tests/a.py::two", "tests/a.py::three", "tests/a.py::new"]  # fmt: skip
        assert Recorder(passed_earlier()).of(case) == "passed"
    finally:
        passed_earlier.cache_clear()
