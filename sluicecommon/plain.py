"""Converts frozen dataclasses to JSON-ready values and back: database rows, messages between
processes, dumps.

Each type is inspected once and compiled to a function: the queue controller writes a workload at
every step and reads 100,000 of them when it starts. The queue's rows leave out fields that have
their default (`write_plain`). The node's rows have every field (`write_all_fields`), because people
read them and an earlier version of the node may have to. `read_plain` reads both.
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
"""Names of text fields that repeat in many rows; their texts are interned."""
_shared: set[type] = set()
MAX_SHARED = 4096
"""Distinct values of one shared type that are kept; the cache is cleared when it is full."""


def share(*kinds: type) -> None:
    """Read equal values of these types into one object.

    Most of 100,000 workloads request one of a few things, so this saves most of their memory.
    """
    _shared.update(kinds)


def write_plain(value: Any) -> Any:
    """Convert to dicts, lists, texts and numbers; a field that has its default is left out."""
    return _write(value, False)


def write_all_fields(value: Any) -> Any:
    """Convert to dicts, lists, texts and numbers, with every field of every dataclass."""
    return _write(value, True)


def _write(value: Any, complete: bool) -> Any:
    kind = type(value)
    if dataclasses.is_dataclass(kind):
        return _writer_of_fields(kind, complete)(value)
    if isinstance(value, Mapping):
        return {str(key): _write(item, complete) for key, item in value.items()}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, frozenset | set):
        return sorted(_write(item, complete) for item in value)
    if isinstance(value, tuple | list):
        return [_write(item, complete) for item in value]
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
def _writer_of_fields(kind: type, complete: bool) -> Converter:
    hints = _hints(kind)
    parts = [(name, default, _writer(hints[name], complete)) for name, default in _defaults(kind)]
    names = [name for name, _, _ in parts]
    every: Converter = attrgetter(*names) if names else lambda _: ()
    read_all: Converter = every if len(names) != 1 else lambda value: (every(value),)

    def write(value: Any) -> dict[str, Any]:
        out = {}
        for (name, default, convert), found in zip(parts, read_all(value), strict=True):
            if complete or (found is not default and found != default):
                out[name] = found if convert is None else convert(found)
        return out

    return write


def _writer(kind: Any, complete: bool) -> Converter | None:
    """The converter of a type's values; None if they are plain already."""
    if hasattr(kind, "__supertype__"):
        return _writer(kind.__supertype__, complete)
    if kind in (str, int, float, bool, type(None)):
        return None
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _writer_of_fields(kind, complete)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        converters = {_writer(one, complete) for one in arguments if one is not type(None)}
        if converters == {None}:
            return None
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        item = _writer(arguments[0], complete)
        return list if item is None else lambda value: [item(one) for one in value]
    is_mapping = isinstance(origin, type) and issubclass(origin, Mapping)
    if is_mapping and {_writer(one, complete) for one in arguments} == {None}:
        return dict
    return write_all_fields if complete else write_plain


def read_plain(kind: Any, value: Any) -> Any:
    """Build `kind` from what either writer made; an absent field has its default.

    Raises ValueError or TypeError for anything else. An unknown field is an error, because ignoring
    it would lose what a later version wrote.
    """
    return _reader(kind)(value)


def _unchanged(value: Any) -> Any:
    return value


@cache
def _reader(kind: Any) -> Converter:
    if kind is Any or kind is object:
        return _unchanged
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
        converters = [_reader(one) for one in arguments]
        return lambda value: tuple(
            convert(one) for convert, one in zip(converters, value, strict=True)
        )
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _reader_of_named(kind)
    return _reader_of_one(kind)


def _reader_of_named(kind: Any) -> Converter:
    """A NamedTuple is written as a list, like any other tuple."""

    def read(value: Any) -> Any:
        if not isinstance(value, list | tuple) or len(value) != len(kind._fields):
            raise TypeError(f"expected {len(kind._fields)} values of {kind.__name__}")
        converters = [_reader(one) for one in _hints(kind).values()]
        return kind(*(convert(one) for convert, one in zip(converters, value, strict=True)))

    return read


def _reader_of_one(kind: Any) -> Converter:
    def read(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        if kind is float and isinstance(value, int):
            return float(value)
        raise TypeError(f"expected {kind.__name__}, got {value!r}")

    return read


def _text(value: Any) -> Any:
    if not isinstance(value, str):
        raise TypeError(f"expected str, got {value!r}")
    return sys.intern(value)


def _sharing(read: Converter) -> Converter:
    known: dict[bytes, Any] = {}

    def read_once(value: Any) -> Any:
        key = marshal.dumps(value)
        found = known.get(key)
        if found is None:
            if len(known) >= MAX_SHARED:
                known.clear()
            found = known[key] = read(value)
        return found

    return read_once


def _reader_of_fields(kind: Any) -> Converter:
    converters: dict[str, Converter] = {}  # Filled at the first use: a type may refer to itself.

    def read(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise TypeError(f"expected fields of {kind.__name__}, got {value!r}")
        if not converters:
            for name, hint in _hints(kind).items():
                is_text = hint is str and name in _TEXTS_OF_MANY
                converters[name] = _text if is_text else _reader(hint)
        try:
            given = {name: converters[name](item) for name, item in value.items()}
        except KeyError:
            unknown = value.keys() - converters.keys()
            if not unknown:
                raise
            names = ", ".join(sorted(map(str, unknown)))
            raise ValueError(f"{kind.__name__} has no {names}") from None
        return kind(**given)

    return _sharing(read) if kind in _shared else read
