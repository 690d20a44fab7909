"""Frozen dataclasses to JSON-ready values and back, so that what the controller knows can be kept
in a database and shown to people.

Each type is looked at once and becomes a function: a workload is written with every step of its
way, and 100,000 of them are read at a start.
"""

from __future__ import annotations

import dataclasses
import marshal
import sys
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Any

Converter = Callable[[Any], Any]

_TEXTS_OF_MANY = frozenset(
    {"cluster_queue", "command", "kind", "namespace", "node", "priority_class", "queue_name"}
    | {"message", "reason", "type", "user"}
)
"""Fields that say the same in many rows: those texts are in memory once."""
_shared: set[type] = set()
MOST_SHARED = 4096


def share(*kinds: type) -> None:
    """Values of these types are read into one object where they are equal: of 100,000 workloads
    most ask for one of a few things."""
    _shared.update(kinds)


def write_plain(value: Any) -> Any:
    """Dicts, lists, texts and numbers; fields that have their default are left out."""
    kind = type(value)
    if dataclasses.is_dataclass(kind):
        return _writer_of_fields(kind)(value)
    if isinstance(value, Mapping):
        return {str(key): write_plain(item) for key, item in value.items()}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, frozenset | set):
        return sorted(write_plain(item) for item in value)
    if isinstance(value, tuple | list):
        return [write_plain(item) for item in value]
    return value


_REQUIRED = object()


def _defaults(kind: Any) -> list[tuple[str, object]]:
    """Each field with its default."""
    found = []
    for one in dataclasses.fields(kind):
        default: object = _REQUIRED
        if one.default is not dataclasses.MISSING:
            default = one.default
        elif one.default_factory is not dataclasses.MISSING:
            default = one.default_factory()
        found.append((one.name, default))
    return found


_hints = cache(typing.get_type_hints)


@cache
def _writer_of_fields(kind: type) -> Converter:
    hints = _hints(kind)
    parts = [(name, default, _writer(hints[name])) for name, default in _defaults(kind)]
    names = [name for name, _, _ in parts]
    every: Converter = attrgetter(*names)
    read_all: Converter = every if len(names) > 1 else lambda value: (every(value),)

    def write(value: Any) -> dict[str, Any]:
        out = {}
        for (name, default, turn), found in zip(parts, read_all(value), strict=True):
            if found is not default and found != default:
                out[name] = found if turn is None else turn(found)
        return out

    return write


def _writer(kind: Any) -> Converter | None:
    """None: it is plain as it is."""
    if hasattr(kind, "__supertype__"):
        return _writer(kind.__supertype__)
    if kind in (str, int, float, bool, type(None)):
        return None
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _writer_of_fields(kind)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        turns = {_writer(one) for one in arguments if one is not type(None)}
        if turns == {None}:
            return None
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        item = _writer(arguments[0])
        return list if item is None else lambda value: [item(one) for one in value]
    is_mapping = isinstance(origin, type) and issubclass(origin, Mapping)
    if is_mapping and {_writer(one) for one in arguments} == {None}:
        return dict
    return write_plain


def read_plain(kind: Any, value: Any) -> Any:
    """Builds `kind` from what `write_plain` made. Raises ValueError or TypeError for anything else;
    unknown fields are an error, since silence would lose what a later version wrote."""
    return _reader(kind)(value)


def _as_it_is(value: Any) -> Any:
    return value


@cache
def _reader(kind: Any) -> Converter:
    if kind is Any or kind is object:
        return _as_it_is
    if hasattr(kind, "__supertype__"):
        return _reader(kind.__supertype__)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _reader_of_fields(kind)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        inner = _reader(next(one for one in arguments if one is not type(None)))
        return lambda value: None if value is None else inner(value)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        key, item = map(_reader, arguments)

        def read(value: Any) -> Any:
            return {key(k): item(v) for k, v in value.items()}

        return _sharing(read) if arguments[1] in _shared else read
    if origin in (frozenset, list):
        item = _reader(arguments[0])
        make: Any = origin
        return lambda value: make([item(one) for one in value])
    if origin is tuple and arguments[-1] is Ellipsis:
        item = _reader(arguments[0])
        return lambda value: tuple([item(one) for one in value])
    if origin is tuple:
        turns = [_reader(one) for one in arguments]
        return lambda value: tuple(turn(one) for turn, one in zip(turns, value, strict=True))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _reader_of_named(kind)
    return _reader_of_one(kind)


def _reader_of_named(kind: Any) -> Converter:
    """A NamedTuple, which is written as the tuple that it is."""

    def read(value: Any) -> Any:
        if not isinstance(value, list | tuple) or len(value) != len(kind._fields):
            raise TypeError(f"expected {len(kind._fields)} values of {kind.__name__}")
        turns = [_reader(one) for one in _hints(kind).values()]
        return kind(*(turn(one) for turn, one in zip(turns, value, strict=True)))

    return read


def _reader_of_one(kind: Any) -> Converter:
    def read(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        if kind is float and isinstance(value, int):
            return float(value)
        raise TypeError(f"expected {kind.__name__}, found {value!r}")

    return read


def _text(value: Any) -> Any:
    if not isinstance(value, str):
        raise TypeError(f"expected str, found {value!r}")
    return sys.intern(value)


def _sharing(read: Converter) -> Converter:
    known: dict[bytes, Any] = {}

    def read_once(value: Any) -> Any:
        key = marshal.dumps(value)
        found = known.get(key)
        if found is None:
            if len(known) >= MOST_SHARED:
                known.clear()
            found = known[key] = read(value)
        return found

    return read_once


def _reader_of_fields(kind: Any) -> Converter:
    turns: dict[str, Converter] = {}  # filled at the first use: a type may name itself

    def read(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise TypeError(f"expected fields of {kind.__name__}, found {value!r}")
        if not turns:
            for name, hint in _hints(kind).items():
                is_text = hint is str and name in _TEXTS_OF_MANY
                turns[name] = _text if is_text else _reader(hint)
        try:
            given = {name: turns[name](item) for name, item in value.items()}
        except KeyError:
            unknown = value.keys() - turns.keys()
            if not unknown:
                raise
            names = ", ".join(sorted(map(str, unknown)))
            raise ValueError(f"{kind.__name__} has no {names}") from None
        return kind(**given)

    return _sharing(read) if kind in _shared else read
