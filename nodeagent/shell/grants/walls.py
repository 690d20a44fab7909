"""Sets the driver's cgroup limit (wall) of each grant that has a cgroup of its own, adapts it to
the grant's limits, and removes it with the grant, also one that an earlier daemon left.

Changes run one after another, each in its own task, because the driver is called in another
process. The ledger's row is written before each change and deleted after the last one. A soft limit
is zeroed before its cgroup is removed; if the container runtime removed the cgroup first, the limit
is subtracted from the parent cgroup.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from nodeagent.core.grants.states import Held
from nodeagent.core.grants.walls import (
    after,
    is_instance,
    rows_of,
    settling,
    still_to_lower,
)
from nodeagent.ports.clients import RefusalKind, Refused
from nodeagent.ports.driver.walls import (
    DriverWalls,
    NoCgroup,
    WallOrder,
    WallPlaces,
    WallRow,
    WallRows,
    WallStep,
    WallsUnavailable,
)
from nodeagent.ports.ledger import GrantState, LedgerFull
from nodeagent.ports.processes import Process
from nodeagent.ports.views import EventKind, Finding
from nodeagent.settings.daemon import WallSettings
from nodeagent.shell.grants.reading import Tenant
from nodeagent.shell.journal import Journal
from nodeagent.units import MIB, Bytes, GpuUuid, GrantId
from sluicecommon.background import BackgroundTasks

log = logging.getLogger(__name__)

SWEEP_S: Final = 30.0
"""Interval of the sweep that retries what could not be removed. Seconds."""
DOCS: Final = "docs/security.md"


class WalledGrants(Protocol):
    """Methods of the keeper that this needs."""

    on_ended: list[Callable[[GrantId], None]]
    on_changed: list[Callable[[GrantId], None]]
    on_registered: list[Callable[[], None]]

    def grant(self, grant: GrantId | None) -> Held | None: ...
    def live(self) -> Mapping[GrantId, Held]: ...
    def tenants(self, grant: GrantId) -> Any: ...


class WallManager:
    """Sets, adapts and removes the walls of all grants. Implements Endpoint."""

    def __init__(
        self,
        settings: WallSettings,
        grants: WalledGrants,
        driver: DriverWalls,
        places: WallPlaces,
        rows: WallRows,
        journal: Journal,
        cards: Callable[[], Sequence[GpuUuid]],
        fatal: Callable[[BaseException], None],
    ) -> None:
        """`cards` returns the cards that are offered now, whole or as MIG instances."""
        self._settings = settings
        self._grants = grants
        self._driver = driver
        self._places = places
        self._ledger = rows
        self._journal = journal
        self._cards = cards
        self._background = BackgroundTasks(fatal)
        self._sweeping = BackgroundTasks(fatal)
        self._rows: dict[tuple[GrantId, GpuUuid], WallRow] = {}
        self._missing: dict[GpuUuid, str] = {}
        """Reason why a card has no limits, for the cards that were checked."""
        self._checked: frozenset[GpuUuid] = frozenset()
        self._unreadable = ""
        self._reported: set[GrantId] = set()
        self._taken_over = False
        self._lock = asyncio.Lock()

    # --- an Endpoint --------------------------------------------------------------------------

    async def start(self) -> None:
        """Take over the walls of an earlier daemon, and remove those that it could not remove."""
        self._rows = {(row.grant, row.gpu): row for row in self._ledger.wall_rows()}
        self._grants.on_ended.append(lambda grant: self._soon(self._grant_ended(grant)))
        self._grants.on_changed.append(lambda grant: self._soon(self._grant_changed(grant)))
        self._grants.on_registered.append(lambda: self._soon(self._enclose_running()))
        self._taken_over = not (self._on or self._rows)
        if not self._taken_over:
            self._soon(self._take_over())  # A driver that hangs must not delay the start.
        self._sweeping.spawn(self._sweep_loop(), "sweep of the driver's walls")

    async def close(self) -> None:
        """Stop; the limits stay in force without the daemon."""
        await self._sweeping.close()
        await self._background.close()

    @property
    def _on(self) -> bool:
        return self._settings.enabled != "off"

    # --- building -----------------------------------------------------------------------------

    async def enclose_container(self, grant: GrantId, pid: int) -> None:
        """Set the limit of the container whose first process is `pid`, while it is created. Raises
        Refused."""
        await self._serialized(self._enclose(grant, lambda held: self._container_of(held, pid)))

    async def enclose_program(self, grant: GrantId, process: Process) -> None:
        """Set the limit of the program that `sluice run` is about to execute. Raises Refused."""
        if self._settings.run_cgroups:
            await self._serialized(
                self._enclose(grant, lambda held: (self._places.make(grant, process.pid), True))
            )

    def _container_of(self, held: Held, pid: int) -> tuple[str, bool]:
        container = held.record.container
        place = self._places.of_container(pid)
        if container is None or place.pod_uid != container.pod_uid:
            raise NoCgroup(f"process {pid} is not in the pod of this grant")
        return place.cgroup, False

    async def _enclose(self, grant: GrantId, where: Callable[[Held], tuple[str, bool]]) -> None:
        if not self._on:
            return
        held = self._grants.grant(grant)
        if held is None or held.record.state is not GrantState.ACTIVE:
            raise Refused(RefusalKind.NOT_FOUND, f"no live grant {grant}")
        cards = [one.gpu for one in held.record.devices if not is_instance(one.gpu)]
        try:
            await self._learn(cards)
            without = [f"{gpu}: {self._missing[gpu]}" for gpu in cards if gpu in self._missing]
            if without:
                self._without_limit(grant, "; ".join(without))
                return
            if cards:
                cgroup, ours = where(held)
                await self._build(held, cgroup, ours)
        except (WallsUnavailable, NoCgroup) as error:
            self._without_limit(grant, str(error))

    def _without_limit(self, grant: GrantId, why: str) -> None:
        """Record that only the interposer limits the grant. Raises Refused if the settings require
        a wall."""
        if self._settings.enabled == "on":
            raise Refused(
                RefusalKind.UNAVAILABLE,
                f"the driver's wall cannot be built around this grant: {why}"
                ' (wall.enabled = "on"; with auto it would start without)',
            )
        if any(gpu not in self._missing for gpu in self._checked) and grant not in self._reported:
            self._reported.add(grant)
            self._journal.record(
                EventKind.WALL, "warning", f"grant {grant}: no wall of the driver's: {why}"
            )

    async def _build(self, held: Held, cgroup: str, ours: bool) -> None:
        headroom = self._settings.headroom_mib * MIB
        wanted = rows_of(held.record, cgroup, headroom, ours)
        for row in wanted:
            before = self._rows.get((row.grant, row.gpu))
            if before is not None and before.cgroup != cgroup:
                await self._lower(before)  # A restarted container is in another cgroup.
            self._remember(after(before, row))
        await self._driver.set([_order(row) for row in wanted])
        self._reported.discard(held.record.grant)

    async def _enclose_running(self) -> None:
        """Set the limits of running containers that have none, found by their registered processes:
        their start was not seen."""
        if not self._on:
            return
        for grant, held in list(self._grants.live().items()):
            if held.record.container is None or grant in self._reported or self.standing(grant):
                continue
            tenants: Sequence[Tenant] = list(self._grants.tenants(grant))
            if tenants:
                pid = tenants[0].handle.process.pid
                try:
                    await self._enclose(grant, lambda held, pid=pid: self._container_of(held, pid))  # type: ignore[misc]  # bound now
                except Refused as refused:  # The container runs, so its start cannot be refused.
                    log.error("%s", refused)

    # --- changing, and removing ---------------------------------------------------------------

    async def _grant_changed(self, grant: GrantId) -> None:
        held = self._grants.grant(grant)
        rows = self._of(grant)
        if held is None or not rows or held.record.state is not GrantState.ACTIVE:
            return
        headroom = self._settings.headroom_mib * MIB
        wanted = rows_of(held.record, rows[0].cgroup, headroom, rows[0].ours)
        before = {(row.grant, row.gpu): row for row in rows}
        changed = [row for row in wanted if _differs(before.get((row.grant, row.gpu)), row)]
        if changed:
            for row in changed:
                self._remember(after(before.get((row.grant, row.gpu)), row))
            await self._driver.set([_order(row) for row in changed])

    async def _grant_ended(self, grant: GrantId) -> None:
        self._reported.discard(grant)
        for row in self._of(grant):
            await self._lower(row)

    async def _lower(self, row: WallRow) -> None:
        """Remove the limit, and the cgroup if we created it. The row stays until both are gone."""
        if row.step is WallStep.SETTLING:
            await self._settle(row)
        elif self._places.exists(row.cgroup):
            row = replace(row, step=WallStep.FALLING)
            self._remember(row)
            if row.ours:
                await self._driver.set([WallOrder(row.gpu, row.cgroup, Bytes(0), row.hard_bytes)])
                others = [one for one in self._of(row.grant) if one.gpu != row.gpu]
                if not others and not self._places.remove(row.cgroup):
                    return  # A process is still in the cgroup, so the hard limit stays.
            else:
                await self._driver.set([WallOrder(row.gpu, row.cgroup)])
            self._forget(row)
        else:
            await self._subtract_from_parent(row)

    async def _subtract_from_parent(self, row: WallRow) -> None:
        """Subtract the soft limit from the parent cgroup, because the container runtime removed the
        cgroup before its limit."""
        around = self._places.around(row.cgroup)
        if not around or not row.most_bytes:
            self._forget(row)
            return
        inside = self._places.inside(around)
        reading, *others = await self._driver.read(row.gpu, [around, *inside])
        if reading is None:
            raise WallsUnavailable(f"{around} ended during the check")
        row = settling(row, around, reading, sum(one.soft_bytes for one in others if one))
        if row.before_bytes != row.after_bytes:
            self._remember(row)
            order = WallOrder(row.gpu, around, row.after_bytes, reading.hard_bytes)
            await self._driver.set([order])
        self._forget(row)

    async def _settle(self, row: WallRow) -> None:
        (reading,) = await self._driver.read(row.gpu, [row.around])
        if reading is None:  # The parent cgroup was removed, too.
            await self._subtract_from_parent(row)
            return
        lower = still_to_lower(row, reading)
        if lower is None:
            self._journal.record(
                EventKind.WALL,
                "warning",
                f"{row.around} may guarantee unused memory of {row.gpu}: up to"
                f" {row.most_bytes} bytes of a container that is gone; `nvidia-smi memory-limits"
                " --set` lowers its soft limit",
            )
        if lower:
            order = WallOrder(row.gpu, row.around, row.after_bytes, reading.hard_bytes)
            await self._driver.set([order])
        self._forget(row)

    async def _take_over(self) -> None:
        """Take over the rows of an earlier daemon. Raises WallsUnavailable; the sweep retries."""
        await self._learn(self._cards())
        for row in list(self._rows.values()):
            held = self._grants.grant(row.grant)
            live = held is not None and held.record.state is GrantState.ACTIVE
            if live and row.step is WallStep.STANDING and self._places.exists(row.cgroup):
                await self._driver.set([_order(row)])  # It may be stored and not set.
                await self._grant_changed(row.grant)
            else:
                await self._lower(row)
        self._taken_over = True
        await self._sweep()
        await self._enclose_running()

    async def _sweep(self) -> None:
        """Remove walls whose removal failed before, and cgroups of ours without a row."""
        if not self._taken_over:
            await self._guarded(self._take_over())
            return
        for row in list(self._rows.values()):
            if row.step is not WallStep.STANDING or self._grants.grant(row.grant) is None:
                await self._guarded(self._lower(row))
        for grant, cgroup in self._places.made().items():
            if self._grants.grant(grant) is None and not self._of(grant):
                self._places.remove(cgroup)

    async def _sweep_loop(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            if self._rows or not self._taken_over:
                await self._serialized(self._guarded(self._sweep()))

    # --- the state --------------------------------------------------------------------------

    def standing(self, grant: GrantId) -> Mapping[GpuUuid, Bytes]:
        """The hard limits in force around a grant, by card."""
        return {row.gpu: row.hard_bytes for row in self._of(grant) if row.step is WallStep.STANDING}

    def finding(self, instances: int) -> Finding:
        """Finding for `sluice doctor`: the memory limits that are in force. `instances`: number of
        MIG instances on this node."""
        parts = ["the interposer's, around every grant"]
        level, remedy = "ok", ""
        grants = len({row.grant for row in self._rows.values() if row.step is WallStep.STANDING})
        with_walls = sorted(self._checked - self._missing.keys())
        if not self._on:
            parts.append("the driver's: off (wall.enabled)")
        elif absent := self._places.missing():
            parts.append(f"the driver's: none: {absent}")
            with_walls = []
        elif self._unreadable:
            parts.append(f"the driver's: unknown: {self._unreadable}")
            level = "warning"
        elif with_walls:
            only = "" if self._settings.run_cgroups else ", of containers (wall.run_cgroups)"
            parts.append(
                f"the driver's, on {len(with_walls)} of {len(self._checked)} GPUs, around {grants}"
                f" grants{only}: it also stops programs that bring a driver of their own; it does"
                " not count managed memory"
            )
        else:
            reasons = "; ".join(sorted(set(self._missing.values()))) or "no GPU is known"
            parts.append(f"the driver's: none: {reasons}")
        parts.append(f"MIG: {instances} instances" if instances else "MIG: no instance")
        if level != "ok" or (self._settings.enabled == "on" and not with_walls):
            level = "missing" if self._settings.enabled == "on" else "warning"
            remedy = f"see [wall] in docs/reference/configuration.md and {DOCS}"
        return Finding("walls", level, "; ".join(parts), remedy)

    # --- helpers ------------------------------------------------------------------------------

    async def _learn(self, gpus: Sequence[GpuUuid]) -> None:
        """Check once for each card whether it supports limits. Raises WallsUnavailable."""
        fresh = [gpu for gpu in gpus if gpu not in self._checked and not is_instance(gpu)]
        if not fresh:
            return
        try:
            self._missing.update(await self._driver.missing(fresh))
        except WallsUnavailable as error:
            self._unreadable = str(error)
            raise
        self._checked |= frozenset(fresh)
        self._unreadable = ""

    def forget_drivers(self) -> None:
        """Check the cards again, since the driver was replaced."""
        self._missing, self._checked = {}, frozenset()

    def _of(self, grant: GrantId) -> list[WallRow]:
        return [row for row in self._rows.values() if row.grant == grant]

    def _remember(self, row: WallRow) -> None:
        """Store the row in the ledger before it is used. Raises LedgerLost, WallsUnavailable."""
        try:
            self._ledger.store_wall(row)
        except LedgerFull as error:
            raise WallsUnavailable(f"it could not be recorded: {error}") from error
        self._rows[row.grant, row.gpu] = row

    def _forget(self, row: WallRow) -> None:
        self._ledger.drop_wall(row)
        self._rows.pop((row.grant, row.gpu), None)

    async def _serialized(self, act: Coroutine[Any, Any, None]) -> None:
        async with self._lock:
            await act

    async def _guarded(self, act: Coroutine[Any, Any, None]) -> None:
        """Log an error of one change, so that the next one runs; the sweep retries it."""
        try:
            await act
        except WallsUnavailable as error:
            log.warning("walls: %s", error)

    def _soon(self, act: Coroutine[Any, Any, None]) -> None:
        self._background.spawn(self._serialized(self._guarded(act)), "change of the driver's walls")


def _order(row: WallRow) -> WallOrder:
    return WallOrder(row.gpu, row.cgroup, row.soft_bytes, row.hard_bytes)


def _differs(before: WallRow | None, row: WallRow) -> bool:
    return before is None or _order(before) != _order(row)
