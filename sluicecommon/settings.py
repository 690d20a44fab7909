"""Fields of settings with their valid values; every mistake is reported with its key."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import Field, field, fields
from typing import Any


class ConfigError(Exception):
    """All mistakes of a configuration: one line for each, with the name of the key."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def flag(default: bool, *, live: bool = False) -> Any:
    return field(default=default, metadata={"live": live})


def text(default: str, *, live: bool = False) -> Any:
    return field(default=default, metadata={"live": live})


def number(default: float, low: float, high: float, *, live: bool = False) -> Any:
    return field(default=default, metadata={"low": low, "high": high, "live": live})


def choice(default: str, *allowed: str, live: bool = False) -> Any:
    return field(default=default, metadata={"allowed": allowed, "live": live})


def choices(default: tuple[str, ...], *allowed: str, live: bool = False) -> Any:
    """A list field of the allowed values, each at most once."""
    return field(default=default, metadata={"each": allowed, "live": live})


def absolute_path(default: str = "", *words: str, live: bool = False) -> Any:
    """A field with an absolute path or one of `words`; an empty text selects the default."""
    return field(default=default, metadata={"absolute": True, "words": words, "live": live})


def absolute_paths() -> Any:
    return field(default=(), metadata={"absolute": True})


_TYPE_NAMES: Mapping[str, str] = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "tuple[str, ...]": "a list of texts",
    "tuple[int, ...]": "a list of whole numbers",
}


def known_fields(kind: type[Any]) -> dict[str, Field[Any]]:
    return {one.name: one for one in fields(kind)}


def live_keys(kind: type[Any]) -> frozenset[str]:
    """Keys that can change in a running daemon."""
    return frozenset(one.name for one in fields(kind) if one.metadata.get("live"))


def check_table(
    kind: type[Any], section: str, table: Mapping[str, object], problems: list[str]
) -> dict[str, Any]:
    """The valid values of a table, converted to the fields' types; mistakes go to `problems`."""
    known = known_fields(kind)
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            problems.append(f"{section}.{key}: no such key{nearest(key, known)}")
            continue
        problem = check_value(known[key], value)
        if problem:
            problems.append(f"{section}.{key}: {problem}")
        else:
            values[key] = as_field(known[key], value)
    return values


def as_field(known: Field[Any], value: Any) -> Any:
    """A checked value converted to the field's type."""
    if known.type == "float":
        return float(value)
    return tuple(value) if isinstance(value, list) else value


def check_value(known: Field[Any], value: object) -> str | None:
    """The mistake of a value; None if it is valid."""
    expected = str(known.type)
    if not _is_a(value, expected):
        return f"must be {_TYPE_NAMES[expected]}, got {value!r}"
    meta = known.metadata
    if isinstance(value, list | tuple):
        return _check_list(meta, list(value))
    if "low" in meta and isinstance(value, int | float):
        if not math.isfinite(value) or not meta["low"] <= value <= meta["high"]:
            return f"must be between {meta['low']:g} and {meta['high']:g}, got {value!r}"
    elif "allowed" in meta and value not in meta["allowed"]:
        return f"must be one of {', '.join(meta['allowed'])}, got {value!r}"
    elif isinstance(value, str):
        return _check_text(meta, value)
    return None


def _is_a(value: object, expected: str) -> bool:
    if expected.startswith("tuple["):
        item = expected.removeprefix("tuple[").removesuffix(", ...]")
        return isinstance(value, list | tuple) and all(_is_a(one, item) for one in value)
    if isinstance(value, bool):
        return expected == "bool"
    return {
        "int": isinstance(value, int),
        "float": isinstance(value, int | float),
        "str": isinstance(value, str),
        "bool": False,
    }[expected]


def _check_list(meta: Mapping[str, Any], value: list[Any]) -> str | None:
    for one in value:
        if "each" in meta and one not in meta["each"]:
            return f"may hold {', '.join(meta['each'])}, not {one!r}"
        if isinstance(one, str):
            problem = _check_text(meta, one)
            if problem:
                return problem
        elif one < 0:
            return f"may hold numbers from 0, not {one!r}"
    if len(set(value)) != len(value):
        return f"has a duplicate: {value!r}"
    return None


def _check_text(meta: Mapping[str, Any], value: str) -> str | None:
    if "\0" in value:
        return "must not contain NUL"
    words = ("", *meta.get("words", ()))
    if meta.get("absolute") and not value.startswith("/") and value not in words:
        return f"must be an absolute path, got {value!r}"
    return None


def nearest(name: str, known: Iterable[str]) -> str:
    """End of an error text about an unknown name: the most similar known name, or all of them."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f" (did you mean {close[0]!r}?)" if close else f"; known: {', '.join(names)}"
