"""Lanes begin in an order in which the long ones are not last."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests import lanes


def item(nodeid: str, *marks: str) -> Any:
    return SimpleNamespace(
        nodeid=nodeid, get_closest_marker=lambda name: name if name in marks else None
    )


def test_a_file_with_a_long_form_begins_before_one_with_many_short_tests() -> None:
    many = [item(f"tests/faults/test_bypass.py::test_{n}") for n in range(lanes.LONG - 1)]
    long = item("tests/faults/test_disks.py::test_long", "faults")
    items = [*many, long]
    lanes.arrange(items)
    assert items == [long, *many]
    short = item("tests/faults/test_disks.py::test_long")
    items = [short, *many]
    lanes.arrange(items)
    assert items == [*many, short]
