"""What the daemon and its eBPF child say to each other: JSON with its length in front, over a
socket pair. Both ends are ours; a message that is not one means a defect and ends the child."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any, Final

LENGTH: Final = struct.Struct("!I")
LONGEST_BYTES: Final = 16 << 20
"""8,192 rows of launches in JSON."""
MOST_UNSENT_BYTES: Final = 4 << 20
"""A child whose daemon does not read drops events and counts them."""


def frame(message: dict[str, Any]) -> bytes:
    body = json.dumps(message, separators=(",", ":")).encode()
    return LENGTH.pack(len(body)) + body


async def receive(reader: asyncio.StreamReader) -> dict[str, Any]:
    """Raises asyncio.IncompleteReadError at the end, ValueError for what is no message."""
    (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    if length > LONGEST_BYTES:
        raise ValueError(f"a message of {length} bytes")
    message = json.loads(await reader.readexactly(length))
    if not isinstance(message, dict):
        raise ValueError("a message that is no object")
    return message
