"""A plugin of pytest for `make test-faults`: where a test has a short form for every run and a long one for that, the long
one is enough. What has passed in an earlier suite of the same CI run is not run again."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

EARLIER = "SLUICE_FAULTS_EARLIER"
"""Variable with the directory of the earlier suite's records, see tests/ci/recorder.py; workers inherit it."""


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    long = {function_of(item) for item in items if is_long(item)}
    known = passed_earlier()
    left_out = [
        item
        for item in items
        if item.nodeid in known or (function_of(item) in long and not is_long(item))
    ]
    config.hook.pytest_deselected(items=left_out)
    left = set(map(id, left_out))
    items[:] = [item for item in items if id(item) not in left]


@cache
def passed_earlier() -> frozenset[str]:
    """Tests that passed in the earlier suite; none without one. Whatever else became of a test there, it is run."""
    directory = os.environ.get(EARLIER)
    if not directory:
        return frozenset()
    found: dict[str, str] = {}
    for path in sorted(Path(directory).glob("*.json")):
        found |= json.loads(path.read_text())["outcomes"]
    return frozenset(test for test, outcome in found.items() if outcome == "passed")


def function_of(item: Any) -> str:
    name: str = item.nodeid.partition("[")[0]
    return name


def is_long(item: Any) -> bool:
    """True if the test's parameters carry the `faults` mark."""
    spec = getattr(item, "callspec", None)
    return spec is not None and any(mark.name == "faults" for mark in spec.marks)
