"""Prepares and unprepares ResourceClaims for the kubelet, and keeps grants and CDI files as the
reducer decides.

A claim is read from the API server, turned into a request for grants, and carried out as one event
with all its instructions before the next, so durable rows and actions stay in order. The kubelet
retries after every failure, so only the ledger keeps state between calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, assert_never

from nodeagent.core.dra import book as cb
from nodeagent.core.dra.allocation import grant_ask, parts_of
from nodeagent.core.dra.devices import device_name
from nodeagent.core.flight import Tape
from nodeagent.core.gpus.health import OFFERED
from nodeagent.core.grants import events as ev
from nodeagent.core.kubelet.cdi import device_names
from nodeagent.ports.clients import GrantAsk, RefusalKind, Refused
from nodeagent.ports.clock import Clock
from nodeagent.ports.dra.claims import (
    ClaimAllocation,
    ClaimGone,
    ClaimLedger,
    ClaimRef,
    ClaimsAway,
    ClaimSource,
    ClaimUid,
    DeviceHealth,
    NoAllocation,
    NotPrepared,
    PreparedClaim,
    PreparedDevice,
)
from nodeagent.ports.kubelet import KubeletAway, Nonce, PodIdentity, RetryLater
from nodeagent.ports.ledger import LedgerFull
from nodeagent.shell.drive import Drive
from nodeagent.shell.gpus.readings import Gpus
from nodeagent.shell.pods.dra.places import Places
from nodeagent.shell.pods.pod_grants import PendingCalls, PodGrants
from nodeagent.units import NS_PER_S, GpuUuid, GrantId
from sluicecommon.background import BackgroundTasks
from sluicecommon.logs import error_text

log = logging.getLogger(__name__)

ROOM_S: Final = 5.0
"""How long a claim waits for room that the scheduler counts as free: the processes of the one that
had it before may still be ending."""
ROOM_LOOK_S: Final = 0.05
LOOK_DEADLINE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class ClaimSettings:
    elastic: bool
    """A share of the time is a weight, unless the claim says otherwise."""
    reconcile_s: float
    """Interval of reconciling with the API server's claims. Seconds."""
    max_priority: int = 0
    """Highest priority of a claim, unless its DeviceClass sets it."""


@dataclass(slots=True)
class ClaimFigures:
    """Counters for the metrics, since the daemon started."""

    prepared: int = 0
    refused: int = 0
    released: int = 0
    away: str = ""
    """Error of the last reading of claims; empty if it succeeded."""
    prepare_seconds: list[float] = field(default_factory=list)
    """Durations of the last thousand calls in seconds, without the wait for the container
    runtime."""


async def _anyone(pod: PodIdentity) -> None:
    """Every pod may start."""


class ClaimManager:
    """Implements Endpoint and ClaimService."""

    def __init__(
        self,
        settings: ClaimSettings,
        boot_id: str,
        grants: PodGrants,
        gpus: Gpus,
        clock: Clock,
        ledger: ClaimLedger,
        source: ClaimSource | None,
        pool: str,
        for_claims: Callable[[GpuUuid], bool],
        places: Places,
        fatal: Callable[[BaseException], None],
    ) -> None:
        """`source` None: there is no API server, and only what was prepared before is served.
        `for_claims`: whether new claims may have a GPU, see `AllocationModes`."""
        self._places = places
        self.settings = settings
        self.figures = ClaimFigures()
        self.book = cb.ClaimBook(
            cb.ClaimRules(boot_id, gone_apart_ns=int(settings.reconcile_s * 0.9 * NS_PER_S))
        )
        self._grants = grants
        self._keeper = grants.keeper
        self._gpus = gpus
        self._clock = clock
        self._ledger = ledger
        self._source = source
        self._cdi = grants.cdi
        self._pool = pool
        self._for_claims = for_claims
        self._background = BackgroundTasks(fatal)
        self._calls = PendingCalls()
        self._turn = asyncio.Lock()
        """Held while one event and its instructions are carried out."""
        self._claims: dict[ClaimUid, asyncio.Lock] = {}
        """One call for a claim after the other."""
        self._refusals: dict[int, RefusalKind] = {}
        self._settles_s = 0.0
        self._health = asyncio.Event()
        self._last_health: tuple[tuple[str, bool], ...] = ()
        self.admitted: Callable[[PodIdentity], Awaitable[None]] = _anyone
        """Raises RetryLater or KubeletAway while the pod of a claim waits in a queue."""
        self.on_change: list[Callable[[], None]] = []
        """Called when claims have come or gone."""
        self.tape: Tape[cb.Event] = Tape(self.book.memory)
        self._drive: Drive[cb.Event, cb.Instruction] = Drive(
            self.book, clock.monotonic_ns, fatal, self.tape
        )

    # --- an Endpoint --------------------------------------------------------------------------

    def remember(self) -> None:
        """Loads the ledger's rows before any part asks for the holders of a GPU."""
        for row in self._ledger.load():
            self.book.rows[row.claim.uid] = row
        self.tape.cut()

    async def start(self) -> None:
        rows = tuple(self.book.rows.values())
        self.book.rows.clear()
        self.tape.cut()
        self._keeper.on_ended.append(self._grant_ended)
        self._gpus.on_read.append(self._gpus_read)
        await self._apply(cb.Restored(rows, self._grants.live(claims=True)))
        self._background.spawn(self._reconcile_loop(), "release of claims")

    async def close(self) -> None:
        await self._background.close()
        self._ledger.close()

    # --- questions ----------------------------------------------------------------------------

    def held_gpus(self) -> frozenset[GpuUuid]:
        """GPUs of all known claims."""
        found: set[GpuUuid] = set()
        by_name = self._units()
        for row in self.book.rows.values():
            for part in row.parts:
                held = self._keeper.grant(part.grant)
                if held is not None:
                    found |= {one.gpu for one in held.record.devices}
            for share in row.allocation.shares if row.allocation is not None else ():
                if share.device in by_name:
                    found.add(by_name[share.device])
            if row.allocation is not None:
                found |= {one.card for one in self._places.of(row.allocation).values()}
        return frozenset(found)

    def gpu_of(self, device: str) -> GpuUuid | None:
        """GPU on this node of a device in the ResourceSlices, now."""
        return self._units().get(device) or self._places.gpu_of(device)

    def _units(self) -> dict[str, GpuUuid]:
        return {device_name(gpu.uuid): gpu.uuid for gpu in self._gpus.capacities()}

    def prepared(self) -> list[PreparedClaim]:
        return list(self.book.rows.values())

    # --- prepare ------------------------------------------------------------------------------

    async def prepare(self, claim: ClaimRef) -> tuple[PreparedDevice, ...]:
        began_ns = self._clock.monotonic_ns()
        try:
            async with self._claims.setdefault(claim.uid, asyncio.Lock()):
                waited_s = await self._prepare(claim)
                found = self._given(self.book.rows[claim.uid])
        except NotPrepared:
            self.figures.refused += 1
            raise
        taken_s = (self._clock.monotonic_ns() - began_ns) / NS_PER_S - waited_s
        self.figures.prepared += 1
        self.figures.prepare_seconds.append(taken_s)
        del self.figures.prepare_seconds[:-1000]
        return found

    async def _prepare(self, claim: ClaimRef) -> float:
        """Returns how long of it was for the runtime, in s."""
        allocation = await self._allocation(claim)
        try:
            units = self._units()
            if not self.book.is_ready(allocation):
                self._check_modes(allocation, units)
                if allocation.pod is not None:
                    await self.admitted(allocation.pod)
            async with contextlib.AsyncExitStack() as promised:
                units |= await self._places.cut(promised, allocation, self._grants_of(claim))
                asks = [
                    cb.PartAsk(
                        shares,
                        grant_ask(
                            allocation,
                            shares,
                            units,
                            self.settings.elastic,
                            self.settings.max_priority,
                        ),
                        Nonce(secrets.token_hex(16)),
                        GrantId(str(uuid.uuid4())),
                    )
                    for shares in parts_of(allocation)
                ]
                return await self._with_room(allocation, tuple(asks))
        except (NoAllocation, RetryLater, KubeletAway) as error:
            raise NotPrepared(str(error)) from None

    def _grants_of(self, claim: ClaimRef) -> frozenset[GrantId]:
        row = self.book.rows.get(claim.uid)
        return frozenset(part.grant for part in row.parts if part.grant) if row else frozenset()

    async def _with_room(self, allocation: ClaimAllocation, asks: tuple[cb.PartAsk, ...]) -> float:
        """The scheduler has counted: what is not free yet will be."""
        end_ns = self._clock.monotonic_ns() + int(ROOM_S * NS_PER_S)
        while True:
            kinds: list[RefusalKind] = []
            try:
                settles_s = await self._call(
                    lambda call: cb.PrepareAsked(
                        call, allocation, asks, self._clock.unix_s(), self._cdi.driver
                    ),
                    kinds,
                )
            except NotPrepared:
                exhausted = kinds == [RefusalKind.EXHAUSTED]
                if not exhausted or self._clock.monotonic_ns() >= end_ns:
                    raise
                await asyncio.sleep(ROOM_LOOK_S)
                continue
            if settles_s:
                await asyncio.sleep(settles_s)
            return settles_s

    async def _allocation(self, claim: ClaimRef) -> ClaimAllocation:
        row = self.book.rows.get(claim.uid)
        try:
            if self._source is None:
                raise ClaimsAway("there is no access to the API server")
            return await self._source.allocation(claim)
        except (ClaimGone, NoAllocation) as error:
            raise NotPrepared(str(error)) from None
        except ClaimsAway as error:
            # What was prepared is as it was: an allocation does not change while it is used.
            if row is not None and row.allocation is not None and row.allocation.claim == claim:
                return row.allocation
            raise NotPrepared(str(error)) from None

    def _check_modes(self, allocation: ClaimAllocation, units: Mapping[str, GpuUuid]) -> None:
        """Raises NoAllocation."""
        wanted = {units[share.device] for share in allocation.shares if share.device in units}
        wanted |= {one.card for one in self._places.of(allocation).values()}
        row = self.book.rows.get(allocation.claim.uid)
        if row is not None and row.parts:
            return  # it had them before the node moved
        for gpu in sorted(wanted):
            if not self._for_claims(gpu):
                raise NoAllocation(
                    f"{gpu} is offered by the device plugin here (kubelet.door), or has pods"
                    " allocated through it: delete the pod, so that its claim is allocated again"
                )

    def _given(self, row: PreparedClaim) -> tuple[PreparedDevice, ...]:
        if row.allocation is None:
            raise NotPrepared(f"claim {row.claim} was taken over and is not known yet")
        found = []
        for part in row.parts:
            names = device_names(part.nonce, row.driver)
            for index in part.shares:
                share = row.allocation.shares[index]
                found.append(
                    PreparedDevice(share.request, share.pool, share.device, share.share_id, names)
                )
        return tuple(found)

    # --- unprepare ----------------------------------------------------------------------------

    async def unprepare(self, claim: ClaimRef) -> None:
        lock = self._claims.setdefault(claim.uid, asyncio.Lock())
        async with lock:
            await self._call(lambda call: cb.UnprepareAsked(call, claim.uid))
        if not lock.locked():
            self._claims.pop(claim.uid, None)

    # --- events in, instructions out ----------------------------------------------------------

    async def _call(
        self, event_of: Callable[[int], cb.Event], kinds: list[RefusalKind] | None = None
    ) -> float:
        """Wait for the answer; return the seconds until the runtime has read the CDI files. Raises
        NotPrepared; the kind of a refusal is appended to `kinds`."""
        with self._calls.open() as (call, answer):
            try:
                settles_s = await self._apply(event_of(call), call)
                await answer
                return settles_s
            finally:
                kind = self._refusals.pop(call, None)
                if kinds is not None and kind is not None:
                    kinds.append(kind)

    async def _apply(self, event: cb.Event, call: int | None = None) -> float:
        async with self._turn:
            self._settles_s = 0.0
            try:
                await self._drive.run_async(event, self._carry_out)
            except (OSError, ValueError) as error:
                if not self._calls.answer(call, NotPrepared(str(error))):
                    log.error("dra: %s: %s", type(event).__name__, error)
            except LedgerFull as error:
                log.error("dra: %s: %s", type(event).__name__, error)
            settles_s = self._settles_s
        if not isinstance(event, cb.Looked):
            for changed in self.on_change:
                changed()
        return settles_s

    async def _carry_out(self, do: cb.Instruction) -> None:
        match do:
            case cb.Commit():
                self.figures.released += sum(row.state == "released" for row in do.rows)
                await self._ledger.commit(do.rows)
            case cb.MakeGrant():
                self._make_grant(do)
            case cb.EndGrant():
                self._grants.end(do.grant)
            case cb.WriteCdi():
                took_s = await self._grants.write_cdi(do.grant, do.nonce, do.claim, do.driver)
                self._settles_s = max(self._settles_s, took_s)
            case cb.RemoveCdi():
                await self._grants.remove_cdi(do.nonce)
            case cb.Answer():
                self._calls.answer(do.call)
            case cb.Refuse():
                self._calls.answer(do.call, NotPrepared(do.reason))
            case _:
                assert_never(do)

    def _make_grant(self, do: cb.MakeGrant) -> None:
        answer = self._keeper.ask_now(do.ask, None, grant=do.grant, container=do.container)
        if isinstance(answer, Refused):
            self._refusals[do.call] = answer.kind
            self._drive.add(cb.GrantRefused(do.call, self._why(do.ask, answer)))
            return
        if do.paused:
            self._keeper.apply(ev.PauseSet(do.grant, paused=True))
        self._drive.add(cb.GrantMade(do.call, do.grant))

    def _why(self, ask: GrantAsk, refused: Refused) -> str:
        sick = [gpu for gpu in ask.gpu_uuids if self._gpus.health(gpu) not in OFFERED]
        if sick:
            patient = self._gpus.patient(sick[0])
            return f"{sick[0]} is {patient.health.value}: {patient.reason or refused}"
        return str(refused)

    # --- the end ------------------------------------------------------------------------------

    def _grant_ended(self, grant: GrantId) -> None:
        """Called while the keeper handles an event, so it is evaluated afterwards."""
        if self.book.claim_of(grant) is not None:
            self._background.spawn(self._apply(cb.GrantEnded(grant)), "end of a grant")

    async def _reconcile_loop(self) -> None:
        while True:
            await asyncio.sleep(self.settings.reconcile_s)
            await self.reconcile()

    async def reconcile(self) -> None:
        """One look at what the API server still has of the claims here. The kubelet gives back
        what it knows; this is for what it has forgotten, as when its directory was lost."""
        gone: set[ClaimUid] = set()
        away = ""
        for row in list(self.book.rows.values()):
            if self._used(row):
                continue
            try:
                async with asyncio.timeout(LOOK_DEADLINE_S):
                    if self._source is None:
                        raise ClaimsAway("there is no access to the API server")
                    await self._source.allocation(row.claim)
            except (ClaimGone, NoAllocation):
                gone.add(row.claim.uid)
            except (ClaimsAway, TimeoutError) as error:
                away = error_text(error)
                break
        self.figures.away = away
        if not away:
            await self._apply(cb.Looked(frozenset(gone), self._clock.monotonic_ns()))

    def _used(self, row: PreparedClaim) -> bool:
        return any(part.grant and self._keeper.tenants(part.grant) for part in row.parts)

    # --- health -------------------------------------------------------------------------------

    def health(self) -> tuple[DeviceHealth, ...]:
        at_unix_s = self._clock.unix_s()
        found = []
        cards = {unit.uuid: unit.mig_card or unit.uuid for unit in self._gpus.units()}
        names = {device_name(one): one for one in cards}
        names |= {name: one.card for name, one in self._places.all().items()}
        for name, gpu in sorted(names.items()):
            patient = self._gpus.patient(gpu)
            well = patient.health in OFFERED
            why = "" if well else f"{patient.health.value}: {patient.reason}"
            found.append(DeviceHealth(self._pool, name, well, at_unix_s, why))
        return tuple(found)

    async def health_changed(self, longest_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                await self._health.wait()

    def _gpus_read(self) -> None:
        now = tuple((one.device, one.healthy) for one in self.health())
        if now != self._last_health:
            self._last_health = now
            self._health.set()
            self._health = asyncio.Event()
