"""Dataclasses as JSON: one reader for rows with every field and for rows without defaults."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, NewType

import pytest

from sluicecommon.plain import read_plain, write_all_fields, write_plain

Count = NewType("Count", int)


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Pair(NamedTuple):
    left: str
    right: Count


NO_PAIR = Pair("", Count(0))


@dataclass(frozen=True)
class Leaf:
    count: Count = Count(0)
    ratio: float = 0.0


@dataclass(frozen=True)
class Row:
    name: str
    colour: Colour = Colour.RED
    leaf: Leaf | None = None
    leaves: tuple[Leaf, ...] = ()
    pair: Pair = NO_PAIR
    names: frozenset[str] = frozenset()
    amounts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Nothing:
    pass


FULL = Row(
    "a",
    Colour.BLUE,
    Leaf(Count(2), 0.5),
    (Leaf(Count(1)), Leaf()),
    Pair("x", Count(3)),
    frozenset({"q", "p"}),
    {"k": 1},
)
EVERY_FIELD = {
    "name": "a",
    "colour": "blue",
    "leaf": {"count": 2, "ratio": 0.5},
    "leaves": [{"count": 1, "ratio": 0.0}, {"count": 0, "ratio": 0.0}],
    "pair": ["x", 3],
    "names": ["p", "q"],
    "amounts": {"k": 1},
}


def test_the_complete_form_has_every_field_in_order() -> None:
    assert json.dumps(write_all_fields(FULL)) == json.dumps(EVERY_FIELD)
    assert write_all_fields(Row("a"))["leaf"] is None
    assert write_all_fields(Nothing()) == {}


def test_the_short_form_leaves_out_what_has_its_default() -> None:
    assert write_plain(Row("a")) == {"name": "a"}
    assert write_plain(FULL)["leaves"] == [{"count": 1}, {}]


@pytest.mark.parametrize("row", [FULL, Row("a")], ids=["full", "all default"])
def test_both_forms_are_read_as_the_same_row(row: Row) -> None:
    for write in (write_plain, write_all_fields):
        assert read_plain(Row, json.loads(json.dumps(write(row)))) == row


@pytest.mark.parametrize(
    "plain",
    [{"name": "a", "size": 1}, {"name": 1}, {}, [], {"name": "a", "colour": "green"}],
    ids=["an unknown field", "another type", "a missing field", "no mapping", "no such value"],
)
def test_another_form_is_refused(plain: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        read_plain(Row, plain)


def test_an_unknown_field_is_named() -> None:
    with pytest.raises(ValueError, match=r"^Row has no age, size$"):
        read_plain(Row, {"name": "a", "size": 1, "age": 2})
