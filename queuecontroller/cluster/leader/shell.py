"""The shell that nodes call in a cluster: the current session's, while this replica leads.

A follower has no book. It refuses nodes, which then reach another replica by the Service. Streams
of a leader that lost its lease end, so that no node follows a book that decides nothing any more.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from typing import TypeVar

from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.state.book import Book
from queuecontroller.state.nodes.sessions import Superseded
from queuecontroller.state.records import Assignment
from queuecontroller.state.shell import Shell
from queuecontroller.state.status import Status

T = TypeVar("T")


class LeaderShell:
    """The part of a Shell that nodes call, of whichever session leads."""

    def __init__(self, shell: Callable[[], Shell | None], leader: Callable[[], str]) -> None:
        """`leader` returns the identity of the leader, as far as known, for messages."""
        self._shell = shell
        self._leader = leader

    @property
    def why_not_ready(self) -> str:
        shell = self._shell()
        return self._refusal() if shell is None else shell.why_not_ready

    @property
    def book(self) -> Book:
        """The book. Raises Superseded when this replica does not lead, as do all methods below."""
        return self._acting().book

    def step(self, label: str, call: Callable[[Book, int], T]) -> T:
        return self._acting().step(label, call)

    async def durable(self) -> None:
        shell = self._shell()
        if shell is not None:
            await shell.durable()

    async def decisions(
        self, node: str, epoch: int, after_revision: int
    ) -> AsyncGenerator[list[Assignment], None]:
        shell = self._acting()
        async for found in shell.decisions(node, epoch, after_revision):
            self._still(shell)
            yield found

    async def follow_waiting(
        self, node: str, epoch: int, keys: Iterable[WorkloadKey]
    ) -> AsyncGenerator[list[Status], None]:
        shell = self._acting()
        async for found in shell.follow_waiting(node, epoch, keys):
            self._still(shell)
            yield found

    def _acting(self) -> Shell:
        shell = self._shell()
        if shell is None:
            raise Superseded(self._refusal())
        return shell

    def _still(self, shell: Shell) -> None:
        if self._shell() is not shell:
            raise Superseded(self._refusal())

    def _refusal(self) -> str:
        return f"this replica does not lead ({self._leader() or 'no replica'} does): connect again"
