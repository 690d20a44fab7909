"""Frozen dataclasses to JSON-ready values and back, so that what the controller knows can be kept
in a database and shown to people."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any


def write_plain(value: Any) -> Any:
    """Dicts, lists, texts and numbers; fields that have their default are left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            name: write_plain(found)
            for name, default in _fields(type(value))
            if (found := getattr(value, name)) != default
        }
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


@cache
def _fields(kind: Any) -> tuple[tuple[str, object], ...]:
    """Each field with its default."""
    found = []
    for one in dataclasses.fields(kind):
        default: object = _REQUIRED
        if one.default is not dataclasses.MISSING:
            default = one.default
        elif one.default_factory is not dataclasses.MISSING:
            default = one.default_factory()
        found.append((one.name, default))
    return tuple(found)


_hints = cache(typing.get_type_hints)


def read_plain(kind: Any, value: Any) -> Any:
    """Builds `kind` from what `write_plain` made. Raises ValueError or TypeError for anything else;
    unknown fields are an error, since silence would lose what a later version wrote."""
    if kind is Any or kind is object:
        return value
    if hasattr(kind, "__supertype__"):
        return read_plain(kind.__supertype__, value)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if not isinstance(value, Mapping):
            raise TypeError(f"expected fields of {kind.__name__}, found {value!r}")
        hints = _hints(kind)
        unknown = value.keys() - hints.keys()
        if unknown:
            raise ValueError(f"{kind.__name__} has no {', '.join(sorted(unknown))}")
        return kind(**{name: read_plain(hints[name], item) for name, item in value.items()})
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        inner = [one for one in arguments if one is not type(None)]
        return None if value is None else read_plain(inner[0], value)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return {read_plain(arguments[0], k): read_plain(arguments[1], v) for k, v in value.items()}
    if origin is frozenset:
        return frozenset(read_plain(arguments[0], item) for item in value)
    if origin is tuple and arguments[-1] is Ellipsis:
        return tuple(read_plain(arguments[0], item) for item in value)
    if origin is tuple:
        return tuple(read_plain(a, item) for a, item in zip(arguments, value, strict=True))
    if origin is list:
        return [read_plain(arguments[0], item) for item in value]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if kind is float and isinstance(value, int):
        return float(value)
    if not isinstance(value, kind):
        raise TypeError(f"expected {kind.__name__}, found {value!r}")
    return value
