"""Health of one GPU: a table from what NVML reports to what we do about it.

NVML's own recovery verdict comes first, XID codes second. A single failed reading is only
suspicious, because driver resets heal by themselves. A GPU that was not offered has to be fit for a
while before it is offered again, and for much longer if it keeps failing, so that pods do not land
on a GPU that is about to fail again; but no GPU stays unhealthy for ever.

A degraded GPU works, and is offered after the others. The meaning of each sign is data, see
`nodeagent.core.gpus.health_policy`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from nodeagent.core.gpus.health_policy import Consequence, HealthPolicy
from nodeagent.ports.gpus import GpuReading
from nodeagent.units import NS_PER_S, GpuUuid


class Health(StrEnum):
    HEALTHY = "healthy"
    SUSPECT = "suspect"
    """It cannot be read now; still offered."""
    DEGRADED = "degraded"
    """It works, but needs maintenance; offered after the others."""
    UNHEALTHY = "unhealthy"
    """It needs a reset, or could not be read for too long."""
    RECOVERING = "recovering"
    """Fit again, but not yet for long enough."""
    LOST = "lost"
    """Fell off the bus: only a reboot or a power cycle brings it back."""


class Sign(StrEnum):
    GOOD = "good"
    GOOD_FOR_LONG = "good_for_long"
    """Good for as long as the state requires."""
    WORN = "worn"
    """It works, but has a defect."""
    WORN_FOR_LONG = "worn_for_long"
    """The defect has lasted, so it is not transient."""
    UNREAD = "unread"
    UNREAD_FOR_LONG = "unread_for_long"
    NEEDS_RESET = "needs_reset"
    GONE = "gone"


OFFERED: Final = frozenset({Health.HEALTHY, Health.SUSPECT, Health.DEGRADED})
HOUR_NS: Final = 3600 * NS_PER_S

_H, _S = Health, Sign
NEXT: Mapping[tuple[Health, Sign], Health] = MappingProxyType(
    {
        (_H.HEALTHY, _S.WORN_FOR_LONG): _H.DEGRADED,
        (_H.HEALTHY, _S.UNREAD): _H.SUSPECT,
        (_H.HEALTHY, _S.UNREAD_FOR_LONG): _H.UNHEALTHY,
        (_H.HEALTHY, _S.NEEDS_RESET): _H.UNHEALTHY,
        (_H.HEALTHY, _S.GONE): _H.LOST,
        (_H.SUSPECT, _S.GOOD): _H.HEALTHY,
        (_H.SUSPECT, _S.GOOD_FOR_LONG): _H.HEALTHY,
        (_H.SUSPECT, _S.WORN): _H.HEALTHY,
        (_H.SUSPECT, _S.WORN_FOR_LONG): _H.DEGRADED,
        (_H.SUSPECT, _S.UNREAD_FOR_LONG): _H.UNHEALTHY,
        (_H.SUSPECT, _S.NEEDS_RESET): _H.UNHEALTHY,
        (_H.SUSPECT, _S.GONE): _H.LOST,
        (_H.DEGRADED, _S.GOOD_FOR_LONG): _H.HEALTHY,
        (_H.DEGRADED, _S.UNREAD_FOR_LONG): _H.UNHEALTHY,
        (_H.DEGRADED, _S.NEEDS_RESET): _H.UNHEALTHY,
        (_H.DEGRADED, _S.GONE): _H.LOST,
        (_H.UNHEALTHY, _S.GOOD): _H.RECOVERING,
        (_H.UNHEALTHY, _S.GOOD_FOR_LONG): _H.RECOVERING,
        (_H.UNHEALTHY, _S.WORN): _H.RECOVERING,
        (_H.UNHEALTHY, _S.WORN_FOR_LONG): _H.RECOVERING,
        (_H.UNHEALTHY, _S.GONE): _H.LOST,
        (_H.RECOVERING, _S.GOOD_FOR_LONG): _H.HEALTHY,
        (_H.RECOVERING, _S.WORN_FOR_LONG): _H.DEGRADED,
        (_H.RECOVERING, _S.UNREAD): _H.UNHEALTHY,
        (_H.RECOVERING, _S.UNREAD_FOR_LONG): _H.UNHEALTHY,
        (_H.RECOVERING, _S.NEEDS_RESET): _H.UNHEALTHY,
        (_H.RECOVERING, _S.GONE): _H.LOST,
        (_H.LOST, _S.GOOD): _H.RECOVERING,
        (_H.LOST, _S.GOOD_FOR_LONG): _H.RECOVERING,
        (_H.LOST, _S.WORN): _H.RECOVERING,
        (_H.LOST, _S.WORN_FOR_LONG): _H.RECOVERING,
        (_H.LOST, _S.NEEDS_RESET): _H.UNHEALTHY,  # It answers again, and needs a reset.
    }
)
"""A pair that is not in the table leaves the state unchanged."""

REMEDIES: Final[Mapping[Health, str]] = MappingProxyType(
    {
        Health.DEGRADED: "jobs keep running; fix it when the GPU is idle",
        Health.UNHEALTHY: "drain it, then `nvidia-smi --gpu-reset -i INDEX`, or reboot",
        Health.RECOVERING: "wait: it is offered again after it has been healthy for long enough",
        Health.LOST: "reboot the node; if the GPU does not come back, check the card and its slot",
    }
)

_CONDITION_TEXTS: Final[Mapping[str, str]] = {
    "ecc_uncorrected": "uncorrectable memory errors since the driver was loaded",
    "row_remap_pending": "a memory row waits to be replaced at the next reset",
    "row_remap_failed": "no spare memory row is left: replace the card",
    "thermal": "throttled by temperature",
    "power_brake": "throttled by the power supply's brake signal",
    "hw_slowdown": "throttled by the hardware",
}
_STRAINS: Final[Mapping[str, frozenset[str]]] = {
    "thermal": frozenset({"hw_thermal_slowdown", "sw_thermal_slowdown"}),
    "power_brake": frozenset({"hw_power_brake"}),
    "hw_slowdown": frozenset({"hw_slowdown"}),
}
_LOST_WORDS: Final = ("is lost", "not found")
_RESET_WORDS: Final = ("requires reset", "requires restart")
_MISMATCH_WORDS: Final = "version mismatch"
NODE_UNREADABLE: Final = "the node's GPUs cannot be read"


@dataclass(frozen=True, slots=True)
class Patient:
    """One GPU's health, and the state that the next `examine` needs. All times are of the clock
    that it receives."""

    health: Health = Health.HEALTHY
    reason: str = ""
    """Reason why it is not healthy, as shown to users."""
    changed_ns: int = 0
    """Time of the last change of health."""
    fit_since_ns: int | None = None
    """Time since which it can be read and needs no reset."""
    good_since_ns: int | None = None
    strained_since_ns: int | None = None
    unread_since_ns: int | None = None
    awaits_reset: str = ""
    """Reason for a pending reset that NVML does not report; empty if none is pending."""
    was_gone: bool = False
    """True if the GPU was missing since awaits_reset was set."""
    counters: tuple[float | None, ...] = ()
    """Counters since the driver was loaded; a decrease shows that the GPU was reset."""
    falls_ns: tuple[int, ...] = ()
    """Times at which it changed from offered to not offered, in the hour before the last of
    them."""
    hold_ns: int = 0
    """How long it must be fit before it is offered again."""

    @property
    def offered(self) -> bool:
        return self.health in OFFERED


@dataclass(frozen=True, slots=True)
class HealthChange:
    """A change of one GPU's health, for the log, the metrics and subscribers."""

    uuid: GpuUuid
    before: Health
    after: Health
    reason: str
    at_unix_s: float


@dataclass(slots=True)
class _Symptoms:
    """Symptoms of one reading, by consequence."""

    found: dict[Consequence, list[str]] = field(default_factory=dict)
    strains: list[str] = field(default_factory=list)
    unread: str = ""

    def add(self, consequence: Consequence, text: str) -> None:
        self.found.setdefault(consequence, []).append(text)

    def texts(self, consequence: Consequence) -> str:
        return "; ".join(self.found.get(consequence, ()))


def examine(
    patient: Patient,
    reading: GpuReading | None,
    xids: Sequence[int],
    policy: HealthPolicy,
    now_ns: int,
) -> Patient:
    """Apply one reading of a GPU and the XIDs since the last one.

    `reading` is None if an otherwise complete reading of the node did not list the GPU. `now_ns`
    never decreases.
    """
    symptoms = _symptoms_of(reading, xids, policy)
    patient = _remember(patient, reading, xids, policy, symptoms)
    if patient.awaits_reset:
        symptoms.add(Consequence.RESET, patient.awaits_reset)
    raw = _raw(symptoms)
    patient = _clocks(patient, raw, symptoms, now_ns)
    sign = _sign(patient, raw, symptoms, policy, now_ns)
    after = NEXT.get((patient.health, sign), patient.health)
    return _enter(patient, after, _reason(raw, symptoms), policy, now_ns)


def _symptoms_of(
    reading: GpuReading | None, xids: Sequence[int], policy: HealthPolicy
) -> _Symptoms:
    found = _Symptoms()
    for xid in xids:
        rule = policy.xid(xid)
        found.add(rule.consequence, f"XID {xid}" + (f", {rule.name}" if rule.name else ""))
    if reading is None:
        found.add(Consequence.LOST, "NVML no longer lists it")
        return found
    if reading.recovery_action is not None:
        verdict = policy.verdicts.get(reading.recovery_action, Consequence.DEGRADED)
        found.add(verdict, f"NVML's recovery action is {reading.recovery_action}")
        if verdict is Consequence.IGNORE:  # The driver itself says that no action is needed.
            found.found.pop(Consequence.RESET, None)
    if reading.error is not None:
        _add_error(reading.error, found)
        return found
    for condition, shown in (
        ("ecc_uncorrected", bool(reading.ecc_uncorrected_total)),
        ("row_remap_pending", bool(reading.row_remap_pending)),
        ("row_remap_failed", bool(reading.row_remap_failed)),
    ):
        if shown:
            found.add(policy.conditions[condition], _CONDITION_TEXTS[condition])
    reasons = frozenset(reading.throttle_reasons or ())
    for condition, names in _STRAINS.items():
        consequence = policy.conditions[condition]
        if reasons & names and consequence is Consequence.DEGRADED:
            found.strains.append(_CONDITION_TEXTS[condition])
        elif reasons & names:
            found.add(consequence, _CONDITION_TEXTS[condition])
    return found


def _add_error(error: str, found: _Symptoms) -> None:
    words = error.lower()
    if any(word in words for word in _LOST_WORDS):
        found.add(Consequence.LOST, error)
    elif any(word in words for word in _RESET_WORDS):
        found.add(Consequence.RESET, error)
    elif is_mismatch(error):
        found.add(
            Consequence.RESET,
            "the driver's library and the loaded kernel module are of different versions: reload"
            " the module or reboot",
        )
    else:
        found.unread = error


def is_mismatch(error: str) -> bool:
    """True if the driver was upgraded without reloading its kernel module: no new program can
    start."""
    return _MISMATCH_WORDS in error.lower()


def _raw(symptoms: _Symptoms) -> Sign:
    if Consequence.LOST in symptoms.found:
        return Sign.GONE
    if Consequence.RESET in symptoms.found:
        return Sign.NEEDS_RESET
    if symptoms.unread:
        return Sign.UNREAD
    if Consequence.DEGRADED in symptoms.found or symptoms.strains:
        return Sign.WORN
    return Sign.GOOD


def _remember(
    patient: Patient,
    reading: GpuReading | None,
    xids: Sequence[int],
    policy: HealthPolicy,
    symptoms: _Symptoms,
) -> Patient:
    """Remember whether a reset is still due where NVML gives no verdict.

    An XID is reported once, but the damage lasts until the GPU was reset, which its counters or its
    absence show.
    """
    counters = _counters(reading)
    awaits, was_gone = patient.awaits_reset, patient.was_gone
    if awaits:
        was_gone = was_gone or Consequence.LOST in symptoms.found
        readable = reading is not None and reading.error is None
        if readable and (was_gone or _shrank(patient.counters, counters)):
            awaits, was_gone = "", False
    resets = [x for x in xids if policy.xid(x).consequence is Consequence.RESET]
    if reading is not None and reading.recovery_action is not None:
        awaits, was_gone = "", False
    elif resets:
        rule = policy.xid(resets[-1])
        awaits = f"XID {resets[-1]}" + (f", {rule.name}" if rule.name else "")
        awaits += ", and no reset since"
        was_gone = Consequence.LOST in symptoms.found
    if counters:
        patient = replace(patient, counters=counters)
    return replace(patient, awaits_reset=awaits, was_gone=was_gone)


def _counters(reading: GpuReading | None) -> tuple[float | None, ...]:
    if reading is None or reading.error is not None:
        return ()
    return (
        reading.energy_joules_total,
        reading.ecc_corrected_total,
        reading.ecc_uncorrected_total,
    )


def _shrank(before: Sequence[float | None], now: Sequence[float | None]) -> bool:
    return any(b is not None and n is not None and n < b for b, n in zip(before, now, strict=False))


def _clocks(patient: Patient, raw: Sign, symptoms: _Symptoms, now_ns: int) -> Patient:
    def since(started: int | None, going_on: bool) -> int | None:
        return (now_ns if started is None else started) if going_on else None

    return replace(
        patient,
        fit_since_ns=since(patient.fit_since_ns, raw in (Sign.GOOD, Sign.WORN)),
        good_since_ns=since(patient.good_since_ns, raw is Sign.GOOD),
        strained_since_ns=since(patient.strained_since_ns, bool(symptoms.strains)),
        unread_since_ns=since(patient.unread_since_ns, raw is Sign.UNREAD),
    )


def _sign(
    patient: Patient, raw: Sign, symptoms: _Symptoms, policy: HealthPolicy, now_ns: int
) -> Sign:
    def lasted(since_ns: int | None, for_ns: int) -> bool:
        return since_ns is not None and now_ns - since_ns >= for_ns

    settled = lasted(patient.fit_since_ns, patient.hold_ns)
    recovering = patient.health is Health.RECOVERING
    if raw is Sign.GOOD:
        long = settled if recovering else lasted(patient.good_since_ns, policy.good_ns)
        return Sign.GOOD_FOR_LONG if long else Sign.GOOD
    if raw is Sign.WORN:
        lasting = Consequence.DEGRADED in symptoms.found
        long = lasting or lasted(patient.strained_since_ns, policy.strain_ns)
        return Sign.WORN_FOR_LONG if (settled if recovering else long) else Sign.WORN
    if raw is Sign.UNREAD and lasted(patient.unread_since_ns, policy.unread_ns):
        return Sign.UNREAD_FOR_LONG
    return raw


def _reason(raw: Sign, symptoms: _Symptoms) -> str:
    if raw is Sign.GONE:
        return symptoms.texts(Consequence.LOST)
    if raw is Sign.NEEDS_RESET:
        return symptoms.texts(Consequence.RESET)
    if raw is Sign.UNREAD:
        return symptoms.unread
    worn = [*symptoms.found.get(Consequence.DEGRADED, ()), *symptoms.strains]
    return "; ".join(worn)


def _enter(
    patient: Patient, after: Health, reason: str, policy: HealthPolicy, now_ns: int
) -> Patient:
    if after is Health.HEALTHY:
        reason = ""
    elif not reason:
        reason = patient.reason  # Keep the reason it recovers from.
    if after is patient.health:
        return replace(patient, reason=reason)
    falls, hold_ns = patient.falls_ns, patient.hold_ns
    if patient.offered and after not in OFFERED:
        falls = (*(at for at in falls if now_ns - at < HOUR_NS), now_ns)
        hold_ns = policy.good_ns if len(falls) <= policy.falls_per_hour else policy.flap_hold_ns
    return replace(
        patient, health=after, reason=reason, changed_ns=now_ns, falls_ns=falls, hold_ns=hold_ns
    )
