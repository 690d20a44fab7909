"""Decides, after a start, about each act of an earlier daemon that may be in force: keep, redo,
undo or forget it.

Pure. The ledger has a row for each act in force (ports.watch.Hold), written before the act; the
shell checks whether the target is the same and still held.
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
    """The daemon ended between the row and the act."""
    UNDO = "undo"
    FORGET = "forget"
    """Nothing has to be undone."""


@dataclass(frozen=True, slots=True)
class Target:
    """Current state of a row's target."""

    same: bool
    """True if it is that very cgroup, process or grant, not another one with the same name."""
    in_force: bool


def fate(hold: Hold, target: Target, unwanted: str) -> tuple[Fate, str]:
    """The decision and its reason. `unwanted` is the reason why the act is no longer wanted; empty
    if it is."""
    if not target.same:
        return Fate.FORGET, "what was held is gone"
    if unwanted:
        return (Fate.UNDO, unwanted) if target.in_force or not hold.done else (Fate.FORGET, "")
    if target.in_force:
        return Fate.KEEP, ""
    if hold.done:
        return Fate.FORGET, "it was released meanwhile"
    return Fate.REDO, "the daemon ended before it was done"


def unwanted(hold: Hold, policy: Policy | None, grants: Container[GrantId], ebpf: bool) -> str:
    """The reason why the configuration or the grant no longer wants this act; empty if it does.
    `policy` None means that detection is off."""
    if policy is None:
        return "detection is switched off"
    if hold.rule not in set(Rule) or hold.step not in set(Step):
        return f"this version has no rule {hold.rule}, or no step {hold.step}"
    level = policy.level(subject_of(hold), Rule(hold.rule))
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
    """Row of an act that is about to be done."""
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
    """The act as it was decided. Raises ValueError for a rule, step or level of another version."""
    return Act(Step(hold.step), _alarm(hold, now_ns), Level(hold.level), undo)


def alarms(holds: Sequence[Hold], now_ns: Nanoseconds) -> list[tuple[Alarm, tuple[Step, ...]]]:
    """The suspicions behind the rows, each with the steps taken because of it."""
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
