"""Detections of this node for the queue's page: each report has those that the last one did not
have. A new session gets the newest ones again, because it may be with another controller."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from nodeagent.core.watch.detection import Rule
from nodeagent.ports.queue import MAX_DETECTIONS, Detection
from nodeagent.ports.views import NodeEvent
from nodeagent.units import GrantId

SENT_KINDS: Final = frozenset({*(str(rule) for rule in Rule), "act"})
"""Kinds of events that are sent: detections, and the responses to them."""
LONGEST_TEXT: Final = 600
LONGEST_EVIDENCE: Final = 2_000


class Detections:
    def __init__(self, after: Callable[[int], Sequence[NodeEvent]]) -> None:
        """`after` returns this node's events with a number above the given one."""
        self._after = after
        self._sent = 0

    def begin(self) -> None:
        """Send all again: the controller of a new session has none yet."""
        self._sent = 0

    def due(self, workloads: Mapping[GrantId, str]) -> tuple[Detection, ...]:
        """Detections not sent yet. `workloads` maps grants to their workloads."""
        found = [one for one in self._after(self._sent) if one.kind in SENT_KINDS]
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

    def sent(self, found: Sequence[Detection]) -> None:
        """Record that the controller has these."""
        self._sent = max([self._sent, *(one.number for one in found)])
