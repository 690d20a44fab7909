"""What is done about a suspicion: the ladder of its rule, cut off where the policy for its subject
ends, one step after another with the time between them.

Acts are instructions; whoever carries them out writes the audit row first. A step that is not
possible for its subject is passed over there and the next one comes in its time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from nodeagent.core.watch.detection import RULES, Alarm, AlarmKey, Step
from nodeagent.core.watch.sightings import Subject
from nodeagent.units import NS_PER_S, Nanoseconds


class Level(StrEnum):
    OBSERVE = "observe"
    """Tell, and do nothing."""
    CONTAIN = "contain"
    """Whatever can be taken back: throttle, deny opens, freeze."""
    KILL = "kill"
    """All of it."""


ALLOWED: Final[Mapping[Level, frozenset[Step]]] = {
    Level.OBSERVE: frozenset(),
    Level.CONTAIN: frozenset({Step.THROTTLE, Step.DENY, Step.FREEZE}),
    Level.KILL: frozenset(Step),
}
UNDONE: Final = frozenset({Step.THROTTLE, Step.DENY, Step.FREEZE})
"""Taken back when the suspicion is over."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Which level applies to whom; the most particular one wins: namespace, then queue, then
    whether it is in a grant at all."""

    grants: Level = Level.CONTAIN
    bare_metal: Level = Level.OBSERVE
    namespaces: Mapping[str, Level] = field(default_factory=dict)
    queues: Mapping[str, Level] = field(default_factory=dict)

    def level(self, subject: Subject) -> Level:
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
    """Since the daemon started: no further step."""
    pardoned: bool = False
    """A person let go what was held because of it: no further step."""

    @property
    def resting(self) -> bool:
        return self.unseen or self.pardoned


class Responder:
    """Pure: time is an argument."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._climbs: dict[AlarmKey, _Climb] = {}

    def raised(self, alarm: Alarm) -> Level:
        level = self.policy.level(alarm.subject)
        self._climbs[alarm.key] = _Climb(alarm, level)
        return level

    def taken_up(self, alarm: Alarm, done: Iterable[Step]) -> None:
        """An earlier daemon's, with what it has done. It goes no further until it is confirmed."""
        level = self.policy.level(alarm.subject)
        self._climbs[alarm.key] = _Climb(alarm, level, list(done), unseen=True)

    def confirmed(self, alarm: Alarm) -> None:
        """Seen by this daemon: the steps that are left come in their time from now."""
        climb = self._climbs.get(alarm.key)
        if climb is not None:
            climb.alarm, climb.unseen = alarm, False

    def pardon(self, holder: str) -> None:
        """A person let go what is held: nothing more is done about the suspicions behind it."""
        for climb in self._climbs.values():
            if any(held(step, climb.alarm.subject) == holder for step in climb.done):
                climb.pardoned = True

    def due(self, now_ns: Nanoseconds) -> list[Act]:
        """The steps whose time has come; each is told once."""
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
        """Until another step is due; None: nothing is."""
        waits = [
            after_s - (now_ns - climb.alarm.raised_ns) / NS_PER_S
            for climb in self._climbs.values()
            for step, after_s in RULES[climb.alarm.rule].ladder
            if not climb.resting and step not in climb.done and step in ALLOWED[climb.level]
        ]
        return max(0.0, min(waits)) if waits else None

    def cleared(self, alarm: Alarm, alive: bool) -> list[Act]:
        """Takes back what can be, last first, unless another suspicion still wants it. What was
        done to a whole container or grant is taken back, too, when only the process has ended."""
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
    """What the step holds: the grant, the container, or the process alone."""
    if step is Step.THROTTLE and subject.grant is not None:
        return f"grant:{subject.grant}"
    return f"container:{subject.container}" if subject.container else subject.key
