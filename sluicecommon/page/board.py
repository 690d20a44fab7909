"""Documents that a page's viewers watch: each change has a revision, and a viewer at one revision
receives the changes since, field by field.

Pure: no clock, no I/O. Bounded: documents beyond the limit of their kind are dropped and counted,
and only the last deletions are kept, so a viewer that was away for longer starts over.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Key = tuple[str, str, str]
"""Kind, namespace (empty if cluster-wide), name."""
MAX_OF_A_KIND: Final = 50_000
MAX_GONE: Final = 20_000
"""Deletions that are kept, so that a viewer that was away for a moment need not start over."""
FRAME_DOCUMENTS: Final = 1_000
"""Documents in one frame: the first are shown while the rest is being sent."""


@dataclass(frozen=True, slots=True)
class Sight:
    """The objects that a viewer may see. Two viewers with the same sight are sent the same
    bytes."""

    kinds: frozenset[str] = frozenset()
    """Visible kinds of cluster-wide documents."""
    namespaces: frozenset[str] | None = frozenset()
    """Namespaces whose documents are visible; None: all."""

    def sees(self, key: Key) -> bool:
        kind, namespace, _ = key
        if not namespace:
            return kind in self.kinds
        return self.namespaces is None or namespace in self.namespaces

    @property
    def is_blind(self) -> bool:
        return not self.kinds and self.namespaces == frozenset()


NOTHING: Final = Sight()


@dataclass(slots=True)
class _Entry:
    fields: dict[str, Any]
    born: int
    changed: dict[str, int]
    """Revision of each field's last change, including removed fields."""


@dataclass(frozen=True, slots=True)
class Delta:
    """Change of one document."""

    key: Key
    fields: Mapping[str, Any] | None
    """Changed fields, with None for a removed one; None if the document was deleted."""
    is_new: bool = False
    """True if `fields` are all fields and replace the viewer's document."""

    def as_list(self) -> list[Any]:
        return [*self.key, self.fields, 1] if self.is_new else [*self.key, self.fields]


@dataclass(slots=True)
class Board:
    instance: str
    """Identity of this process; revisions of another process are not valid here."""
    most_of_a_kind: int = MAX_OF_A_KIND
    most_gone: int = MAX_GONE
    revision: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    """Documents dropped because of the limit, by kind."""
    _entries: dict[Key, _Entry] = field(default_factory=dict)
    _order: dict[Key, int] = field(default_factory=dict)
    """Revision of the last change, oldest first."""
    _gone: dict[Key, int] = field(default_factory=dict)
    _by_kind: dict[str, dict[Key, None]] = field(default_factory=dict)
    _floor: int = 0
    """Deletions at this revision or before are no longer kept."""

    def __len__(self) -> int:
        return len(self._entries)

    def count(self, kind: str) -> int:
        return len(self._by_kind.get(kind, ()))

    def get(self, key: Key) -> Mapping[str, Any] | None:
        found = self._entries.get(key)
        return None if found is None else found.fields

    def keys(self, kind: str) -> list[Key]:
        return list(self._by_kind.get(kind, ()))

    def put(self, key: Key, fields: Mapping[str, Any]) -> bool:
        """Store a document; returns True if it changed. Fields that are None count as absent."""
        fields = {name: value for name, value in fields.items() if value is not None}
        entry = self._entries.get(key)
        if entry is None:
            siblings = self._by_kind.setdefault(key[0], {})
            if len(siblings) >= self.most_of_a_kind:
                self.left_out[key[0]] += 1
                return False
            siblings[key] = None
            self.revision += 1
            self._entries[key] = _Entry(fields, self.revision, {})
            self._gone.pop(key, None)
            self._touch(key)
            return True
        old = entry.fields
        if old == fields:
            return False
        self.revision += 1
        for name in old.keys() | fields.keys():
            if old.get(name) != fields.get(name):
                entry.changed[name] = self.revision
        entry.fields = fields
        self._touch(key)
        return True

    def patch(self, key: Key, fields: Mapping[str, Any]) -> bool:
        """Change fields of an existing document; returns True if it changed."""
        entry = self._entries.get(key)
        return entry is not None and self.put(key, {**entry.fields, **fields})

    def drop(self, key: Key) -> bool:
        if self._entries.pop(key, None) is None:
            return False
        self.revision += 1
        del self._by_kind[key[0]][key]
        self._order.pop(key, None)
        self._gone[key] = self.revision
        while len(self._gone) > self.most_gone:
            oldest = next(iter(self._gone))
            self._floor = self._gone.pop(oldest)
        return True

    def _touch(self, key: Key) -> None:
        self._order.pop(key, None)
        self._order[key] = self.revision

    # -- updates for viewers ----------------------------------------------------------------------

    def everything(self, sight: Sight) -> Iterator[Delta]:
        for key, entry in self._entries.items():
            if sight.sees(key):
                yield Delta(key, entry.fields, is_new=True)

    def since(self, revision: int, sight: Sight) -> list[Delta] | None:
        """Changes since a revision in order, deletions first; None if the revision is too old or
        unknown, and the viewer has to start over."""
        keys = self._newer_than(revision, sight)
        return None if keys is None else list(self._deltas(keys, revision))

    def _newer_than(self, revision: int, sight: Sight) -> list[Key] | None:
        if not self._floor <= revision <= self.revision:
            return None
        newer = _newer(self._gone, revision) + _newer(self._order, revision)
        return [key for key in newer if sight.sees(key)]

    def _deltas(self, keys: Iterable[Key], revision: int | None) -> Iterator[Delta]:
        """Current states of the documents, which may have changed since `keys` were listed; such
        changes are sent again later. `revision` is None if the viewer has nothing."""
        for key in keys:
            entry = self._entries.get(key)
            if entry is None:
                if revision is not None:
                    yield Delta(key, None)
            elif revision is None or entry.born > revision:
                yield Delta(key, entry.fields, is_new=True)
            else:
                names = [name for name, at in entry.changed.items() if at > revision]
                yield Delta(key, {name: entry.fields.get(name) for name in names})

    # -- the stream -------------------------------------------------------------------------------

    def stamp(self, revision: int | None = None) -> str:
        """The `id:` of an event; a viewer gives it back as Last-Event-ID."""
        return f"{self.instance}.{self.revision if revision is None else revision}"

    def read_stamp(self, text: str) -> int | None:
        """The revision in a stamp; None if it is another process's, and the viewer starts over."""
        instance, dot, number = text.rpartition(".")
        if not dot or instance != self.instance or not number.isascii() or not number.isdecimal():
            return None
        return int(number[:18])

    def frames(self, known: int | None, sight: Sight) -> tuple[int, Iterable[bytes]]:
        """Events that bring a viewer from revision `known` (None: nothing) up to date, and the
        revision it then has. Many events are generated lazily, so that a slow viewer holds only one
        of them and a list of keys in memory."""
        keys = None if known is None else self._newer_than(known, sight)
        if keys is None:
            known, keys = None, [key for key in self._entries if sight.sees(key)]
        made = self._made(self.revision, known, keys)
        return self.revision, made if len(keys) > FRAME_DOCUMENTS else list(made)

    def _made(self, revision: int, known: int | None, keys: list[Key]) -> Iterator[bytes]:
        if known is None:
            yield event("reset", {"documents": len(keys)})
        for start in range(0, len(keys), FRAME_DOCUMENTS):
            end = start + FRAME_DOCUMENTS
            deltas = [one.as_list() for one in self._deltas(keys[start:end], known)]
            # Only the last part has a stamp: an interrupted stream must not look complete.
            yield event("delta", deltas, self.stamp(revision) if end >= len(keys) else "")
        if known is None or not keys:
            yield event("synced", {"revision": revision}, self.stamp(revision))


def _newer(order: dict[Key, int], revision: int) -> list[Key]:
    """Keys that changed since a revision, oldest first."""
    found: list[Key] = []
    for key in reversed(order):
        if order[key] <= revision:
            break
        found.append(key)
    found.reverse()
    return found


def event(name: str, data: Any, stamp: str = "") -> bytes:
    """One server-sent event (WHATWG HTML, 9.2). JSON has no newline of its own."""
    head = f"id: {stamp}\n" if stamp else ""
    body = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    return f"{head}event: {name}\ndata: {body}\n\n".encode(errors="replace")


class Frames:
    """Cache of a board's frames: viewers at the same revision are sent the same bytes."""

    MOST: Final = 64

    def __init__(self, board: Board) -> None:
        self.board = board
        self._made: dict[tuple[int | None, Sight, int], tuple[int, Iterable[bytes]]] = {}
        self.made_total = 0

    def __call__(self, known: int | None, sight: Sight) -> tuple[int, Iterable[bytes]]:
        what = (known, sight, self.board.revision)
        found = self._made.get(what)
        if found is None:
            found = self.board.frames(known, sight)
            self.made_total += 1
            if known is None or not isinstance(found[1], list):
                return found  # It may have megabytes, so it is not cached.
            if len(self._made) >= self.MOST:
                self._made.clear()
            self._made[what] = found
        return found
