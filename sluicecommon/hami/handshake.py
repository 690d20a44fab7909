"""The values of HAMi's handshake, an annotation of a Node by which a device plugin and the
scheduler learn that the other is alive.

The plugin writes `Reported TIME`, the scheduler `Requesting_TIME` and `Deleted_TIME`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

REPORTED: Final = "Reported"
REQUESTING: Final = "Requesting"
DELETED: Final = "Deleted"
SECOND_NS: Final = 1_000_000_000
_FORM: Final = "%Y-%m-%d %H:%M:%S"


def stamp(now_ns: int) -> str:
    return datetime.fromtimestamp(now_ns // SECOND_NS, UTC).strftime(_FORM)


def reported(now_ns: int) -> str:
    """The plugin's value, in the form in which Go prints a time."""
    return f"{REPORTED} {stamp(now_ns)} +0000 UTC"


def requesting(now_ns: int) -> str:
    return f"{REQUESTING}_{stamp(now_ns)}"


def deleted(now_ns: int) -> str:
    return f"{DELETED}_{stamp(now_ns)}"


def seconds(value: str) -> int | None:
    """Unix time of a scheduler's value; None if it has none."""
    try:
        found = datetime.strptime(value.partition("_")[2], _FORM)
        return int(found.replace(tzinfo=UTC).timestamp())
    except (ValueError, OverflowError):
        return None
