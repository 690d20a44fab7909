"""A reader of one mapping of a manifest, with its path and the keys that were read.

Every problem names the field by its full path; all problems of a file are reported together. A key
that was never read is an unknown field, reported with the nearest known key.
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import StrEnum
from typing import Final, TypeVar

from sluicecommon.kubernetes.quantity import QuantityError, parse_amount

E = TypeVar("E", bound=StrEnum)
T = TypeVar("T")

LEAST: Final = -(1 << 31)
MOST: Final = (1 << 31) - 1


_REPR: Final = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 80


def shown(value: object) -> str:
    """A value for an error text, shortened if it is large."""
    try:
        return _REPR.repr(value)
    except ValueError:  # Python refuses to format numbers of 4,300 digits and more.
        return "a number of thousands of digits"


def _plain(value: object) -> str | None:
    """A scalar without quotes as the string that Kubernetes expects; None for lists and
    mappings."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and not LEAST <= value <= MOST:
        return None
    return str(value) if isinstance(value, str | int | float | date) else None


MAX_LOOKED_UP: Final = 64
"""Unknown fields of one mapping for which a similar name is searched."""
LONGEST_LOOKED_UP: Final = 64


@dataclass(frozen=True, slots=True)
class Problem:
    field: str
    message: str
    fix: str = ""
    """How to correct it, if the message does not say so."""

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


class ManifestError(ValueError):
    """All problems of one object."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(dict.fromkeys(problems))  # A field may be read more than once.
        super().__init__("; ".join(map(str, self.problems)))


_DEFECTS: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""Errors that a reader raises for an unforeseen document."""


def read_or_refused(read: Callable[[], T]) -> T:
    """Read a stored document so that a defect in a reader cannot end every process that reads it
    after a restart. Raises ManifestError; a defect is its cause."""
    try:
        return read()
    except ManifestError:
        raise
    except _DEFECTS as error:
        what = f"cannot be read because of an internal error: {type(error).__name__}: {error}"
        raise ManifestError(
            [Problem("", what[:300], "report it; everything else continues")]
        ) from error


class Reader:
    """Reads one mapping. Wrong types become problems and the given default."""

    def __init__(
        self, value: object, path: str = "", problems: list[Problem] | None = None
    ) -> None:
        self.path = path
        self.problems: list[Problem] = [] if problems is None else problems
        self._read_keys: set[str] = set()
        self._value: Mapping[str, object] = {}
        self._lost = False
        """True if the value is not a mapping, which is reported once instead of as missing
        fields."""
        # The first check is twenty times as fast.
        if type(value) is dict or isinstance(value, Mapping):
            self._value = value
        elif value is not None:
            self._lost = True
            self.problem("", f"expected fields, got {shown(value)}", "write NAME: VALUE pairs")

    def at(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path and key else self.path or key

    def problem(self, key: str, message: str, fix: str = "") -> None:
        self.problems.append(Problem(self.at(key), message, fix))

    def has(self, key: str) -> bool:
        self._read_keys.add(key)
        return self._value.get(key) is not None

    def raw(self, key: str) -> object:
        self._read_keys.add(key)
        return self._value.get(key)

    def _typed(self, key: str, kind: type[T], default: T, what: str) -> T:
        found = self.raw(key)
        if found is None:
            return default
        if isinstance(found, kind) and not (kind is int and isinstance(found, bool)):
            return found
        quotes = " in quotes" if kind is str and isinstance(found, int | float) else ""
        self.problem(key, f"expected {what}, got {shown(found)}", f"write {what}{quotes}")
        return default

    def text(self, key: str, default: str = "") -> str:
        return self._typed(key, str, default, "text")

    def optional_text(self, key: str) -> str | None:
        return self.text(key) or None

    def required(self, key: str) -> str:
        found = self.text(key)
        if not found and self.raw(key) in (None, ""):
            self.missing(key)
        return found

    def missing(self, key: str) -> None:
        if not self._lost:
            self.problem(key, "is required", "add it")

    def whole(self, key: str, default: int = 0, least: int = LEAST, most: int = MOST) -> int:
        """A whole number in a range; Kubernetes' have 32 bits."""
        found = self._typed(key, int, default, "a whole number")
        if least <= found <= most:
            return found
        self.problem(
            key, f"must be from {least} to {most}, got {shown(found)}", "write one that is"
        )
        return default

    def optional_whole(self, key: str, least: int = LEAST) -> int | None:
        return self.whole(key, max(0, least), least) if self.has(key) else None

    def flag(self, key: str, default: bool = False) -> bool:
        return self._typed(key, bool, default, "true or false")

    def choice(self, key: str, kind: type[E], default: E, aliases: Mapping[str, E]) -> E:
        found = self.text(key)
        if found in aliases:
            return aliases[found]
        if not found or not self.one_of(key, (*kind, *aliases)):
            return default
        return kind(found)

    def one_of(self, key: str, allowed: Sequence[str]) -> bool:
        found = self.text(key)
        if found in allowed or not found:
            return True
        near = close_to(found, allowed)
        fix = f"write {near[0]}" if near else "write one of them"
        known = ", ".join(sorted(one for one in {*allowed} if one))
        self.problem(key, f"must be one of {known}, got {shown(found)}", fix)
        return False

    def amount(self, key: str, resource: str) -> int | None:
        found = self.raw(key)
        if found is None:
            return None
        try:
            amount = parse_amount(resource, found)
        except QuantityError as error:
            self.problem(key, str(error), "write a quantity")
            return None
        if amount < 0:
            self.problem(key, f"{shown(found)} is negative", "write 0 or more")
            return None
        return amount

    def amounts(self, key: str) -> dict[str, int]:
        """A resource list such as requests."""
        return self.child(key).amounts_here()

    def amounts_here(self) -> dict[str, int]:
        """This mapping itself as a resource list."""
        read = {name: self.amount(name, name) for name in self.names()}
        return {name: amount for name, amount in read.items() if amount is not None}

    def time_ns(self, key: str) -> int | None:
        found = self.raw(key)
        if found is None:
            return None
        if isinstance(found, datetime):
            return _nanoseconds(found)
        try:
            return _nanoseconds(datetime.fromisoformat(str(found).replace("Z", "+00:00")))
        except (ValueError, OverflowError):
            fix = "write one such as 2026-01-01T00:00:00Z"
            self.problem(key, f"expected a time, got {shown(found)}", fix)
            return None

    def texts(self, key: str) -> tuple[str, ...]:
        found = self._typed(key, list, [], "a list")
        texts = [_plain(one) for one in found]
        for i, one in enumerate(texts):
            if one is None:
                what = f"expected text, got {shown(found[i])}"
                self.problems.append(Problem(f"{self.at(key)}[{i}]", what, "write text"))
        return tuple(one for one in texts if one is not None)

    def labels(self, key: str) -> dict[str, str]:
        found = self.child(key)
        labels = {}
        for name in found.names():
            value = _plain(found.raw(name) or "")
            if value is None:
                found.problem(name, f"expected text, got {shown(found.raw(name))}", "write text")
            else:
                labels[name] = value
        return labels

    def child(self, key: str) -> Reader:
        return Reader(self.raw(key), self.at(key), self.problems)

    def entries(self, key: str) -> int:
        """The length of a list."""
        return len(self._typed(key, list, [], "a list"))

    def children(self, key: str) -> list[Reader]:
        found = self._typed(key, list, [], "a list")
        at = self.at(key)
        return [Reader(one, f"{at}[{i}]", self.problems) for i, one in enumerate(found)]

    def names(self) -> tuple[str, ...]:
        return tuple(self._value)

    def ignore(self, *keys: str) -> None:
        """Mark fields as known that have no effect here."""
        self._read_keys.update(keys)

    def done(self) -> None:
        """Report every key that has not been read as unknown."""
        self.known(*self._read_keys)

    def known(self, *keys: str) -> set[str]:
        """Report every other key as unknown; returns those of `keys` that were probably meant."""
        meant = set()
        looked_up = 0
        for key in self._value:
            if key not in keys:
                looked_up += 1
                near = close_to(key, keys) if looked_up <= MAX_LOOKED_UP else []
                hint = f"; did you mean {near[0]}?" if near else ""
                fix = f"write {near[0]}" if near else "take it out"
                self.problem(key, f"unknown field{hint}", fix)
                meant.update(near)
        return meant


def close_to(name: str, known: Sequence[str]) -> list[str]:
    """The known name that is most like `name`; empty if none is, or if `name` is too long for one
    of them."""
    if len(name) > LONGEST_LOOKED_UP:
        return []
    return difflib.get_close_matches(name, known, n=1, cutoff=0.4)


def _nanoseconds(moment: datetime) -> int:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    # Integer arithmetic: a float timestamp loses the nanoseconds' order.
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return ((delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds) * 1_000


def read(build: Callable[[Reader], T], value: object, path: str) -> T:
    """Build a value from a whole object. Raises ManifestError with all problems at once."""
    reader = Reader(value, path)
    result = build(reader)
    reader.done()
    if reader.problems:
        raise ManifestError(reader.problems)
    return result
