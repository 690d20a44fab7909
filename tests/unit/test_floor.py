"""The oldest versions that are tested are the oldest that pyproject.toml allows; and where they are
what runs, they are what is imported."""

from __future__ import annotations

import sys
import tomllib
from importlib.metadata import version

import pytest

from tests.kit.places import REPO

PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
LINES = (REPO / "packaging" / "development" / "floor.txt").read_text().splitlines()
PINNED = dict(line.split("==") for line in LINES if line and not line.startswith("#"))
BROUGHT = "nvidia-ml-py"
"""Packages bring it, so it is tested as they bring it; what is older lacks some figures."""
IN_FLOOR = ".venv-floor" in sys.executable


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def test_every_dependency_has_its_floor() -> None:
    allowed = dict(one.split(">=") for one in PROJECT["dependencies"])
    assert allowed.keys() == PINNED.keys()
    for name, lowest in allowed.items():
        if name != BROUGHT:
            # 1.51 allows 1.51.0 by its letter; what is tested is the distribution's patch of it.
            assert numbers(PINNED[name])[: len(numbers(lowest))] == numbers(lowest), name


def test_the_binding_of_nvml_is_the_one_the_packages_bring() -> None:
    (line,) = (
        line
        for line in (REPO / "packaging" / "release" / "vendor.txt").read_text().splitlines()
        if "==" in line
    )
    assert line.split()[0] == f"{BROUGHT}=={PINNED[BROUGHT]}"


@pytest.mark.skipif(not IN_FLOOR, reason="only with the oldest versions (make test-floor)")
@pytest.mark.parametrize("name", PINNED)
def test_the_oldest_are_what_is_imported(name: str) -> None:
    assert numbers(version(name)) == numbers(PINNED[name])
