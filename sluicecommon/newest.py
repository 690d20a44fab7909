"""A mapping of bounded size that forgets its oldest entries."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Newest(dict[K, V]):
    """The entries that were added last, `limit` of them at most; what is set again keeps its age.

    Entries are added by assignment only.
    """

    def __init__(self, limit: int, entries: Iterable[tuple[K, V]] = ()) -> None:
        super().__init__()
        self._limit = limit
        for key, value in entries:
            self[key] = value

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        if len(self) > self._limit:
            del self[next(iter(self))]


class Seen(Newest[K, None]):
    """The keys that were seen last, `limit` of them at most."""

    def is_first(self, key: K) -> bool:
        """Add a key; returns False if it is there already."""
        if key in self:
            return False
        self[key] = None
        return True
