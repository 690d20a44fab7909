"""Tests and packaging read nothing beside the checkout, so that a clone runs as many tests as any other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.kit.places import REPO

TEXTS = {".py", ".sh", ".toml", ".txt", ".yaml", ".c", ".h", ".js"}
PARENTS = re.compile(r"__file__\)[.a-z()]*?\.parents\[(\d+)\]")
CHAIN = re.compile(r"__file__\)(?:\.resolve\(\))?((?:\.parent\b(?!s))+)")
BESIDE = re.compile(
    r"""/ *["']shared["']|\.\./shared\b|\b(?:REPO|ROOT)(?:\.parent\b|\s*/\s*["']\.\.)"""
)
"""The ways in which a folder beside the checkout has been named."""


def files() -> list[Path]:
    folders = (REPO / "tests", REPO / "packaging")
    found = [one for folder in folders for one in folder.rglob("*") if one.suffix in TEXTS]
    return sorted(one for one in (*found, REPO / "Makefile", *REPO.glob(".ci/*")) if one.is_file())


def outside(path: Path, text: str) -> list[str]:
    """Paths outside of the checkout that a text at `path` names."""
    folders = len(path.relative_to(REPO).parts)  # parents[folders - 1] is the checkout itself
    above = [one[0] for one in PARENTS.finditer(text) if int(one[1]) >= folders]
    above += [one[0] for one in CHAIN.finditer(text) if one[1].count(".parent") > folders]
    return above + BESIDE.findall(text)


def test_nothing_outside_of_the_checkout_is_named() -> None:
    read = {path: path.read_text(encoding="utf-8", errors="replace") for path in files()}
    assert len(read) > 500, "the folders have moved"
    del read[Path(__file__).resolve()]
    named = {str(path.relative_to(REPO)): outside(path, text) for path, text in read.items()}
    assert {path: found for path, found in named.items() if found} == {}


@pytest.mark.parametrize(
    "text",
    [
        "Path(__file__).resolve().parents[2] / 'x'",
        "Path(__file__).parents[2]",
        "Path(__file__).resolve().parent.parent.parent",
        'FOLDER = REPO.parent / "x"',
        'ROOT / ".." / "x"',
        'here / "shared" / "conformance"',
        "cat ../shared/x",
    ],
)
def test_a_name_outside_of_the_checkout_is_seen(text: str) -> None:
    assert outside(REPO / "tests" / "test_it.py", text)


@pytest.mark.parametrize(
    "text", ["Path(__file__).resolve().parents[1]", "Path(__file__).parent.parent", "build/shared"]
)
def test_a_name_inside_of_it_is_not(text: str) -> None:
    assert not outside(REPO / "tests" / "test_it.py", text)
