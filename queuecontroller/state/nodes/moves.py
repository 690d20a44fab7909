"""Limits on moves of running workloads: a cool-down for each workload, and one move at a time for
each owner."""

from __future__ import annotations

from collections.abc import Callable

from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.state.records import WorkloadRecord


class MoveLimits:
    def __init__(self, cooldown_ns: int) -> None:
        """`cooldown_ns`: time after a move in which the workload is not moved again."""
        self._cooldown_ns = cooldown_ns
        self._rests_until: dict[WorkloadKey, int] = {}
        """End of the cool-down of each moved workload, ns since the epoch."""
        self._moving: dict[WorkloadKey, str] = {}
        """Owners of the workloads that were stopped for a move and have no quota again yet."""

    def note(self, key: WorkloadKey, owner: str, moved_ns: int) -> None:
        """Record a move; also called for the moves in the database."""
        self._rests_until[key] = moved_ns + self._cooldown_ns
        self._moving[key] = owner

    def forget(self, key: WorkloadKey) -> None:
        """Forget a workload that was not moved, or whose move could not be written."""
        self._rests_until.pop(key, None)
        self._moving.pop(key, None)

    def permit(self, key: WorkloadKey, owner: str) -> bool:
        """True if the workload may be moved now."""
        return key not in self._rests_until and owner not in self._moving.values()

    def expire(self, now_ns: int, moving: Callable[[WorkloadKey], bool]) -> bool:
        """End cool-downs and moves that are over; `moving` is True for a workload that has not got
        its quota back. Returns True if any ended."""
        rested = [key for key, until_ns in self._rests_until.items() if until_ns <= now_ns]
        arrived = [key for key in self._moving if not moving(key)]
        for key in rested:
            del self._rests_until[key]
        for key in arrived:
            del self._moving[key]
        return bool(rested or arrived)


def owner_of(record: WorkloadRecord) -> str:
    """The owner of a workload, for the limit of one move at a time."""
    return record.user or f"namespace {record.workload.namespace}"
