"""The acts in force, in memory as in the ledger, and what is behind each of them now."""

from __future__ import annotations

import logging
from dataclasses import replace

from nodeagent.core.watch.detection import Step
from nodeagent.core.watch.holds import Target, hold_of
from nodeagent.core.watch.response import Act, held
from nodeagent.ports.ledger import LedgerFull
from nodeagent.ports.processes import Processes
from nodeagent.ports.watch import Hold, HoldLog, Targets
from nodeagent.shell.grants.reading import Grants
from nodeagent.units import GrantId

log = logging.getLogger(__name__)


class Holds:
    def __init__(
        self, grants: Grants, processes: Processes, ledger: HoldLog, targets: Targets
    ) -> None:
        self._grants = grants
        self._processes = processes
        self._ledger = ledger
        self._targets = targets
        self._holds: dict[int, Hold] = {}

    def load(self) -> list[Hold]:
        """Loads the holds that an earlier daemon recorded."""
        self._holds = {hold.number: hold for hold in self._ledger.holds()}
        return self.all()

    def all(self) -> list[Hold]:
        return list(self._holds.values())

    def get(self, number: int) -> Hold | None:
        return self._holds.get(number)

    def find(self, act: Act) -> Hold | None:
        """Finds the hold of an act, or the one that it undoes."""
        return self._of(str(act.step), held(act.step, act.alarm.subject))

    def throttled(self, grant: GrantId) -> Hold | None:
        return self._of(str(Step.THROTTLE), f"grant:{grant}")

    def _of(self, step: str, holder: str) -> Hold | None:
        return next(
            (one for one in self._holds.values() if (one.step, one.holder) == (step, holder)), None
        )

    def begin(self, act: Act, now_unix_s: float) -> Hold:
        """The row before the act; that of an earlier one where it is the same act. Raises
        LedgerFull, LedgerLost."""
        subject = act.alarm.subject
        before = self.find(act)
        ids = self._targets.cgroup_ids(subject.cgroup, subject.freezer)
        stopped = []
        if act.step is Step.FREEZE and not subject.container:
            if subject.pid:
                stopped.append((subject.pid, subject.starttime_ticks))
            elif subject.grant is not None:
                found = self._grants.processes_of(subject.grant)
                stopped += [(one.pid, one.starttime_ticks) for one in found]
        hold = hold_of(act, now_unix_s, ids, stopped)
        if before is not None:  # again, because of something else: the first cause stays
            hold = replace(before, stopped=tuple(dict.fromkeys((*before.stopped, *stopped))))
            if hold == before:
                return before
        hold = self._ledger.store_hold(hold)
        self._holds[hold.number] = hold
        return hold

    def done(self, hold: Hold) -> None:
        if not hold.done:
            self._store(replace(hold, done=True))

    def end(self, hold: Hold) -> None:
        self._holds.pop(hold.number, None)
        try:
            self._ledger.drop_hold(hold.number)
        except LedgerFull as error:
            # A row too many: the next start finds that nothing is held, and drops it.
            log.error(
                "end of %s of %s not recorded in the ledger: %s", hold.step, hold.holder, error
            )

    def _store(self, hold: Hold) -> None:
        self._holds[hold.number] = hold
        try:
            self._ledger.store_hold(hold)
        except LedgerFull as error:
            # A row that says less than was done: the next start would do it again.
            log.error(
                "%s of %s was done, but not recorded in the ledger: %s",
                hold.step,
                hold.holder,
                error,
            )

    # --- what is there now ---

    def target(self, hold: Hold) -> Target:
        same = self._is_same(hold)
        return Target(same, same and self.in_force(hold))

    def in_force(self, hold: Hold) -> bool:
        if hold.step == Step.THROTTLE:
            held_grant = self._grants.grant(GrantId(hold.grant))
            return held_grant is not None and held_grant.record.paused
        if hold.step == Step.DENY:
            return True  # where there is no bpffs it ended with the daemon, and is done again
        if not hold.stopped:
            return self._targets.is_frozen(hold.cgroup, hold.freezer)
        return any(
            self._targets.is_stopped(pid) for pid, start in hold.stopped if self._lives(pid, start)
        )

    def _is_same(self, hold: Hold) -> bool:
        if hold.step == Step.THROTTLE:
            return GrantId(hold.grant) in self._grants.live()
        if hold.stopped:
            return any(self._lives(*one) for one in hold.stopped)
        if not hold.cgroup_id and not hold.freezer_id:
            return False
        now = self._targets.cgroup_ids(hold.cgroup, hold.freezer)
        return now == (hold.cgroup_id, hold.freezer_id)

    def _lives(self, pid: int, starttime_ticks: int) -> bool:
        try:
            handle = self._processes.find(pid, starttime_ticks)
        except OSError:  # Unknown now, so the hold stays.
            return True
        if handle is None:
            return False
        handle.close()
        return True
