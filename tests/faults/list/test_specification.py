"""The page of promises: each line has a number and names tests that exist."""

from __future__ import annotations

import ast
import re

from tests.kit.places import REPO

PAGE = REPO / "SPECIFICATION.md"
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def rows() -> list[list[str]]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[0] != "Promise" and not set(row[0]) <= {"-"}]


def functions_of(path: str) -> set[str]:
    tree = ast.parse((REPO / path).read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def test_every_promise_has_a_number_and_a_test() -> None:
    assert len(rows()) > 15
    for row in rows():
        assert len(row) == 3, row
        assert row[1], row
        assert NAMED.findall(row[2]), row


def test_every_test_that_is_named_is_there() -> None:
    for path, name in NAMED.findall(PAGE.read_text()):
        assert (REPO / path).is_file(), path
        assert name.startswith("test_")
        assert name in functions_of(path), f"{path}::{name}"
