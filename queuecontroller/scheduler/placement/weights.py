"""HAMi's weights of slots, cores and memory for how full a device is, for all vendors."""

from __future__ import annotations

from typing import Final

WEIGHTS: Final = "hami.io/device-scoring-weights"
"""An annotation of pods: `slot=1,core=1,memory=3`."""
WEIGHED: Final = ("slot", "core", "memory")
EVEN: Final = (1, 1, 1)


def weights(text: str) -> tuple[int, ...]:
    """Weights in the order of WEIGHED; those not named are 1. Raises ValueError."""
    found = dict.fromkeys(WEIGHED, 1)
    for part in text.split(","):
        key, equals, value = (one.strip() for one in part.partition("="))
        if not key and not equals:
            continue
        number = int(value) if value.isascii() and value.isdigit() and len(value) < 7 else -1
        if key not in found or number < 0:
            raise ValueError(f"must be one of slot=N, core=N, memory=N, got {part.strip()[:60]!r}")
        found[key] = number
    return tuple(found.values())
