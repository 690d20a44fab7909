"""The table of tried cases names tests that exist, and the cases that the field's reports are known by."""

from __future__ import annotations

import ast
import functools
import tomllib
from typing import Any

import pytest

from tests.conformance.kueue.cases import read
from tests.integration.odd.habits import HABITS
from tests.kit.places import REPO

TABLE = REPO / "tests" / "integration" / "odd" / "cases.toml"
AREAS = {
    *("interposer", "node daemon", "device-plugin", "metrics", "web/cli", "packaging"),
    *("webhook/extender", "queue semantics", "jobs", "DRA", "security"),
}
CASES: list[dict[str, Any]] = tomllib.loads(TABLE.read_text())["case"]


@functools.cache
def functions_in(path: str) -> frozenset[str]:
    tree = ast.parse((REPO / path).read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds))


@functools.cache
def cases_in(path: str) -> frozenset[str]:
    """Names of the cases of Kueue's semantics in a file, without the values of `each`."""
    cases = read([REPO / path])
    return frozenset(one.name.partition(" [")[0] for one in cases.runs) | frozenset(
        one.name for one in cases.verdicts
    )


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_a_case_names_a_test_that_exists(case: dict[str, Any]) -> None:
    assert set(case) == {"id", "area", "what", "tried", "verdict", "test"}
    assert case["area"] in AREAS
    assert case["verdict"] in {"right", "mended", "differs"}
    path, _, name = case["test"].partition("::")
    if path.endswith(".yaml"):
        assert name in cases_in(path), case["test"]
        return
    function, _, parameter = name.partition("[")
    assert function in functions_in(path), case["test"]
    if parameter:
        assert f"\ndef {parameter.rstrip(']')}(" in HABITS, "a habit that the test runs"


def test_each_case_is_there_once_and_every_area_has_some() -> None:
    names = [case["id"] for case in CASES]
    assert len(names) == len(set(names))
    assert {case["area"] for case in CASES} == AREAS
    assert len(names) >= 150
