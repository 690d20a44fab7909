"""Verdict of a CI run, from the results of its suites and the lists of earlier runs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ci.verdict import MAX_FLAKY, MAX_RUNS, Failure, Suite, Verdict, decide

AT = "2024-05-06T07:08:09+00:00"
FIRST = Failure("AssertionError: 3 != 4", "def test():\n>  assert 3 == 4")


def suite(
    name: str = "test", passed: int = 3, failed: dict[str, str] | None = None, **more: Any
) -> Suite:
    """One with so many tests that passed; `failed` is each that failed with its second outcome, "" for none."""
    failed = failed or {}
    outcomes = {f"{name}.py::passed_{n}": "passed" for n in range(passed)}
    return Suite(
        name=name,
        status=more.pop("status", 2 if failed else 0),
        wall_s=100.0,
        cpu_s=150.4,
        outcomes=outcomes | dict.fromkeys(failed, "failed") | more.pop("outcomes", {}),
        failures=dict.fromkeys(failed, FIRST),
        again={test: second for test, second in failed.items() if second},
        **more,
    )


def decided(*suites: Suite, earlier: list[dict[str, Any]] | None = None) -> Verdict:
    return decide(suites, earlier or [], AT, sum(one.wall_s for one in suites))


def flaky(number: int, name: str = "test") -> dict[str, str]:
    return {f"{name}.py::flaky_{n}": "passed" for n in range(number)}


def last(verdict: Verdict) -> str:
    return verdict.lines[-1].strip("=")


def test_suites_that_passed_are_green_and_summed_up() -> None:
    made = decided(suite(outcomes={"a.py::s": "skipped"}), suite("test-page", passed=2))
    assert made.status == 0
    assert last(made) == " 5 passed, 1 skipped in 200.00s "
    assert made.runs == [{"at": AT, "flaky": []}]
    assert "suite              wall      CPU   tests" in made.lines
    assert "test              100 s    150 s       4" in made.lines
    assert "all               200 s    301 s       6" in made.lines


def test_suites_beside_each_other_take_less_time_than_their_sum() -> None:
    made = decide([suite(), suite("test-page")], [], AT, 120.0)
    assert last(made).endswith(" in 120.00s ")
    assert any(line.startswith("all ") and "120 s" in line for line in made.lines)


def test_the_slowest_files_of_each_suite_are_listed() -> None:
    spent = {f"f{n}.py::t": float(n) for n in range(8)} | {"f3.py::u": 40.0}
    made = decided(suite(durations_s=spent), suite("test-page", durations_s={"p.py::t": 2.0}))
    listed = [line.split() for line in made.lines if line.endswith(".py")]
    assert [one[-1] for one in listed] == ["f3.py", "f7.py", "f6.py", "f5.py", "f4.py", "p.py"]
    assert "test               43 s  f3.py" in made.lines


def test_a_test_that_passes_alone_is_forgiven_and_listed_with_its_first_failure() -> None:
    made = decided(suite(failed={"a.py::t[x y]": "passed"}))
    assert made.status == 0
    assert last(made) == " 4 passed in 100.00s "
    assert "FLAKY test: a.py::t[x y]: AssertionError: 3 != 4" in made.lines
    assert made.runs[-1]["flaky"] == [
        {
            "suite": "test",
            "test": "a.py::t[x y]",
            "message": "AssertionError: 3 != 4",
            "report": "def test():\n>  assert 3 == 4",
        }
    ]


@pytest.mark.parametrize("second", ["failed", "error", "skipped", "xfailed", ""])
def test_a_test_that_does_not_pass_alone_is_red(second: str) -> None:
    made = decided(suite(failed={"a.py::t": second}))
    assert made.status == 1
    assert last(made) == " 1 failed, 3 passed in 100.00s "
    assert any(line.startswith("FAILED test: a.py::t (") for line in made.lines)
    assert made.runs[-1]["flaky"] == []


def test_at_most_five_are_forgiven_over_all_suites() -> None:
    made = decided(suite(failed=flaky(3)), suite("test-page", failed=flaky(2, "page")))
    assert made.status == 0
    assert last(made) == " 11 passed in 200.00s "
    one_more = decided(suite(failed=flaky(3)), suite("test-page", failed=flaky(3, "page")))
    assert one_more.status == 1
    assert last(one_more) == " 6 failed, 6 passed in 200.00s "
    assert len(one_more.runs[-1]["flaky"]) == MAX_FLAKY + 1, "listed nevertheless"
    assert any(line.startswith("RED: 6 flaky tests") for line in one_more.lines)


def test_what_is_no_failure_of_a_test_is_red_whatever_passes_alone() -> None:
    made = decided(suite(failed=flaky(1), broken=["lint failed", "worker gw1: crashed"]))
    assert made.status == 1
    assert last(made) == " 4 passed, 2 errors in 100.00s "
    assert "BROKEN test: lint failed" in made.lines


def test_a_suite_that_fails_without_a_reason_is_red() -> None:
    made = decided(suite(status=2, passed=0))
    assert made.status == 1
    assert last(made) == " 1 error in 100.00s "
    assert "BROKEN test: ended with 2 and named no reason" in made.lines


def test_a_suite_of_no_tests_that_ends_well_is_green() -> None:
    made = decided(suite(passed=0))
    assert (made.status, last(made)) == (0, " no tests ran in 100.00s ")


def test_a_test_that_is_flaky_in_two_runs_is_said_loudly_and_is_not_red() -> None:
    runs = decided(suite(failed=flaky(2))).runs
    runs = decide([suite()], runs, "a run without any", 9.0).runs
    other = decided(suite(failed={"a.py::new": "passed"}), earlier=runs)
    assert not any("DEFECT" in line for line in other.lines)
    made = decided(suite("test-oldest", failed=flaky(1)), earlier=runs)
    assert made.status == 0
    assert f"DEFECT test.py::flaky_0: also flaky in the run of {AT}" in made.lines
    assert [len(run["flaky"]) for run in made.runs] == [2, 0, 1]


def test_the_list_of_runs_stays_short() -> None:
    runs: list[dict[str, Any]] = []
    for n in range(MAX_RUNS + 5):
        runs = decide([suite()], runs, str(n), 9.0).runs
    assert [run["at"] for run in runs] == [str(n) for n in range(5, MAX_RUNS + 5)]
