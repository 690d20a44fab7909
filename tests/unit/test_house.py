"""How the repository is laid out: what a reader needs to find a thing, held by a check."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

from tests.kit.places import REPO


def test_no_module_imports_from_a_module_of_tests() -> None:
    found = {
        f"{path.relative_to(REPO)}: {module}"
        for top in ("tests", "simgpu")
        for path in sorted((REPO / top).rglob("*.py"))
        for module in imported(path)
        if any(part.startswith("test_") for part in module.split("."))
    }
    assert not found, "a helper of several modules has a module of its own, or a place in tests/kit"


def imported(path: Path) -> Iterator[str]:
    """Names that each import may refer to: the module, and the module with each of the names."""
    text = path.read_text()
    if not re.search(r"import[^#]*\btest_|\btest_\w+ import\b", text):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            yield module
            if not module or module.startswith(("tests", "simgpu")):
                yield from (f"{module}.{name.name}" for name in node.names)


MAX_FILES = 16
"""Side by side in one folder: what a reader takes in at a glance."""
NOT_READ = ("corpus", "golden")
"""Folders of inputs and outputs: of any number."""
MAX_LINES = 500
REASON = re.compile(r"\blong\b|\blonger than\b", re.IGNORECASE)
"""Word in the first comment of a long file that gives the reason for its length."""
SOURCES = (".py", ".c", ".h", ".go", ".sh")
OURS = ("docs", "interpose", "nativecommon", "nodeagent", "packaging", "proto", "queuecontroller", "simgpu", "sluicecommon", "systemd", "tests")  # fmt: skip


def folders() -> Iterator[tuple[Path, list[Path]]]:
    """Each of ours with its files, what tools leave there apart: there may be no git to ask."""
    for top in OURS:
        for where, below, names in os.walk(REPO / top):
            below[:] = [one for one in below if not one.startswith((".", "__pycache__"))]
            yield Path(where), [Path(where, name) for name in names if not name.startswith(".")]


def test_no_folder_has_more_files_than_a_reader_takes_in() -> None:
    found = {
        str(where.relative_to(REPO)): len(files)
        for where, files in folders()
        if len(files) > MAX_FILES and set(NOT_READ).isdisjoint(where.parts)
    }
    assert found == {}


def test_a_long_file_says_why_in_its_first_comment() -> None:
    found = {
        str(path.relative_to(REPO)): len(lines)
        for _, files in folders()
        for path in files
        if path.suffix in SOURCES
        and len(lines := path.read_text().splitlines()) > MAX_LINES
        and not REASON.search(first_comment("\n".join(lines)))
    }
    assert found == {}


def first_comment(text: str) -> str:
    """First comment of a file: a module's docstring, or the comment lines before the first line of
    code."""
    if text.startswith('"""'):
        return text.split('"""', 2)[1]
    kept = []
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith(("/*", "*", "//", "#")):
            break
        kept.append(line)
    return "\n".join(kept)
