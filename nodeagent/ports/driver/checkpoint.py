"""Checkpoints of CUDA processes: the driver copies a process's GPU memory to that process's own
host memory, and restores it to the same GPUs. Drivers have them from release 570 on, on x86-64
(cuCheckpointProcess…, CUDA driver API, "CUDA Checkpointing")."""

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
    """Its calls of the driver block."""
    CHECKPOINTED = "checkpointed"
    MOVING = "moving"
    """A checkpoint or restore that another process began and that did not end."""
    FAILED = "failed"
    """It cannot be restored."""
    GONE = "gone"


class CheckpointStep(StrEnum):
    LOCK = "lock"
    """Lock the process; waits for the work that it has submitted."""
    CHECKPOINT = "checkpoint"
    RESTORE = "restore"
    UNLOCK = "unlock"


class CheckpointFailed(Exception):
    """The driver could not be called, or refused; the text has the reason and the process."""

    def __init__(self, reason: str, full: bool = False) -> None:
        super().__init__(reason)
        self.full = full
        """True if the GPU had no room."""


class Checkpoints(Protocol):
    """The driver's checkpoint calls, made in a separate process that can be killed when it
    hangs."""

    async def missing(self) -> str:
        """The reason why this node's driver has no checkpoints; empty if it has. Raises
        CheckpointFailed if that is unknown."""

    async def states(self, processes: Sequence[Process]) -> list[CheckpointState]:
        """State of each process. Raises CheckpointFailed."""

    async def take(self, step: CheckpointStep, processes: Sequence[Process], each_s: float) -> None:
        """Apply a step to one process after another, up to the first that fails; processes that
        ended are skipped.

        `each_s` limits each of them. Raises CheckpointFailed; `states` then shows how far it came.
        """


class HostRoom(Protocol):
    """Free memory of the host."""

    def total_bytes(self) -> Bytes: ...
    def available_bytes(self) -> Bytes:
        """Memory available without swapping, as the kernel estimates it."""

    def headroom(self, pid: int) -> tuple[Bytes, str] | None:
        """Memory that the cgroups around a process still allow it, and the one that allows least;
        None if there is no limit."""

    def holds_still(self, pid: int) -> str:
        """The reason why the process cannot answer: it is stopped or frozen. Empty if it runs."""
