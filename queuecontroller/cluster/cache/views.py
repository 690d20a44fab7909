"""One watch of a kind for several consumers, each with a filtered view of it.

An object is decoded once, and each consumer keeps the part that it needs. Pods have up to four
consumers: with a watch for each, the API server and the controller would transfer them four times.
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
    notify: Callable[[Change[Any]], None]
    """Called with each change; an object that no longer passes the filter is Removed."""
    wants: Callable[[Document], bool] | None = None
    """The filter; None: every object passes."""
    _keys: set[str] = field(default_factory=set)
    """Keys of the objects that passed the filter, if there is one."""

    def of(self, document: Document) -> Any:
        wanted = self.wants is None or self.wants(document)
        return self.read(document) if wanted else _NOT_WANTED

    def changed(self, key: str, value: Any, change: Changed[Any]) -> None:
        if value is _NOT_WANTED:
            self.removed(Removed(key))
            return
        if self.wants is not None:
            self._keys.add(key)
        self.notify(Changed(replace(change.item, value=value)))

    def removed(self, change: Removed) -> None:
        if self.wants is None:
            self.notify(change)
        elif change.key in self._keys:
            self._keys.discard(change.key)
            self.notify(change)


class Views:
    """The views of one watch: `read` is its decoder, `notify` is called with its changes."""

    def __init__(self, *views: View) -> None:
        self._views = views

    def add(self, *views: View) -> None:
        """Add views. They get changes from now on, so the watch has to be restarted."""
        self._views += views

    def read(self, document: Document) -> tuple[Any, ...]:
        """Return the part of each view, in order; a view that is added later has none."""
        return tuple(one.of(document) for one in self._views)

    def notify(self, change: Change[tuple[Any, ...]]) -> None:
        for at, view in enumerate(self._views):
            match change:
                case Changed(item):
                    if at < len(item.value):
                        view.changed(item.key, item.value[at], change)
                case Removed():
                    view.removed(change)
                case _:
                    view.notify(change)
