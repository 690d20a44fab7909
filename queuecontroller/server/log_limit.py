"""Rate limit of log lines: repeated lines are written a few times, then only counted.

Lines are counted by the place in the code that wrote them, not by their text, because a client that
floods the log can vary the names in it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

BURST: Final = 30.0
A_SECOND: Final = 0.5
MAX_PLACES: Final = 1000


@dataclass(slots=True)
class _Bucket:
    left: float
    at_s: float
    dropped: int = 0


class LogLimit(logging.Filter):
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._buckets: dict[tuple[str, int], _Bucket] = {}
        self.dropped_total = 0

    def filter(self, record: logging.LogRecord) -> bool:
        now_s = self._clock()
        place = (record.pathname, record.lineno)
        bucket = self._buckets.get(place)
        if bucket is None:
            if len(self._buckets) >= MAX_PLACES:
                self._buckets.clear()
            bucket = self._buckets[place] = _Bucket(BURST, now_s)
        bucket.left = min(BURST, bucket.left + (now_s - bucket.at_s) * A_SECOND)
        bucket.at_s = now_s
        if bucket.left < 1:
            bucket.dropped += 1
            self.dropped_total += 1
            return False
        bucket.left -= 1
        if bucket.dropped:
            record.msg = f"{record.getMessage()} (and {bucket.dropped} more like it)"
            record.args = ()
            bucket.dropped = 0
        return True
