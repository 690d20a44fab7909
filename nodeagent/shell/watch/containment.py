"""Carries out what the ladder says, on processes and cgroups that the daemon derived itself.

The audit row comes first; without it nothing is done. A process is only ever signalled through a
pidfd opened for the pid and start time of the suspicion, a cgroup only held when it is the
container's own.
"""

from __future__ import annotations

import json
import logging
import signal
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Final

from nodeagent.core.grants import events as ev
from nodeagent.core.watch.detection import Rule, Step
from nodeagent.core.watch.holds import Fate, act_of, fate, unwanted
from nodeagent.core.watch.response import UNDONE, Act, Level, Policy
from nodeagent.core.watch.sightings import Subject
from nodeagent.ports.clients import Refused
from nodeagent.ports.clock import Clock
from nodeagent.ports.ledger import LedgerFull
from nodeagent.ports.processes import Processes
from nodeagent.ports.telemetry import KernelWatch, KernelWatchUnavailable, WatchState
from nodeagent.ports.views import EventKind
from nodeagent.ports.watch import AuditRow, Hold, NotPossible, Restrainer, Targets, WatchLedger
from nodeagent.shell.grants.keeper import Keeper
from nodeagent.shell.journal import Journal
from nodeagent.shell.watch.holds import Holds
from nodeagent.units import GrantId, PodUid
from sluicecommon.background import BackgroundTasks

log = logging.getLogger(__name__)

_SIGNALS: Final = {
    (Step.FREEZE, False): signal.SIGSTOP,
    (Step.FREEZE, True): signal.SIGCONT,
    (Step.KILL, False): signal.SIGKILL,
}


_RECORDED_ON_PODS: Final = frozenset({Step.FREEZE, Step.KILL})
RecordPodEvent = Callable[[PodUid, str, str, bool], Coroutine[None, None, None]]
"""Records an event on a pod: (uid, reason, text, whether it is a warning)."""


def _pod_event(act: Act, hold: Hold | None) -> tuple[str, str, bool]:
    why = f"because of {act.alarm.rule}; see `sluice events` on the node"
    if act.undo:
        return "SluiceReleased", f"its programs run again: they were held {why}", False
    if act.step is Step.KILL:
        return "SluiceKilled", f"its programs were killed {why}", True
    way_out = f", and root's `sluice uncontain {hold.number}` resumes them" if hold else ""
    return "SluiceHeld", f"its programs are frozen {why}{way_out}", True


class Containment:
    def __init__(
        self,
        keeper: Keeper,
        processes: Processes,
        restrainer: Restrainer,
        ledger: WatchLedger,
        targets: Targets,
        journal: Journal,
        clock: Clock,
        kernel: KernelWatch,
        denies: bool,
        placers: Sequence[Callable[[GrantId, str], str]] = (),
    ) -> None:
        """`kernel` refuses opens of GPUs, if it `denies`: without eBPF it cannot. `placers` evict a
        grant that they placed: given (grant, reason), each returns a text that names it, or an
        empty string if the grant is not its own."""
        self._keeper = keeper
        self._processes = processes
        self._restrainer = restrainer
        self._ledger = ledger
        self.holds = Holds(keeper, processes, ledger, targets)
        """The acts in force."""
        self._targets = targets
        self._journal = journal
        self._clock = clock
        self._kernel = kernel
        self._denies = denies
        self._placers = placers
        # From 0: a rise from nothing is none to Prometheus.
        self.acts: Counter[str] = Counter({str(step): 0 for step in Step})
        self._background = BackgroundTasks()
        self.on_pod: list[RecordPodEvent] = []
        """Called when a pod's container was frozen, released or killed: its owner looks there."""
        self._owed: dict[int, tuple[Act, str]] = {}
        """Undone as soon as the ledger has room again; by the act's number."""
        self._denied_by: dict[int, int | None] = {}
        """Id of the eBPF child that applied each refusal, by act."""

    def carry_out(self, act: Act, because: str = "") -> bool:
        """Carries out an act and returns True if it was done. `because`: the reason of an undo,
        where that is not plain."""
        subject = act.alarm.subject
        name = f"undo {act.step}" if act.undo else str(act.step)
        hold = self.holds.find(act)
        if act.undo and hold is None:
            return False  # a person was there first, or it was never done
        fresh = hold is None
        if hold is not None:
            self._owed.pop(hold.number, None)  # It is requested again, or retried now.
        try:
            self._ledger.audit(self._row(act, because))
            if not act.undo and act.step in UNDONE:
                hold = self.holds.begin(act, self._clock.unix_s())
        except LedgerFull as error:
            log.error("%s of %s not done, the ledger could not record it: %s", name, subject, error)
            if act.undo and hold is not None:
                self._owed[hold.number] = (act, because)
            return False
        try:
            outcome = self._do(act, hold)
        except NotPossible as error:
            log.info("%s of %s: %s", name, subject, error)
            if hold is not None and (fresh or not self.holds.target(hold).in_force):
                self.holds.end(hold)
            return False
        if act.undo and hold is not None:
            self.holds.end(hold)
        elif hold is not None:
            self.holds.done(hold)
        self.acts[name.replace(" ", "_")] += 1
        why = f": {because}" if because else ""
        self._journal.record(
            EventKind.ACT,
            "critical" if act.step is Step.KILL else "warning",
            f"{name}: {subject}, because of {act.alarm.rule}{outcome}{why}",
            uid=subject.uid,
            grant=subject.grant,
            pid=subject.pid,
            evidence=act.alarm.evidence,
        )
        if subject.pod_uid and act.step in _RECORDED_ON_PODS:
            for call in self.on_pod:
                recording = call(PodUid(subject.pod_uid), *_pod_event(act, hold))
                self._background.spawn(recording, "event of a pod")
        return True

    def sweep(self) -> None:
        """Ends the holds whose targets have ended, and retries what could not be undone."""
        owed, self._owed = self._owed, {}
        for act, because in owed.values():
            self.carry_out(act, because)
        for hold in self.holds.all():
            if not self.holds.target(hold).same:
                log.info("%s of %s ended: its target is gone", hold.step, hold.holder)
                self.holds.end(hold)
            elif hold.step == Step.DENY and self._denies:
                self._deny_again(self._kernel, hold)

    def _deny_again(self, kernel: KernelWatch, hold: Hold) -> None:
        """Request the refusal again from each new eBPF child, which without bpffs does not take it
        over."""
        status = kernel.status()
        if status.state is not WatchState.RUNNING or hold.cgroup in kernel.denied():
            return
        if self._denied_by.get(hold.number, -1) != status.pid:
            self._denied_by[hold.number] = status.pid
            self._update_kernel(kernel, hold.cgroup, denied=True)

    # --- after a start, and by hand ---

    def resume(self, policy: Policy | None) -> list[Hold]:
        """Take over the holds of an earlier daemon: undo those without a reason, and complete those
        that it began. Returns the holds in force. `policy` is None if detection is off."""
        kept = []
        for hold in self.holds.load():
            reason = unwanted(hold, policy, self._keeper.live(), self._denies)
            what, why = fate(hold, self.holds.target(hold), reason)
            if what is Fate.FORGET:
                log.info("%s of %s: %s", hold.step, hold.holder, why or "it is over")
                self.holds.end(hold)
            elif what is Fate.UNDO:
                self.let_go(hold, why)
            else:
                if what is Fate.REDO:
                    self.carry_out(act_of(hold, self._clock.monotonic_ns(), undo=False), why)
                else:
                    self.holds.done(hold)
                if self.holds.get(hold.number) is None:
                    continue  # it could not be done
                kept.append(hold)
                log.warning(
                    "%s of %s stays in force: the cause %s persists",
                    hold.step,
                    hold.holder,
                    hold.rule,
                )
        self.allow_strangers()
        return kept

    def let_go(self, hold: Hold, because: str) -> bool:
        """Take back one act, by its row alone."""
        try:
            act = act_of(hold, self._clock.monotonic_ns(), undo=True)
        except ValueError:  # of another version: what to undo is known all the same
            known = {str(step): step for step in Step}
            if hold.step not in known:
                log.error(
                    "%s of %s is of an unknown kind and stays in force", hold.step, hold.holder
                )
                return False
            named = replace(hold, rule=str(Rule.UNREGISTERED), level=str(Level.CONTAIN))
            act = act_of(named, self._clock.monotonic_ns(), undo=True)
        return self.carry_out(act, because)

    def allow_strangers(self) -> None:
        """Remove refusals in our own directory that have no row, because the ledger was lost.
        Called before the eBPF child takes them over."""
        known = {hold.cgroup_id for hold in self.holds.all() if hold.step == Step.DENY}
        for number in sorted(self._targets.refused() - known):
            because = "the ledger has no row for it"
            row = AuditRow(
                at_unix_s=self._clock.unix_s(),
                rule="",
                step=str(Step.DENY),
                undo=True,
                level="",
                subject=f"cgroup {number}",
                pid=0,
                starttime_ticks=0,
                grant="",
                evidence=json.dumps({"why": because}),
            )
            try:
                self._ledger.audit(row)
                self._targets.allow(number)
            except (LedgerFull, NotPossible) as error:
                log.error("opens of GPU devices by cgroup %d stay denied: %s", number, error)
                continue
            self._journal.record(
                EventKind.ACT, "warning", f"undo deny_opens: cgroup {number}: {because}"
            )

    def _row(self, act: Act, because: str) -> AuditRow:
        subject = act.alarm.subject
        evidence = dict(act.alarm.evidence) | ({"why": because} if because else {})
        return AuditRow(
            at_unix_s=self._clock.unix_s(),
            rule=str(act.alarm.rule),
            step=str(act.step),
            undo=act.undo,
            level=str(act.level),
            subject=str(subject),
            pid=subject.pid,
            starttime_ticks=subject.starttime_ticks,
            grant=subject.grant or "",
            evidence=json.dumps(evidence, sort_keys=True),
        )

    def _do(self, act: Act, hold: Hold | None) -> str:
        """Carries out an act and returns what else there is to report. Raises NotPossible."""
        subject = act.alarm.subject
        if act.step is Step.THROTTLE:
            self._throttle(subject, act.undo)
        elif act.step is Step.DENY:
            self._deny(subject, hold if act.undo else None)
        elif act.step is Step.EVICT:
            return self._evict(subject, str(act.alarm.rule))
        else:
            self._hold(act.step, subject, hold if act.undo else None)
        return ""

    def _throttle(self, subject: Subject, undo: bool) -> None:
        grant = subject.grant
        held = self._keeper.grant(grant)
        if grant is None or held is None:
            raise NotPossible("it is in no grant")
        if not undo and held.record.paused:
            raise NotPossible("it is paused already")
        try:
            self._keeper.apply(ev.PauseSet(grant, not undo))
        except Refused as refused:
            raise NotPossible(refused.reason) from refused

    def _deny(self, subject: Subject, hold: Hold | None) -> None:
        """`hold`: what to take back. That is done here even where eBPF is off or does not run."""
        if hold is not None:
            self._targets.allow(hold.cgroup_id)
            if self._denies:
                self._update_kernel(self._kernel, subject.cgroup, denied=False)
            return
        if not self._denies:
            raise NotPossible("opens are denied through eBPF, which is off here")
        if not subject.pod_uid or not subject.cgroup:
            raise NotPossible("it has no cgroup of its own in the unified hierarchy")
        status = self._kernel.status()
        if status.state is not WatchState.RUNNING:
            raise NotPossible(f"eBPF is {status.state}: {status.reason or 'its programs load'}")
        self._update_kernel(self._kernel, subject.cgroup, denied=True)

    def _update_kernel(self, kernel: KernelWatch, cgroup: str, denied: bool) -> None:
        self._background.spawn(self._deny_opens(kernel, cgroup, denied), "denied opens of a cgroup")

    async def _deny_opens(self, kernel: KernelWatch, cgroup: str, denied: bool) -> None:
        try:
            await kernel.deny_opens(cgroup, denied)
        except (KernelWatchUnavailable, OSError) as error:
            log.warning("opens of GPU devices by %s: %s", cgroup, error)

    def _hold(self, step: Step, subject: Subject, hold: Hold | None) -> None:
        """A container by its cgroup; else the process, or every process of the grant. `hold`: what
        to take back, from that very cgroup and those very processes."""
        undo = hold is not None
        if subject.container:
            if hold is not None and not self.holds.target(hold).same:
                raise NotPossible("its container is gone")
            if step is Step.KILL:
                self._restrainer.kill(subject.cgroup, subject.freezer)
            else:
                self._restrainer.freeze(subject.cgroup, subject.freezer, not undo)
            return
        number = _SIGNALS[step, undo]
        if hold is not None:
            if not sum(self._signal(pid, start, number) for pid, start in hold.stopped):
                raise NotPossible("no process of it is left")
            return
        if not subject.pid:
            if subject.grant is None or not self._keeper.signal(subject.grant, number):
                raise NotPossible("no process of it is left")
            return
        if not self._signal(subject.pid, subject.starttime_ticks, number):
            raise NotPossible("it is gone, or may not be signalled")

    def _signal(self, pid: int, starttime_ticks: int, number: int) -> bool:
        try:
            handle = self._processes.find(pid, starttime_ticks)
        except OSError as error:
            raise NotPossible(f"it cannot be read: {error.strerror}") from error
        if handle is None:
            return False
        try:
            return handle.signal(number)
        finally:
            handle.close()

    def _evict(self, subject: Subject, why: str) -> str:
        held = self._keeper.grant(subject.grant)
        if subject.grant is None or held is None:
            raise NotPossible("it is in no grant")
        evictors = [who for call in self._placers if (who := call(subject.grant, why))]
        if evictors:
            return f"; reported to: {', '.join(evictors)}"
        container = held.record.container
        if container is not None:
            pod = f"{container.namespace}/{container.pod}"
            return f"; no queue or controller here can evict it: delete pod {pod}"
        return f"; it was placed by no queue: `sluice release {subject.grant[:8]}` ends its grant"

    def forgive(self, grant: GrantId) -> None:
        """A person let the grant go on: it is not ours to resume any more."""
        hold = self.holds.throttled(grant)
        if hold is not None:
            self.holds.end(hold)
