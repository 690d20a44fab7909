"""Checkpoints of CUDA processes: the driver writes what a process has on its GPUs to that process's
own host memory, and brings it back to the same GPUs. Drivers have them from release 570 on, on
x86-64 (cuCheckpointProcess…, CUDA driver API, "CUDA Checkpointing").
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from nodeagent.ports.processes import Process
from nodeagent.units import Bytes


class CheckpointState(StrEnum):
    """CUprocessState, and a process that has ended."""

    RUNNING = "running"
    LOCKED = "locked"
    """Its calls of the driver wait."""
    CHECKPOINTED = "checkpointed"
    MOVING = "moving"
    """On its way there or back: somebody asked for it who is gone by now."""
    FAILED = "failed"
    """Nothing brings it back."""
    GONE = "gone"


class CheckpointStep(StrEnum):
    LOCK = "lock"
    """Also waits for what it has submitted."""
    CHECKPOINT = "checkpoint"
    RESTORE = "restore"
    UNLOCK = "unlock"


class CheckpointFailed(Exception):
    """The driver was not asked, or said no; the text says why and of which process."""

    def __init__(self, reason: str, full: bool = False) -> None:
        super().__init__(reason)
        self.full = full
        """The GPU had no room."""


class Checkpoints(Protocol):
    """The driver, asked in a process of its own that can be killed when it hangs."""

    async def missing(self) -> str:
        """Why this node's driver has none; empty: it has. Raises CheckpointFailed when that cannot
        be told."""

    async def states(self, processes: Sequence[Process]) -> list[CheckpointState]:
        """One for each. Raises CheckpointFailed."""

    async def take(self, step: CheckpointStep, processes: Sequence[Process], each_s: float) -> None:
        """One after another, ending with the first that fails; who has ended is passed over.
        `each_s`: the longest that one may take. Raises CheckpointFailed: then `states` says how
        far it came."""


class HostRoom(Protocol):
    """What the host's memory can take."""

    def total_bytes(self) -> Bytes: ...
    def available_bytes(self) -> Bytes:
        """Without swapping, as the kernel estimates it."""

    def headroom(self, pid: int) -> tuple[Bytes, str] | None:
        """What the cgroups around a process still let it have, and which of them has least; None:
        no limit."""

    def holds_still(self, pid: int) -> str:
        """Why it would answer nobody: it was stopped, or is frozen. Empty: it runs."""
