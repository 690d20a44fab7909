"""Has grants of the queue spilled and brought back, each in its own task, and reports the
result to the reducer."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from nodeagent.core.queue import events as qd
from nodeagent.ports.clients import RefusalKind, Refused
from nodeagent.ports.queue import Work, WorkState
from nodeagent.units import GrantId
from sluicecommon.background import BackgroundTasks


class Spills(Protocol):
    """A grant's memory on its way to the host and back. Its calls raise Refused."""

    async def spill(self, grant: GrantId) -> None: ...
    async def resume(self, grant: GrantId) -> None: ...


class Spilling:
    def __init__(
        self,
        spills: Spills,
        apply: Callable[[qd.Event], None],
        fatal: Callable[[BaseException], None],
    ) -> None:
        self._spills = spills
        self._apply = apply
        self._background = BackgroundTasks(fatal)

    def carry_on(self, work: Work) -> None:
        """Continues after a restart what was not answered yet."""
        if work.grant is None:
            return
        if work.state is WorkState.SPILLING:
            self.spill(work.grant)
        elif work.state is WorkState.RETURNING:
            self.bring_back(work.grant)

    def spill(self, grant: GrantId) -> None:
        self._soon(self._spill(grant))

    def bring_back(self, grant: GrantId) -> None:
        self._soon(self._bring_back(grant))

    def resume(self, grant: GrantId) -> None:
        """Restore a grant that the node spilled while the queue only paused it."""
        self._soon(self._resume(grant))

    async def close(self) -> None:
        await self._background.close()

    async def _spill(self, grant: GrantId) -> None:
        try:
            await self._spills.spill(grant)
        except Refused as refused:
            if refused.kind is not RefusalKind.NOT_FOUND:  # it is ending: GrantEnded follows
                self._apply(qd.SpillRefused(grant, str(refused)))
        else:
            self._apply(qd.Spilled(grant))

    async def _bring_back(self, grant: GrantId) -> None:
        try:
            await self._spills.resume(grant)
        except Refused as refused:
            if refused.kind is not RefusalKind.NOT_FOUND:
                waits = refused.kind is RefusalKind.EXHAUSTED
                self._apply(qd.ReturnRefused(grant, str(refused), waits))
        else:
            self._apply(qd.Returned(grant))

    async def _resume(self, grant: GrantId) -> None:
        try:
            await self._spills.resume(grant)
        except Refused as refused:
            if refused.kind is not RefusalKind.NOT_FOUND:
                self._apply(qd.ResumeRefused(grant, str(refused)))

    def _soon(self, act: Coroutine[Any, Any, None]) -> None:
        self._background.spawn(act, "checkpoint for the queue")
