"""Condition types, reasons and event reasons are written in one file only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import queuecontroller
from queuecontroller.scheduler.model import reasons

PRODUCT = Path(queuecontroller.__file__).parent


def constants(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Line, name and text of each string constant of a module or of a class in it."""
    bodies = [tree.body, *(one.body for one in ast.walk(tree) if isinstance(one, ast.ClassDef))]
    for one in (one for body in bodies for one in body):
        if isinstance(one, ast.Assign):
            targets = one.targets
        elif isinstance(one, ast.AnnAssign):
            targets = [one.target]
        else:
            continue
        value = one.value
        if not (isinstance(value, ast.Constant) and isinstance(value.value, str)):
            continue
        for target in targets:
            if isinstance(target, ast.Name) and target.id.isupper():
                yield one.lineno, target.id, value.value


def test_no_other_module_defines_a_reason() -> None:
    mine = Path(reasons.__file__)
    texts = {text for _, _, text in constants(ast.parse(mine.read_text(encoding="utf-8")))}
    assert {"QuotaReserved", "ExceedsMaxQuota", "CreatedWorkload"} <= texts
    found = [
        f"{file.relative_to(PRODUCT)}:{line}: {name} = {text!r}"
        for file in sorted(PRODUCT.rglob("*.py"))
        if file != mine
        for line, name, text in constants(ast.parse(file.read_text(encoding="utf-8")))
        if text in texts
    ]
    assert not found, f"import these from {mine.relative_to(PRODUCT)} instead: {found}"


def test_no_reason_is_written_where_it_is_set() -> None:
    """A condition or an event gets its reason by name."""
    written = [
        f"{file.relative_to(PRODUCT)}:{call.lineno}"
        for file in sorted(PRODUCT.rglob("*.py"))
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call)
        for one in call.keywords
        if one.arg == "reason" and isinstance(one.value, ast.Constant)
        if re.fullmatch("([A-Z][a-z]+)+", str(one.value.value))
    ]
    assert not written


def test_each_reason_has_one_line_that_says_where_it_is_used() -> None:
    body = ast.parse(Path(reasons.__file__).read_text(encoding="utf-8")).body
    bare = [
        one.target.id
        for one, below in zip(body, [*body[1:], None], strict=True)
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
        if not (isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant))
    ]
    assert not bare, bare
