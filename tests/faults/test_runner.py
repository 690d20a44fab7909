"""What `make test-faults` says of its own run: it can fail."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.faults.__main__ import Recorder, held, outcome_of, summary
from tests.faults.cases import CASES, Case

CLEAN = {"lost": 0, "doubled": 0, "overshoot": 0}


def told(recorder: Recorder, test: str, outcome: str, when: str = "call") -> None:
    report = SimpleNamespace(
        nodeid=f"tests/{test}[one]",
        outcome=outcome,
        when=when,
        skipped=outcome == "skipped",
        longrepr=("file", 1, "no root"),
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
    assert not held(good | {"kills": {"failed": "exit 1"}})
    assert not held(good | {"failed": ["A1"]})
    assert not held(good | {"not_run": ["A1"]})
    assert not held(good | {"without_a_test": ["A1"]})
    assert not held(answer(Recorder(), CLEAN)), "nothing ran"


def test_the_counts_add_up() -> None:
    made = answer(everything_passed(), CLEAN)
    assert made["cases"] == 79
    assert made["run"] == made["passed"] == sum(bool(case.tests) for case in CASES)
    whole = made["run"] + len(made["not_applicable"]) + len(made["without_a_test"])
    assert whole == 79
