"""Places in a document, changes at them that can be taken back, and merge patches (RFC 7386).

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
TOO_DEEP: Final = Problem("", "is nested too deeply to be read", "take out what nobody needs")
"""An API server takes what is nested ten thousand deep in fields that it does not know."""


def text_of(path: Iterable[str | int]) -> str:
    """As messages write it: spec.groups[1].name."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def wrong(path: Iterable[str | int], message: str, fix: str) -> ManifestError:
    return ManifestError([Problem(text_of(path), message, fix)])


def at(document: object, path: Path) -> Any:
    """What is there; ABSENT where the way to it ends early or leads through something else."""
    found: Any = document
    for step in path:
        if type(found) is dict:  # nearly always, and twenty times as fast to tell
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
    """Of what JSON can hold. Raises ManifestError."""
    try:
        return _copied(value)
    except RecursionError:
        raise ManifestError([TOO_DEEP]) from None


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _copied(one) for name, one in value.items()}
    return [_copied(one) for one in value] if isinstance(value, list) else value


class Change:
    """A document that is being changed, and how to take each change back. What is changed is
    copied first, and all else is shared with the document that it was."""

    def __init__(self, document: Document) -> None:
        self.document: Any = dict(document)
        self._own: dict[int, object] = {id(self.document): self.document}
        """What is nobody else's, kept so that no other object can come by its id."""
        self.undo: list[list[Any]] = []
        """[path, value] of what was there, or [path] of what was not: the oldest first."""

    def own(self, path: Path) -> Any:
        """What is there, to be changed by whoever asks; ABSENT as with `at`."""
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
        """Writes a value, and what is missing above it. Raises ManifestError where something else
        is in the way."""
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
        """Undoes what a list such as `undo` names, the newest first. Where the way to it is gone,
        there is nothing to take back."""
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
        raise wrong(path, f"expected fields, found {shown(parent)}", "write NAME: VALUE pairs")
    if isinstance(step, int) and not (isinstance(parent, list) and step <= len(parent)):
        raise wrong(path, f"expected a list, found {shown(parent)}", "write a list")


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
    """As JSON has it: 1 is not true."""
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
    """What the API server makes of a document and a merge patch."""
    if not isinstance(patch, Mapping):
        return copied(patch)
    made = dict(document) if isinstance(document, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = merged(made.get(name), value)
    return made
