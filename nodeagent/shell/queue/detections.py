"""Detections of this node for the queue's page: each report has those that the last one did not
have. A new session gets the newest ones again, because its controller may be another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from nodeagent.core.watch.detection import Rule
from nodeagent.ports.queue import MAX_DETECTIONS, Detection
from nodeagent.ports.views import NodeEvent
from nodeagent.units import GrantId

TOLD: Final = frozenset({*(str(rule) for rule in Rule), "act"})
"""Kinds of events: suspicions, and what was done because of one."""
LONGEST_TEXT: Final = 600
LONGEST_EVIDENCE: Final = 2_000


class Detections:
    def __init__(self, after: Callable[[int], Sequence[NodeEvent]]) -> None:
        """`after` a number, this node's events."""
        self._after = after
        self._told = 0

    def begin(self) -> None:
        """Send all again: the controller of a new session has none yet."""
        self._told = 0

    def due(self, workloads: Mapping[GrantId, str]) -> tuple[Detection, ...]:
        """Detections not sent yet. `workloads` maps grants to their workloads."""
        found = [one for one in self._after(self._told) if one.kind in TOLD]
        return tuple(
            Detection(
                one.number,
                one.at_unix_s,
                one.kind,
                one.level,
                one.text[:LONGEST_TEXT],
                workloads.get(one.grant, "") if one.grant is not None else "",
                one.evidence if len(one.evidence) <= LONGEST_EVIDENCE else "{}",
            )
            for one in found[-MAX_DETECTIONS:]
        )

    def told(self, found: Sequence[Detection]) -> None:
        """They have arrived."""
        self._told = max([self._told, *(one.number for one in found)])
