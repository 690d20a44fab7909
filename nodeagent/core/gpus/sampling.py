"""Pace of GPU readings: the configured interval, and a burst of quick readings after a change.

A burst is bounded, so that a node on which something always changes is read at nearly the
configured pace: NVML takes a driver lock that launches also take.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from nodeagent.ports.gpus import GpuReading, NodeReading
from nodeagent.units import MIB

BURST_READINGS: Final = 10
"""Quick readings after a change: one second of them."""
REST_READINGS: Final = 10
"""Ordinary readings after a burst before another may start: at most two readings a second on
average."""
MEMORY_STEP_BYTES: Final = 256 * MIB
"""A smaller change is an allocator at work; a larger one is a model being loaded."""
LOAD_STEP_RATIO: Final = 0.25


@dataclass(frozen=True, slots=True)
class Pace:
    """Readings left of the current burst, or of the rest after it."""

    quick_left: int = 0
    rest_left: int = 0


def next_pace(
    pace: Pace, before: NodeReading | None, now: NodeReading, urgent: bool = False
) -> Pace:
    """The pace after a reading. `urgent` requests one quick reading, for example to confirm a
    suspicion, even during the rest."""
    if pace.quick_left > 0:
        left = pace.quick_left - 1
        return Pace(left, REST_READINGS if left == 0 else 0)
    if urgent:
        return Pace(1, pace.rest_left)
    if pace.rest_left > 0:
        return Pace(0, pace.rest_left - 1)
    if before is not None and changed(before, now):
        return Pace(BURST_READINGS)
    return Pace()


def interval_s(pace: Pace, ordinary_s: float, quick_s: float) -> float:
    return min(quick_s, ordinary_s) if pace.quick_left > 0 else ordinary_s


def changed(before: NodeReading, now: NodeReading) -> bool:
    """True if something changed that the next readings will explain."""
    if now.error is not None or now.xid_events or len(before.gpus) != len(now.gpus):
        return now.error is None
    return any(_gpu_changed(a, b) for a, b in zip(before.gpus, now.gpus, strict=True))


def _gpu_changed(a: GpuReading, b: GpuReading) -> bool:
    return (
        a.uuid != b.uuid
        or (a.error is None) != (b.error is None)
        or {one.pid for one in a.processes} != {one.pid for one in b.processes}
        or _step(a.memory_used_bytes, b.memory_used_bytes) >= MEMORY_STEP_BYTES
        or _step(a.utilization_ratio, b.utilization_ratio) >= LOAD_STEP_RATIO
        or a.throttle_reasons != b.throttle_reasons
    )


def _step(a: float | None, b: float | None) -> float:
    return 0.0 if a is None or b is None else abs(a - b)
