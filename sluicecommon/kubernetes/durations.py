"""Durations as Kubernetes writes them (Go's notation), in exact nanoseconds: 168h, 1h30m, 1.5s."""

from __future__ import annotations

import re
from typing import Final

_UNIT_NS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_PART: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)", re.ASCII)
_LONGEST_NS: Final = 2**63 - 1
_LONGEST_TEXT: Final = 100


def parse_duration_ns(text: str) -> int:
    """Parts of a nanosecond are cut off. Raises ValueError."""
    sign, rest = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if rest == "0":
        return 0
    total, at = 0, 0
    rest = rest if len(rest) <= _LONGEST_TEXT else ""
    while match := _PART.match(rest, at):
        whole, _, fraction = match[1].partition(".")
        unit_ns = _UNIT_NS[match[2]]
        total += int(whole or "0") * unit_ns + int(fraction or "0") * unit_ns // 10 ** len(fraction)
        at = match.end()
    if not at or at != len(rest) or total > _LONGEST_NS:
        raise ValueError(
            f"expected a duration such as 168h, 5m, 1h30m or 500ms, got {text[:_LONGEST_TEXT]!r}"
        )
    return sign * total
