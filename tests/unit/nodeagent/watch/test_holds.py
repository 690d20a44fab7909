"""Holds of an earlier daemon: every case of their fate, and a hold that is continued expires like
any other."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from nodeagent.core.watch.detection import CLEAR_AFTER_S, RULES, Alarm, Detector, Limits, Rule, Step
from nodeagent.core.watch.holds import (
    Fate,
    Target,
    act_of,
    alarms,
    fate,
    hold_of,
    subject_of,
    unwanted,
)
from nodeagent.core.watch.response import Act, Level, Policy, Responder
from nodeagent.core.watch.sightings import GpuUser, GrantSight, Look, Subject
from nodeagent.ports.watch import Hold
from nodeagent.units import NS_PER_S, GpuUuid, GrantId, Nanoseconds

GPU = GpuUuid("GPU-1")
GRANT = GrantId("g1")
SUBJECT = Subject(grant=GRANT, pid=7, starttime_ticks=70, uid=1000, program="/x")
NOW = Nanoseconds(1000 * NS_PER_S)


def hold(step: Step = Step.FREEZE, rule: Rule = Rule.UNREGISTERED, **changes: object) -> Hold:
    alarm = Alarm(rule, SUBJECT, {"gpu": GPU}, NOW, (rule, SUBJECT.key, ""))
    made = hold_of(Act(step, alarm, Level.CONTAIN), 5.0, (0, 0), [(7, 70)])
    return replace(made, **{"number": 1, "done": True, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("same", "in_force", "done", "reason"),
    list(itertools.product([True, False], [True, False], [True, False], ["", "policy"])),
)
def test_every_case_has_its_fate(same: bool, in_force: bool, done: bool, reason: str) -> None:
    what, why = fate(hold(done=done), Target(same, in_force), reason)
    if not same:
        assert what is Fate.FORGET
    elif reason:
        # Not done, as far as the row goes: undone all the same, because it is not known.
        assert what is (Fate.UNDO if in_force or not done else Fate.FORGET)
    elif in_force:
        assert what is Fate.KEEP
    else:
        assert what is (Fate.FORGET if done else Fate.REDO)
    assert why or what in (Fate.KEEP, Fate.FORGET)


@pytest.mark.parametrize(
    ("changes", "policy", "ebpf", "why"),
    [
        ({}, Policy(), True, ""),
        ({}, None, True, "detection is switched off"),
        ({}, Policy(grants=Level.OBSERVE), True, "the policy is observe now"),
        ({"namespace": "a"}, Policy(namespaces={"a": Level.OBSERVE}), True, "the policy is observe now"),
        ({"queue": "q"}, Policy(queues={"q": Level.OBSERVE}), True, "the policy is observe now"),
        ({}, Policy(grants=Level.KILL), True, ""),
        ({"grant": "gone"}, Policy(), True, "its grant is gone"),
        ({"step": "deny_opens"}, Policy(), True, ""),
        ({"step": "deny_opens"}, Policy(), False, "eBPF is switched off"),
        ({"rule": "of_2030"}, Policy(), True, "this version has no rule of_2030, or no step freeze"),
    ],
)  # fmt: skip
def test_who_asks_for_it_no_more(
    changes: dict[str, str], policy: Policy | None, ebpf: bool, why: str
) -> None:
    assert unwanted(hold(**changes), policy, {GRANT}, ebpf) == why  # type: ignore[arg-type]


def test_a_row_says_all_that_the_act_was_about() -> None:
    one = hold()
    assert subject_of(one) == SUBJECT
    act = act_of(one, NOW, undo=True)
    assert (act.step, act.undo, act.level) == (Step.FREEZE, True, Level.CONTAIN)
    assert act.alarm.key == (Rule.UNREGISTERED, SUBJECT.key, "")
    assert act.alarm.evidence == {"gpu": GPU}


def taken_up(*steps: Step, rule: Rule = Rule.UNREGISTERED) -> tuple[Detector, Responder]:
    detector, responder = Detector(Limits(grace_s=0)), Responder(Policy(grants=Level.KILL))
    ((alarm, done),) = alarms([hold(step, rule) for step in steps], NOW)
    detector.take_up(alarm)
    responder.taken_up(alarm, done)
    return detector, responder


def look(at_s: float, *users: GpuUser) -> Look:
    return Look(Nanoseconds(int(NOW + at_s * NS_PER_S)), users=users)


SEEN = GpuUser(SUBJECT, GPU, registered=False)


def test_what_is_not_seen_again_is_over_after_the_usual_time_from_the_first_look() -> None:
    detector, responder = taken_up(Step.THROTTLE, Step.FREEZE)
    # The driver took its time: that is no time in which it was away.
    assert detector.look(look(100)).cleared == ()
    assert detector.look(look(100 + CLEAR_AFTER_S - 1)).cleared == ()
    (alarm,) = detector.look(look(100 + CLEAR_AFTER_S)).cleared
    undone = responder.cleared(alarm, alive=True)
    assert [(act.step, act.undo) for act in undone] == [(Step.FREEZE, True), (Step.THROTTLE, True)]


def test_no_further_step_before_it_is_seen_and_then_in_the_ladders_time() -> None:
    detector, responder = taken_up(Step.THROTTLE, Step.FREEZE)
    assert responder.due(look(3600).at_ns) == []
    assert responder.next_due_s(NOW) is None
    verdict = detector.look(look(1, SEEN))
    assert verdict.raised == ()
    (alarm,) = verdict.confirmed
    responder.confirmed(alarm)
    assert [act.step for act in responder.due(look(1).at_ns)] == [Step.DENY]
    assert responder.due(look(30).at_ns) == []
    assert [act.step for act in responder.due(look(31).at_ns)] == [Step.KILL, Step.EVICT]
    assert detector.look(look(2, SEEN)).confirmed == ()


def test_who_was_pardoned_is_left_alone_while_the_suspicion_stands() -> None:
    detector, responder = taken_up(Step.FREEZE)
    responder.pardon(hold().holder)
    (alarm,) = detector.look(look(1, SEEN)).confirmed
    responder.confirmed(alarm)
    assert responder.due(look(3600).at_ns) == []
    assert len(detector.alarms) == 1


def test_a_rule_that_needs_time_has_it_before_its_act_expires() -> None:
    """Work that does not end is seen only after runaway_s, so what is held for it is not let go and
    held again at every restart."""
    limits = Limits(runaway_s=60)
    detector = Detector(limits)
    subject = Subject(grant=GRANT)
    row = replace(
        hold(Step.FREEZE, Rule.RUNAWAY), pid=0, starttime_ticks=0, cause=GPU, holder="grant:g1"
    )
    ((alarm, _),) = alarms([row], NOW)
    detector.take_up(alarm)
    stuck = GrantSight(subject, GRANT, GPU, 0, 0, 0, outstanding_ns=1, tampers=0)
    for second in range(60):
        verdict = detector.look(Look(look(second).at_ns, grants=(stuck,)))
        assert (verdict.cleared, verdict.confirmed) == ((), ())
    assert len(detector.look(Look(look(60).at_ns, grants=(stuck,))).confirmed) == 1


def test_every_rule_with_a_ladder_can_be_taken_up() -> None:
    for rule, spec in RULES.items():
        if spec.ladder:
            detector, _responder = taken_up(Step.FREEZE, rule=rule)
            assert [alarm.rule for alarm in detector.alarms] == [rule]
