"""Signals of the daemon's parts to the running node, which is built after them.

A part may find a fatal error, or that the GPUs have to be read again. The running node handles
both, but it is built last, from those parts, so the parts receive this object instead.
"""

from __future__ import annotations

from typing import Protocol


class Listener(Protocol):
    def fatal(self, error: BaseException) -> None:
        """End now and change nothing more: the ledger is lost, or the daemon has a defect."""

    def reread(self) -> None:
        """Refresh NVML before the next reading: the GPUs or their driver changed."""

    async def read_gpus(self) -> None:
        """Read the GPUs now and notify all subscribers."""


class Signals:
    def __init__(self) -> None:
        self._listener: Listener | None = None
        self._fatal: BaseException | None = None

    def listen(self, listener: Listener) -> None:
        """Set the listener, once; a fatal error from before is delivered now."""
        self._listener = listener
        if self._fatal is not None:
            listener.fatal(self._fatal)

    def fatal(self, error: BaseException) -> None:
        if self._listener is not None:
            self._listener.fatal(error)
        elif self._fatal is None:
            self._fatal = error

    def reread(self) -> None:
        """Request a new reading of the GPUs. Without a listener there was no reading yet."""
        if self._listener is not None:
            self._listener.reread()

    async def read_gpus(self) -> None:
        if self._listener is not None:
            await self._listener.read_gpus()
