"""The format of log lines: one line per record, so that log readers can parse them."""

from __future__ import annotations

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
