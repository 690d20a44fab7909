"""Grants of containers with their CDI files, for both the device plugin and DRA claims.

Each of the two managers has a book of its own that decides; this carries out the instructions that
both books have in common.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Final

from nodeagent.core.grants import events as ev
from nodeagent.ports.clients import RefusalKind, Refused
from nodeagent.ports.containers import CdiPort, GrantMounts
from nodeagent.ports.kubelet import Nonce
from nodeagent.ports.ledger import ContainerRef, GrantRecord, GrantState
from nodeagent.shell.grants.keeper import Keeper
from nodeagent.units import GrantId

log = logging.getLogger(__name__)

MountsOf = Callable[[GrantRecord, str, str], GrantMounts]
"""Mounts of a grant, from its record, its region's directory and the container's name."""


class PodGrants:
    def __init__(self, keeper: Keeper, cdi: CdiPort, mounts_of: MountsOf) -> None:
        self.keeper: Final = keeper
        self.cdi: Final = cdi
        self._mounts_of = mounts_of

    def live(self, claims: bool) -> tuple[tuple[GrantId, ContainerRef], ...]:
        """Active grants of containers: those of DRA claims, or those of the device plugin."""
        return tuple(
            (grant, container)
            for grant, held in self.keeper.live().items()
            if (container := held.record.container) is not None
            and bool(container.claim) is claims
            and held.record.state is GrantState.ACTIVE
        )

    def end(self, grant: GrantId) -> None:
        """Release a grant; one that has ended already is no error."""
        try:
            self.keeper.apply(ev.Released(grant))
        except Refused as refused:
            if refused.kind is not RefusalKind.NOT_FOUND:
                log.warning("pods: grant %s was not released: %s", grant, refused)

    async def write_cdi(self, grant: GrantId, nonce: Nonce, container: str, driver: str) -> float:
        """Write the CDI file of a grant's container.

        Returns the seconds until the container runtime has read it. Raises OSError, and ValueError
        when the grant has ended.
        """
        held, opened = self.keeper.grant(grant), self.keeper.opened(grant)
        if held is None or opened is None:
            raise ValueError(f"grant {grant} has just ended")
        record, directory = held.record, opened.region.directory

        def write() -> float:
            return self.cdi.write(nonce, self._mounts_of(record, directory, container), driver)

        # One thread for both steps: on a busy machine each thread switch waits for the CPU.
        return await asyncio.to_thread(write)

    async def remove_cdi(self, nonce: str) -> None:
        await asyncio.to_thread(self.cdi.remove, nonce)


class PendingCalls:
    """Calls of the kubelet that wait until a book has answered them."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[None]] = {}

    @contextlib.contextmanager
    def open(self) -> Iterator[tuple[int, asyncio.Future[None]]]:
        """Yields the call's number and the future of its answer."""
        call = next(self._numbers)
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._answers[call] = answer
        try:
            yield call, answer
        finally:
            del self._answers[call]

    def answer(self, call: int | None, error: Exception | None = None) -> bool:
        """Returns False if the call does not wait any more, or was answered already."""
        answer = self._answers.get(call) if call is not None else None
        if answer is None or answer.done():
            return False
        if error is None:
            answer.set_result(None)
        else:
            answer.set_exception(error)
        return True
