"""Rules that detect use of a GPU around the interposer, as a table: the condition, how long it must
hold, the confidence, and the steps that may follow.

NVML and /proc alone are enough for most of them; the kernel watch (eBPF) adds its observations to
the same Look. A rule evaluates one moment (and, for a rate, the moments before); the Detector
counts how long it has held and reports each suspicion once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from nodeagent.core.watch.sightings import GpuUser, GrantSight, Look, Subject
from nodeagent.units import MIB, NS_PER_S, GpuUuid, GrantId

REQUIRED_HOOKS: Final = 1 << 1 | 1 << 2 | 1 << 6
"""Groups of interpose/driver/hooks.def without which nothing is charged: context, memory,
launch."""


class Rule(StrEnum):
    UNREGISTERED = "unregistered_gpu_user"
    UNALLOCATED = "unallocated_opener"
    MEMORY = "memory_under_reported"
    TIME = "time_under_reported"
    TAMPERED = "tampered_region"
    FOREIGN = "foreign_libcuda"
    HOOK_GAP = "hook_gap"
    LAUNCHES = "launches_unaccounted"
    RUNAWAY = "runaway_kernel"


class Confidence(StrEnum):
    CERTAIN = "certain"
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Step(StrEnum):
    """The steps, mildest first."""

    THROTTLE = "throttle"
    """Pause the grant: its next launch waits. It has no effect on a process that bypasses the
    interposer."""
    DENY = "deny_opens"
    """Refuse new opens of a GPU device; open descriptors keep working."""
    FREEZE = "freeze"
    """Stop its CPU time. Work already queued on the GPU continues, and memory stays."""
    KILL = "kill"
    """The only step that releases GPU memory."""
    EVICT = "report_for_eviction"
    """Report it to the controller that placed it, right after the kill, so that the reason arrives
    before the job's end."""


Ladder = tuple[tuple[Step, float], ...]
_NOTHING: Final[Ladder] = ()
_EVASIVE: Final[Ladder] = (
    *((Step.THROTTLE, 0.0), (Step.DENY, 0.0), (Step.FREEZE, 0.5)),
    *((Step.KILL, 30.0), (Step.EVICT, 30.0)),
)
_CERTAIN: Final[Ladder] = (
    *((Step.DENY, 0.0), (Step.FREEZE, 0.5), (Step.KILL, 5.0), (Step.EVICT, 5.0)),
)


@dataclass(frozen=True, slots=True)
class Limits:
    """The configurable thresholds; see [detection] in docs/reference/configuration.md."""

    grace_s: float = 0.4
    memory_slack_bytes: int = 256 * MIB
    memory_slack_ratio: float = 0.05
    time_slack_ratio: float = 0.10
    time_window_s: float = 30.0
    launch_ratio: float = 1.05
    runaway_s: float = 1800.0


Evidence = Mapping[str, float | int | str]


@dataclass(frozen=True, slots=True)
class Condition:
    """A rule holds at this moment for this subject; `evidence` has the figures."""

    subject: Subject
    evidence: Evidence
    key: str = ""
    """Distinguishes two cases of one subject, such as two GPUs."""


Judge = Callable[["Memory", Look, Limits], list[Condition]]


@dataclass(frozen=True, slots=True)
class RuleSpec:
    rule: Rule
    confidence: Confidence
    looks: int
    """Consecutive looks during which it must hold."""
    hold_s: Callable[[Limits], float]
    """Seconds for which it must also hold."""
    ladder: Ladder
    judge: Judge
    meaning: str
    blind_s: Callable[[Limits], float] = lambda limits: 0.0
    """Seconds for which a daemon that has just started cannot detect it."""


@dataclass(slots=True)
class Memory:
    """State of the rules about rates."""

    time: dict[tuple[GrantId, GpuUuid], deque[tuple[int, float, int]]] = field(default_factory=dict)
    """Moments: (ns, NVML's busy seconds so far, the grant's own in ns)."""
    tampers: dict[GrantId, deque[tuple[int, int]]] = field(default_factory=dict)
    stuck: dict[tuple[GrantId, GpuUuid], tuple[int, int]] = field(default_factory=dict)
    """(Since when, completed then)."""
    windows: dict[int, int] = field(default_factory=dict)
    """Consecutive audit windows with too many launches, by pid."""


# --- the rules ----------------------------------------------------------------------------------


def _unregistered(memory: Memory, look: Look, limits: Limits) -> list[Condition]:
    return [
        Condition(
            user.subject,
            {
                "gpu": user.gpu,
                "memory_bytes": user.memory_bytes or 0,
                "sm_ratio": user.sm_ratio or 0.0,
                "program": user.subject.program,
            },
        )
        for user in look.users
        if not user.registered and not user.exempt
    ]


def _unallocated(memory: Memory, look: Look, limits: Limits) -> list[Condition]:
    return [
        Condition(one.subject, {"device": f"{one.major}:{one.minor}", "access": one.access})
        for one in look.opens
        if one.subject.grant is None and not one.exempt
    ]


def _memory(memory: Memory, look: Look, limits: Limits) -> list[Condition]:
    found = []
    for sight in look.grants:
        seen = _seen_bytes(look.users, sight)
        slack = max(limits.memory_slack_bytes, int(seen * limits.memory_slack_ratio))
        if seen - sight.charged_bytes > slack and not sight.beyond:
            evidence: Evidence = {
                "gpu": sight.gpu,
                "nvml_bytes": seen,
                "charged_bytes": sight.charged_bytes,
                "slack_bytes": slack,
            }
            found.append(Condition(sight.subject, evidence, sight.gpu))
    return found


def _time(memory: Memory, look: Look, limits: Limits) -> list[Condition]:
    found = []
    live = set()
    for sight in look.grants:
        key = (sight.grant, sight.gpu)
        live.add(key)
        moments = memory.time.setdefault(key, deque())
        busy = _busy_ratio(look.users, sight)
        if busy is None:
            moments.clear()
            continue
        before = moments[-1] if moments else (look.at_ns, 0.0, sight.consumed_ns)
        elapsed_s = (look.at_ns - before[0]) / NS_PER_S
        moments.append((look.at_ns, before[1] + busy * elapsed_s, sight.consumed_ns))
        while len(moments) > 2 and look.at_ns - moments[1][0] >= limits.time_window_s * NS_PER_S:
            moments.popleft()
        first = moments[0]
        window_s = (look.at_ns - first[0]) / NS_PER_S
        if window_s < limits.time_window_s:
            continue
        seen_ratio = (moments[-1][1] - first[1]) / window_s
        own_ratio = (sight.consumed_ns - first[2]) / NS_PER_S / window_s
        if seen_ratio - own_ratio > limits.time_slack_ratio:
            evidence: Evidence = {
                "gpu": sight.gpu,
                "nvml_ratio": round(seen_ratio, 3),
                "accounted_ratio": round(own_ratio, 3),
                "window_s": round(window_s, 1),
            }
            found.append(Condition(sight.subject, evidence, sight.gpu))
    for key in memory.time.keys() - live:
        del memory.time[key]
    return found


TAMPERS_IN_WINDOW: Final = 3
TAMPER_WINDOW_S: Final = 10.0
"""Fewer may be a stray pointer of an honest program; what it overwrites is repaired."""


def _tampered(memory: Memory, look: Look, limits: Limits) -> list[Condition]:
    found = []
    totals = {sight.grant: sight for sight in look.grants}
    for grant, sight in totals.items():
        moments = memory.tampers.setdefault(grant, deque([(look.at_ns, sight.tampers)]))
        moments.append((look.at_ns, sight.tampers))
        while len(moments) > 2 and look.at_ns - moments[1][0] >= TAMPER_WINDOW_S * NS_PER_S:
            moments.popleft()
        count = sight.tampers - moments[0][1]
        if count >= TAMPERS_IN_WINDOW:
            evidence: Evidence = {"impossible_values": count, "window_s": TAMPER_WINDOW_S}
            found.append(Condition(sight.subject, evidence))
    for grant in memory.tampers.keys() - totals.keys():
        del memory.tampers[grant]
    return found


def _foreign(memory: Memory, look: Look, limits: Limits) -> list[Condition]:
    return [
        Condition(one.subject, {"library": one.path, "inode": one.inode}, one.path)
        for one in look.foreign
    ]


def _hook_gap(memory: Memory, look: Look, limits: Limits) -> list[Condition]:
    found = []
    for sight in look.grants:
        for pid, mask, symbols, tables, records in sight.hooks:
            missing = REQUIRED_HOOKS & ~mask if mask else 0
            if missing or symbols or tables or records:
                evidence: Evidence = {
                    "pid": pid,
                    "missing_hooks": missing,
                    "unknown_symbols": symbols,
                    "unknown_tables": tables,
                    "failed_records": records,
                }
                found.append(Condition(sight.subject, evidence, str(pid)))
    return found


WINDOWS_IN_A_ROW: Final = 3
FEWEST_LAUNCHES: Final = 20
"""Launches in a window; below, a single launch changes the percentage too much."""


def _launches(memory: Memory, look: Look, limits: Limits) -> list[Condition]:
    found = []
    for one in look.audits:
        above = one.driver >= FEWEST_LAUNCHES and one.driver > limits.launch_ratio * max(
            1, one.shim
        )
        memory.windows[one.subject.pid] = memory.windows.get(one.subject.pid, 0) + 1 if above else 0
        if memory.windows[one.subject.pid] >= WINDOWS_IN_A_ROW:
            evidence: Evidence = {
                "seen": one.driver,
                "accounted": one.shim,
                "windows": memory.windows[one.subject.pid],
            }
            found.append(Condition(one.subject, evidence))
    return found


def _runaway(memory: Memory, look: Look, limits: Limits) -> list[Condition]:
    found = []
    live = set()
    for sight in look.grants:
        key = (sight.grant, sight.gpu)
        if sight.outstanding_ns <= 0 or limits.runaway_s <= 0:
            continue
        live.add(key)
        since, completed = memory.stuck.setdefault(key, (look.at_ns, sight.completed_ns))
        if completed != sight.completed_ns:
            memory.stuck[key] = (look.at_ns, sight.completed_ns)
            continue
        age_s = (look.at_ns - since) / NS_PER_S
        if age_s >= limits.runaway_s:
            evidence: Evidence = {"gpu": sight.gpu, "outstanding_s": round(age_s)}
            found.append(Condition(sight.subject, evidence, sight.gpu))
    for key in memory.stuck.keys() - live:
        del memory.stuck[key]
    return found


def _no_hold(limits: Limits) -> float:
    return 0.0


RULES: Mapping[Rule, RuleSpec] = MappingProxyType(
    {
        spec.rule: spec
        for spec in (
            RuleSpec(
                Rule.UNREGISTERED, Confidence.HIGH, 2, lambda limits: limits.grace_s, _EVASIVE,
                _unregistered, "has a context on a GPU and is in no grant's list of processes",
            ),
            RuleSpec(
                Rule.UNALLOCATED, Confidence.CERTAIN, 1, _no_hold, _CERTAIN,
                _unallocated, "opened a GPU device and holds no grant",
            ),
            RuleSpec(
                Rule.MEMORY, Confidence.HIGH, 3, _no_hold, _EVASIVE,
                _memory, "has more GPU memory than it accounts for",
            ),
            RuleSpec(
                Rule.TIME, Confidence.MEDIUM, 1, _no_hold, _NOTHING,
                _time, "keeps the GPU busier than it accounts for",
            ),
            RuleSpec(
                Rule.TAMPERED, Confidence.CERTAIN, 1, _no_hold, _CERTAIN,
                _tampered, "writes impossible values into its accounts",
            ),
            RuleSpec(
                Rule.FOREIGN, Confidence.MEDIUM, 1, _no_hold, _NOTHING,
                _foreign, "has a CUDA driver library mapped that is not this host's",
            ),
            RuleSpec(
                Rule.HOOK_GAP, Confidence.LOW, 1, _no_hold, _NOTHING,
                _hook_gap, "runs without all hooks, or received unknown driver functions",
            ),
            RuleSpec(
                Rule.LAUNCHES, Confidence.MEDIUM, 1, _no_hold, _NOTHING,
                _launches, "launches more than it accounts for",
            ),
            RuleSpec(
                Rule.RUNAWAY, Confidence.CERTAIN, 2, _no_hold, _CERTAIN,
                _runaway, "has work on the GPU that does not end",
                lambda limits: limits.runaway_s,
            ),
        )
    }
)  # fmt: skip
"""Thresholds that are not in Limits are beside their rule above."""


# --- from moments to suspicions -----------------------------------------------------------------

AlarmKey = tuple[Rule, str, str]
AT_ONCE: Final = frozenset({Rule.UNALLOCATED})
"""Rules about events: evaluated when one arrives, not at the next reading."""
CLEAR_AFTER_S: Final = 10.0
"""Seconds after which an absent condition is cleared."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """A rule that has held for long enough."""

    rule: Rule
    subject: Subject
    evidence: Evidence
    raised_ns: int
    key: AlarmKey


@dataclass(slots=True)
class _Case:
    first_ns: int
    last_ns: int
    looks: int = 0
    alarm: Alarm | None = None
    unseen: bool = False
    """True for an earlier daemon's alarm that this one has not confirmed yet."""
    dated: bool = True
    """False until the first look after a start; from then on it may expire."""


@dataclass(frozen=True, slots=True)
class Verdict:
    raised: tuple[Alarm, ...] = ()
    cleared: tuple[Alarm, ...] = ()
    confirmed: tuple[Alarm, ...] = ()
    """Alarms of an earlier daemon that this one has confirmed; raised now."""
    pending: bool = False
    """True if a condition has not held for long enough yet, so that the next look should be
    soon."""


class Detector:
    """Pure: the time comes with the Look."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._memory = Memory()
        self._cases: dict[AlarmKey, _Case] = {}

    def look(self, look: Look, only: frozenset[Rule] = frozenset(RULES)) -> Verdict:
        """Evaluate a look. `only` limits it to rules for which the Look has data."""
        raised, cleared, confirmed = [], [], []
        pending = False
        for spec in RULES.values():
            if spec.rule not in only:
                continue
            holding = set()
            for condition in spec.judge(self._memory, look, self._limits):
                key = (spec.rule, condition.subject.key, condition.key)
                if key in holding:
                    continue
                holding.add(key)
                case = self._cases.setdefault(key, _Case(look.at_ns, look.at_ns))
                case.looks += 1
                case.last_ns, case.dated = look.at_ns, True
                if case.alarm is not None:
                    if case.unseen:
                        case.unseen = False
                        case.alarm = replace(
                            case.alarm, evidence=dict(condition.evidence), raised_ns=look.at_ns
                        )
                        confirmed.append(case.alarm)
                    continue
                held_s = (look.at_ns - case.first_ns) / NS_PER_S
                if case.looks < spec.looks or held_s < spec.hold_s(self._limits):
                    pending = True
                    continue
                case.alarm = Alarm(
                    spec.rule, condition.subject, dict(condition.evidence), look.at_ns, key
                )
                raised.append(case.alarm)
            cleared += self._settle(spec.rule, holding, look)
        return Verdict(tuple(raised), tuple(cleared), tuple(confirmed), pending)

    def take_up(self, alarm: Alarm) -> None:
        """Restore an alarm of an earlier daemon whose acts are in force.

        It stands until its condition has been absent as long as for any other alarm, and as long as
        its rule needs to detect it from nothing.
        """
        self._cases[alarm.key] = _Case(
            alarm.raised_ns, alarm.raised_ns, alarm=alarm, unseen=True, dated=False
        )

    def forget(self, gone: Callable[[Subject], bool]) -> list[Alarm]:
        """End the alarms of subjects that ended."""
        over = [
            case.alarm
            for case in self._cases.values()
            if case.alarm is not None and gone(case.alarm.subject)
        ]
        for alarm in over:
            del self._cases[alarm.key]
        return over

    @property
    def alarms(self) -> Sequence[Alarm]:
        return [case.alarm for case in self._cases.values() if case.alarm is not None]

    def _settle(self, rule: Rule, holding: set[AlarmKey], look: Look) -> list[Alarm]:
        over = []
        for key, case in list(self._cases.items()):
            if key[0] is not rule or key in holding:
                continue
            if case.alarm is None:
                # An event, such as an open, holds for one look only.
                del self._cases[key]
            elif not case.dated:
                blind_ns = int(RULES[rule].blind_s(self._limits) * NS_PER_S)
                case.last_ns, case.dated = look.at_ns + blind_ns, True
            elif look.at_ns - case.last_ns >= CLEAR_AFTER_S * NS_PER_S:
                del self._cases[key]
                over.append(case.alarm)
        return over


def _seen_bytes(users: Sequence[GpuUser], sight: GrantSight) -> int:
    return sum(
        user.memory_bytes or 0
        for user in users
        if user.gpu == sight.gpu and user.subject.grant == sight.grant and user.registered
    )


def _busy_ratio(users: Sequence[GpuUser], sight: GrantSight) -> float | None:
    """Busy ratio of the grant's processes; None if NVML samples none of them."""
    samples = [
        user.sm_ratio
        for user in users
        if user.gpu == sight.gpu
        and user.subject.grant == sight.grant
        and user.registered
        and user.sm_ratio is not None
    ]
    return min(1.0, sum(samples)) if samples else None
