"""Messages between the daemon and its eBPF child: JSON with its length in front, over a socket
pair. Both ends are ours; a malformed message is a defect and ends the child.
"""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any, Final

LENGTH: Final = struct.Struct("!I")
LONGEST_BYTES: Final = 16 << 20
"""Maximum size of a message; 8,192 rows of launches in JSON."""
MAX_UNSENT_BYTES: Final = 4 << 20
"""Unsent bytes from which the child drops and counts events, because the daemon does not read."""


def frame(message: dict[str, Any]) -> bytes:
    body = json.dumps(message, separators=(",", ":")).encode()
    return LENGTH.pack(len(body)) + body


async def receive(reader: asyncio.StreamReader) -> dict[str, Any]:
    """The next message. Raises asyncio.IncompleteReadError at the end, ValueError if it is
    malformed."""
    (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    if length > LONGEST_BYTES:
        raise ValueError(f"message of {length} bytes exceeds {LONGEST_BYTES}")
    message = json.loads(await reader.readexactly(length))
    if not isinstance(message, dict):
        raise ValueError("expected a JSON object")
    return message
