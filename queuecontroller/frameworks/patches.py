"""Paths in a document, changes at them that can be undone, and merge patches (RFC 7386).

A patch is always the difference of two whole documents. A merge patch replaces lists, so one that
changes an item carries the list it is in, with every field that the document has, known or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from sluicecommon.reader import ManifestError, Problem, shown

Path: TypeAlias = tuple[str | int, ...]
Document: TypeAlias = Mapping[str, Any]

ABSENT: Final = object()
TOO_DEEP: Final = Problem(
    "", "is nested too deeply to be read", "remove fields that are not needed"
)
"""An API server accepts documents nested ten thousand deep in fields that it does not know."""


def text_of(path: Iterable[str | int]) -> str:
    """The path as messages write it: spec.groups[1].name."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def wrong(path: Iterable[str | int], message: str, fix: str) -> ManifestError:
    return ManifestError([Problem(text_of(path), message, fix)])


def at(document: object, path: Path) -> Any:
    """The value at a path; ABSENT where the path ends early or leads through a scalar."""
    found: Any = document
    for step in path:
        if type(found) is dict:  # nearly always true, and twenty times as fast to test
            found = found.get(step, ABSENT) if isinstance(step, str) else ABSENT
        else:
            found = _beneath(found, step)
        if found is ABSENT:
            return ABSENT
    return found


def _beneath(found: object, step: str | int) -> Any:
    named = isinstance(found, Mapping) and isinstance(step, str) and step in found
    counted = isinstance(found, list) and isinstance(step, int) and step < len(found)
    return found[step] if named or counted else ABSENT  # type: ignore[index]


def copied(value: Any) -> Any:
    """A copy of a JSON value. Raises ManifestError."""
    try:
        return _copied(value)
    except RecursionError:
        raise ManifestError([TOO_DEEP]) from None


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _copied(one) for name, one in value.items()}
    return [_copied(one) for one in value] if isinstance(value, list) else value


class Change:
    """A document that is being changed, with an undo for each change. Changed parts are copied
    first; all else is shared with the original document."""

    def __init__(self, document: Document) -> None:
        self.document: Any = dict(document)
        self._own: dict[int, object] = {id(self.document): self.document}
        """Copies made for this change by id, kept alive so that no other object can reuse an id."""
        self.undo: list[list[Any]] = []
        """[path, value] of replaced values, or [path] of added ones: the oldest first."""

    def own(self, path: Path) -> Any:
        """The value at a path, copied so that the caller may change it; ABSENT as with `at`."""
        if at(self.document, path) is ABSENT:
            return ABSENT
        found: Any = self.document
        for step in path:
            found = self._owned(found, step)
        return found

    def _owned(self, parent: Any, step: str | int) -> Any:
        found = parent[step]
        if id(found) in self._own or not isinstance(found, dict | list):
            return found
        made: Any = dict(found) if isinstance(found, dict) else list(found)
        parent[step] = self._own[id(made)] = made
        return made

    def put(self, path: Path, value: object) -> None:
        """Write a value, and create missing parents. Raises ManifestError where a parent has
        another type."""
        if same(at(self.document, path), value):
            return
        parent: Any = self.document
        noted = False
        for i, step in enumerate(path):
            _fits(parent, path[:i], step)
            there = at(parent, (step,))
            last = i + 1 == len(path)
            if not noted and (last or there is ABSENT or there is None):
                noted = True
                here = list(path[: i + 1])
                self.undo.append([here] if there is ABSENT else [here, there])
            if last:
                _set(parent, step, value)
                return
            if there is ABSENT or there is None:
                _set(parent, step, {} if isinstance(path[i + 1], str) else [])
            parent = self._owned(parent, step)

    def take_back(self, undo: Sequence[Sequence[Any]]) -> None:
        """Undo the changes in a list such as `undo`, the newest first. A change whose path no
        longer exists is skipped."""
        for path, *value in reversed(undo):
            parent, step = self.own(tuple(path[:-1])), path[-1]
            if isinstance(parent, dict) and isinstance(step, str):
                if value:
                    parent[step] = value[0]
                else:
                    parent.pop(step, None)
            elif isinstance(parent, list) and isinstance(step, int) and step < len(parent):
                parent[step : step + 1] = value


def _fits(parent: Any, path: Path, step: str | int) -> None:
    if isinstance(step, str) and not isinstance(parent, dict):
        raise wrong(path, f"expected fields, got {shown(parent)}", "write NAME: VALUE pairs")
    if isinstance(step, int) and not (isinstance(parent, list) and step <= len(parent)):
        raise wrong(path, f"expected a list, got {shown(parent)}", "write a list")


def _set(parent: Any, step: str | int, value: object) -> None:
    if isinstance(step, int) and step == len(parent):
        parent.append(value)
    else:
        parent[step] = value


def difference(old: Document, new: Document) -> dict[str, Any]:
    """The merge patch that makes `new` of `old`; empty when they are the same. Raises
    ManifestError."""
    patch: dict[str, Any] = {name: None for name in old if name not in new}
    for name, value in new.items():
        before = old.get(name, ABSENT)
        if before is value:
            continue
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            if inner := difference(before, value):
                patch[name] = inner
        elif before is ABSENT or not same(before, value):
            patch[name] = copied(value)
    return patch


def same(one: object, other: object) -> bool:
    """True if the values are equal as JSON: 1 is not true."""
    if one is other:
        return True
    if isinstance(one, str):
        return one == other
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def merged(document: object, patch: object) -> Any:
    """The document after a merge patch, as the API server computes it."""
    if not isinstance(patch, Mapping):
        return copied(patch)
    made = dict(document) if isinstance(document, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = merged(made.get(name), value)
    return made
