"""Nodes that fail: not Ready for a while, or gone. No I/O; the time is given."""

from __future__ import annotations

from typing import Final

from queuecontroller.cluster.cache.node_context import is_ready
from queuecontroller.cluster.cache.objects import Document, labels_of
from queuecontroller.scheduler.placement.topology.ground import HOSTNAME

PATIENCE_S: Final = 30.0
"""Not Ready for so long is a failure: Kueue's figure. A node that is deleted fails at once."""


class FailingNodes:
    def __init__(self) -> None:
        self._host_of: dict[str, str] = {}
        self._since_s: dict[str, float] = {}
        """By host name: since when it is not Ready."""
        self._failed: dict[str, None] = {}
        """Those that were told of, until they are back."""

    @property
    def failed(self) -> frozenset[str]:
        return frozenset(self._failed)

    def seen(self, name: str, node: Document | None, now_s: float) -> None:
        """None: it is gone."""
        before = self._host_of.get(name)
        if node is None:
            self._host_of.pop(name, None)
            if before is not None:
                self._since_s[before] = now_s - PATIENCE_S
            return
        host = labels_of(node).get(HOSTNAME) or name
        self._host_of[name] = host
        if is_ready(node):
            self._since_s.pop(host, None)
            self._failed.pop(host, None)
        else:
            self._since_s.setdefault(host, now_s)

    def due(self, now_s: float) -> list[str]:
        """Who has failed since the last time."""
        found = [host for host, since_s in self._since_s.items() if now_s - since_s >= PATIENCE_S]
        for host in found:
            del self._since_s[host]
            self._failed[host] = None
        return found
