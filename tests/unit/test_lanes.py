"""Lanes begin in an order in which the long ones are not last."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests import lanes


def item(nodeid: str, **marks: tuple[object, ...]) -> Any:
    """A test with marks and their arguments."""
    found = {name: SimpleNamespace(args=args) for name, args in marks.items()}
    return SimpleNamespace(nodeid=nodeid, get_closest_marker=found.get)


def test_a_file_with_a_long_form_begins_before_one_with_many_short_tests() -> None:
    many = [item(f"tests/faults/test_bypass.py::test_{n}") for n in range(lanes.LONG - 1)]
    long = item("tests/faults/test_disks.py::test_long", faults=())
    items = [*many, long]
    lanes.arrange(items)
    assert items == [long, *many]
    short = item("tests/faults/test_disks.py::test_long")
    items = [short, *many]
    lanes.arrange(items)
    assert items == [*many, short]


def test_a_file_with_a_longer_timeout_begins_before_one_with_more_tests() -> None:
    many = [item(f"tests/faults/test_bypass.py::test_{n}") for n in range(9)]
    for seconds, first in ((600, True), (540, False), (60.0, False)):
        long = item("tests/faults/test_disks.py::test_long", timeout=(seconds,))
        items = [*many, long]
        lanes.arrange(items)
        assert (items[0] is long) is first
