"""Has a paused grant's GPU memory written to the host, and brought back before it goes on.

Every step is written down before it is taken (`Spill` of the grant's record), and looks first at
what the driver says each process is; so a daemon that was killed anywhere carries on from the same
step. One grant at a time: the host's memory that one was promised is then used when the next is
measured against it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final

from nodeagent.core.grants import events as ev
from nodeagent.core.grants.quantities import format_bytes
from nodeagent.core.grants.spill import SpillSignal
from nodeagent.core.grants.states import Held
from nodeagent.ports.clients import RefusalKind, Refused
from nodeagent.ports.clock import Clock
from nodeagent.ports.driver.checkpoint import (
    CheckpointFailed,
    Checkpoints,
    CheckpointState,
    CheckpointStep,
    HostRoom,
)
from nodeagent.ports.gpus import GpuReading
from nodeagent.ports.ledger import GrantState, Spill
from nodeagent.ports.processes import Process
from nodeagent.ports.views import EventKind, Finding
from nodeagent.settings.daemon import CheckpointSettings
from nodeagent.shell.grants.keeper import Keeper
from nodeagent.shell.grants.spill_bounds import HostBounds
from nodeagent.shell.journal import Journal
from nodeagent.units import Bytes, GrantId
from sluicecommon.background import BackgroundTasks
from sluicecommon.logs import error_text

log = logging.getLogger(__name__)

SWEEP_S: Final = 5.0
MOVING_S: Final = 0.5
"""Interval of checking whether the driver has finished a request of an earlier daemon. Seconds."""
DOCTOR_S: Final = 5.0
"""Timeout of the driver's answer; a caller of doctor waits 10 s."""
DOCS: Final = "docs/node/checkpoint.md"
LEVELS: Final = {"spilled": "info", "returned": "info", "lost": "critical"}
RESULTS: Final = ("spilled", "failed", "returned", "stayed", "lost", "found")


class SpillManager:
    """An Endpoint of the daemon."""

    def __init__(
        self,
        settings: CheckpointSettings,
        keeper: Keeper,
        driver: Checkpoints,
        host: HostRoom,
        cards: Callable[[], Sequence[GpuReading]],
        cards_now: Callable[[], Awaitable[Sequence[GpuReading]]],
        journal: Journal,
        clock: Clock,
        fatal: Callable[[BaseException], None],
    ) -> None:
        """`cards` has the GPUs and MIG instances of the last reading, `cards_now` reads them again;
        both are empty if they cannot be read."""
        self._settings = settings
        self._keeper = keeper
        self._driver = driver
        self._bounds = HostBounds(settings, host)
        self._cards = cards
        self._cards_now = cards_now
        self._journal = journal
        self._clock = clock
        self._background = BackgroundTasks(fatal)
        self._turn = asyncio.Lock()
        self._has = False
        """True once the driver is known to support checkpoints; until then it is checked again."""
        self.results: Counter[str] = Counter()
        """Checkpoints and restores by result, since the daemon started."""
        self.overdue: Callable[[GrantId], bool] = lambda grant: False
        """Ends a grant that has been on the host for too long; False if no part may end it."""

    # --- an Endpoint --------------------------------------------------------------------------

    async def start(self) -> None:
        """Carries on what an earlier daemon had begun."""
        for grant, held in self._keeper.live().items():
            if held.record.spill is not Spill.RESIDENT:
                self._soon(self._carry_on(grant))
        self._soon(self._sweep_loop())

    async def close(self) -> None:
        """Stops without finishing: the next daemon continues what is under way."""
        await self._background.close()

    def forget_driver(self) -> None:
        """Check the support of checkpoints again, since the driver was replaced."""
        self._has = False

    # --- to the host --------------------------------------------------------------------------

    async def spill(self, grant: GrantId) -> None:
        """Pause a grant and move its memory to the host. Completes even if the caller is cancelled.
        Raises Refused: the grant is unchanged, unless the text says otherwise."""
        await self._whole(self._spill(grant))

    async def _spill(self, grant: GrantId) -> None:
        async with self._turn:
            held = self._held(grant)
            if held.record.spill is Spill.SPILLED:
                return
            if held.record.spill is Spill.SPILLING:
                await self._put_out(grant, was_paused=True)
                return
            await self._check_driver()
            needed = await self._measure(grant)
            if not needed:
                raise Refused(
                    RefusalKind.UNAVAILABLE,
                    f"grant {grant[:8]} has no process with CUDA: there is nothing to spill",
                )
            each = {process: sum(bytes_) for process, bytes_ in needed.items()}
            self._bounds.check(each, self.spilled_bytes())
            await self._check_untouched(grant)  # Last: a stopped process would not answer it.
            was_paused = self._held(grant).record.paused
            on_each = tuple(Bytes(sum(bytes_)) for bytes_ in zip(*needed.values(), strict=True))
            self._keeper.apply(ev.PauseSet(grant, paused=True))
            self._keeper.apply(ev.SpillMoved(grant, SpillSignal.BEGIN, bytes=on_each))
            await self._put_out(grant, was_paused)

    async def _put_out(self, grant: GrantId, was_paused: bool) -> None:
        """Checkpoints the grant from whichever state its processes are in. Raises Refused."""
        processes, settings = self._processes(grant), self._settings
        try:
            async with asyncio.timeout(settings.total_timeout_s):
                states = await self._states(processes)
                running = _in(states, CheckpointState.RUNNING)
                await self._driver.take(CheckpointStep.LOCK, running, settings.lock_timeout_s)
                locked = running + _in(states, CheckpointState.LOCKED)
                await self._driver.take(CheckpointStep.CHECKPOINT, locked, settings.copy_timeout_s)
        except (CheckpointFailed, TimeoutError) as error:
            why = str(error) or f"timed out after {settings.total_timeout_s:g} s"
            lost = await self._undo(processes)
            self._apply(ev.SpillMoved(grant, SpillSignal.UNDONE))
            if not lost and not was_paused:
                self._apply(ev.PauseSet(grant, paused=False))
            self._say(grant, "failed", f"its memory stays on its GPUs: {why}{lost}")
            raise Refused(
                RefusalKind.UNAVAILABLE, f"grant {grant[:8]} cannot be spilled: {why}{lost}"
            ) from error
        self._apply(ev.SpillMoved(grant, SpillSignal.DONE, self._clock.unix_s()))
        held = self._keeper.grant(grant)
        bytes_ = sum(held.record.spilled_bytes) if held is not None else 0
        self._say(grant, "spilled", f"its memory, {format_bytes(bytes_)}, is on the host")

    async def _undo(self, processes: list[Process]) -> str:
        """Restore all processes that can be: their room on the GPU is still theirs. Returns a text
        about those that could not be restored."""
        try:
            async with asyncio.timeout(self._settings.total_timeout_s):
                states = await self._settled(processes)
                await self._bring_in(states)
        except (CheckpointFailed, TimeoutError) as error:
            return f"; and it could not be undone, end its processes: {error_text(error)}"
        failed = _in(states, CheckpointState.FAILED)
        if failed:
            return f"; process {failed[0].pid} cannot be restored, end it"
        return ""

    # --- and back -----------------------------------------------------------------------------

    async def resume(self, grant: GrantId) -> None:
        """Resume a paused grant, after restoring its memory to its GPUs if needed. Completes even
        if the caller is cancelled. Raises Refused: the grant is unchanged, unless the text says
        otherwise."""
        await self._whole(self._resume(grant))

    async def _resume(self, grant: GrantId) -> None:
        async with self._turn:
            record = self._held(grant).record
            if record.spill is Spill.SPILLING:
                await self._put_out(grant, was_paused=True)
                record = self._held(grant).record
            if record.spill is Spill.SPILLED:
                self._keeper.apply(ev.SpillMoved(grant, SpillSignal.RETURN))
                await self._check_cards(grant)
            if record.spill is not Spill.RESIDENT:
                await self._take_back(grant)
            self._keeper.apply(ev.PauseSet(grant, paused=False))

    async def _take_back(self, grant: GrantId) -> None:
        """Restores the grant from whichever state its processes are in. Raises Refused."""
        processes = self._processes(grant)
        try:
            async with asyncio.timeout(self._settings.total_timeout_s):
                await self._bring_in(await self._states(processes))
        except (CheckpointFailed, TimeoutError) as error:
            why = str(error) or f"timed out after {self._settings.total_timeout_s:g} s"
            full = isinstance(error, CheckpointFailed) and error.full
            if await self._is_out_again(processes):
                self._apply(ev.SpillMoved(grant, SpillSignal.STAYED))
                self._say(grant, "stayed", f"its memory stays on the host: {why}")
                kind = RefusalKind.EXHAUSTED if full else RefusalKind.UNAVAILABLE
                raise Refused(kind, f"grant {grant[:8]} stays spilled: {why}") from error
            why += await self._undo(processes)
            self._apply(ev.SpillMoved(grant, SpillSignal.BACK))  # its room is kept, whatever it has
            self._say(grant, "lost", f"its memory is not all back, and it stays paused: {why}")
            raise Refused(
                RefusalKind.UNAVAILABLE, f"the memory of grant {grant[:8]} is not all back: {why}"
            ) from error
        self._apply(ev.SpillMoved(grant, SpillSignal.BACK))
        self._say(grant, "returned", "its memory is back on its GPUs")

    async def _bring_in(self, states: list[tuple[Process, CheckpointState]]) -> None:
        """Restore all before the first continues: until then they can be checkpointed again."""
        out = _in(states, CheckpointState.CHECKPOINTED)
        await self._driver.take(CheckpointStep.RESTORE, out, self._settings.copy_timeout_s)
        held = out + _in(states, CheckpointState.LOCKED)
        await self._driver.take(CheckpointStep.UNLOCK, held, self._settings.lock_timeout_s)

    async def _is_out_again(self, processes: list[Process]) -> bool:
        """Checkpoints again those processes that a failed restore had restored."""
        try:
            async with asyncio.timeout(self._settings.total_timeout_s):
                states = await self._states(processes)
                if _in(states, CheckpointState.RUNNING):
                    return False
                locked = _in(states, CheckpointState.LOCKED)
                await self._driver.take(
                    CheckpointStep.CHECKPOINT, locked, self._settings.copy_timeout_s
                )
        except (CheckpointFailed, TimeoutError) as error:
            log.error("a failed restore cannot be undone: %s", error_text(error))
            return False
        return True

    # --- after a restart ----------------------------------------------------------------------

    async def _carry_on(self, grant: GrantId) -> None:
        async with self._turn:
            held = self._keeper.grant(grant)
            if held is None:
                return
            try:
                if held.record.spill is Spill.SPILLING:
                    await self._put_out(grant, was_paused=True)
                elif held.record.spill is Spill.RETURNING:
                    await self._take_back(grant)
                    self._apply(ev.PauseSet(grant, paused=False))
                elif held.record.spill is Spill.SPILLED:
                    await self._look_at_spilled(grant)
            except Refused as refused:
                log.warning("grant %s: %s", grant, refused)

    async def _look_at_spilled(self, grant: GrantId) -> None:
        """Detects a restore by another tool. The grant counts on its GPUs again if its room there
        is free; where it was promised to other grants, its memory goes to the host once more.
        Raises Refused if it then stays on its GPUs."""
        try:
            async with asyncio.timeout(self._settings.total_timeout_s):
                states = await self._states(self._processes(grant))
        except (CheckpointFailed, TimeoutError) as error:
            log.warning("grant %s: %s", grant, error_text(error))
            return
        if not _in(states, CheckpointState.RUNNING) and not _in(states, CheckpointState.LOCKED):
            return
        bytes_ = self._held(grant).record.spilled_bytes
        self._apply(ev.SpillMoved(grant, SpillSignal.FOUND))
        text = "its memory is on its GPUs, and was not brought back by this daemon"
        if self._is_overcommitted(grant):
            self._say(grant, "found", f"{text}: its room is another grant's, it goes to the host")
            self._apply(ev.SpillMoved(grant, SpillSignal.BEGIN, bytes=bytes_))
            await self._put_out(grant, was_paused=True)
            return
        lost = await self._undo(self._processes(grant))  # those that were not brought back
        self._say(grant, "found", f"{text}{lost}")

    def _is_overcommitted(self, grant: GrantId) -> bool:
        """True if a GPU of the grant has less memory than its grants were promised."""
        loads = self._keeper.loads()
        return any(
            loads[device.gpu].memory_bytes > device.physical_bytes
            for device in self._held(grant).record.devices
            if device.gpu in loads
        )

    # --- time ---------------------------------------------------------------------------------

    async def _sweep_loop(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self._sweep()

    def _sweep(self) -> None:
        longest_s = self._settings.longest_s
        oldest_s = self._clock.unix_s() - longest_s if longest_s else 0.0
        for grant, held in list(self._keeper.live().items()):
            record = held.record
            if record.spill is not Spill.SPILLED:
                continue
            pids = {process.pid for process in self._processes(grant)}
            there = any(one.pid in pids for card in self._cards() for one in card.processes)
            if there and not self._turn.locked():
                self._soon(self._carry_on(grant))  # unless that was read before it went
            late = record.spilled_unix_s < oldest_s
            if late and record.state is GrantState.ACTIVE and self.overdue(grant):
                text = f"on the host for longer than checkpoint.longest_s ({longest_s:g} s)"
                self._journal.record(
                    EventKind.CHECKPOINT,
                    "warning",
                    f"grant {grant}: {text}",
                    once=f"overdue {grant}",
                )

    # --- may it? ------------------------------------------------------------------------------

    async def _lacks(self) -> str:
        """Reason why the driver cannot make checkpoints; empty if it can. Raises
        CheckpointFailed."""
        why = "" if self._has else await self._driver.missing()
        self._has = not why
        return why

    async def _check_driver(self) -> None:
        if not self._settings.enabled:
            raise Refused(
                RefusalKind.UNAVAILABLE, "this node spills nothing (checkpoint.enabled = false)"
            )
        try:
            lacks = await self._lacks()
        except CheckpointFailed as error:
            lacks = f"this cannot be determined: {error}"
        if lacks:
            raise Refused(
                RefusalKind.UNAVAILABLE,
                f"this node's driver makes no checkpoints of processes: {lacks}",
            )

    async def _check_untouched(self, grant: GrantId) -> None:
        """Refuse to checkpoint processes that others, or they themselves, have locked or
        checkpointed: the two would restore each other's. Raises Refused."""
        try:
            states = await self._states(self._processes(grant))
        except CheckpointFailed as error:
            raise Refused(
                RefusalKind.UNAVAILABLE, f"grant {grant[:8]} cannot be spilled: {error}"
            ) from error
        mine = (CheckpointState.RUNNING, CheckpointState.GONE)
        for process, state in states:
            if state not in mine:
                raise Refused(
                    RefusalKind.UNAVAILABLE,
                    f"process {process.pid} is {state.value} already, by itself or another"
                    " program, which has to restore it first",
                )

    async def _check_cards(self, grant: GrantId) -> None:
        """Check that the cards have room, besides the book: the driver may lose a process if it
        finds none on restore. Raises Refused."""
        record = self._held(grant).record
        cards = {card.uuid: card for card in await self._cards_now()}
        for device, needed in zip(record.devices, record.spilled_bytes, strict=False):
            card = cards.get(device.gpu)
            if card is None or card.memory_used_bytes is None:
                continue
            free = max(0, card.memory_total_bytes - card.memory_used_bytes)
            if needed > free:
                self._apply(ev.SpillMoved(grant, SpillSignal.STAYED))
                raise Refused(
                    RefusalKind.EXHAUSTED,
                    f"{format_bytes(needed)} are to be restored to GPU {card.index}, which has"
                    f" {format_bytes(free)} free: a process uses more there than was granted,"
                    " or has not ended yet",
                )

    # --- what there is to say -----------------------------------------------------------------

    def spilled_bytes(self) -> int:
        """Bytes of all grants whose memory is on the host, or on its way there or back."""
        return sum(sum(held.record.spilled_bytes) for held in self._keeper.live().values())

    async def finding(self) -> Finding:
        """Finding for `sluice doctor`."""
        topic = "checkpoints"
        if not self._settings.enabled:
            return Finding(topic, "ok", "off (checkpoint.enabled)")
        try:
            async with asyncio.timeout(DOCTOR_S):
                lacks = await self._lacks()
        except (CheckpointFailed, TimeoutError) as error:
            lacks = f"this cannot be determined: {error_text(error)}"
        if lacks:
            return Finding(
                topic,
                "ok",
                f"none: {lacks}; `sluice pause --spill` is refused, and work that is to be"
                " checkpointed when it is preempted is stopped",
            )
        away = [h for h in self._keeper.live().values() if h.record.spill is not Spill.RESIDENT]
        return Finding(
            topic,
            "ok",
            f"the driver has them; {len(away)} grants are spilled, with"
            f" {format_bytes(self.spilled_bytes())} of at most {format_bytes(self._bounds.most())};"
            f" not with managed memory or memory shared by IPC, see {DOCS}",
        )

    def _say(self, grant: GrantId, result: str, text: str) -> None:
        self.results[result] += 1
        held = self._keeper.grant(grant)
        self._journal.record(
            EventKind.CHECKPOINT,
            LEVELS.get(result, "warning"),
            f"grant {grant}: {text}",
            uid=held.record.owner.uid if held is not None else None,
            grant=grant,
        )

    # --- helpers ------------------------------------------------------------------------------

    def _held(self, grant: GrantId) -> Held:
        held = self._keeper.grant(grant)
        if held is None or held.record.state is not GrantState.ACTIVE:
            raise Refused(RefusalKind.NOT_FOUND, f"no live grant {grant}")
        return held

    def _apply(self, event: ev.SpillMoved | ev.PauseSet) -> None:
        """Applies an event of a grant that may have ended meanwhile."""
        if self._keeper.grant(event.grant) is not None:
            self._keeper.apply(event)

    def _processes(self, grant: GrantId) -> list[Process]:
        return [tenant.handle.process for tenant in self._keeper.tenants(grant)]

    async def _states(self, processes: list[Process]) -> list[tuple[Process, CheckpointState]]:
        """States of the processes. Raises CheckpointFailed, also if one cannot be restored."""
        states = await self._settled(processes)
        failed = _in(states, CheckpointState.FAILED)
        if failed:
            raise CheckpointFailed(
                f"process {failed[0].pid} failed in the driver and cannot be restored"
            )
        return states

    async def _settled(self, processes: list[Process]) -> list[tuple[Process, CheckpointState]]:
        """States once no process is between two states. Raises CheckpointFailed."""
        while True:
            states = list(zip(processes, await self._driver.states(processes), strict=True))
            if not _in(states, CheckpointState.MOVING):
                return states
            await asyncio.sleep(MOVING_S)

    async def _measure(self, grant: GrantId) -> dict[Process, list[Bytes]]:
        """Measures the bytes of each process on each of the grant's GPUs: the larger of what the
        process was charged, which a tenant can falsify, and what the driver reports."""
        cards = {card.uuid: card for card in await self._cards_now()}
        held, opened = self._keeper.grant(grant), self._keeper.opened(grant)
        if held is None or opened is None:
            return {}
        self._keeper.look(grant, opened)
        found: dict[Process, list[Bytes]] = {}
        for slot, tenant in opened.tenants.items():
            process = tenant.handle.process
            found[process] = [
                Bytes(max(opened.account.charged(slot, at), _on(cards.get(one.gpu), process.pid)))
                for at, one in enumerate(held.record.devices)
            ]
        return found

    async def _whole(self, act: Coroutine[Any, Any, None]) -> None:
        await asyncio.shield(self._soon(act))

    def _soon(self, act: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        # A refusal is for the caller that waits in `_whole`.
        return self._background.spawn(act, "checkpoint of a grant", expected=(Refused,))


def _on(card: GpuReading | None, pid: int) -> int:
    """Bytes that the driver reports for a process on this GPU."""
    if card is None:
        return 0
    return sum(one.memory_bytes or 0 for one in card.processes if one.pid == pid)


def _in(states: list[tuple[Process, CheckpointState]], wanted: CheckpointState) -> list[Process]:
    return [process for process, state in states if state is wanted]
