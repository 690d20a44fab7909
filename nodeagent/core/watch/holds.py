"""What becomes, after a start, of what an earlier daemon held: gone on with, done again, taken back
or forgotten.

Pure. The ledger has a row for each act in force (watch_ports.Hold), written before the act; whether
the target is the same and still held is looked at by the shell.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from nodeagent.core.watch.detection import Alarm, AlarmKey, Evidence, Rule, Step
from nodeagent.core.watch.response import ALLOWED, Act, Level, Policy, held
from nodeagent.core.watch.sightings import Subject
from nodeagent.ports.views import ContainedView
from nodeagent.ports.watch import Hold
from nodeagent.units import GrantId, Nanoseconds


class Fate(Enum):
    KEEP = "keep"
    REDO = "redo"
    """The daemon died between the row and the act."""
    UNDO = "undo"
    FORGET = "forget"
    """There is nothing to take back."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is behind a row now."""

    same: bool
    """That very cgroup, process or grant, not one that came to have its name."""
    in_force: bool


def fate(hold: Hold, target: Target, unwanted: str) -> tuple[Fate, str]:
    """And why; `unwanted` is the reason that nobody asks for it any more, or empty."""
    if not target.same:
        return Fate.FORGET, "what was held is gone"
    if unwanted:
        return (Fate.UNDO, unwanted) if target.in_force or not hold.done else (Fate.FORGET, "")
    if target.in_force:
        return Fate.KEEP, ""
    if hold.done:
        return Fate.FORGET, "somebody let it go meanwhile"
    return Fate.REDO, "the daemon ended before it was done"


def unwanted(hold: Hold, policy: Policy | None, grants: Container[GrantId], ebpf: bool) -> str:
    """Why the configuration or the grant asks for this no more; `policy` None: detection is off."""
    if policy is None:
        return "detection is switched off"
    if hold.rule not in set(Rule) or hold.step not in set(Step):
        return f"this version knows no rule {hold.rule}, or no step {hold.step}"
    level = policy.level(subject_of(hold))
    if Step(hold.step) not in ALLOWED[level]:
        return f"the policy is {level} now"
    if hold.step == Step.DENY and not ebpf:
        return "eBPF is switched off"
    if hold.grant and hold.grant not in grants:
        return "its grant is gone"
    return ""


def subject_of(hold: Hold) -> Subject:
    return Subject(
        grant=GrantId(hold.grant) if hold.grant else None,
        pid=hold.pid,
        starttime_ticks=hold.starttime_ticks,
        uid=hold.uid,
        program=hold.program,
        cgroup=hold.cgroup,
        freezer=hold.freezer,
        pod_uid=hold.pod_uid,
        namespace=hold.namespace,
        queue=hold.queue,
    )


def hold_of(
    act: Act,
    since_unix_s: float,
    cgroup_ids: tuple[int, int],
    stopped: Sequence[tuple[int, int]],
) -> Hold:
    """Of an act that is about to be done."""
    alarm, subject = act.alarm, act.alarm.subject
    return Hold(
        number=0,
        since_unix_s=since_unix_s,
        step=str(act.step),
        holder=held(act.step, subject),
        rule=str(alarm.rule),
        cause=alarm.key[2],
        level=str(act.level),
        evidence=json.dumps(dict(alarm.evidence), sort_keys=True),
        grant=subject.grant or "",
        pid=subject.pid,
        starttime_ticks=subject.starttime_ticks,
        uid=subject.uid,
        program=subject.program,
        cgroup=subject.cgroup,
        freezer=subject.freezer,
        pod_uid=subject.pod_uid,
        namespace=subject.namespace,
        queue=subject.queue,
        cgroup_id=cgroup_ids[0],
        freezer_id=cgroup_ids[1],
        stopped=tuple(stopped),
    )


def act_of(hold: Hold, now_ns: Nanoseconds, undo: bool) -> Act:
    """As it was decided then. Raises ValueError for a rule, step or level of another version."""
    return Act(Step(hold.step), _alarm(hold, now_ns), Level(hold.level), undo)


def alarms(holds: Sequence[Hold], now_ns: Nanoseconds) -> list[tuple[Alarm, tuple[Step, ...]]]:
    """The suspicions behind them, each with what was done because of it."""
    found: dict[AlarmKey, tuple[Alarm, tuple[Step, ...]]] = {}
    for hold in holds:
        alarm = _alarm(hold, now_ns)
        before = found.get(alarm.key)
        steps = before[1] if before is not None else ()
        found[alarm.key] = (alarm, (*steps, Step(hold.step)))
    return list(found.values())


def _alarm(hold: Hold, now_ns: Nanoseconds) -> Alarm:
    subject = subject_of(hold)
    rule = Rule(hold.rule)
    evidence: Mapping[str, float | int | str] = json.loads(hold.evidence)
    plain: Evidence = dict(evidence)
    return Alarm(rule, subject, plain, now_ns, (rule, subject.key, hold.cause))


def view_of(hold: Hold) -> ContainedView:
    return ContainedView(
        number=hold.number,
        since_unix_s=hold.since_unix_s,
        step=hold.step,
        rule=hold.rule,
        level=hold.level,
        whom=str(subject_of(hold)),
        grant=hold.grant,
        pid=hold.pid,
        uid=hold.uid,
        cgroup=(hold.cgroup or hold.freezer) if hold.holder.startswith("container:") else "",
        evidence=hold.evidence,
    )
