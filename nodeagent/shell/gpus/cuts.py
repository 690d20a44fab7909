"""Creates MIG instances on request, and destroys them when their room is needed.

Each change is two-phase: the instances to create and to destroy are durable before the driver is
called, and the card's resulting state is written afterwards. After a kill the rows have the
intended state and the card has the actual one, which the next reconciliation takes over. An
instance is destroyed only if the daemon made it and it has no holder: no grant, no answer to the
kubelet, no decision of the queue, no pending request for it, and no process that NVML lists. It is
withheld from placement before its holders are checked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from nodeagent.core.gpus.cuts import NoRoom, NoSuchProfile, Room, room_for, settled
from nodeagent.core.gpus.mig_geometry import geometry
from nodeagent.ports.clock import Clock
from nodeagent.ports.ledger import LedgerLost
from nodeagent.ports.mig import (
    Cut,
    CutLedger,
    CutState,
    MigInstance,
    MigPlace,
    MigPort,
    MigState,
    MigUnavailable,
    Span,
)
from nodeagent.ports.views import EventKind
from nodeagent.shell.gpus.holders import Holders
from nodeagent.shell.gpus.readings import Gpus
from nodeagent.shell.grants.keeper import Keeper
from nodeagent.shell.journal import Journal
from nodeagent.units import GpuUuid, GrantId
from sluicecommon.background import BackgroundTasks

log = logging.getLogger(__name__)

HELD_UP_S: Final = 120.0
"""A reading may have to wait for a change and for the readings before and after it."""
STOP_WAITS_S: Final = 15.0
"""The daemon's end waits so long for a change."""


@dataclass(frozen=True, slots=True)
class MigWish:
    """A request for one MIG instance."""

    profile: str
    card: GpuUuid | None = None
    """None for any card with room."""
    spans: tuple[Span, ...] = ()
    """Spans on the card in order of preference; empty for the best fit."""


class Cuts:
    """Implements Endpoint."""

    def __init__(
        self,
        cutter: MigPort,
        ledger: CutLedger,
        keeper: Keeper,
        gpus: Gpus,
        holders: Holders,
        journal: Journal,
        clock: Clock,
        geometry_lock: asyncio.Lock,
        reread: Callable[[], Awaitable[None]],
        fatal: Callable[[BaseException], None],
    ) -> None:
        """`reread` reads the GPUs now and notifies all subscribers."""
        self._cutter = cutter
        self._ledger = ledger
        self._keeper = keeper
        self._gpus = gpus
        self._holders = holders
        self._journal = journal
        self._clock = clock
        self._geometry = geometry_lock
        self._reread = reread
        self._fatal = fatal
        self.rows: dict[tuple[GpuUuid, MigPlace], Cut] = {}
        """Instances that the daemon has made, is about to make, or is about to destroy."""
        self.cards: dict[GpuUuid, MigState] = {}
        """Cards with MIG, as last read."""
        self.on_change: list[Callable[[], None]] = []
        """Called when cards or rows are other than before."""
        self._promised: dict[GpuUuid, str] = {}
        """Instances that are reserved for a request, with the requester's name."""
        self._shown: object = None
        """Signature of the readings when the cards were last read."""
        self._busy = False
        self._background = BackgroundTasks(fatal)
        self.made_total = 0
        self.removed_total = 0
        holders.promised = self._promised_of

    # --- an Endpoint --------------------------------------------------------------------------

    def remember(self) -> None:
        """Loads the ledger's rows before any part asks for the holders of an instance."""
        self.rows = {row.key: row for row in self._ledger.load()}
        self._mark()

    async def start(self) -> None:
        for row in self.rows.values():
            if row.state is not CutState.MADE:
                self._journal.record(
                    EventKind.GPU,
                    "info",
                    f"an instance {row.place} of {row.card} was {row.state} for {row.who} when the"
                    " daemon ended: the card is read to see the result",
                )
        await self.look()
        self._gpus.on_read.append(self._gpus_read)

    async def close(self) -> None:
        """A card half cut is worse than a late end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_WAITS_S), self._geometry:
                pass
        await self._background.close()
        self._ledger.close()

    def held_up_s(self) -> float:
        """Seconds by which the next reading may be late, for the watchdog."""
        return HELD_UP_S if self._busy else 0.0

    def _gpus_read(self) -> None:
        """Starts a reading of the cards if another tool has changed one, or if one came back."""
        if (
            self._signature() != self._shown
            and not self._background.busy
            and not self._geometry.locked()
        ):
            self._background.spawn(self.look(), "reading of MIG instances")

    def _signature(self) -> object:
        return sorted(
            (card.uuid, None if card.mig is None else sorted(one.uuid for one in card.mig))
            for card in self._gpus.sorted()
        )

    # --- what there is ------------------------------------------------------------------------

    async def look(self) -> None:
        """Reads the cards, and brings the rows to what they show."""
        async with self._geometry:
            await self._look()

    async def _look(self) -> None:
        shown = self._signature()
        try:
            states = await self._cutter.states()
        except MigUnavailable as error:
            log.warning("MIG: cannot read the GPUs' geometry: %s", error)
            return
        self._shown = shown
        await self._settle(states)

    async def _settle(self, states: Sequence[MigState]) -> None:
        put: list[Cut] = []
        drop: list[Cut] = []
        for state in states:
            changed, gone = settled(self.rows.values(), state)
            put += changed
            drop += gone
        if put or drop:
            await self._ledger.commit(put, drop)
        for row in drop:
            self.rows.pop(row.key, None)
        self.rows.update({row.key: row for row in put})
        self.cards |= {one.gpu: one for one in states if one.supported and not one.error}
        self._mark()

    def _mark(self) -> None:
        self._gpus.on_demand = frozenset(one.uuid for one in self.rows.values() if one.uuid)
        for call in self.on_change:
            call()

    def ours(self, card: GpuUuid) -> frozenset[MigPlace]:
        return frozenset(row.place for row in self.rows.values() if row.card == card)

    def held(self, state: MigState, but: Collection[GrantId] = ()) -> dict[MigPlace, str]:
        """Holders of each instance that is in use, by our own books. What the driver says of
        processes holds only for the moment, see `_used`."""
        found = {}
        for one in state.instances:
            uuids = frozenset(device.uuid for device in one.devices)
            if uuids and (who := self._holders.of(uuids, but)):
                found[one.place] = "; ".join(who)
        return found

    def _used(self, state: MigState, but: Collection[GrantId] = ()) -> dict[MigPlace, str]:
        """Holders of each instance of a card that was read just now, including processes in no
        grant."""
        found = self.held(state, but)
        for one in state.instances:
            inside = [p for p in state.processes if p.gpu_instance in (one.gpu_instance, None)]
            if who := self._holders.processes(inside):
                found[one.place] = "; ".join([*filter(None, [found.get(one.place)]), *who])
        return found

    def instance_at(self, card: GpuUuid, place: MigPlace) -> GpuUuid | None:
        """Instance at a place by the last reading of the GPUs, which is what grants go by."""
        reading = self._gpus.readings.get(card)
        for one in (reading.mig or ()) if reading is not None else ():
            if (
                one.profile == place.profile
                and one.slice_start == place.span.start
                and one.slices == place.span.size
            ):
                return one.uuid
        return None

    def _promised_of(self, gpus: frozenset[GpuUuid]) -> list[str]:
        return [
            f"{who}, which it is made for" for gpu, who in self._promised.items() if gpu in gpus
        ]

    # --- one that is wanted -------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def instance(
        self, wish: MigWish, who: str, but: Collection[GrantId] = ()
    ) -> AsyncGenerator[GpuUuid, None]:
        """Find or create an instance and reserve it for the time of the context, within which the
        caller makes its grant. `but`: the caller's own grants, which may be on it. Raises NoRoom,
        MigUnavailable, LedgerFull, LedgerLost."""
        uuid = await self._promise(wish, who, frozenset(but))
        try:
            yield uuid
        finally:
            self._promised.pop(uuid, None)

    async def _promise(self, wish: MigWish, who: str, but: frozenset[GrantId]) -> GpuUuid:
        """Reserve an instance; a change that has begun is finished even if the caller is
        cancelled."""
        # Every error is for the caller, that of a lost ledger is fatal as well.
        task = self._background.spawn(
            self._alone(wish, who, but), "making of a MIG instance", expected=(Exception,)
        )
        try:
            return await asyncio.shield(task)
        except LedgerLost as error:
            self._fatal(error)
            raise
        except asyncio.CancelledError:
            task.add_done_callback(self._unpromise)
            raise

    def _unpromise(self, task: asyncio.Task[GpuUuid]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, LedgerLost):
            self._fatal(error)
        elif error is None and not task.cancelled():
            self._promised.pop(task.result(), None)

    async def _alone(self, wish: MigWish, who: str, but: frozenset[GrantId]) -> GpuUuid:
        async with self._geometry:
            uuid = self._there(wish, but) or await self._make(wish, who, but)
            self._promised[uuid] = who
            return uuid

    def _there(self, wish: MigWish, but: Collection[GrantId]) -> GpuUuid | None:
        """A free instance that exists already, without a call to the driver."""
        for state in self._chosen(wish):
            for span in wish.spans:
                uuid = self.instance_at(state.gpu, MigPlace(wish.profile, span))
                if uuid is None or self._gpus.withheld(uuid):
                    continue
                if not self._holders.of(frozenset({uuid}), but):
                    return uuid
        return None

    def _chosen(self, wish: MigWish) -> list[MigState]:
        return [one for one in self.cards.values() if wish.card in (None, one.gpu)]

    async def _make(self, wish: MigWish, who: str, but: Collection[GrantId]) -> GpuUuid:
        await self._look()
        state, room = self._room(wish, but)
        if room.there is not None:
            uuid = room.there.devices[0].uuid
            if uuid not in {unit.uuid for unit in self._gpus.units()}:
                await self._reread()
            return uuid
        going = [one for one in state.instances if one.place in room.remove]
        uuids = [device.uuid for one in going for device in one.devices]
        self._busy = True
        try:
            for uuid in uuids:
                self._gpus.withhold(uuid, True)
            self._keeper.apply(self._gpus.seen())
            held = self._used(state)
            taken = [f"{one.place} by {held[one.place]}" for one in going if one.place in held]
            if taken:
                raise NoRoom(f"no room for {wish.profile}: {'; '.join(taken)}")
            return await self._change(state, room, going, who)
        finally:
            for uuid in uuids:
                self._gpus.withhold(uuid, False)
            self._busy = False
            await self._reread()
            self._shown = self._signature()

    def _room(self, wish: MigWish, but: Collection[GrantId]) -> tuple[MigState, Room]:
        """Finds the card where the fewest instances have to go. Raises NoRoom."""
        found: list[tuple[int, int, MigState, Room]] = []
        reasons: list[NoRoom] = []
        for state in self._chosen(wish):
            if self._gpus.withheld(state.gpu) or not self._gpus.patient(state.gpu).offered:
                reasons.append(
                    NoRoom(f"GPU {state.index} is unhealthy, or its MIG geometry is being changed")
                )
                continue
            held = self._used(state, but)
            try:
                room = room_for(state, self.ours(state.gpu), held, wish.profile, wish.spans)
            except NoRoom as error:
                kind = NoSuchProfile if isinstance(error, NoSuchProfile) else NoRoom
                reasons.append(kind(f"GPU {state.index}: {error}"))
                continue
            cost = -1 if room.there is not None else len(room.remove)
            found.append((cost, state.index, state, room))
        if found:
            _, _, state, room = min(found, key=lambda one: one[:2])
            return state, room
        if wish.card is not None and wish.card not in self.cards:
            raise NoRoom(f"{wish.card}: unknown here, without MIG, or unreadable now")
        never = bool(reasons) and all(isinstance(one, NoSuchProfile) for one in reasons)
        text = "; ".join(map(str, reasons)) or "no card here has MIG"
        raise NoSuchProfile(text) if never or not reasons else NoRoom(text)

    async def _change(
        self, state: MigState, room: Room, going: Sequence[MigInstance], who: str
    ) -> GpuUuid:
        now_s = self._clock.unix_s()
        rows = [Cut(state.gpu, room.place, CutState.RESERVED, now_s, who)]
        rows += [
            Cut(state.gpu, one.place, CutState.GOING, now_s, who, one.devices[0].uuid)
            if one.devices
            else Cut(state.gpu, one.place, CutState.GOING, now_s, who)
            for one in going
        ]
        await self._ledger.commit(rows)  # After a kill from here on, the card shows the result.
        self.rows.update({row.key: row for row in rows})
        try:
            outcome = await self._cutter.edit(state.gpu, room.remove, room.place)
            error, after = outcome.error, outcome.after
        except MigUnavailable as silence:
            error, after = str(silence), None
        if after is None:
            await self._look()
        else:
            await self._settle([after])
        now = self.cards.get(state.gpu)
        row = self.rows.get((state.gpu, room.place))
        shown = geometry(now) if now is not None else "not known"
        text = f"GPU {state.index} ({state.gpu}): {geometry(state)} -> {shown}, for {who}"
        self._journal.record(
            EventKind.GPU, "warning" if error else "info", f"{text}: {error}".rstrip(": ")
        )
        if error or row is None or row.uuid is None:
            raise NoRoom(f"GPU {state.index}: {error or f'{room.place} was not created'}")
        self.made_total += 1
        self.removed_total += len(going)
        return row.uuid

    async def forget(self, card: GpuUuid) -> None:
        """An operator has cut it: what is there now is his. Under the geometry's lock."""
        gone = [row for row in self.rows.values() if row.card == card]
        if gone:
            await self._ledger.commit([], gone)
        for row in gone:
            del self.rows[row.key]
        await self._look()
