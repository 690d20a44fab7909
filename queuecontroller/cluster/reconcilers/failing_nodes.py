"""Detection of failed nodes: not Ready for a while, or deleted. No I/O; the caller passes the
time."""

from __future__ import annotations

from typing import Final

from queuecontroller.cluster.cache.node_context import is_ready
from queuecontroller.cluster.cache.objects import Document, labels_of
from queuecontroller.scheduler.placement.topology.ground import HOSTNAME

NOT_READY_S: Final = 30.0
"""Seconds not Ready until a node has failed, as in Kueue. A deleted node fails at once."""


class FailingNodes:
    def __init__(self) -> None:
        self._host_of: dict[str, str] = {}
        self._since_s: dict[str, float] = {}
        """Time since which each host is not Ready, in s."""
        self._failed: dict[str, None] = {}
        """Hosts that have failed, until they are Ready again."""

    @property
    def failed(self) -> frozenset[str]:
        return frozenset(self._failed)

    def seen(self, name: str, node: Document | None, now_s: float) -> None:
        """Record a node's state; None: it was deleted."""
        before = self._host_of.get(name)
        if node is None:
            self._host_of.pop(name, None)
            if before is not None:
                self._since_s[before] = now_s - NOT_READY_S
            return
        host = labels_of(node).get(HOSTNAME) or name
        self._host_of[name] = host
        if is_ready(node):
            self._since_s.pop(host, None)
            self._failed.pop(host, None)
        else:
            self._since_s.setdefault(host, now_s)

    def missing(self, host: str, now_s: float) -> None:
        """Record that a host has no node; it may have been deleted unseen."""
        self._since_s.setdefault(host, now_s)

    def due(self, now_s: float) -> list[str]:
        """Return the hosts that have failed since the last call."""
        found = [host for host, since_s in self._since_s.items() if now_s - since_s >= NOT_READY_S]
        for host in found:
            del self._since_s[host]
            self._failed[host] = None
        return found
