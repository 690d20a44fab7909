"""The list is whole, and every test it names is one that pytest finds."""

from __future__ import annotations

import collections
import re
import subprocess
import sys

import pytest

from tests.faults.list.cases import CASES
from tests.faults.list.findings import FINDINGS, MUTATED
from tests.kit.places import REPO

IN_EACH_GROUP = {"A": 18, "B": 15, "C": 5, "D": 10, "E": 7, "F": 8, "G": 11, "H": 5}


def test_all_79_are_there_once() -> None:
    assert collections.Counter(case.id[0] for case in CASES) == IN_EACH_GROUP
    assert len({case.id for case in CASES}) == len(CASES) == 79
    for group, count in IN_EACH_GROUP.items():
        assert [case.id for case in CASES if case.id[0] == group] == [
            f"{group}{number}" for number in range(1, count + 1)
        ]


def test_each_has_tests_or_the_reason_why_not() -> None:
    assert [case.id for case in CASES if not case.tests and not case.not_applicable] == []
    for case in CASES:
        assert not (case.tests and case.not_applicable), case.id
        assert "→" in case.what, case.id
        assert len(case.tests) == len(set(case.tests)), case.id


def test_every_finding_has_its_tests() -> None:
    assert list(FINDINGS) == [f"S{number}" for number in range(1, 28)]
    assert all(tests for _, tests in FINDINGS.values())
    assert set(MUTATED) <= set(FINDINGS)


def named() -> set[str]:
    of_findings = {test for _, tests in FINDINGS.values() for test in tests}
    return of_findings | {test for case in CASES for test in case.tests}


def test_every_test_that_is_named_is_in_its_file() -> None:
    missing = []
    for test in sorted(named()):
        file, _, name = test.partition("::")
        text = (REPO / "tests" / file).read_text()
        first = name.partition("::")[0]
        if not re.search(rf"^(async def|def|class) {first}\b|^{first} = ", text, re.MULTILINE):
            missing.append(test)
    assert missing == []


@pytest.mark.faults
def test_every_test_that_is_named_is_collected() -> None:
    files = sorted({f"tests/{test.partition('::')[0]}" for test in named()})
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "", *files],
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=280,
    )
    found = {line.partition("[")[0] for line in done.stdout.splitlines() if "::" in line}
    assert sorted(f"tests/{test}" for test in named() if f"tests/{test}" not in found) == []
