"""Signals of the daemon's parts to the running node, which is built after them.

A part may find that nothing can go on, or that the GPUs have to be read anew; who listens is the
running node, which is built last, of those parts. So the parts are given this instead.
"""

from __future__ import annotations

from typing import Protocol


class Listener(Protocol):
    def fatal(self, error: BaseException) -> None:
        """The ledger is gone, or we have a defect: end now, change nothing more."""

    def reread(self) -> None:
        """GPUs or their driver changed: the next reading starts from nothing."""

    async def read_gpus(self) -> None:
        """Now, and everybody is told."""


class Signals:
    def __init__(self) -> None:
        self._listener: Listener | None = None
        self._fatal: BaseException | None = None

    def listen(self, listener: Listener) -> None:
        """Once; an end that was asked for before is told now."""
        self._listener = listener
        if self._fatal is not None:
            listener.fatal(self._fatal)

    def fatal(self, error: BaseException) -> None:
        if self._listener is not None:
            self._listener.fatal(error)
        elif self._fatal is None:
            self._fatal = error

    def reread(self) -> None:
        """Requests a new reading of the GPUs. Without a listener nothing was read yet."""
        if self._listener is not None:
            self._listener.reread()

    async def read_gpus(self) -> None:
        if self._listener is not None:
            await self._listener.read_gpus()
