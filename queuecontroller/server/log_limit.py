"""Rate limit of log lines: repeated lines are written a few times, then only counted.

A handler does this, and no filter: a filter of Python 3.11 can only change the record that all
handlers share.

Lines are counted by the place in the code that wrote them, not by their text, because a client that
floods the log can vary the names in it.
"""

from __future__ import annotations

import copy
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TextIO

BURST: Final = 30.0
A_SECOND: Final = 0.5
MAX_PLACES: Final = 1000


@dataclass(slots=True)
class _Bucket:
    left: float
    at_s: float
    dropped: int = 0


class LogLimit:
    """Decides which records are written, by a count for each place in the code."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: dict[tuple[str, int], _Bucket] = {}

    def limited(self, record: logging.LogRecord) -> logging.LogRecord | None:
        """The record to be written, with the number of those before it that were only counted; None
        if this one is only counted."""
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
            return None
        bucket.left -= 1
        if not bucket.dropped:
            return record
        written = copy.copy(record)
        written.msg = f"{record.getMessage()} (and {bucket.dropped} more like it)"
        written.args = ()
        bucket.dropped = 0
        return written


class LimitedHandler(logging.StreamHandler[TextIO]):
    """Writes to standard error what LogLimit lets through."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self._limit = LogLimit()

    def emit(self, record: logging.LogRecord) -> None:
        written = self._limit.limited(record)
        if written is not None:
            super().emit(written)
