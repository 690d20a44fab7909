"""Health of one GPU: a table from what NVML shows to what we do about it.

NVML's own recovery verdict comes first, XID codes second, and a reading that fails is only
suspicious until it fails again: driver resets heal by themselves. A GPU that was bad must be
good several times in a row before it is offered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from nodeagent.ports import GpuReading


class Health(StrEnum):
    HEALTHY = "healthy"
    SUSPECT = "suspect"
    """One reading failed; still offered."""
    UNHEALTHY = "unhealthy"
    """Needs a reset, or keeps failing."""
    RECOVERING = "recovering"
    """Good again, not yet for long enough."""
    LOST = "lost"
    """Fell off the bus: only a reboot or a power cycle brings it back."""


class Sign(StrEnum):
    GOOD = "good"
    GOOD_FOR_LONG = "good_for_long"
    READ_FAILED = "read_failed"
    NEEDS_RESET = "needs_reset"
    GONE = "gone"


OFFERED: Final = frozenset({Health.HEALTHY, Health.SUSPECT})
GOOD_READINGS: Final = 5
"""Consecutive good readings before a GPU is offered again."""

_H, _S = Health, Sign
NEXT: Mapping[tuple[Health, Sign], Health] = MappingProxyType(
    {
        (_H.HEALTHY, _S.READ_FAILED): _H.SUSPECT,
        (_H.HEALTHY, _S.NEEDS_RESET): _H.UNHEALTHY,
        (_H.HEALTHY, _S.GONE): _H.LOST,
        (_H.SUSPECT, _S.GOOD): _H.HEALTHY,
        (_H.SUSPECT, _S.GOOD_FOR_LONG): _H.HEALTHY,
        (_H.SUSPECT, _S.READ_FAILED): _H.UNHEALTHY,
        (_H.SUSPECT, _S.NEEDS_RESET): _H.UNHEALTHY,
        (_H.SUSPECT, _S.GONE): _H.LOST,
        (_H.UNHEALTHY, _S.GOOD): _H.RECOVERING,
        (_H.UNHEALTHY, _S.GOOD_FOR_LONG): _H.RECOVERING,
        (_H.UNHEALTHY, _S.GONE): _H.LOST,
        (_H.RECOVERING, _S.GOOD_FOR_LONG): _H.HEALTHY,
        (_H.RECOVERING, _S.READ_FAILED): _H.UNHEALTHY,
        (_H.RECOVERING, _S.NEEDS_RESET): _H.UNHEALTHY,
        (_H.RECOVERING, _S.GONE): _H.LOST,
        (_H.LOST, _S.GOOD): _H.RECOVERING,
        (_H.LOST, _S.GOOD_FOR_LONG): _H.RECOVERING,
    }
)

XID_SIGNS: Mapping[int, Sign] = MappingProxyType(
    {
        # NVIDIA's XID catalogue, resolution bucket RESET_GPU or worse. Codes that are not here,
        # such as 13, 31, 43 and
        # 45, come from the application and say nothing about the card.
        48: Sign.NEEDS_RESET,  # double bit ECC error
        62: Sign.NEEDS_RESET,  # internal micro-controller halt
        64: Sign.NEEDS_RESET,  # row remapping failed
        74: Sign.NEEDS_RESET,  # NVLink error
        79: Sign.GONE,  # fallen off the bus
        95: Sign.NEEDS_RESET,  # uncontained ECC error
        119: Sign.NEEDS_RESET,  # GSP RPC timeout
        120: Sign.NEEDS_RESET,  # GSP error
        140: Sign.NEEDS_RESET,  # ECC unrecovered
    }
)
_RECOVERY_SIGNS: Mapping[str, Sign] = MappingProxyType(
    {
        "reset": Sign.NEEDS_RESET,
        "drain_and_reset": Sign.NEEDS_RESET,
        "reboot": Sign.GONE,
    }
)
_LOST_WORDS: Final = ("lost", "not found")


@dataclass(frozen=True, slots=True)
class Patient:
    """A GPU's health and how long it has been well."""

    health: Health = Health.HEALTHY
    good_readings: int = 0


def examine(patient: Patient, reading: GpuReading | None, xids: tuple[int, ...] = ()) -> Patient:
    """`reading` None: the GPU is missing from an otherwise good pass."""
    sign = _sign(reading, xids)
    good = patient.good_readings + 1 if sign is Sign.GOOD else 0
    if sign is Sign.GOOD and good >= GOOD_READINGS:
        sign = Sign.GOOD_FOR_LONG
    after = NEXT.get((patient.health, sign), patient.health)
    # Recovery is counted from its own beginning.
    return Patient(after, 1 if after is Health.RECOVERING is not patient.health else good)


def _sign(reading: GpuReading | None, xids: tuple[int, ...]) -> Sign:
    if reading is None:
        return Sign.GONE
    signs = {XID_SIGNS[xid] for xid in xids if xid in XID_SIGNS}
    if reading.error is not None:
        lost = any(word in reading.error.lower() for word in _LOST_WORDS)
        signs.add(Sign.GONE if lost else Sign.READ_FAILED)
    verdict = _RECOVERY_SIGNS.get(reading.recovery_action or "")
    if verdict is not None:
        signs.add(verdict)
    for worst in (Sign.GONE, Sign.NEEDS_RESET, Sign.READ_FAILED):
        if worst in signs:
            return worst
    return Sign.GOOD
