"""The format of log lines: one line per record, so that log readers can parse them; and the text
of an error in them."""

from __future__ import annotations

import asyncio
import logging
import time


class LineFormat(logging.Formatter):
    """One line per record, control characters escaped: names in it come from users."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        text = record.getMessage()
        safe = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
        line = f"{moment} {record.levelname.lower()} {safe}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def error_text(error: BaseException) -> str:
    """The error in words, also where it has no text of its own, as that of `asyncio.timeout`."""
    if text := str(error):
        return text
    is_timeout = isinstance(error, TimeoutError | asyncio.TimeoutError)
    return "no answer in time" if is_timeout else type(error).__name__
