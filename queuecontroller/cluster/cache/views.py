"""One watch of a kind for all who look at its objects.

What is heard is decoded once, and each reader keeps of it what it wants. Of a pod in a cluster
there are up to four who look: each with a watch of its own would cost the API server, and us, the
same bytes as often.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sluicecommon.kubernetes.reflector import Change, Changed, Removed

Document = Mapping[str, Any]
_NOT_WANTED: Final = object()


@dataclass(slots=True, eq=False)
class View:
    read: Callable[[Document], Any]
    told: Callable[[Change[Any]], None]
    """Hears of what is wanted as from a watch of its own: what is wanted no more is Removed."""
    wants: Callable[[Document], bool] | None = None
    """None: every object."""
    _keys: set[str] = field(default_factory=set)
    """Of those that were wanted, where not all are."""

    def of(self, document: Document) -> Any:
        wanted = self.wants is None or self.wants(document)
        return self.read(document) if wanted else _NOT_WANTED

    def changed(self, key: str, value: Any, change: Changed[Any]) -> None:
        if value is _NOT_WANTED:
            self.removed(Removed(key))
            return
        if self.wants is not None:
            self._keys.add(key)
        self.told(Changed(replace(change.item, value=value)))

    def removed(self, change: Removed) -> None:
        if self.wants is None:
            self.told(change)
        elif change.key in self._keys:
            self._keys.discard(change.key)
            self.told(change)


class Views:
    """`read` is for the watch's decoder, `told` for its follower."""

    def __init__(self, *views: View) -> None:
        self._views = views

    def add(self, *views: View) -> None:
        """They hear of what comes from now on: the watch has to tell everything anew."""
        self._views += views

    def read(self, document: Document) -> tuple[Any, ...]:
        """For each view, in order; one that was added since has none."""
        return tuple(one.of(document) for one in self._views)

    def told(self, change: Change[tuple[Any, ...]]) -> None:
        for at, view in enumerate(self._views):
            match change:
                case Changed(item):
                    if at < len(item.value):
                        view.changed(item.key, item.value[at], change)
                case Removed():
                    view.removed(change)
                case _:
                    view.told(change)
