"""Frozen values as JSON-ready dicts and lists, and back: ledger rows, lines to children, dumps."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any


def write_plain(value: Any) -> Any:
    """A dataclass as JSON-ready dicts and lists."""
    return _plain(value)


def read_plain(kind: Any, value: Any) -> Any:
    """Builds `kind` (a dataclass, a NewType, a union with None, a tuple …) from plain values."""
    if hasattr(kind, "__supertype__"):
        return read_plain(kind.__supertype__, value)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        unknown = set(value) - set(hints)
        if unknown:
            raise ValueError(f"{kind.__name__} has no {', '.join(sorted(unknown))}")
        return kind(**{name: read_plain(hints[name], item) for name, item in value.items()})
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return (
            None
            if value is None
            else read_plain(next(a for a in args if a is not type(None)), value)
        )
    if origin is frozenset:
        return frozenset(read_plain(args[0], item) for item in value)
    if origin is tuple and args[-1] is Ellipsis:
        return tuple(read_plain(args[0], item) for item in value)
    if origin is tuple:
        return tuple(read_plain(a, item) for a, item in zip(args, value, strict=True))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        hints = typing.get_type_hints(kind)
        pairs = zip(kind._fields, value, strict=True)
        return kind(*(read_plain(hints[name], item) for name, item in pairs))
    if kind is float and isinstance(value, int):
        return float(value)
    if not isinstance(value, kind):
        raise TypeError(f"expected {kind.__name__}, got {value!r}")
    return value


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, frozenset):
        return sorted(_plain(item) for item in value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Enum):
        return value.value
    return value
