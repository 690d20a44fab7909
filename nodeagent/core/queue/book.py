"""Carries out the queue controller's decisions on this node: a reducer, like `grants`.

Each decision arrives with a term (which controller) and a revision (which decision), and needs a
valid lease to *start* anything; pausing and stopping need no lease. Messages may arrive twice, late
and out of order: the newest revision of each pod counts. While the controller is away, running work
continues. An event that no longer applies changes nothing.

This file is longer than usual: it is one state machine, and the effect of an event on a work
depends on all the earlier events.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, assert_never

from nodeagent.core.queue.events import (
    Acknowledged,
    Decided,
    Disconnected,
    DropWork,
    Event,
    Evicted,
    GrantEnded,
    GrantMade,
    GrantRefused,
    Instruction,
    Reconnect,
    Renewed,
    ResumeRefused,
    Returned,
    ReturnGrant,
    ReturnRefused,
    SetPaused,
    Spilled,
    SpillGrant,
    SpillRefused,
    Start,
    Stop,
    StoreFence,
    StoreWork,
    Tell,
    Ticked,
    WaiterCame,
    WaiterLeft,
    Welcomed,
)
from nodeagent.ports.queue import (
    OVER,
    Decision,
    Desired,
    Done,
    Fence,
    Work,
    WorkKey,
    WorkState,
)
from nodeagent.units import NS_PER_S, GrantId
from sluicecommon.newest import Newest

MAX_DONE: Final = 1000
"""Ended works that are remembered, so that a repeated decision starts nothing; the controller
repeats within seconds."""

_AT_REST: Final = frozenset({WorkState.PAUSED, WorkState.SPILLED})
_ON_THE_WAY: Final = frozenset({WorkState.SPILLING, WorkState.RETURNING})
_HELD_BACK: Final = _AT_REST | _ON_THE_WAY
EVICTION_GRACE_S: Final = 1.0
"""Seconds of grace for work that the node itself ends: its processes were held, or killed,
before."""


@dataclass(frozen=True, slots=True)
class QueueMemory:
    """The complete state of a book."""

    fence: Fence
    works: tuple[Work, ...]
    done: tuple[Done, ...]
    connected: bool
    lease_until_ns: int
    waiters: tuple[str, ...]
    starting: tuple[WorkKey, ...]
    later: tuple[Decision, ...]
    fenced_total: int
    self_paused: tuple[GrantId, ...]


class QueueBook:
    def __init__(self, fence: Fence, works: list[Work], done: list[Done]) -> None:
        self.fence = fence
        self.works: dict[WorkKey, Work] = {work.key: work for work in works}
        self._done = Newest(MAX_DONE, (((one.uid, one.attempt), one) for one in done))
        self.connected = False
        self.lease_until_ns = 0
        self.waiters: dict[str, None] = {}
        self._starting: set[WorkKey] = set()
        self._later: dict[WorkKey, Decision] = {}
        """Decisions that wait until the work of the same name has ended: that of another workload,
        or of an earlier attempt that was given up."""
        self.fenced_total = 0
        """Messages of a controller that has a successor, or of an old database."""
        self._self_paused: set[GrantId] = set()
        """Grants that we paused ourselves at the end of the lease, not because of a decision."""

    def handle(self, event: Event, now_ns: int) -> list[Instruction]:
        match event:
            case Welcomed():
                return self._welcomed(event, now_ns)
            case Renewed():
                return self._renewed(event, now_ns)
            case Decided():
                return self._decided(event, now_ns)
            case Disconnected():
                return self._disconnected(event, now_ns)
            case WaiterCame():
                return self._waiter_came(event, now_ns)
            case WaiterLeft():
                return self._waiter_left(event, now_ns)
            case GrantMade():
                return self._grant_made(event, now_ns)
            case GrantRefused():
                return self._grant_refused(event, now_ns)
            case ResumeRefused():
                return self._resume_refused(event, now_ns)
            case Spilled():
                return self._spilled(event, now_ns)
            case SpillRefused():
                return self._spill_refused(event, now_ns)
            case Returned():
                return self._returned(event, now_ns)
            case ReturnRefused():
                return self._return_refused(event, now_ns)
            case GrantEnded():
                return self._grant_ended(event, now_ns)
            case Evicted():
                return self._evicted(event, now_ns)
            case Acknowledged():
                return self._acknowledged(event, now_ns)
            case Ticked():
                return self._ticked(event, now_ns)
            case _:
                assert_never(event)

    def memory(self) -> QueueMemory:
        return QueueMemory(
            self.fence,
            tuple(self.works.values()),
            tuple(self._done.values()),
            self.connected,
            self.lease_until_ns,
            tuple(self.waiters),
            tuple(sorted(self._starting, key=str)),
            tuple(self._later.values()),
            self.fenced_total,
            tuple(sorted(self._self_paused)),
        )

    @classmethod
    def of(cls, memory: QueueMemory) -> QueueBook:
        """Rebuild the book that had this memory."""
        book = cls(memory.fence, list(memory.works), list(memory.done))
        book.connected = memory.connected
        book.lease_until_ns = memory.lease_until_ns
        book.waiters = dict.fromkeys(memory.waiters)
        book._starting = set(memory.starting)
        book._later = {decision.key: decision for decision in memory.later}
        book.fenced_total = memory.fenced_total
        book._self_paused = set(memory.self_paused)
        return book

    # --- questions ----------------------------------------------------------------------------

    def may_start(self, now_ns: int) -> bool:
        return now_ns < self.lease_until_ns

    def work_of(self, grant: GrantId) -> Work | None:
        return next((work for work in self.works.values() if work.grant == grant), None)

    def is_paused_by_queue(self, grant: GrantId) -> bool:
        work = self.work_of(grant)
        paused = work is not None and work.state in _HELD_BACK
        return paused or grant in self._self_paused

    # --- the session --------------------------------------------------------------------------

    def _welcomed(self, event: Welcomed, now_ns: int) -> list[Instruction]:
        welcome, fence = event.welcome, self.fence
        same = welcome.cluster_id == fence.cluster_id
        if same and (welcome.term < fence.term or welcome.revision < fence.revision):
            self.connected = False
            self.fenced_total += 1
            return [
                Reconnect(
                    f"the controller has term {welcome.term} and revision {welcome.revision}, this"
                    f" node has accepted term {fence.term} and revision {fence.revision}: it is an"
                    " earlier one, or its database was restored from a backup"
                )
            ]
        self.connected = True
        self.lease_until_ns = event.sent_ns + int(welcome.lease_s * NS_PER_S)
        self.fence = Fence(
            welcome.cluster_id, welcome.term, welcome.revision, welcome.epoch, welcome.proof
        )
        out: list[Instruction] = [StoreFence(self.fence)]
        for work in list(self.works.values()):
            if work.state in OVER:
                # Work that ended while we were connecting was not reported yet.
                out += self._forget(work) if work in event.told else [Tell(work)]
        wanted = {decision.key for decision in welcome.decisions}
        self._later.clear()  # Those that still hold are among the decisions.
        for key in self.works.keys() - wanted:
            out += self._unwanted(key)
        for decision in welcome.decisions:
            out += self._obey(decision, now_ns)
        return out + self._resume_after_lease(now_ns)

    def _unwanted(self, key: WorkKey) -> list[Instruction]:
        """Handle a work that the controller does not have any more."""
        work = self.works[key]
        if work.state in OVER:
            return []
        if work.grant is None and key not in self._starting:
            return self._forget(work)
        return self._stop(replace(work, reason="the queue controller no longer has it"))

    def _renewed(self, event: Renewed, now_ns: int) -> list[Instruction]:
        if event.term < self.fence.term or event.epoch != self.fence.epoch:
            self.fenced_total += event.term < self.fence.term
            return []
        self.lease_until_ns = max(
            self.lease_until_ns, event.sent_ns + int(event.lease_s * NS_PER_S)
        )
        return [*self._note_term(event.term, 0, event.proof), *self._resume_after_lease(now_ns)]

    def _note_term(self, term: int, revision: int, proof: str) -> list[Instruction]:
        if term <= self.fence.term and revision <= self.fence.revision:
            return []
        self.fence = replace(
            self.fence,
            term=max(term, self.fence.term),
            revision=max(revision, self.fence.revision),
            proof=proof or self.fence.proof,
        )
        return [StoreFence(self.fence)]

    def _disconnected(self, event: Disconnected, now_ns: int) -> list[Instruction]:
        self.connected = False
        return []

    # --- decisions ----------------------------------------------------------------------------

    def _decided(self, event: Decided, now_ns: int) -> list[Instruction]:
        if not self.connected:
            # The decision belongs to a session that is over; the next session sends everything.
            return []
        if event.term < self.fence.term:
            self.fenced_total += 1
            return [
                Reconnect(
                    f"a decision of term {event.term}, but term {self.fence.term} was accepted"
                )
            ]
        if event.decision is None:
            return self._note_term(event.term, 0, event.proof)
        out = self._note_term(event.term, event.decision.revision, event.proof)
        return out + self._obey(event.decision, now_ns)

    def _obey(self, decision: Decision, now_ns: int) -> list[Instruction]:
        work = self.works.get(decision.key)
        if work is not None and work.decision.uid != decision.uid:
            return self._replace(work, decision, now_ns)
        if work is None:
            return self._new(decision, now_ns)
        if decision.revision < work.decision.revision:
            return []  # A later decision arrived first.
        if work.state in OVER:
            if decision.attempt <= work.decision.attempt:
                return [Tell(work)]
            return [*self._forget(work), *self._new(decision, now_ns)]
        if work.state is WorkState.STOPPING and decision.attempt > work.decision.attempt:
            self._put_off(decision)
            return []
        work = replace(work, decision=decision)
        if decision.desired is Desired.RUN:
            return self._run(work, now_ns)
        if decision.desired is Desired.PAUSE:
            return self._pause(work)
        if decision.desired is Desired.CHECKPOINT:
            return self._checkpoint(work)
        return self._stop(work)

    def _replace(self, work: Work, decision: Decision, now_ns: int) -> list[Instruction]:
        """Another workload has taken the name; the old one has to end first."""
        if work.state in OVER or (work.grant is None and work.key not in self._starting):
            return [*self._forget(work), *self._new(decision, now_ns)]
        self._put_off(decision)
        return self._stop(replace(work, reason="another workload has taken its name"))

    def _put_off(self, decision: Decision) -> None:
        """Obey it once the work of the same name has ended."""
        later = self._later.get(decision.key)
        if later is None or later.revision <= decision.revision:
            self._later[decision.key] = decision

    def _new(self, decision: Decision, now_ns: int) -> list[Instruction]:
        done = self._done.get((decision.uid, decision.attempt))
        work = Work(decision)
        if done is not None:
            return [Tell(replace(work, state=done.state, started=True, reason="already over"))]
        if decision.desired is not Desired.RUN:
            return self._end(work, WorkState.STOPPED, "never started here")
        self.works[work.key] = work
        return [StoreWork(work), *self._start_due(work, now_ns)]

    def _run(self, work: Work, now_ns: int) -> list[Instruction]:
        self.works[work.key] = work
        if work.state is WorkState.OFFERED:
            return [StoreWork(work), *self._start_due(work, now_ns)]
        if work.state is WorkState.STOPPING:
            return [StoreWork(work)]  # It is too late to resume; it will be reported as stopped.
        if work.state in _ON_THE_WAY:
            return [StoreWork(work)]  # The result of the spill or return decides.
        if work.state is WorkState.RUNNING:
            return [StoreWork(work), Tell(work)]
        return [StoreWork(work), *self._resume(work, now_ns)]

    def _resume(self, work: Work, now_ns: int) -> list[Instruction]:
        """Resume paused work; this needs a lease, like every start."""
        if not self.may_start(now_ns) or work.grant is None:
            return []
        if work.state is WorkState.SPILLED:
            returning = replace(work, state=WorkState.RETURNING)
            self.works[work.key] = returning
            return [StoreWork(returning), ReturnGrant(work.grant)]
        running = replace(work, state=WorkState.RUNNING)
        self.works[work.key] = running
        return [StoreWork(running), SetPaused(work.grant, False), Tell(running)]

    def _pause(self, work: Work) -> list[Instruction]:
        if work.grant is None:
            return self._end(work, WorkState.STOPPED, "never started here")
        if work.state is WorkState.STOPPING or work.state in _ON_THE_WAY:
            self.works[work.key] = work
            return [StoreWork(work)]
        if work.state is WorkState.SPILLED:  # A spilled grant is more than paused.
            self.works[work.key] = work
            return [StoreWork(work), Tell(work)]
        paused = replace(work, state=WorkState.PAUSED)
        self.works[work.key] = paused
        self._self_paused.discard(work.grant)
        return [StoreWork(paused), SetPaused(work.grant, True, lends=True), Tell(paused)]

    def _checkpoint(self, work: Work) -> list[Instruction]:
        """Spill the grant. It is reported as paused when its memory has left its GPUs, not
        before."""
        if work.grant is None:
            return self._end(work, WorkState.STOPPED, "never started here")
        if work.state is WorkState.SPILLED:
            self.works[work.key] = work
            return [StoreWork(work), Tell(work)]
        if work.state is WorkState.STOPPING or work.state in _ON_THE_WAY:
            self.works[work.key] = work
            return [StoreWork(work)]
        spilling = replace(work, state=WorkState.SPILLING)
        self.works[work.key] = spilling
        self._self_paused.discard(work.grant)
        return [StoreWork(spilling), SpillGrant(work.grant)]

    def _stop(self, work: Work) -> list[Instruction]:
        if work.grant is None:
            if work.key in self._starting:
                self.works[work.key] = work  # The answer to Start decides.
                return [StoreWork(work)]
            return self._end(work, WorkState.STOPPED, "never started here")
        if work.state is WorkState.STOPPING:
            self.works[work.key] = work
            return [StoreWork(work)]
        stopping = replace(work, state=WorkState.STOPPING)
        self.works[work.key] = stopping
        why = work.reason or work.decision.reason
        return [StoreWork(stopping), Stop(work.grant, work.decision.grace_s, why)]

    def _end(self, work: Work, state: WorkState, reason: str) -> list[Instruction]:
        over = replace(work, state=state, reason=reason)
        self.works[work.key] = over
        return [StoreWork(over), Tell(over)]

    # --- starting -----------------------------------------------------------------------------

    def _start_due(self, work: Work, now_ns: int) -> list[Instruction]:
        if (
            work.state is not WorkState.OFFERED
            or work.decision.desired is not Desired.RUN
            or work.key in self._starting
            or work.decision.workload not in self.waiters
            or not self.may_start(now_ns)
        ):
            return []
        self._starting.add(work.key)
        return [Start(work)]

    def _waiter_came(self, event: WaiterCame, now_ns: int) -> list[Instruction]:
        self.waiters[event.workload] = None
        return self._start_all(now_ns)

    def _start_all(self, now_ns: int) -> list[Instruction]:
        return [do for work in list(self.works.values()) for do in self._start_due(work, now_ns)]

    def _waiter_left(self, event: WaiterLeft, now_ns: int) -> list[Instruction]:
        self.waiters.pop(event.workload, None)
        return []

    def _grant_made(self, event: GrantMade, now_ns: int) -> list[Instruction]:
        self._starting.discard(event.key)
        work = self.works.get(event.key)
        if work is None or work.state is not WorkState.OFFERED:
            return [Stop(event.grant, 0.0, "it was withdrawn meanwhile")]
        work = replace(work, state=WorkState.RUNNING, grant=event.grant, started=True)
        self.works[work.key] = work
        out: list[Instruction] = [StoreWork(work)]
        if work.decision.desired is Desired.RUN:
            return [*out, Tell(work)]
        if work.decision.desired is Desired.PAUSE:
            return out + self._pause(work)
        if work.decision.desired is Desired.CHECKPOINT:
            return out + self._checkpoint(work)
        return out + self._stop(work)

    def _grant_refused(self, event: GrantRefused, now_ns: int) -> list[Instruction]:
        self._starting.discard(event.key)
        work = self.works.get(event.key)
        if work is None or work.state is not WorkState.OFFERED:
            return []
        wanted = work.decision.desired is Desired.RUN
        state = WorkState.REFUSED if wanted else WorkState.STOPPED
        return self._end(work, state, event.reason)

    def _resume_refused(self, event: ResumeRefused, now_ns: int) -> list[Instruction]:
        work = self.work_of(event.grant)
        if work is None or work.state is not WorkState.RUNNING:
            return []
        paused = replace(work, state=WorkState.PAUSED, reason=event.reason)
        self.works[work.key] = paused
        return [StoreWork(paused), Tell(paused)]

    # --- spilling and returning ---------------------------------------------------------------

    def _moving(self, grant: GrantId, state: WorkState) -> Work | None:
        work = self.work_of(grant)
        return work if work is not None and work.state is state else None

    def _spilled(self, event: Spilled, now_ns: int) -> list[Instruction]:
        work = self._moving(event.grant, WorkState.SPILLING)
        if work is None:
            return []
        spilled = replace(work, state=WorkState.SPILLED, reason="")
        self.works[work.key] = spilled
        out: list[Instruction] = [StoreWork(spilled)]
        if work.decision.desired is Desired.RUN:  # It was admitted again meanwhile.
            return out + self._resume(spilled, now_ns)
        return [*out, Tell(spilled)]

    def _spill_refused(self, event: SpillRefused, now_ns: int) -> list[Instruction]:
        """Stop the work, because a preemptor waits for its room, unless it was admitted again."""
        work = self._moving(event.grant, WorkState.SPILLING)
        if work is None:
            return []
        if work.decision.desired is Desired.RUN:
            paused = replace(work, state=WorkState.PAUSED)
            self.works[work.key] = paused
            out: list[Instruction] = [StoreWork(paused), SetPaused(event.grant, True)]
            return out + self._resume(paused, now_ns)
        reason = f"checkpoint failed, the work is stopped: {event.reason}"
        return self._stop(replace(work, reason=reason))

    def _returned(self, event: Returned, now_ns: int) -> list[Instruction]:
        work = self._moving(event.grant, WorkState.RETURNING)
        if work is None:
            return []
        running = replace(work, state=WorkState.RUNNING, reason="")
        self.works[work.key] = running
        out: list[Instruction] = [StoreWork(running), Tell(running)]
        if work.decision.desired is Desired.CHECKPOINT:
            return out + self._checkpoint(running)
        if work.decision.desired is Desired.PAUSE:
            return out + self._pause(running)
        return out

    def _return_refused(self, event: ReturnRefused, now_ns: int) -> list[Instruction]:
        work = self._moving(event.grant, WorkState.RETURNING)
        if work is None:
            return []
        if not event.waits:
            reason = f"restore failed, the work is stopped: {event.reason}"
            return self._stop(replace(work, reason=reason))
        spilled = replace(work, state=WorkState.SPILLED, reason=event.reason)
        self.works[work.key] = spilled
        return [StoreWork(spilled), Tell(spilled)]

    # --- the end ------------------------------------------------------------------------------

    def _grant_ended(self, event: GrantEnded, now_ns: int) -> list[Instruction]:
        self._self_paused.discard(event.grant)
        work = self.work_of(event.grant)
        if work is None or work.state in OVER:
            return []
        stopped = work.state is WorkState.STOPPING
        work = replace(work, grant=None)
        if stopped:
            reason = work.reason or work.decision.reason
            return self._end(work, WorkState.STOPPED, reason)
        return self._end(work, WorkState.FINISHED, "the command has ended")

    def _evicted(self, event: Evicted, now_ns: int) -> list[Instruction]:
        work = self.work_of(event.grant)
        if work is None or work.state in OVER:
            return []
        stopping = replace(work, state=WorkState.STOPPING, reason=event.reason)
        self.works[work.key] = stopping
        return [StoreWork(stopping), Stop(event.grant, EVICTION_GRACE_S, event.reason)]

    def _acknowledged(self, event: Acknowledged, now_ns: int) -> list[Instruction]:
        work = self.works.get(event.key)
        if (
            work is None
            or work.decision.uid != event.uid
            or work.decision.attempt != event.attempt
            or work.state is not event.state
        ):
            return []  # Its state has changed meanwhile, and that was reported.
        if work.state in OVER:
            out = self._forget(work)
            later = self._later.pop(event.key, None)
            return out if later is None else out + self._obey(later, now_ns)
        if not event.known:
            return [Reconnect(f"the controller has no {event.key.workload}, which runs here")]
        return []

    def _forget(self, work: Work) -> list[Instruction]:
        self.works.pop(work.key, None)
        decision = work.decision
        done = None
        if work.state in OVER:
            done = Done(decision.uid, decision.attempt, work.state)
            self._done[done.uid, done.attempt] = done
        return [DropWork(work.key, done)]

    # --- time ---------------------------------------------------------------------------------

    def _ticked(self, event: Ticked, now_ns: int) -> list[Instruction]:
        if self.may_start(now_ns):
            return self._start_all(now_ns)
        out: list[Instruction] = []
        for work in self.works.values():
            fenced = work.decision.pause_when_lost and work.state is WorkState.RUNNING
            if fenced and work.grant is not None and work.grant not in self._self_paused:
                # The work may be started elsewhere from now on, and two copies must not both run.
                self._self_paused.add(work.grant)
                out.append(SetPaused(work.grant, True))
        return out

    def _resume_after_lease(self, now_ns: int) -> list[Instruction]:
        if not self.may_start(now_ns):
            return []
        out: list[Instruction] = []
        for work in list(self.works.values()):
            if work.grant in self._self_paused and work.state is WorkState.RUNNING:
                assert work.grant is not None
                self._self_paused.discard(work.grant)
                out.append(SetPaused(work.grant, False))
            elif work.state in _AT_REST and work.decision.desired is Desired.RUN:
                out += self._resume(work, now_ns)
        return out + self._start_all(now_ns)
