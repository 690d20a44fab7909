"""Rule for workloads that preempt each other repeatedly: the victim waits until its preemptor has
started.

Without that rule a third workload may take what was freed for the preemptor, the victim preempts
the third and is preempted itself, and so on without end. At first the rule does not apply, as in
Kueue: most often the preemptor starts at once, and the victim finds another place. The rule cannot
deadlock: a victim held quota, so it yields to no other, and a workload that yields preempts no
other.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from queuecontroller.scheduler.model.objects import WorkloadKey

TOO_OFTEN: Final = 3
"""Preemptions of one victim by one preemptor from which the rule applies. Two happen without a
loop: the preemptor ends, and is submitted again."""


class Yielding:
    def __init__(self) -> None:
        self._times: dict[WorkloadKey, dict[WorkloadKey, int]] = {}
        """Number of preemptions by preemptor and victim, while the preemptor exists."""
        self._preemptors: dict[WorkloadKey, set[WorkloadKey]] = {}
        """Preemptors by victim, so that removing a victim needs no scan."""
        self._preemptor_of: dict[WorkloadKey, WorkloadKey] = {}
        """The preemptor that each waiting victim has to wait for."""

    def preempted(self, victim: WorkloadKey, preemptor: WorkloadKey) -> int:
        """Count a preemption; returns how often this preemptor has preempted this victim."""
        victims = self._times.setdefault(preemptor, {})
        times = victims[victim] = victims.get(victim, 0) + 1
        self._preemptors.setdefault(victim, set()).add(preemptor)
        if times >= TOO_OFTEN:
            self._preemptor_of.setdefault(victim, preemptor)
        return times

    def preemptor_of(self, victim: WorkloadKey) -> WorkloadKey | None:
        """The workload that has to start before this victim does."""
        return self._preemptor_of.get(victim)

    def victims_of(self, preemptor: WorkloadKey) -> Collection[WorkloadKey]:
        """All workloads that this one has preempted since it is pending."""
        return self._times.get(preemptor, {}).keys()

    def turns(self, one: WorkloadKey, other: WorkloadKey) -> int:
        """How often the two preempted each other; 0 unless both did."""
        there = self._times.get(one, {}).get(other, 0)
        back = self._times.get(other, {}).get(one, 0)
        return there + back if there and back else 0

    def spares(self, preemptor: WorkloadKey, target: WorkloadKey) -> bool:
        """True if the two have preempted each other often enough: the one that was the victim so
        often does not preempt again."""
        return self._times.get(target, {}).get(preemptor, 0) >= TOO_OFTEN

    def let_pass(self, preemptor: WorkloadKey) -> list[WorkloadKey]:
        """Release and return the workloads that waited for this one: it started, or never can."""
        victims = self._times.get(preemptor, {})
        free = [one for one in victims if self._preemptor_of.get(one) == preemptor]
        for victim in free:
            del self._preemptor_of[victim]
        return free

    def gone(self, key: WorkloadKey) -> list[WorkloadKey]:
        """Forget a workload that waits and preempts no more; returns those that waited for it."""
        free = self.let_pass(key)
        for victim in self._times.pop(key, ()):
            preemptors = self._preemptors[victim]
            preemptors.discard(key)
            if not preemptors:
                del self._preemptors[victim]
        self._preemptor_of.pop(key, None)
        for preemptor in self._preemptors.pop(key, ()):
            del self._times[preemptor][key]
        return free
