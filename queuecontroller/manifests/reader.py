"""A cursor over one mapping of a manifest that knows where it is and which keys were asked for.

Every complaint names the field by its full path; all complaints of a file come together, and a key
nobody asked for is one of them, with the nearest key somebody would have.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TypeVar

from queuecontroller.engine.quantities import QuantityError, parse_amount

E = TypeVar("E", bound=StrEnum)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Problem:
    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


class ManifestError(ValueError):
    """Everything wrong with one object."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = tuple(problems)


class Reader:
    """Reads one mapping. Wrong types become problems and the given default."""

    def __init__(
        self, value: object, path: str = "", problems: list[Problem] | None = None
    ) -> None:
        self.path = path
        self.problems: list[Problem] = [] if problems is None else problems
        self._asked: set[str] = set()
        self._value: Mapping[str, object] = {}
        if isinstance(value, Mapping):
            self._value = value
        elif value is not None:
            self.problem("", f"expected fields, found {value!r}")

    def at(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path and key else self.path or key

    def problem(self, key: str, message: str) -> None:
        self.problems.append(Problem(self.at(key), message))

    def has(self, key: str) -> bool:
        self._asked.add(key)
        return self._value.get(key) is not None

    def raw(self, key: str) -> object:
        self._asked.add(key)
        return self._value.get(key)

    def _typed(self, key: str, kind: type[T], default: T, what: str) -> T:
        found = self.raw(key)
        if found is None:
            return default
        if isinstance(found, kind) and not (kind is int and isinstance(found, bool)):
            return found
        self.problem(key, f"expected {what}, found {found!r}")
        return default

    def text(self, key: str, default: str = "") -> str:
        return self._typed(key, str, default, "text")

    def optional_text(self, key: str) -> str | None:
        return self.text(key) or None

    def required(self, key: str) -> str:
        found = self.text(key)
        if not found:
            self.problem(key, "is required")
        return found

    def whole(self, key: str, default: int = 0) -> int:
        return self._typed(key, int, default, "a whole number")

    def optional_whole(self, key: str) -> int | None:
        return self.whole(key) if self.has(key) else None

    def flag(self, key: str, default: bool = False) -> bool:
        return self._typed(key, bool, default, "true or false")

    def choice(self, key: str, kind: type[E], default: E, aliases: Mapping[str, E]) -> E:
        found = self.text(key)
        if not found:
            return default
        if found in aliases:
            return aliases[found]
        try:
            return kind(found)
        except ValueError:
            allowed = ", ".join(sorted({*kind, *aliases}))
            self.problem(key, f"{found!r} is not one of {allowed}")
            return default

    def amount(self, key: str, resource: str) -> int | None:
        found = self.raw(key)
        if found is None:
            return None
        try:
            return parse_amount(resource, found)
        except QuantityError as error:
            self.problem(key, str(error))
            return None

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
        except ValueError:
            self.problem(key, f"{found!r} is not a time (example: 2026-01-01T00:00:00Z)")
            return None

    def texts(self, key: str) -> tuple[str, ...]:
        found = self._typed(key, list, [], "a list")
        return tuple(str(one) for one in found)

    def labels(self, key: str) -> dict[str, str]:
        found = self.child(key)
        return {name: str(found.raw(name)) for name in found.names()}

    def child(self, key: str) -> Reader:
        return Reader(self.raw(key), self.at(key), self.problems)

    def children(self, key: str) -> list[Reader]:
        found = self._typed(key, list, [], "a list")
        at = self.at(key)
        return [Reader(one, f"{at}[{i}]", self.problems) for i, one in enumerate(found)]

    def names(self) -> tuple[str, ...]:
        return tuple(self._value)

    def ignore(self, *keys: str) -> None:
        """Fields that are known and mean nothing to us."""
        self._asked.update(keys)

    def done(self) -> None:
        """Every key not asked for by now is a mistake."""
        for key in self._value:
            if key not in self._asked:
                near = difflib.get_close_matches(key, self._asked, n=1, cutoff=0.4)
                hint = f"; did you mean {near[0]}?" if near else ""
                self.problem(key, f"unknown field{hint}")


def _nanoseconds(moment: datetime) -> int:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    # Integer arithmetic: a float timestamp loses the nanoseconds' order.
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return ((delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds) * 1_000


def read(build: Callable[[Reader], T], value: object, path: str) -> T:
    """Runs one builder over a whole object and raises everything it found at once."""
    reader = Reader(value, path)
    result = build(reader)
    reader.done()
    if reader.problems:
        raise ManifestError(reader.problems)
    return result
