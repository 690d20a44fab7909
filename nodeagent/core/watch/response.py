"""Response to a suspicion: the steps of its rule, one after another with the delays between them,
up to the level that the policy allows for its subject.

Acts are instructions; the caller writes the audit row first. A step that is impossible for its
subject is skipped, and the next one follows at its time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from nodeagent.core.watch.detection import RULES, Alarm, AlarmKey, Rule, Step
from nodeagent.core.watch.sightings import Subject
from nodeagent.units import NS_PER_S, Nanoseconds


class Level(StrEnum):
    OBSERVE = "observe"
    """Report only."""
    CONTAIN = "contain"
    """Every step that can be undone: throttle, deny opens, freeze."""
    KILL = "kill"
    """All steps."""


ALLOWED: Final[Mapping[Level, frozenset[Step]]] = {
    Level.OBSERVE: frozenset(),
    Level.CONTAIN: frozenset({Step.THROTTLE, Step.DENY, Step.FREEZE}),
    Level.KILL: frozenset(Step),
}
UNDONE: Final = frozenset({Step.THROTTLE, Step.DENY, Step.FREEZE})
"""Steps that are undone when the suspicion is over."""


HONEST: Final = frozenset({Rule.MEMORY, Rule.TIME, Rule.RUNAWAY})
"""Rules whose condition an honest program can meet: NVML counts memory and time that are no
launches or allocations of the program (graphics, video engines, a driver that loads code), and
kernels that are made to run for ever do not end. Without a setting they report only."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Level for each subject; the most specific one wins: namespace, then queue, then whether it is
    in a grant. A rule may have a level of its own, and then the milder of both is in force."""

    grants: Level = Level.CONTAIN
    bare_metal: Level = Level.OBSERVE
    namespaces: Mapping[str, Level] = field(default_factory=dict)
    queues: Mapping[str, Level] = field(default_factory=dict)
    rules: Mapping[Rule, Level] = field(default_factory=dict)
    """Exceptions from the defaults: observe for HONEST, kill (no limit) for the others."""

    def level(self, subject: Subject, rule: Rule) -> Level:
        most = self.rules.get(rule, Level.OBSERVE if rule in HONEST else Level.KILL)
        return min(self._of(subject), most, key=tuple(Level).index)

    def _of(self, subject: Subject) -> Level:
        if subject.namespace in self.namespaces:
            return self.namespaces[subject.namespace]
        if subject.queue in self.queues:
            return self.queues[subject.queue]
        inside = subject.grant is not None or bool(subject.pod_uid)
        return self.grants if inside else self.bare_metal


@dataclass(frozen=True, slots=True)
class Act:
    step: Step
    alarm: Alarm
    level: Level
    undo: bool = False


@dataclass(slots=True)
class _Climb:
    alarm: Alarm
    level: Level
    done: list[Step] = field(default_factory=list)
    unseen: bool = False
    """True since the daemon started, until confirmed: no further step."""
    pardoned: bool = False
    """True if a person released what was held because of it: no further step."""

    @property
    def resting(self) -> bool:
        return self.unseen or self.pardoned


class Responder:
    """Pure: time is an argument."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._climbs: dict[AlarmKey, _Climb] = {}

    def raised(self, alarm: Alarm) -> Level:
        level = self.policy.level(alarm.subject, alarm.rule)
        self._climbs[alarm.key] = _Climb(alarm, level)
        return level

    def taken_up(self, alarm: Alarm, done: Iterable[Step]) -> None:
        """Restore an alarm of an earlier daemon with the steps done. No further step follows until
        it is confirmed."""
        level = self.policy.level(alarm.subject, alarm.rule)
        self._climbs[alarm.key] = _Climb(alarm, level, list(done), unseen=True)

    def confirmed(self, alarm: Alarm) -> None:
        """This daemon has confirmed the alarm: the remaining steps follow in their time from
        now."""
        climb = self._climbs.get(alarm.key)
        if climb is not None:
            climb.alarm, climb.unseen = alarm, False

    def pardon(self, holder: str) -> None:
        """A person released what is held: no further step follows for the suspicions behind it."""
        for climb in self._climbs.values():
            if any(held(step, climb.alarm.subject) == holder for step in climb.done):
                climb.pardoned = True

    def due(self, now_ns: Nanoseconds) -> list[Act]:
        """The steps that are due; each is returned once."""
        acts = []
        for climb in self._climbs.values():
            if climb.resting:
                continue
            age_s = (now_ns - climb.alarm.raised_ns) / NS_PER_S
            for step, after_s in RULES[climb.alarm.rule].ladder:
                if step in climb.done or step not in ALLOWED[climb.level] or age_s < after_s:
                    continue
                climb.done.append(step)
                acts.append(Act(step, climb.alarm, climb.level))
        return acts

    def next_due_s(self, now_ns: Nanoseconds) -> float | None:
        """Seconds until another step is due; None if none is."""
        waits = [
            after_s - (now_ns - climb.alarm.raised_ns) / NS_PER_S
            for climb in self._climbs.values()
            for step, after_s in RULES[climb.alarm.rule].ladder
            if not climb.resting and step not in climb.done and step in ALLOWED[climb.level]
        ]
        return max(0.0, min(waits)) if waits else None

    def cleared(self, alarm: Alarm, alive: bool) -> list[Act]:
        """Undo the steps that can be undone, last first, unless another suspicion still needs them.

        A step on a whole container or grant is undone even if only the process has ended.
        """
        climb = self._climbs.pop(alarm.key, None)
        if climb is None:
            return []
        wanted = {
            (step, held(step, other.alarm.subject))
            for other in self._climbs.values()
            for step in other.done
        }
        return [
            Act(step, alarm, climb.level, undo=True)
            for step in reversed(climb.done)
            if step in UNDONE
            and (step, held(step, alarm.subject)) not in wanted
            and (alive or held(step, alarm.subject) != alarm.subject.key)
        ]


def held(step: Step, subject: Subject) -> str:
    """The target of a step: the grant, the container, or only the process."""
    if step is Step.THROTTLE and subject.grant is not None:
        return f"grant:{subject.grant}"
    return f"container:{subject.container}" if subject.container else subject.key
