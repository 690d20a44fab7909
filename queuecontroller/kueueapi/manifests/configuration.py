"""Kueue's Configuration: those parts that change what workloads count for, and their order."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from typing import Final

from queuecontroller.gpushares.claims.mappings import DeviceClasses, read_mappings
from queuecontroller.scheduler.model.settings import WEIGHT_UNIT, AdmissionFairSharing
from queuecontroller.scheduler.model.transformations import (
    Strategy,
    Transformation,
    Transformations,
)
from sluicecommon.kubernetes.durations import parse_duration_ns
from sluicecommon.kubernetes.quantity import PODS
from sluicecommon.reader import Reader, read, shown

DEFAULT_SAMPLING: Final = "5m"
"""Kueue's."""
ADMISSION_FAIR_SHARING_GATE: Final = "AdmissionFairSharing"
ANCHOR_GATE: Final = "AdmissionFairSharingAnchorAtQuotaReservation"
MAX_WEIGHT: Final = 10**9


@dataclass(frozen=True, slots=True)
class MinAdmitDurations:
    """Kueue's `preemptionProtection`, as proposed there, in ns."""

    reclaim_ns: int = 0
    fair_sharing_ns: int = 0


@dataclass(frozen=True, slots=True)
class Configuration:
    transformations: Transformations = field(default_factory=Transformations)
    admission_fair_sharing: AdmissionFairSharing | None = None
    """Settings of admission fair sharing; None: disabled, even with admission scopes."""
    protection: MinAdmitDurations | None = None
    """Protection from preemption; None: the service's own settings apply."""
    device_classes: DeviceClasses = field(default_factory=dict)
    """DeviceClasses whose claims count; empty: no claims count."""


def read_configuration(value: object, path: str = "Configuration") -> Configuration:
    """Read a Configuration: only `resources`, `admissionFairSharing` and `preemptionProtection`;
    the rest configures Kueue's own processes."""
    return read(_configuration, value, path)


def _configuration(reader: Reader) -> Configuration:
    resources = reader.child("resources")
    rules = tuple(_rule(one) for one in resources.children("transformations"))
    prefixes = resources.texts("excludeResourcePrefixes")
    classes = read_mappings(resources.children("deviceClassMappings"))
    resources.ignore("quotaCheckStrategy")
    resources.done()
    sharing = None
    if reader.has("admissionFairSharing"):
        sharing = _admission_fair_sharing(reader.child("admissionFairSharing"))
        gates = reader.child("featureGates")
        anchored = gates.flag(ANCHOR_GATE, True)
        is_on = gates.flag(ADMISSION_FAIR_SHARING_GATE, True)
        sharing = replace(sharing, from_reservation=anchored) if is_on else None
    protection = None
    if reader.has("preemptionProtection"):
        protection = _protection(reader.child("preemptionProtection"))
    reader.ignore(*reader.names())
    return Configuration(Transformations(rules, prefixes), sharing, protection, classes)


def _protection(reader: Reader) -> MinAdmitDurations:
    reclaim = reader.child("reclaimWithinCohort")
    fair_sharing = reader.child("fairSharing")
    found = MinAdmitDurations(_min_admit_ns(reclaim), _min_admit_ns(fair_sharing))
    reader.done()
    return found


def _min_admit_ns(reader: Reader) -> int:
    found = _duration_ns(reader, "minAdmitDuration", "0")
    if found < 0:
        reader.problem("minAdmitDuration", "must not be negative", "write 0 or more")
    reader.done()
    return max(0, found)


def _admission_fair_sharing(reader: Reader) -> AdmissionFairSharing:
    half_life_ns = _duration_ns(reader, "usageHalfLifeTime", "0")
    sampling_ns = _duration_ns(reader, "usageSamplingInterval", DEFAULT_SAMPLING)
    if half_life_ns < 0:
        reader.problem("usageHalfLifeTime", "must not be negative", "write 0 or more")
    if sampling_ns <= 0:
        reader.problem("usageSamplingInterval", "must be greater than 0", "write more, such as 5m")
    weights = reader.child("resourceWeights")
    read_weights = {name: _weight(weights, name) for name in weights.names()}
    reader.done()
    return AdmissionFairSharing(half_life_ns, sampling_ns, read_weights)


def _duration_ns(reader: Reader, key: str, default: str) -> int:
    text = reader.raw(key)
    if text == 0:  # YAML reads a bare 0 as a number
        text = "0"
    if text is not None and not isinstance(text, str):
        what = f"expected a duration such as 168h, 5m, 1h30m or 500ms, got {shown(text)}"
        reader.problem(key, what, "write one of these")
        text = None
    try:
        return parse_duration_ns(default if text is None else text)
    except ValueError as error:
        reader.problem(key, str(error)[:200], "write one such as 168h, 5m, 1h30m or 500ms")
        return parse_duration_ns(default)


def _weight(reader: Reader, name: str) -> int:
    """A weight in billionths, rounded up. Kueue accepts any number that is not negative."""
    given = reader.raw(name)
    try:
        if isinstance(given, bool) or not isinstance(given, int | float | str):
            raise InvalidOperation
        weight = Decimal(str(given))  # a float by its shortest decimal text
    except (InvalidOperation, ValueError):
        weight = Decimal("NaN")
    if not weight.is_finite() or not 0 <= weight <= MAX_WEIGHT:
        reader.problem(name, f"must be a number from 0 to {MAX_WEIGHT}, got {shown(given)}")
        return WEIGHT_UNIT
    return int((weight * WEIGHT_UNIT).to_integral_value(ROUND_CEILING))


def _rule(reader: Reader) -> Transformation:
    outputs = reader.child("outputs")
    factors = outputs.amounts_here()
    if PODS in factors:
        what = "is the number of pods, which every pod counts for once"
        outputs.problem(PODS, what, "name another resource")
    rule = Transformation(
        input=reader.required("input"),
        strategy=reader.choice("strategy", Strategy, Strategy.RETAIN, {}),
        outputs=factors,
        multiply_by=reader.optional_text("multiplyBy"),
    )
    reader.done()
    return rule
