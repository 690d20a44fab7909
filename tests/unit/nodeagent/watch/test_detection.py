"""The nine rules and the ladder: each at its threshold and just below, and what is done then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.core.watch.detection import (
    CLEAR_AFTER_S,
    REQUIRED_HOOKS,
    RULES,
    Alarm,
    Detector,
    Limits,
    Rule,
    Step,
)
from nodeagent.core.watch.response import Act, Level, Policy, Responder
from nodeagent.core.watch.sightings import (
    DeviceOpen,
    ForeignMapping,
    GpuUser,
    GrantSight,
    LaunchAudit,
    Look,
    Subject,
)
from nodeagent.settings.daemon import (
    DETECTION_RULES,
    ConfigError,
    DetectionSettings,
    parse,
)
from nodeagent.units import GIB, MIB, NS_PER_S, GpuUuid, GrantId, Nanoseconds

GPU = GpuUuid("GPU-1")
GRANT = GrantId("g1")
STRANGER = Subject(pid=7, starttime_ticks=70, uid=1000, program="/opt/miner")
TENANT = Subject(grant=GRANT, pid=8, starttime_ticks=80, uid=1000)
WHOLE = Subject(grant=GRANT, uid=1000, program="job")


def user(subject: Subject, registered: bool = True, gib: float = 1.0, busy: float | None = 0.5) -> GpuUser:  # fmt: skip
    return GpuUser(subject, GPU, registered, memory_bytes=int(gib * GIB), sm_ratio=busy)


def sight(**change: object) -> GrantSight:
    made = GrantSight(WHOLE, GRANT, GPU, GIB, 0, 0, 0, 0)
    return replace(made, **change)  # type: ignore[arg-type]


def at(seconds: float, **seen: object) -> Look:
    return Look(Nanoseconds(int(seconds * NS_PER_S)), **seen)  # type: ignore[arg-type]


def raised(*looks: Look, limits: Limits = Limits()) -> list[tuple[int, Rule]]:  # noqa: B008
    """(index of the look, rule) of every alarm."""
    detector = Detector(limits)
    return [
        (index, alarm.rule) for index, look in enumerate(looks) for alarm in detector.look(look).raised
    ]  # fmt: skip


def every(count: int, step_s: float, make: Callable[[int], dict[str, object]]) -> list[Look]:
    return [at(n * step_s, **make(n)) for n in range(count)]


def test_an_unregistered_user_is_told_after_its_grace_and_two_looks() -> None:
    users = (user(STRANGER, registered=False),)
    assert raised(*every(5, 0.1, lambda n: {"users": users})) == [(4, Rule.UNREGISTERED)]
    assert raised(*every(2, 1.0, lambda n: {"users": users})) == [(1, Rule.UNREGISTERED)]
    assert raised(at(0, users=users), at(1), at(2, users=users)) == [], "not two in a row"


def test_a_full_grant_whose_managed_memory_may_lie_beyond_is_not_accused_of_it() -> None:
    seen: dict[str, object] = {"users": (user(TENANT, gib=6),), "grants": (sight(),)}
    assert [rule for _, rule in raised(*every(20, 1.0, lambda n: seen))] == [Rule.MEMORY]
    seen["grants"] = (sight(beyond=True),)
    assert raised(*every(20, 1.0, lambda n: seen)) == []


@pytest.mark.parametrize(
    "one",
    [user(TENANT), replace(user(STRANGER, registered=False), exempt=True)],
    ids=["registered", "exempt"],
)
def test_who_may_use_a_gpu_is_no_suspect(one: GpuUser) -> None:
    assert raised(*every(10, 1.0, lambda n: {"users": (one,)})) == []


def test_an_open_without_an_allocation_is_told_at_once_and_over_after_a_while() -> None:
    opened = DeviceOpen(STRANGER, 195, 0, "rw")
    detector = Detector(Limits())
    (alarm,) = detector.look(at(0, opens=(opened,))).raised
    assert alarm.rule is Rule.UNALLOCATED
    assert detector.look(at(CLEAR_AFTER_S - 1)).cleared == ()
    assert detector.look(at(CLEAR_AFTER_S)).cleared == (alarm,)
    inside = replace(opened, subject=TENANT)
    assert raised(at(0, opens=(inside,))) == []


@pytest.mark.parametrize(
    ("seen_gib", "charged", "told"),
    [
        (1.0, GIB - 256 * MIB, False),
        (1.0, GIB - 257 * MIB, True),
        (10.0, int(9.51 * GIB), False),
        (10.0, int(9.49 * GIB), True),
        (1.0, 5 * GIB, False),
    ],
    ids=["256 MiB", "257 MiB", "just under 5 %", "just over 5 %", "charged more than seen"],
)
def test_memory_beyond_the_slack_is_told_after_three_looks(
    seen_gib: float, charged: int, told: bool
) -> None:
    looks = every(
        4,
        1.0,
        lambda n: {
            "users": (user(TENANT, gib=seen_gib),),
            "grants": (sight(charged_bytes=charged),),
        },
    )
    assert raised(*looks) == ([(2, Rule.MEMORY)] if told else [])


def test_memory_of_an_unregistered_process_is_not_counted_twice() -> None:
    looks = every(4, 1.0, lambda n: {"users": (user(TENANT), user(replace(TENANT, pid=9), registered=False, gib=9)),
                                     "grants": (sight(),)})  # fmt: skip
    assert {rule for _, rule in raised(*looks)} == {Rule.UNREGISTERED}


@pytest.mark.parametrize(("accounted", "told"), [(0.55, False), (0.35, True)])
def test_time_is_compared_over_its_window(accounted: float, told: bool) -> None:
    looks = every(
        40, 1.0,
        lambda n: {"users": (user(TENANT, busy=0.6),),
                   "grants": (sight(consumed_ns=int(n * accounted * NS_PER_S)),)},
    )  # fmt: skip
    assert raised(*looks) == ([(30, Rule.TIME)] if told else [])


def test_where_nvml_samples_nobody_time_is_not_judged() -> None:
    looks = every(60, 1.0, lambda n: {"users": (user(TENANT, busy=None),), "grants": (sight(),)})
    assert raised(*looks) == []


def test_tampering_is_told_when_it_is_no_accident() -> None:
    once = every(30, 1.0, lambda n: {"grants": (sight(tampers=2 if n > 3 else 0),)})
    assert raised(*once) == []
    often = every(30, 1.0, lambda n: {"grants": (sight(tampers=max(0, n - 3)),)})
    assert raised(*often) == [(6, Rule.TAMPERED)]
    rarely = every(60, 1.0, lambda n: {"grants": (sight(tampers=n // 12),)})
    assert raised(*rarely) == []


def test_a_foreign_library_is_told_once() -> None:
    found = (ForeignMapping(TENANT, "/tmp/libcuda.so.1", 5),)
    assert raised(*every(5, 1.0, lambda n: {"foreign": found})) == [(0, Rule.FOREIGN)]


@pytest.mark.parametrize(
    ("mask", "symbols", "tables", "records", "told"),
    [
        (REQUIRED_HOOKS, 0, 0, 0, False),
        (0, 0, 0, 0, False),
        (REQUIRED_HOOKS & ~2, 0, 0, 0, True),
        (REQUIRED_HOOKS, 1, 0, 0, True),
        (REQUIRED_HOOKS, 0, 1, 0, True),
        (REQUIRED_HOOKS, 0, 0, 1, True),
    ],
    ids=[
        "all there",
        "has not said yet",
        "no context hooks",
        "unknown symbol",
        "unknown table",
        "no events",
    ],
)
def test_a_gap_in_the_hooks(mask: int, symbols: int, tables: int, records: int, told: bool) -> None:
    found = raised(at(0, grants=(sight(hooks=((8, mask, symbols, tables, records),)),)))
    assert found == ([(0, Rule.HOOK_GAP)] if told else [])


@pytest.mark.parametrize(
    ("windows", "told"),
    [
        ([(106, 100)] * 3, True),
        ([(105, 100)] * 9, False),
        ([(106, 100)] * 2 + [(100, 100)] + [(106, 100)] * 2, False),
        ([(19, 0)] * 9, False),
        ([(20, 0)] * 3, True),
    ],
    ids=["three in a row", "within 5 %", "not in a row", "too few to tell", "none accounted"],
)
def test_launches_seen_against_accounted(windows: list[tuple[int, int]], told: bool) -> None:
    looks = [at(n, audits=(LaunchAudit(TENANT, *window),)) for n, window in enumerate(windows)]
    assert bool(raised(*looks)) is told


def test_work_that_does_not_end_is_a_runaway_and_slow_work_is_not() -> None:
    limits = Limits(runaway_s=60)
    stuck = every(80, 1.0, lambda n: {"grants": (sight(outstanding_ns=1, completed_ns=5),)})
    assert raised(*stuck, limits=limits) == [(61, Rule.RUNAWAY)]
    slow = every(200, 1.0, lambda n: {"grants": (sight(outstanding_ns=1, completed_ns=n // 50),)})
    assert raised(*slow, limits=limits) == []
    assert raised(*stuck, limits=Limits(runaway_s=0)) == []


def test_every_rule_has_its_row_and_every_ladder_climbs() -> None:
    assert set(RULES) == set(Rule)
    for spec in RULES.values():
        steps = [step for step, _ in spec.ladder]
        assert steps == [step for step in Step if step in steps], "mildest first"
        times = [after_s for _, after_s in spec.ladder]
        assert times == sorted(times)


def test_an_alarm_is_raised_once_and_again_after_it_was_over() -> None:
    users = (user(STRANGER, registered=False),)
    looks = [at(n, users=users) for n in range(5)]
    looks += [at(n) for n in range(5, 20)]
    looks += [at(n, users=users) for n in range(20, 25)]
    assert raised(*looks) == [(1, Rule.UNREGISTERED), (21, Rule.UNREGISTERED)]


def test_an_ended_subject_is_forgotten_at_once() -> None:
    detector = Detector(Limits())
    users = (user(STRANGER, registered=False),)
    for n in range(3):
        detector.look(at(n, users=users))
    assert [alarm.subject for alarm in detector.forget(lambda one: one.pid == 7)] == [STRANGER]
    assert detector.alarms == []


# --- the ladder -----------------------------------------------------------------------------------


def alarm(
    rule: Rule = Rule.UNREGISTERED, subject: Subject = STRANGER, raised_s: float = 0
) -> Alarm:
    return Alarm(rule, subject, {}, int(raised_s * NS_PER_S), (rule, subject.key, ""))


def climbed(responder: Responder, until_s: float) -> list[tuple[float, Step]]:
    """(seconds, step), looked at twice a second."""
    found = []
    for half in range(int(until_s * 2) + 1):
        for act in responder.due(Nanoseconds(half * NS_PER_S // 2)):
            assert isinstance(act, Act)
            found.append((half / 2, act.step))
    return found


@pytest.mark.parametrize(
    ("level", "steps"),
    [
        (Level.OBSERVE, []),
        (Level.CONTAIN, [(0, Step.THROTTLE), (0, Step.DENY), (0.5, Step.FREEZE)]),
        (Level.KILL, [(0, Step.THROTTLE), (0, Step.DENY), (0.5, Step.FREEZE), (30, Step.KILL), (30, Step.EVICT)]),
    ],
)  # fmt: skip
def test_a_policy_cuts_the_ladder_off(level: Level, steps: list[tuple[float, Step]]) -> None:
    responder = Responder(Policy(bare_metal=level))
    assert responder.raised(alarm()) is level
    assert climbed(responder, 90) == steps
    assert responder.next_due_s(Nanoseconds(90 * NS_PER_S)) is None


@pytest.mark.parametrize("rule", [Rule.TIME, Rule.FOREIGN, Rule.HOOK_GAP, Rule.LAUNCHES], ids=str)
def test_what_may_be_a_mistake_is_only_told(rule: Rule) -> None:
    responder = Responder(Policy(bare_metal=Level.KILL))
    responder.raised(alarm(rule))
    assert climbed(responder, 90) == []


@pytest.mark.parametrize(
    ("subject", "level"),
    [
        (STRANGER, Level.OBSERVE),
        (TENANT, Level.CONTAIN),
        (replace(STRANGER, pod_uid="p"), Level.CONTAIN),
        (replace(TENANT, namespace="lab"), Level.OBSERVE),
        (replace(TENANT, queue="batch"), Level.KILL),
        (replace(TENANT, namespace="lab", queue="batch"), Level.OBSERVE),
    ],
    ids=["bare metal", "grant", "a pod without a grant", "namespace", "queue", "namespace first"],
)
def test_the_most_particular_policy_wins(subject: Subject, level: Level) -> None:
    policy = Policy(namespaces={"lab": Level.OBSERVE}, queues={"batch": Level.KILL})
    assert policy.level(subject, Rule.UNREGISTERED) is level


@pytest.mark.parametrize("rule", list(Rule), ids=str)
def test_what_an_honest_program_can_cause_holds_nobody_by_default(rule: Rule) -> None:
    """Whatever level its grant, namespace or queue has."""
    policy = Policy(Level.KILL, Level.KILL, {"lab": Level.KILL}, {"batch": Level.KILL})
    honest = rule in (Rule.MEMORY, Rule.TIME, Rule.RUNAWAY)
    for subject in (TENANT, STRANGER, replace(TENANT, namespace="lab", queue="batch")):
        responder = Responder(policy)
        assert responder.raised(alarm(rule, subject)) is (Level.OBSERVE if honest else Level.KILL)
        assert bool(climbed(responder, 90)) is (bool(RULES[rule].ladder) and not honest)


def test_a_rule_may_have_a_level_and_the_milder_one_is_in_force() -> None:
    policy = Policy(rules={Rule.RUNAWAY: Level.KILL, Rule.UNREGISTERED: Level.OBSERVE})
    assert policy.level(TENANT, Rule.RUNAWAY) is Level.CONTAIN
    assert policy.level(STRANGER, Rule.RUNAWAY) is Level.OBSERVE
    assert policy.level(TENANT, Rule.UNREGISTERED) is Level.OBSERVE
    assert policy.level(TENANT, Rule.TAMPERED) is Level.CONTAIN


def test_settings_know_every_rule() -> None:
    assert {str(rule) for rule in Rule} == DETECTION_RULES


def test_what_was_done_is_taken_back_last_first_unless_somebody_still_wants_it() -> None:
    responder = Responder(Policy(bare_metal=Level.CONTAIN, rules={Rule.MEMORY: Level.CONTAIN}))
    first, second = alarm(), alarm(Rule.MEMORY)
    responder.raised(first)
    responder.raised(second)
    climbed(responder, 5)
    assert responder.cleared(first, alive=True) == []
    undone = responder.cleared(second, alive=True)
    assert [(act.step, act.undo) for act in undone] == [
        (Step.FREEZE, True), (Step.DENY, True), (Step.THROTTLE, True),
    ]  # fmt: skip
    responder.raised(first)
    climbed(responder, 5)
    assert responder.cleared(first, alive=False) == [], "no process is left to take it back from"


@given(
    st.lists(st.sampled_from(["raise", "clear", "due"]), max_size=30), st.sampled_from(list(Level))
)
def test_no_step_is_ever_taken_twice_for_one_alarm(moves: list[str], level: Level) -> None:
    responder = Responder(Policy(bare_metal=level))
    raised_at, now, done = None, 0, set()
    for move in moves:
        now += 7 * NS_PER_S
        if move == "raise" and raised_at is None:
            raised_at, done = now, set()
            responder.raised(alarm(raised_s=now / NS_PER_S))
        elif move == "clear" and raised_at is not None:
            undone = [
                act.step for act in responder.cleared(alarm(raised_s=raised_at / NS_PER_S), True)
            ]
            assert set(undone) <= done
            raised_at = None
        for act in responder.due(Nanoseconds(now)):
            assert act.step not in done
            done.add(act.step)


@pytest.mark.parametrize(
    ("given_", "key"),
    [
        ({"policies": "team=kill"}, "detection.policies"),
        ({"policies": "namespace/a=stop"}, "detection.policies"),
        ({"policies": "namespace/=kill"}, "detection.policies"),
        ({"exempt": "nvidia-smi"}, "detection.exempt"),
        ({"rules": "memory=kill"}, "detection.rules"),
        ({"rules": "runaway_kernel=stop"}, "detection.rules"),
        ({"grants": "punish"}, "detection.grants"),
    ],
    ids=str,
)
def test_a_mistaken_policy_is_refused_by_its_name(given_: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse({"detection": given_})
    assert key in str(refused.value)


def test_policies_are_read_by_their_kind() -> None:
    settings = DetectionSettings(policies="namespace/a=kill, queue/b=observe,namespace/c=contain")
    assert settings.policy_map("namespace") == {"a": "kill", "c": "contain"}
    assert settings.policy_map("queue") == {"b": "observe"}
    settings = DetectionSettings(rules="memory_under_reported=contain, runaway_kernel=kill")
    assert settings.rule_levels() == {
        "memory_under_reported": "contain",
        "runaway_kernel": "kill",
    }
