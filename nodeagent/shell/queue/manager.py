"""Keeps a session with the queue controller, carries out the reducer's decisions, and lets
processes under `sluice run --queue` wait for admission.

It runs in the daemon's one thread. A broken session is opened again after a growing pause; nothing
is lost meanwhile, since connecting reports the whole state.

Longer than a file should be: the session and the waiting processes share the record of what was
sent in which session. Claims of pods, and the messages to waiting processes, have their own
modules.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import signal
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final, assert_never

from nodeagent.core.flight import Tape
from nodeagent.core.grants import events as ev
from nodeagent.core.queue import events as qd
from nodeagent.core.queue.book import QueueBook
from nodeagent.ports.clients import GrantAsk, Peer, RefusalKind, Refused, Waiting
from nodeagent.ports.kubelet import OwnerRef, PodIdentity
from nodeagent.ports.ledger import Spill
from nodeagent.ports.queue import (
    MAX_NEWS,
    LinkLost,
    NotOffered,
    QueueLedger,
    QueueLink,
    QueueRefused,
    QueueStatus,
    Submission,
    Work,
    WorkKey,
    WorkState,
)
from nodeagent.ports.views import NodeEvent, QueueView
from nodeagent.settings.daemon import QueueSettings
from nodeagent.shell.drive import Drive
from nodeagent.shell.grants.keeper import Keeper
from nodeagent.shell.queue.capacity import CapacityReader
from nodeagent.shell.queue.claims import Claims
from nodeagent.shell.queue.detections import Detections
from nodeagent.shell.queue.spilling import Spilling, Spills
from nodeagent.shell.queue.waiting import LABEL, Waiter, ask_for, cut_off, step_of, submission_of
from nodeagent.units import NS_PER_S, GpuUuid, GrantId, PodUid
from sluicecommon.background import BackgroundTasks

log = logging.getLogger(__name__)

TICK_S: Final = 1.0
STOP_DEADLINE_S: Final = 1.0
"""Longest time for the last report. Seconds."""
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 10.0
WITHDRAWN_AT_ONCE: Final = 64
MAX_EARLY: Final = 10_000
"""Maximum workloads whose status arrived before the answer to their submission; there are never as
many open submissions."""


_REFUSALS: Final = {
    "INVALID_ARGUMENT": RefusalKind.INVALID,
    "NOT_FOUND": RefusalKind.INVALID,
    "PERMISSION_DENIED": RefusalKind.DENIED,
}


class QueueManager:
    def __init__(
        self,
        settings: QueueSettings,
        link: QueueLink,
        ledger: QueueLedger,
        keeper: Keeper,
        capacity: CapacityReader,
        boot_ns: Callable[[], int],
        user_name: Callable[[int], str],
        events: Callable[[int], Sequence[NodeEvent]],
        spills: Spills,
        fatal: Callable[[BaseException], None],
    ) -> None:
        """`boot_ns` is CLOCK_BOOTTIME. `events`: this node's after a number."""
        self._settings = settings
        self._link = link
        self._ledger = ledger
        self._keeper = keeper
        self._capacity = capacity
        self._boot_ns = boot_ns
        self._user_name = user_name
        self._background = BackgroundTasks(fatal)
        self.book = QueueBook(*ledger.load_queue())
        self.trouble = "not connected yet"
        """Error for which there is no session; empty while there is one."""
        self._connected_ns: int | None = None
        self._last_message_ns: int | None = None
        """Time of the controller's last valid message, CLOCK_BOOTTIME ns."""
        self._sessions_total = 0
        self._sequence = 0
        """Reports of this session."""
        self.announces_stop = False
        """True if `close` tells the controller that this daemon stops. Set where a kubelet is
        served: it rejects pods that are bound to the node without its device plugin."""
        self.stop_announced = False
        self.tape: Tape[qd.Event] = Tape(self.book.memory, frozenset({qd.Ticked}))
        self._drive: Drive[qd.Event, qd.Instruction] = Drive(self.book, boot_ns, fatal, self.tape)
        self._outbox: asyncio.Queue[Work] = asyncio.Queue()
        self._broken = asyncio.Event()
        self._waiters: dict[str, Waiter] = {}
        self._unanswered: dict[str, None] = {}
        """Workloads that were submitted and not answered: they may be there, so that a new session
        names them as well."""
        self._early: dict[str, QueueStatus] = {}
        """Statuses of workloads whose submission is not answered yet."""
        self._alone = asyncio.Event()
        """This controller has no stream for all that wait: each follows its own workload."""
        self._withdrawing: dict[str, str] = {}
        """UIDs by workload: given up here, not yet known there."""
        self._withdraws: asyncio.Task[None] | None = None
        self._detections = Detections(events)
        self._spilling = Spilling(spills, self._apply, fatal)
        self._claims = Claims(self.book, keeper, boot_ns)
        self._kills: dict[GrantId, asyncio.TimerHandle] = {}

    # --- an Endpoint of the daemon ------------------------------------------------------------

    async def start(self) -> None:
        self._keeper.on_ended.append(self._grant_ended)
        live = self._keeper.live()
        for work in list(self.book.works.values()):
            if work.grant is not None and work.grant not in live:
                self._apply(qd.GrantEnded(work.grant))
            elif work.state is WorkState.STOPPING and work.grant is not None:
                self._stop_work(qd.Stop(work.grant, work.decision.grace_s, work.reason))
            else:
                self._spilling.carry_on(work)
        self._background.spawn(self._sessions(), "sessions with the controller")
        self._background.spawn(self._ticks(), "ticks of the queue")

    async def close(self) -> None:
        for handle in self._kills.values():
            handle.cancel()
        if self.announces_stop and self.book.connected:
            with contextlib.suppress(LinkLost, QueueRefused, TimeoutError):
                async with asyncio.timeout(STOP_DEADLINE_S):
                    await self._send_report(stopping=True)
                self.stop_announced = True
        await self._background.close()
        await self._spilling.close()
        await self._link.close()

    # --- events in, instructions out ----------------------------------------------------------

    def _apply(self, event: qd.Event) -> None:
        self._drive.run(event, self._carry_out)

    def _carry_out(self, do: qd.Instruction) -> None:
        match do:
            case qd.StoreFence():
                self._ledger.store_fence(do.fence)
            case qd.StoreWork():
                self._ledger.store_work(do.work)
            case qd.DropWork():
                self._ledger.drop_work(do.key, do.done)
            case qd.Start():
                self._start_work(do)
            case qd.SetPaused():
                self._set_paused(do)
            case qd.SpillGrant():
                self._spilling.spill(do.grant)
            case qd.ReturnGrant():
                self._spilling.bring_back(do.grant)
            case qd.Stop():
                self._stop_work(do)
            case qd.Tell():
                self._outbox.put_nowait(do.work)
            case qd.Reconnect():
                self._reconnect(do)
            case _:
                assert_never(do)

    def _reconnect(self, do: qd.Reconnect) -> None:
        log.warning("queue: reconnecting: %s", do.reason)
        self.trouble = do.reason
        self._broken.set()

    # --- grants -------------------------------------------------------------------------------

    def _start_work(self, do: qd.Start) -> None:
        work = do.work
        waiter = self._waiters.get(work.decision.workload)
        if waiter is None:
            self._drive.add(qd.GrantRefused(work.key, "no client waits for it on this node"))
            return
        answer = self._keeper.ask_now(
            ask_for(work, waiter.ask), waiter.handle.duplicate(), queued=True
        )
        if isinstance(answer, Refused):
            log.warning("queue: %s could not start: %s", work.decision.workload, answer)
            self._drive.add(qd.GrantRefused(work.key, str(answer)))
            return
        waiter.granted = True
        waiter.steps.put_nowait(answer)
        self._drive.add(qd.GrantMade(work.key, answer))

    def _set_paused(self, do: qd.SetPaused) -> None:
        log.info("queue: grant %s %s", do.grant, "paused" if do.paused else "goes on")
        held = self._keeper.grant(do.grant)
        if not do.paused and held is not None and held.record.spill is not Spill.RESIDENT:
            self._spilling.resume(do.grant)
            return
        try:
            self._keeper.apply(ev.PauseSet(do.grant, do.paused, do.lends))
        except Refused as refused:
            log.warning("queue: grant %s: %s", do.grant, refused)
            if refused.kind is RefusalKind.EXHAUSTED:  # otherwise it is ending: GrantEnded follows
                self._drive.add(qd.ResumeRefused(do.grant, str(refused)))

    def _stop_work(self, do: qd.Stop) -> None:
        reached = self._keeper.signal(do.grant, signal.SIGTERM)
        log.info(
            "queue: stopping grant %s (%d processes, %g s to end): %s",
            do.grant,
            reached,
            do.grace_s,
            do.reason,
        )
        loop = asyncio.get_running_loop()
        earlier = self._kills.pop(do.grant, None)
        if earlier is not None:  # An earlier stop had a longer grace period.
            earlier.cancel()
        self._kills[do.grant] = loop.call_later(do.grace_s, self._kill, do.grant)

    def _kill(self, grant: GrantId) -> None:
        self._kills.pop(grant, None)
        if grant not in self._keeper.live():
            return
        with contextlib.suppress(Refused):
            self._keeper.apply(ev.Released(grant))  # no new process may come in now
        if self._keeper.signal(grant, signal.SIGKILL):
            log.warning("queue: grant %s did not end within its grace period: killed", grant)
        # A process in the middle of fork may have escaped: look again until it is over.
        self._kills[grant] = asyncio.get_running_loop().call_later(TICK_S, self._kill, grant)

    def _grant_ended(self, grant: GrantId) -> None:
        """Called while the keeper handles an event, so it is evaluated afterwards."""
        handle = self._kills.pop(grant, None)
        if handle is not None:
            handle.cancel()
        asyncio.get_running_loop().call_soon(self._apply, qd.GrantEnded(grant))

    def evict(self, grant: GrantId, rule: str) -> str:
        """End the grant and report the reason to the controller; return a text that
        names the controller and the workload, empty if the grant is not the queue's."""
        workload = self.workload_of(grant)
        if not workload:
            return ""
        self._apply(qd.Evicted(grant, f"the node ended it: {rule}, see `sluice events` there"))
        return f"the queue controller, {workload}"

    def overdue(self, grant: GrantId) -> bool:
        """Its memory was on the host for too long. False: it is not the queue's."""
        return bool(self.evict(grant, "on the host for longer than checkpoint.longest_s"))

    def workload_of(self, grant: GrantId) -> str:
        work = self.book.work_of(grant)
        return work.decision.workload if work is not None else ""

    def place_of(self, grant: GrantId) -> tuple[str, str]:
        """(namespace, ClusterQueue); both empty where it is not the queue's."""
        work = self.book.work_of(grant)
        if work is None:
            return "", ""
        return work.decision.workload.partition("/")[0], work.decision.cluster_queue

    # --- pods ---------------------------------------------------------------------------------

    def work_of_pod(self, pod: PodIdentity, owners: Sequence[OwnerRef]) -> Work | None:
        return self._claims.work_of_pod(pod, owners)

    def works_of_owners(self, pod: PodIdentity, owners: Sequence[OwnerRef]) -> list[Work]:
        return self._claims.works_of_owners(pod, owners)

    def pod_gone(self, pod: PodUid) -> None:
        self._claims.pod_gone(pod)

    def may_start(self) -> bool:
        return self.book.may_start(self._boot_ns())

    def bind(self, work: WorkKey, grant: GrantId) -> None:
        """A pod's container got its grant."""
        self._apply(qd.GrantMade(work, grant))

    def decided_gpus(self) -> Counter[GpuUuid]:
        """How many pods that have not come yet will be on each GPU."""
        return Counter(
            one.gpu
            for work in self.book.works.values()
            if work.state is WorkState.OFFERED
            for one in work.decision.gpus
        )

    def queue_grants(self) -> frozenset[GrantId]:
        return frozenset(work.grant for work in self.book.works.values() if work.grant)

    def view(self) -> QueueView:
        now_ns, book = self._boot_ns(), self.book
        connected = book.connected and not self.trouble
        states = Counter(work.state for work in book.works.values())

        def since_s(at_ns: int | None) -> float | None:
            return None if at_ns is None else max(0, now_ns - at_ns) / NS_PER_S

        return QueueView(
            connected=connected,
            session_s=since_s(self._connected_ns) if connected else None,
            silent_s=since_s(self._last_message_ns),
            lease_left_s=max(0, book.lease_until_ns - now_ns) / NS_PER_S,
            works={state.value: states[state] for state in WorkState},
            waiting=len(self._in_line()),
            term=book.fence.term,
            revision=book.fence.revision,
            sessions_total=self._sessions_total,
            fenced_total=book.fenced_total,
        )

    def check_resume(self, grant: GrantId) -> None:
        """Raises Refused for a grant that the queue has paused."""
        if self.book.is_paused_by_queue(grant):
            raise Refused(
                RefusalKind.UNAVAILABLE,
                f"grant {grant[:8]} is paused by the queue until {self.workload_of(grant)} is"
                " admitted again; see `sluice queue explain`",
            )

    # --- the session --------------------------------------------------------------------------

    async def _sessions(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                if await self._connect():
                    pause_s = FIRST_PAUSE_S
                    await self._session()
            except LinkLost as error:
                self._lost(str(error))
            except QueueRefused as refused:
                self._lost(f"the controller refuses this node: {refused}")
            self._apply(qd.Disconnected())
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
            pause_s = min(LONGEST_PAUSE_S, pause_s * 2)

    def _lost(self, why: str) -> None:
        if not self.trouble:
            log.warning("queue: session ended: %s", why)
        elif self.trouble != why:
            log.info("queue: no session: %s", why)
        if self.trouble != why:
            for name in self._in_line():
                self._waiters[name].report(cut_off(name, why))
        self.trouble = why

    def _in_line(self) -> list[str]:
        """Workloads for which a process of this node still waits."""
        return [name for name, one in self._waiters.items() if not one.granted]

    async def _connect(self) -> bool:
        self._outbox = asyncio.Queue()  # Connecting reports the whole state.
        self._broken = asyncio.Event()
        self._early.clear()
        self._alone.clear()
        self._sequence = 0
        held = tuple(self.book.works.values())
        sent_ns = self._boot_ns()
        waiting = self._in_line()
        waiting += [name for name in self._unanswered if name not in self._waiters]
        self._capacity.queue_grants = self.queue_grants()
        welcome = await self._link.connect(
            self.book.fence, held, waiting, self._capacity.capacity()
        )
        self._apply(qd.Welcomed(welcome, sent_ns, held))
        if not self.book.connected:
            return False
        self.trouble = ""
        self._detections.begin()
        self._connected_ns = self._last_message_ns = self._boot_ns()
        self._sessions_total += 1
        self._report_s = welcome.report_s or 5.0
        log.info(
            "queue: connected to %s, term %d, epoch %d",
            self._settings.server,
            welcome.term,
            welcome.epoch,
        )
        return True

    async def _session(self) -> None:
        """Runs one session until it breaks. Raises LinkLost, QueueRefused."""
        parts = [
            asyncio.create_task(part)
            for part in (
                *(self._watch(), self._report(), self._send(), self._follow_waiting()),
                self._broken.wait(),
            )
        ]
        try:
            done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in parts:
                task.cancel()
            await asyncio.gather(*parts, return_exceptions=True)

    async def _watch(self) -> None:
        async for term, revision, decision, proof in self._link.watch(self.book.fence):
            self._hear(qd.Decided(term, revision, decision, proof))
        raise LinkLost("the stream of decisions has ended")

    def _hear(self, event: qd.Decided | qd.Renewed) -> None:
        fenced = self.book.fenced_total
        self._apply(event)
        if self.book.fenced_total == fenced:
            self._last_message_ns = self._boot_ns()

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(self._report_s)
            await self._send_report()

    async def _send_report(self, *, stopping: bool = False) -> None:
        """Raises LinkLost, QueueRefused."""
        sent_ns = self._boot_ns()
        self._sequence += 1
        self._capacity.queue_grants = self.queue_grants()
        works = self.book.works.values()
        whose = {one.grant: one.key.workload for one in works if one.grant is not None}
        found = self._detections.due(whose)
        ack = await self._link.report(
            self.book.fence,
            self._sequence,
            self._capacity.capacity(),
            self._capacity.usage(works),
            found,
            stopping=stopping,
        )
        self._detections.sent(found)
        self._hear(qd.Renewed(ack.term, ack.epoch, ack.lease_s, sent_ns, ack.proof))

    async def _send(self) -> None:
        while True:
            works = [await self._outbox.get()]
            while not self._outbox.empty() and len(works) < MAX_NEWS:
                works.append(self._outbox.get_nowait())
            answers = await self._link.report_works(self.book.fence, works)
            if len(answers) != len(works):
                raise LinkLost(f"reported {len(works)} works, got {len(answers)} answers")
            for work, known in zip(works, answers, strict=True):
                decision = work.decision
                self._apply(
                    qd.Acknowledged(work.key, decision.uid, decision.attempt, work.state, known)
                )

    async def _follow_waiting(self) -> None:
        """One stream for all that wait here."""
        try:
            async for statuses in self._link.follow_waiting(self.book.fence, self._in_line()):
                for status in statuses:
                    self._hear_of(status)
        except NotOffered:
            self._alone.set()
            await self._broken.wait()
            return
        raise LinkLost("the stream of waiting requests has ended")

    def _hear_of(self, status: QueueStatus) -> None:
        waiter = self._waiters.get(status.workload)
        if waiter is None:
            if len(self._early) < MAX_EARLY:
                self._early[status.workload] = status
        elif not waiter.granted and status.uid in ("", waiter.uid):
            waiter.report(step_of(status))

    async def _ticks(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._apply(qd.Ticked())
            if self.book.connected:
                self._start_withdrawing()

    def _start_withdrawing(self) -> None:
        if self._withdrawing and (self._withdraws is None or self._withdraws.done()):
            self._withdraws = self._background.spawn(
                self._withdraw_given_up(), "withdrawal of workloads"
            )

    async def _withdraw_given_up(self) -> None:
        """Withdraws as many at once as the link allows."""
        while self._withdrawing:
            part = list(itertools.islice(self._withdrawing.items(), WITHDRAWN_AT_ONCE))
            done = await asyncio.gather(*(self._withdraw(*one) for one in part))
            if not all(done):
                return

    async def _withdraw(self, workload: str, uid: str) -> bool:
        """Returns False if it must be retried."""
        try:
            await self._link.withdraw(workload, uid)
        except LinkLost:
            return False
        except QueueRefused as refused:
            log.warning("queue: %s could not be withdrawn: %s", workload, refused)
        self._withdrawing.pop(workload, None)
        return True

    # --- processes that wait ------------------------------------------------------------------

    async def wait(self, peer: Peer, ask: GrantAsk) -> AsyncGenerator[Waiting | GrantId, None]:
        """Progress until the grant. Raises Refused. Leaving early withdraws the workload."""
        handle = peer.duplicate()
        waiter = Waiter(peer, ask, handle)
        task = asyncio.create_task(self._pursue(waiter))
        try:
            while True:
                step = await waiter.steps.get()
                if isinstance(step, Refused):
                    raise step
                yield step
                if not isinstance(step, Waiting):
                    return
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            self._leave(waiter)
            handle.close()

    def _leave(self, waiter: Waiter) -> None:
        if self._waiters.get(waiter.workload) is waiter:
            del self._waiters[waiter.workload]
            self._apply(qd.WaiterLeft(waiter.workload))
        if waiter.workload and not waiter.granted:
            self._withdrawing[waiter.workload] = waiter.uid
            self._start_withdrawing()

    async def _pursue(self, waiter: Waiter) -> None:
        """Submits, then reports every step of the workload's way."""
        submission = submission_of(
            waiter, self._settings.namespace, self._user_name(waiter.peer.uid)
        )
        name = f"{submission.namespace}/{submission.name}"
        try:
            if not await self._submit(waiter, submission, name):
                return
        finally:
            self._unanswered.pop(name, None)
        await self._follow(waiter)

    async def _submit(self, waiter: Waiter, submission: Submission, name: str) -> bool:
        """Submit; False if it was refused, which the waiter has received. A retry is idempotent."""
        while True:
            # Only within a session: a new one withdraws workloads without a known waiter.
            if self.trouble:
                waiter.steps.put_nowait(Waiting(0, f"not connected to the queue: {self.trouble}"))
                await asyncio.sleep(FIRST_PAUSE_S)
                continue
            if LABEL.fullmatch(submission.namespace):  # else it is refused, as a hello would be
                self._unanswered[name] = None
            try:
                status = await self._link.submit(submission)
                break
            except LinkLost as error:
                waiter.steps.put_nowait(Waiting(0, f"the queue does not answer ({error})"))
                await asyncio.sleep(TICK_S)
            except QueueRefused as refused:
                kind = _REFUSALS.get(refused.kind, RefusalKind.UNAVAILABLE)
                waiter.steps.put_nowait(Refused(kind, f"the queue: {refused}"))
                return False
        waiter.workload, waiter.uid = status.workload, status.uid
        self._waiters[waiter.workload] = waiter
        waiter.report(step_of(status))
        early = self._early.pop(waiter.workload, None)
        if early is not None and not waiter.granted:
            self._hear_of(early)
        self._apply(qd.WaiterCame(waiter.workload))
        return True

    async def _follow(self, waiter: Waiter) -> None:
        while True:
            await self._alone.wait()
            try:
                async for status in self._link.follow(waiter.workload, waiter.uid):
                    if waiter.granted:
                        return
                    waiter.report(step_of(status))
                    if status.is_over:
                        return
            except LinkLost as error:
                waiter.report(cut_off(waiter.workload, error))
            except QueueRefused as refused:
                waiter.steps.put_nowait(Refused(RefusalKind.UNAVAILABLE, f"the queue: {refused}"))
                return
            await asyncio.sleep(TICK_S)
