"""aiohttp's logger for servers that clients without credentials reach: bytes that are not HTTP make
a status and no line in the log."""

from __future__ import annotations

import logging
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

_NAME: Final = "aiohttp.server"


def _is_ours(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | web.RequestPayloadError)


def quiet_log(name: str) -> logging.Logger:
    """A logger for aiohttp that leaves out what a malformed request raises; other errors are
    defects and stay."""
    found = logging.getLogger(f"{name}.{_NAME}")
    if _is_ours not in found.filters:
        found.addFilter(_is_ours)
    return found
