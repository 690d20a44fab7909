#!/usr/bin/env python3
"""Refuses docstrings that begin in the middle of a sentence: with Of, By, What, Who, Whose, Whether …

Such a docstring answers a question that is not on the page, and cannot be found by the noun it is
about. Say what the thing is or does: "Reservation of a preemptor; usable once its victims are gone."
The string under an attribute counts as its docstring. Arguments: files or folders; default: all of
the product's and the tests' Python.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
FOLDERS = ("nodeagent", "queuecontroller", "sluicecommon", "simgpu", "tests", "packaging")
FRAGMENT = re.compile(r"\s*(Of|By|What|Who|Whom|Whose|Whether)\b(?! follows|-if)")


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Each docstring with its line: of modules, classes, functions, and under attributes."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        has_own = isinstance(
            node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        )
        for place, one in enumerate(body):
            if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)):
                continue
            if not isinstance(one.value.value, str):
                continue
            above = body[place - 1] if place else None
            if (place == 0 and has_own) or isinstance(above, ast.Assign | ast.AnnAssign):
                yield one.lineno, one.value.value


def fragments(path: Path) -> Iterator[str]:
    """`file:line: first words` of each docstring in a file that begins with a fragment."""
    for line, text in docstrings(ast.parse(path.read_text(encoding="utf-8"))):
        if FRAGMENT.match(text):
            yield f"{path}:{line}: {text.strip().splitlines()[0][:80]}"


def main(arguments: list[str]) -> int:
    given = [Path(one) for one in arguments] or [REPO / one for one in FOLDERS]
    files = [
        file
        for one in given
        for file in ([one] if one.is_file() else sorted(one.rglob("*.py")))
        if "__pycache__" not in file.parts
    ]
    found = [line for file in files for line in fragments(file)]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
