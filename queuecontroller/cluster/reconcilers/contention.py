"""Back-off from another controller that reverts our writes at once, such as a GitOps tool that
keeps unsuspending a job. Two controllers that never back off would load the API server without end,
so the pause before each further suspension grows."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

FREE: Final = 5
"""Suspensions in a row without a pause."""
QUIET_S: Final = 60.0
"""Seconds without a suspension that end a row."""
LONGEST_S: Final = 60.0


class Contention:
    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[int, float]] = {}
        """Suspensions in a row, and when the pause after the last ends, in s."""

    def rest_s(self, one: Hashable, now_s: float) -> float:
        """Return the seconds left of the pause; 0 counts a suspension, which is allowed now."""
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
