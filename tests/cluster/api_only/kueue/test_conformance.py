"""Every case of Kueue's semantics is equal or explained, and the tool sees what is not."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.control_plane import ControlPlane
from tests.conformance.kueue.cases import DATA, BadCase, Case, Cases, RunCase, read
from tests.conformance.kueue.comparing import compare
from tests.kit.conformance.case import Outcome, Verdict

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(2400)]
VERDICTS, RUNS = 250, 100
EXPLAINED = 10
"""Most differences that are meant, as lines of the docs."""
Outcomes = list[tuple[Case, Outcome]]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    cases = read(sorted(DATA.glob("*.yaml")))
    verdict = next(one for one in cases.verdicts if one.stored)
    run = next(one for one in cases.runs if not one.configuration)
    cases.verdicts.append(replace(verdict, name="wrong: refused", is_accepted=False))
    cases.verdicts.append(replace(verdict, name="wrong: stored", stored={"kind": "Other"}))
    cases.verdicts.append(replace(verdict, name="wrong: mark", known="nothing"))
    steps = ({**run.steps[0], "expect": {"a": "pending"}},)
    cases.runs.append(replace(run, name="wrong: run", steps=steps))
    with (
        tempfile.TemporaryDirectory(prefix="conformance-") as directory,
        ControlPlane(Path(directory)) as plane,
    ):
        found = list(compare(plane, tmp_path_factory.mktemp("conformance"), cases))
    return again(found, cases, tmp_path_factory)


def again(found: Outcomes, cases: Cases, places: pytest.TempPathFactory) -> Outcomes:
    """Run the cases that differ once more, without the others, as CI does with tests; the second outcome counts."""
    names = {case.name for case, one in found if differs(case, one)}
    if not names:
        return found
    few = Cases(
        cases.around,
        [one for one in cases.verdicts if one.name in names],
        [one for one in cases.runs if one.name in names],
    )
    for case, one in found:
        if case.name in names:
            print(f"differed once: {case.name}: {one.details}")
    with (
        tempfile.TemporaryDirectory(prefix="conformance-") as directory,
        ControlPlane(Path(directory)) as plane,
    ):
        second = list(compare(plane, places.mktemp("again"), few))
    return [one for one in found if one[0].name not in names] + second


def differs(case: Case, outcome: Outcome) -> bool:
    """True for a difference that is neither known nor made on purpose."""
    return (
        outcome.verdict is Verdict.DIFFERS
        and not case.name.startswith("wrong: ")
        and not outcome.details[0].startswith("known: ")
    )


def test_no_case_differs_but_those_that_are_known(outcomes: Outcomes) -> None:
    unknown = {case.name: one.details for case, one in outcomes if differs(case, one)}
    assert not unknown


def test_there_are_many_cases_and_few_explanations(outcomes: Outcomes) -> None:
    runs = sum(isinstance(case, RunCase) for case, _ in outcomes)
    assert runs >= RUNS
    assert len(outcomes) - runs >= VERDICTS
    assert len({case.explained for case, _ in outcomes} - {""}) <= EXPLAINED


def test_what_is_wrong_differs(outcomes: Outcomes) -> None:
    wrong = {case.name: one.verdict for case, one in outcomes if "wrong: " in case.name}
    assert len(wrong) == 4
    assert set(wrong.values()) == {Verdict.DIFFERS}


@pytest.mark.parametrize(
    "text",
    [
        "verdicts: [{of: batch/job, rows: [{do: {}, accepts: true}]}]",
        "runs: [{run: a, given: {}, steps: [], expected: {}}]",
        "verdicts: [{of: batch/job, rows: [{do: {}, takes: true}, {do: {}, takes: true}]}]",
        "runs: [{run: a, given: {}, steps: [], explained: the docs have no such text}]",
    ],
    ids=["a word", "a key", "one name twice", "no such explanation"],
)
def test_a_case_that_cannot_be_read_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "cases.yaml").write_text(text)
    with pytest.raises(BadCase):
        read([tmp_path / "cases.yaml"])
