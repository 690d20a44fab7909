"""Who is preempted for whom again and again, and then has to let the other one start first.

Without that rule a third may take what was freed for the preemptor, the victim preempts the third
and is preempted itself, and so on for ever. At first it is let be, as in Kueue: most often the
preemptor starts at once, and the victim finds another place. The rule cannot lock: who is preempted
held quota, so it yields to nobody, and who yields to somebody preempts nobody.
"""

from __future__ import annotations

from typing import Final

from queuecontroller.scheduler.model.objects import WorkloadKey

TOO_OFTEN: Final = 3
"""Times. Twice happens without any loop: what was preempted for ends, and comes again."""


class Yielding:
    def __init__(self) -> None:
        self._times: dict[WorkloadKey, dict[WorkloadKey, int]] = {}
        """By preemptor and victim, as long as the preemptor is there: how often."""
        self._preemptors: dict[WorkloadKey, set[WorkloadKey]] = {}
        """The same by victim, so that nobody is looked for among all when one goes."""
        self._preemptor_of: dict[WorkloadKey, WorkloadKey] = {}
        """Of those who have to wait for it."""

    def preempted(self, victim: WorkloadKey, preemptor: WorkloadKey) -> int:
        """How often the one was preempted for the other, this time too."""
        victims = self._times.setdefault(preemptor, {})
        times = victims[victim] = victims.get(victim, 0) + 1
        self._preemptors.setdefault(victim, set()).add(preemptor)
        if times >= TOO_OFTEN:
            self._preemptor_of.setdefault(victim, preemptor)
        return times

    def preemptor_of(self, victim: WorkloadKey) -> WorkloadKey | None:
        """Who has to start before it does."""
        return self._preemptor_of.get(victim)

    def turns(self, one: WorkloadKey, other: WorkloadKey) -> int:
        """How often the two preempted each other; 0 unless both did."""
        there = self._times.get(one, {}).get(other, 0)
        back = self._times.get(other, {}).get(one, 0)
        return there + back if there and back else 0

    def spares(self, preemptor: WorkloadKey, target: WorkloadKey) -> bool:
        """Whether the two have taken turns in preempting each other for long enough: the one that
        made way so often does not take it back again."""
        return self._times.get(target, {}).get(preemptor, 0) >= TOO_OFTEN

    def let_pass(self, preemptor: WorkloadKey) -> list[WorkloadKey]:
        """It started, or cannot start at all. Those who waited for it."""
        victims = self._times.get(preemptor, {})
        free = [one for one in victims if self._preemptor_of.get(one) == preemptor]
        for victim in free:
            del self._preemptor_of[victim]
        return free

    def gone(self, key: WorkloadKey) -> list[WorkloadKey]:
        """It waits and preempts no more. Those who waited for it."""
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
