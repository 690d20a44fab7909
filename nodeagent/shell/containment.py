"""Carries out what the ladder says, on processes and cgroups that the daemon derived itself.

The audit row comes first; without it nothing is done. A process is only ever signalled through a
pidfd opened for the pid and start time of the suspicion, a cgroup only held when it is the
container's own.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from collections import Counter
from collections.abc import Callable
from typing import Final

from nodeagent.core import events as ev
from nodeagent.core.detection import Step
from nodeagent.core.response import Act
from nodeagent.core.sightings import Subject
from nodeagent.ports import Clock, LedgerFull, Processes, Refused
from nodeagent.shell.journal import Journal
from nodeagent.shell.keeper import Keeper
from nodeagent.telemetry_ports import KernelWatch, KernelWatchUnavailable, WatchState
from nodeagent.units import GrantId
from nodeagent.watch_ports import AuditLog, AuditRow, NotPossible, Restrainer

log = logging.getLogger(__name__)

_SIGNALS: Final = {
    (Step.FREEZE, False): signal.SIGSTOP,
    (Step.FREEZE, True): signal.SIGCONT,
    (Step.KILL, False): signal.SIGKILL,
}


class Containment:
    def __init__(
        self,
        keeper: Keeper,
        processes: Processes,
        restrainer: Restrainer,
        audit: AuditLog,
        journal: Journal,
        clock: Clock,
    ) -> None:
        self._keeper = keeper
        self._processes = processes
        self._restrainer = restrainer
        self._audit = audit
        self._journal = journal
        self._clock = clock
        self.kernel: KernelWatch | None = None
        """Set where eBPF runs: without it opens cannot be denied."""
        self.placers: list[Callable[[GrantId, str], str]] = []
        """Who places grants here, and can take them away: told (grant, why), they say who they
        are; empty: it is none of theirs."""
        # From 0: a rise from nothing is none to Prometheus.
        self.acts: Counter[str] = Counter({str(step): 0 for step in Step})
        self._throttled: set[GrantId] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def carry_out(self, act: Act) -> None:
        subject = act.alarm.subject
        name = f"undo {act.step}" if act.undo else str(act.step)
        try:
            self._audit.audit(self._row(act))
        except LedgerFull as error:
            log.error(
                "%s of %s is not done, it could not be written down: %s", name, subject, error
            )
            return
        try:
            outcome = self._do(act)
        except NotPossible as error:
            log.info("%s of %s: %s", name, subject, error)
            return
        self.acts[name.replace(" ", "_")] += 1
        self._journal.tell(
            "act",
            "critical" if act.step is Step.KILL else "warning",
            f"{name}: {subject}, because of {act.alarm.rule}{outcome}",
            uid=subject.uid,
            grant=subject.grant,
            pid=subject.pid,
            evidence=act.alarm.evidence,
        )

    def _row(self, act: Act) -> AuditRow:
        subject = act.alarm.subject
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
            evidence=json.dumps(dict(act.alarm.evidence), sort_keys=True),
        )

    def _do(self, act: Act) -> str:
        """What else there is to say about it. Raises NotPossible."""
        subject = act.alarm.subject
        if act.step is Step.THROTTLE:
            self._throttle(subject, act.undo)
        elif act.step is Step.DENY:
            self._deny(subject, act.undo)
        elif act.step is Step.EVICT:
            return self._evict(subject, str(act.alarm.rule))
        else:
            self._hold(act.step, subject, act.undo)
        return ""

    def _throttle(self, subject: Subject, undo: bool) -> None:
        grant = subject.grant
        held = self._keeper.book.grants.get(grant) if grant is not None else None
        if grant is None or held is None:
            raise NotPossible("it is in no grant")
        if undo:
            if grant not in self._throttled:
                raise NotPossible("somebody else paused it")
            self._throttled.discard(grant)
        elif held.record.paused:
            raise NotPossible("it is paused already")
        try:
            self._keeper.apply(ev.PauseSet(grant, not undo))
        except Refused as refused:
            raise NotPossible(refused.reason) from refused
        if not undo:
            self._throttled.add(grant)

    def _deny(self, subject: Subject, undo: bool) -> None:
        if self.kernel is None:
            raise NotPossible("opens are denied through eBPF, which is off here")
        if not subject.pod_uid or not subject.cgroup:
            raise NotPossible("it has no cgroup of its own in the unified hierarchy")
        status = self.kernel.status()
        if not undo and status.state is not WatchState.RUNNING:
            raise NotPossible(f"eBPF is {status.state}: {status.reason or 'its programs load'}")
        task = asyncio.get_running_loop().create_task(
            self._deny_opens(self.kernel, subject.cgroup, not undo)
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deny_opens(self, kernel: KernelWatch, cgroup: str, denied: bool) -> None:
        try:
            await kernel.deny_opens(cgroup, denied)
        except (KernelWatchUnavailable, OSError) as error:
            log.warning("opens of GPU devices by %s: %s", cgroup, error)

    def _hold(self, step: Step, subject: Subject, undo: bool) -> None:
        """A container by its cgroup; else the process, or every process of the grant."""
        if subject.container:
            if step is Step.KILL:
                self._restrainer.kill(subject.cgroup, subject.freezer)
            else:
                self._restrainer.freeze(subject.cgroup, subject.freezer, not undo)
            return
        number = _SIGNALS[step, undo]
        if not subject.pid:
            if subject.grant is None or not self._keeper.signal(subject.grant, number):
                raise NotPossible("no process of it is left")
            return
        handle = self._processes.find(subject.pid, subject.starttime_ticks)
        if handle is None:
            raise NotPossible("it is gone")
        try:
            if not handle.signal(number):
                raise NotPossible("it may not be signalled")
        finally:
            handle.close()

    def _evict(self, subject: Subject, why: str) -> str:
        held = self._keeper.book.grants.get(subject.grant) if subject.grant is not None else None
        if subject.grant is None or held is None:
            raise NotPossible("nobody placed it here")
        told = [who for call in self.placers if (who := call(subject.grant, why))]
        if told:
            return f"; told: {', '.join(told)}"
        container = held.record.container
        if container is not None:
            return f"; nobody here can evict it: delete pod {container.namespace}/{container.pod}"
        return f"; nobody placed it: `sluice release {subject.grant[:8]}` ends its grant"

    def forgive(self, grant: GrantId) -> None:
        """A person let the grant go on: it is not ours to resume any more."""
        self._throttled.discard(grant)
