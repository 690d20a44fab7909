"""Shows the MIG geometry of the cards, and changes that of an idle card for an operator.

The order of steps keeps a change from a card in use: the change is planned, the card is withheld
from placement, and only then its holders are checked, so that an idle card stays idle. The audit
row is durable before the driver is called. A change continues when its caller disconnects.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from nodeagent.core.gpus.mig_geometry import GeometryError, geometry, in_words, is_cut_so, plan
from nodeagent.ports.clients import Peer, RefusalKind, Refused
from nodeagent.ports.clock import Clock
from nodeagent.ports.ledger import LedgerFull
from nodeagent.ports.mig import (
    MigAnswer,
    MigAsk,
    MigOutcome,
    MigPlace,
    MigPort,
    MigState,
    MigUnavailable,
    MigView,
)
from nodeagent.ports.views import EventKind
from nodeagent.ports.watch import AuditLog, AuditRow
from nodeagent.shell.gpus.cuts import Cuts
from nodeagent.shell.gpus.holders import Holders
from nodeagent.shell.gpus.readings import Gpus
from nodeagent.shell.grants.keeper import Keeper
from nodeagent.shell.journal import Journal
from nodeagent.units import GpuUuid
from sluicecommon.background import BackgroundTasks

log = logging.getLogger(__name__)

RULE: Final = "mig"
"""Rule of the audit rows."""
BEGUN: Final = "set_mig"
DONE: Final = "set_mig_done"
FAILED: Final = "set_mig_failed"
INTERRUPTED: Final = "set_mig_interrupted"
STOP_WAITS_S: Final = 15.0
"""The daemon's end waits so long for a change; the unit gives it 20 s in all."""
HELD_UP_S: Final = 120.0
"""A reading may have to wait for a change and for the readings before and after it."""


class MigManager:
    """An Endpoint of the daemon that handles the MIG requests of the local API."""

    def __init__(
        self,
        cutter: MigPort,
        keeper: Keeper,
        gpus: Gpus,
        audit: AuditLog,
        journal: Journal,
        clock: Clock,
        holders: Holders,
        reread: Callable[[], Awaitable[None]],
        geometry: asyncio.Lock,
        cuts: Cuts | None,
        operator_uids: frozenset[int],
        fatal: Callable[[BaseException], None],
    ) -> None:
        """`reread` reads the GPUs now and notifies all subscribers. `geometry` is held during every
        change of a card's geometry. `cuts` creates instances on request; None if it is off."""
        self._cuts = cuts
        self._cutter = cutter
        self._keeper = keeper
        self._gpus = gpus
        self._audit = audit
        self._journal = journal
        self._clock = clock
        self._holders = holders
        self._reread = reread
        self._geometry = geometry
        self._operators = operator_uids
        self._background = BackgroundTasks(fatal)

    # --- an Endpoint --------------------------------------------------------------------------

    async def start(self) -> None:
        """Record an event for each change that an earlier daemon did not finish."""
        last = {row.subject: row for row in self._audit.audit_rows(RULE)}
        for row in last.values():
            if row.step != BEGUN:
                continue
            wanted = json.loads(row.evidence).get("wanted", "")
            self._journal.record(
                EventKind.GPU,
                "critical",
                f"the change of {row.subject} to {wanted} was interrupted and its result is"
                " unknown: see `sluice mig show`, then set it again",
            )
            with contextlib.suppress(LedgerFull):  # The event is recorded again then.
                self._audit.audit(replace(row, at_unix_s=self._clock.unix_s(), step=INTERRUPTED))

    async def close(self) -> None:
        """A card half cut is worse than a late end."""
        await self._background.wait(STOP_WAITS_S)

    def held_up_s(self) -> float:
        """Seconds by which the next reading may be late, for the watchdog."""
        return HELD_UP_S if self._background.busy else 0.0

    # --- show ---------------------------------------------------------------------------------

    async def show(self, peer: Peer, gpu: str) -> list[MigView]:
        """`gpu`: UUID or index; empty: all. Raises Refused."""
        states = await self._states()
        chosen = [_find(states, gpu)] if gpu else states
        return [self._view(state, peer) for state in chosen]

    async def _states(self) -> Sequence[MigState]:
        try:
            return await self._cutter.states()
        except MigUnavailable as error:
            raise Refused(RefusalKind.UNAVAILABLE, f"the GPUs cannot be read: {error}") from error

    def _view(self, state: MigState, peer: Peer) -> MigView:
        holders = self._holders.of_card(state)
        if holders and peer.uid not in self._operators:
            holders = [f"{len(holders)} holders, shown to operators only"]
        return MigView(state, tuple(holders))

    # --- set ----------------------------------------------------------------------------------

    async def set(self, peer: Peer, ask: MigAsk) -> MigAnswer:
        """Raises Refused when nothing was touched."""
        if peer.uid not in self._operators:
            raise Refused(RefusalKind.DENIED, "only root may change the node's MIG geometry")
        if self._background.busy:
            raise Refused(RefusalKind.UNAVAILABLE, "another change of MIG is under way: try again")
        # Shielded, because a change that was begun is finished although its caller has left.
        return await asyncio.shield(
            self._background.spawn(
                self._alone(peer, ask), "change of MIG geometry", expected=(Refused, LedgerFull)
            )
        )

    async def _alone(self, peer: Peer, ask: MigAsk) -> MigAnswer:
        async with self._geometry:
            try:
                return await self._set(peer, ask)
            except LedgerFull as error:
                log.error("MIG: geometry unchanged, the audit row could not be written: %s", error)
                raise

    async def _set(self, peer: Peer, ask: MigAsk) -> MigAnswer:
        state = _find(await self._states(), ask.gpu)
        wanted = None if ask.disable else ask.profiles
        if state.error:
            raise Refused(
                RefusalKind.UNAVAILABLE, f"GPU {state.index} cannot be read: {state.error}"
            )
        if not state.supported:
            raise Refused(RefusalKind.INVALID, f"GPU {state.index} ({state.name}) has no MIG")
        try:
            places = plan(state.profiles, wanted or ())
        except GeometryError as error:
            raise Refused(RefusalKind.INVALID, f"GPU {state.index}: {error}") from error
        if ask.dry_run:
            notes = () if not is_cut_so(state, wanted) else ("it is cut so already",)
            return MigAnswer(self._view(state, peer), None, places, notes=notes)
        if is_cut_so(state, wanted):
            view = self._view(state, peer)
            return MigAnswer(view, view, places, notes=("it is cut so already",))
        self._check_idle(state)  # a refusal need not make the kubelet's devices blink
        self._withhold(state.gpu, True)
        try:
            self._check_idle(state)
            return await self._change(peer, state, wanted, places)
        finally:
            self._withhold(state.gpu, False)

    def _check_idle(self, state: MigState) -> None:
        holders = self._holders.of_card(state)
        if holders:
            raise Refused(
                RefusalKind.UNAVAILABLE,
                f"GPU {state.index} is not idle, nothing is changed; held by: {'; '.join(holders)}",
            )

    def _withhold(self, gpu: GpuUuid, withheld: bool) -> None:
        self._gpus.withhold(gpu, withheld)
        self._keeper.apply(self._gpus.seen())

    async def _change(
        self,
        peer: Peer,
        state: MigState,
        wanted: tuple[str, ...] | None,
        places: tuple[MigPlace, ...],
    ) -> MigAnswer:
        geometry_wanted = "MIG off" if wanted is None else in_words(wanted)
        evidence = {"before": geometry(state), "wanted": geometry_wanted, "uid": peer.uid}
        self._write(BEGUN, peer, state, evidence)
        try:
            outcome = await self._cutter.change(state.gpu, wanted)
        except MigUnavailable as error:
            outcome = await self._after_silence(state, str(error))
        after = geometry(outcome.after) if outcome.after is not None else "not known"
        done = FAILED if outcome.error else DONE
        try:
            self._write(done, peer, state, {**evidence, "after": after, "error": outcome.error})
        except LedgerFull as error:
            log.error("MIG: the audit row of a finished change could not be written: %s", error)
        text = f"GPU {state.index} ({state.gpu}): {geometry(state)} -> {after}, by uid {peer.uid}"
        failure = _failure(outcome, geometry_wanted) if outcome.error else ""
        self._journal.record(
            EventKind.GPU,
            "warning" if failure else "info",
            f"{text}{f': {failure}' if failure else ''}",
        )
        if self._cuts is not None and outcome.after != outcome.before:
            await self._cuts.forget(state.gpu)  # what is there now is the operator's
        await self._reread()
        return MigAnswer(
            MigView(outcome.before),
            MigView(outcome.after) if outcome.after is not None else None,
            places,
            changed=outcome.after != outcome.before,
            rolled_back=outcome.rolled_back,
            reset_needed=outcome.reset_needed,
            failure=failure,
            notes=tuple(await self._notes(state, outcome)),
        )

    async def _after_silence(self, before: MigState, why: str) -> MigOutcome:
        """It was killed somewhere: what the card is now is all there is to know."""
        try:
            states = await self._cutter.states()
        except MigUnavailable as error:
            return MigOutcome(before, None, f"{why}; afterwards: {error}")
        after = next((one for one in states if one.gpu == before.gpu), None)
        return MigOutcome(before, after, why)

    def _write(self, step: str, peer: Peer, state: MigState, evidence: Mapping[str, Any]) -> None:
        """Raises LedgerLost, LedgerFull."""
        process = peer.handle.process
        self._audit.audit(
            AuditRow(
                at_unix_s=self._clock.unix_s(),
                rule=RULE,
                step=step,
                undo=False,
                level="operator",
                subject=f"GPU {state.gpu}",
                pid=process.pid,
                starttime_ticks=process.starttime_ticks,
                grant="",
                evidence=json.dumps(evidence, sort_keys=True),
            )
        )

    async def _notes(self, state: MigState, outcome: MigOutcome) -> list[str]:
        notes = []
        if outcome.reset_needed:
            notes.append(
                f"the mode changes with the GPU's next reset, which is yours to do: stop what uses"
                f" it, `nvidia-smi --gpu-reset -i {state.index}` (or reboot), then the same"
                " command again"
            )
        pods, after = self._holders.pods, outcome.after
        if after is None:
            return notes
        if pods.problem:
            notes.append(pods.problem)
        new = sorted(after.uuids - {after.gpu})
        if new:
            finding = await asyncio.to_thread(pods.finding, new)
            if finding.level != "ok":
                remedy = f": {finding.remedy}" if finding.remedy else ""
                notes.append(f"containers: {finding.what}{remedy}")
        return notes


def _failure(outcome: MigOutcome, wanted: str) -> str:
    """Text of a failure: the error, the card's state now, and the remedy."""
    if outcome.after is None:
        return f"{outcome.error}; see `sluice doctor`, then `sluice mig show`"
    if outcome.rolled_back or outcome.after == outcome.before:
        return f"{outcome.error}; it is as it was before: {geometry(outcome.before)}"
    return (
        f"{outcome.error}; it was {geometry(outcome.before)} and is now {geometry(outcome.after)}:"
        f" set {wanted} again, or what it was before"
    )


def _find(states: Sequence[MigState], gpu: str) -> MigState:
    """Raises Refused."""
    for state in states:
        if gpu in (str(state.index), *state.uuids):
            return state
    known = ", ".join(f"{one.index} ({one.gpu})" for one in states) or "none"
    raise Refused(RefusalKind.NOT_FOUND, f"no GPU {gpu[:64]!r} here; this node has: {known}")
