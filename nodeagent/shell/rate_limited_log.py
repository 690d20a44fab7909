"""Log lines that others can cause, not more often than a person reads them."""

from __future__ import annotations

import logging
import time
from typing import Final

EVERY_S: Final = 10.0


class RateLimitedLog:
    """One line in ten seconds, with the number of those left out before it."""

    def __init__(self, log: logging.Logger, every_s: float = EVERY_S) -> None:
        self._log = log
        self._every_s = every_s
        self._at_s = -every_s
        self._left_out = 0

    def warning(self, text: str, *arguments: object) -> None:
        now_s = time.monotonic()
        if now_s - self._at_s < self._every_s:
            self._left_out += 1
            return
        self._at_s = now_s
        more = f" (and {self._left_out} lines more before)" if self._left_out else ""
        self._left_out = 0
        self._log.warning(text + "%s", *arguments, more)


class RateLimitFilter(logging.Filter):
    """Rate limit for a foreign logger: passes so many records per interval and counts the
    others."""

    def __init__(self, most: int = 5, every_s: float = EVERY_S) -> None:
        super().__init__()
        self._most = most
        self._every_s = every_s
        self._since_s = -every_s
        self._seen = 0

    def filter(self, record: logging.LogRecord) -> bool:
        now_s = time.monotonic()
        if now_s - self._since_s >= self._every_s:
            left_out = self._seen - self._most
            self._since_s, self._seen = now_s, 0
            if left_out > 0:
                record.msg = f"{record.getMessage()} (and {left_out} records more before)"
                record.args = ()
        self._seen += 1
        return self._seen <= self._most
