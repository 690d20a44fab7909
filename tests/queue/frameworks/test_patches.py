"""Changes of a document: what it was made of stays as it is, each can be taken back, and their patch says all of them."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuecontroller.frameworks.patches import ABSENT, Change, at, copied, difference, merged, same
from sluicecommon.reader import ManifestError

NAMES = st.sampled_from("abc")
LEAVES = st.none() | st.booleans() | st.integers(0, 2) | NAMES
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)
DOCUMENTS = st.dictionaries(NAMES, VALUES, max_size=3)
PATHS = st.lists(NAMES | st.integers(0, 2), min_size=1, max_size=4).map(lambda one: ("a", *one))


@given(DOCUMENTS, st.lists(st.tuples(PATHS, VALUES), max_size=4))
def test_what_is_shared_is_never_changed(
    document: dict[str, Any], wanted: list[tuple[tuple[str | int, ...], Any]]
) -> None:
    before, values = deepcopy(document), deepcopy(wanted)
    change = Change(document)
    for path, value in wanted:
        try:
            change.put(path, value)
        except ManifestError:  # something else is in the way: nothing may be half done below it
            break
        assert same(at(change.document, path), value)
    made = deepcopy(change.document)
    assert same(document, before)
    assert same([list(one) for one in wanted], [list(one) for one in values])
    change.take_back(change.undo)
    assert same(document, before)
    assert same(change.document, before), made


@given(DOCUMENTS, DOCUMENTS)
def test_a_difference_makes_one_of_the_other(old: dict[str, Any], new: dict[str, Any]) -> None:
    new = merged({}, new)  # a merge patch cannot write null
    assert same(merged(old, difference(old, new)), new)


def test_what_is_owned_may_be_changed_in_place() -> None:
    document: dict[str, Any] = {"a": {"b": [{"c": 1}]}, "d": {}}
    change = Change(document)
    change.own(("a", "b", 0))["c"] = 2
    assert change.own(("a", "x")) is ABSENT
    assert document == {"a": {"b": [{"c": 1}]}, "d": {}}
    assert change.document == {"a": {"b": [{"c": 2}]}, "d": {}}
    assert change.document["d"] is document["d"]


def test_a_copy_of_what_is_nested_without_end_is_refused() -> None:
    value: Any = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(ManifestError, match="nested too deeply"):
        copied(value)
    while value:  # without recursion, as the garbage collector would
        value = value.pop()
