"""Table from the kind of a changed object to its handlers: the one place where changes are routed.

A session builds its table once; a handler that queues a unit of work is the entry to a reconciler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from queuecontroller.cluster.cache.objects import Document
from sluicecommon.kubernetes.resources import Resource

Handler: TypeAlias = Callable[[str, Document | None], None]
"""Takes an object's key and the object as it is now; None: it was deleted. The cache has the change
already."""


class Dispatcher:
    """Calls the handlers of an object's kind, in the order of the table; other kinds have none."""

    def __init__(self, handlers: Mapping[Resource, tuple[Handler, ...]]) -> None:
        self._handlers = handlers

    def changed(self, kind: Resource, key: str, document: Document | None) -> None:
        for handler in self._handlers.get(kind, ()):
            handler(key, document)
