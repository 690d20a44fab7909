"""Somebody who undoes what we write, each time and at once: a GitOps tool that lets a job run again
which has to wait, another controller of the same objects. Two that do not give way to each other
would fill the API server with their quarrel, so we give way for longer and longer."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

FREE: Final = 5
"""Stops in a row that nobody wonders at."""
QUIET_S: Final = 60.0
"""After which a row is over."""
LONGEST_S: Final = 60.0


class Contention:
    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[int, float]] = {}
        """Stops in a row, and until when it is left alone after the last."""

    def rest_s(self, one: Hashable, now_s: float) -> float:
        """How long it is to be left alone from now on; 0: it may be stopped, which is counted."""
        row, until_s = self._known.get(one, (0, now_s))
        if until_s > now_s:
            return until_s - now_s
        row = 1 if now_s - until_s > QUIET_S else row + 1
        rest_s = min(LONGEST_S, 2.0 ** (row - FREE)) if row > FREE else 0.0
        self._known[one] = row, now_s + rest_s
        return 0.0

    def is_contested(self, one: Hashable, now_s: float) -> bool:
        return self._known.get(one, (0, 0.0))[1] > now_s

    def forget(self, one: Hashable) -> None:
        self._known.pop(one, None)
