"""The machine of a GPU's health under anything NVML may say, at any time: it does not flap, it always comes back, and it
never offers what needs a reset."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from nodeagent.adapters.host.config_files import load_health
from nodeagent.core.gpus.health import HOUR_NS, NEXT, OFFERED, Health, Patient, Sign, examine
from nodeagent.ports.gpus import GpuReading
from nodeagent.settings.daemon import HealthSettings
from nodeagent.units import NS_PER_S
from tests.kit.fakes.nvml import gpu_reading

POLICY = load_health(HealthSettings())
GOOD = replace(gpu_reading(0), recovery_action="none", ecc_uncorrected_total=0, throttle_reasons=())
SILENT = replace(GOOD, recovery_action=None, energy_joules_total=1000.0)
READINGS: dict[str, GpuReading | None] = {
    "good": GOOD,
    "silent": SILENT,
    "gone": None,
    "lost": replace(GOOD, error="GPU is lost"),
    "unread": replace(GOOD, error="Timeout"),
    "mismatch": replace(GOOD, error="Driver/library version mismatch"),
    "reset": replace(GOOD, recovery_action="reset"),
    "reboot": replace(GOOD, recovery_action="reboot"),
    "drain": replace(GOOD, recovery_action="drain"),
    "ecc": replace(GOOD, ecc_uncorrected_total=1),
    "remap": replace(GOOD, row_remap_pending=True),
    "remap failed": replace(GOOD, row_remap_failed=True),
    "hot": replace(GOOD, throttle_reasons=("hw_thermal_slowdown",)),
}
FIT = {"good", "silent", "drain", "ecc", "remap", "hot"}
steps = st.tuples(
    st.sampled_from(sorted(READINGS)),
    st.lists(st.sampled_from([13, 31, 48, 54, 63, 79, 95, 4321]), max_size=2),
    st.sampled_from([NS_PER_S // 10, NS_PER_S, 5 * NS_PER_S, 31 * NS_PER_S, 61 * NS_PER_S]),
)
histories = st.lists(steps, max_size=120)


def play(history: list[tuple[str, list[int], int]]) -> list[tuple[int, Patient]]:
    now_ns, patient, seen = 10**12, Patient(), [(10**12, Patient())]
    for name, xids, pause_ns in history:
        patient = examine(patient, READINGS[name], xids, POLICY, now_ns)
        seen.append((now_ns, patient))
        now_ns += pause_ns
    return seen


@given(histories)
def test_it_does_not_flap(history: list[tuple[str, list[int], int]]) -> None:
    """In any hour it falls at most once more than the policy allows, and it comes back only after the time of being fit."""
    falls, returns = [], []
    for (_, before), (at_ns, after) in pairwise(play(history)):
        if before.offered and not after.offered:
            falls.append(at_ns)
        if after.offered and not before.offered:
            assert falls
            assert at_ns - falls[-1] >= POLICY.good_ns
            assert after.fit_since_ns is not None
            assert at_ns - after.fit_since_ns >= POLICY.good_ns
            returns.append(at_ns)
    for start in falls:
        assert sum(start <= at < start + HOUR_NS for at in falls) <= POLICY.falls_per_hour + 1
    assert len(returns) <= len(falls)


@given(histories)
def test_it_always_comes_back(history: list[tuple[str, list[int], int]]) -> None:
    """Whatever was: well for as long as it has to be, after a reset where one is owed, and it is offered again."""
    at_ns, patient = play(history)[-1]
    well = GOOD
    if patient.awaits_reset:
        well = SILENT
        patient = examine(patient, None, (), POLICY, at_ns)  # away while it is reset
    at_ns += 200 * NS_PER_S
    for _ in range(2 + POLICY.flap_hold_ns // (60 * NS_PER_S) + 2):
        patient = examine(patient, well, (), POLICY, at_ns)
        at_ns += 60 * NS_PER_S
    assert (patient.health, patient.reason) == (Health.HEALTHY, "")


@given(histories)
def test_a_sick_one_is_never_offered_and_says_why(
    history: list[tuple[str, list[int], int]],
) -> None:
    for (name, xids, _), (_, patient) in zip(history, play(history)[1:], strict=True):
        if name in ("gone", "lost", "mismatch", "reset", "reboot", "remap failed") or 79 in xids:
            assert not patient.offered
        if patient.awaits_reset:
            assert not patient.offered
        if patient.health is Health.RECOVERING:
            assert name in FIT
        assert bool(patient.reason) == (patient.health is not Health.HEALTHY) or (
            patient.health is Health.HEALTHY and not patient.reason
        )


@given(histories, st.integers(1, 5))
def test_looking_twice_at_the_same_moment_changes_nothing_more(
    history: list[tuple[str, list[int], int]], times: int
) -> None:
    at_ns, patient = play(history)[-1]
    once = examine(patient, GOOD, (), POLICY, at_ns)
    settled = examine(once, GOOD, (), POLICY, at_ns)
    for _ in range(times):
        assert examine(settled, GOOD, (), POLICY, at_ns) == settled


def test_every_state_and_sign_has_an_answer_and_offered_ones_heal() -> None:
    for health in Health:
        for sign in Sign:
            after = NEXT.get((health, sign), health)
            if sign is Sign.GONE:
                assert after is Health.LOST
            if sign is Sign.NEEDS_RESET:
                assert after is Health.UNHEALTHY
            if sign in (Sign.GOOD, Sign.WORN) and health not in OFFERED:
                assert after is Health.RECOVERING, "good for a moment is not enough"
    for health in Health:
        one = health
        for _ in Health:
            one = NEXT.get((one, Sign.GOOD_FOR_LONG), one)
        assert one is Health.HEALTHY
