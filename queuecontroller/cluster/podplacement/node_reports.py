"""Waits until the agents of all nodes with GPUs have reported to this leader. Until then it knows
of fewer GPUs than there are: a plan would buy nodes, or move shares, for pods that have room."""

from __future__ import annotations

from typing import Final

from queuecontroller.scheduler.placement.topology.ground import Ground
from queuecontroller.state.nodes.sessions import SECOND_NS, Nodes

LONGEST_S: Final = 60.0
"""Seconds until a node that does not report is left out. An agent connects to a new leader within
seconds; one that is dead must not stop the plans for the others."""


class NodeReports:
    def __init__(self, ground: Ground, nodes: Nodes, resource: str, began_ns: int) -> None:
        """`resource`: the name under which nodes advertise GPUs. `began_ns`: time at which this
        leader began."""
        self._ground = ground
        self._nodes = nodes
        self._resource = resource
        self._ends_ns = began_ns + int(LONGEST_S * SECOND_NS)
        self._complete = False

    def complete(self, now_ns: int) -> bool:
        """Return True once all ready nodes that advertise GPUs have reported, or time is over."""
        if not self._complete:
            self._complete = now_ns >= self._ends_ns or not self._is_one_missing()
        return self._complete

    def _is_one_missing(self) -> bool:
        known = self._nodes.nodes
        return any(
            facts.ready
            and self._resource in facts.allocatable
            and (name not in known or not known[name].connected)
            for name, facts in self._ground.nodes.items()
        )
