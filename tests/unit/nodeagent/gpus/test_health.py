"""Effect of each sign on a GPU's health, in short sequences, and the policy as data."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from nodeagent.adapters.host.config_files import SHIPPED_POLICY, load, load_health
from nodeagent.core.gpus.health import Health, HealthChange, Patient, examine
from nodeagent.core.gpus.health_policy import (
    CONDITIONS,
    VERDICTS,
    Consequence,
    HealthPolicy,
    parse_policy,
)
from nodeagent.core.grants.placement import GpuCapacity, Placed, place
from nodeagent.ports.clients import GrantAsk, MemoryAsk
from nodeagent.ports.gpus import GpuReading, NodeReading
from nodeagent.settings.daemon import ConfigError, HealthSettings
from nodeagent.shell.gpus.readings import Gpus
from nodeagent.units import GIB, NS_PER_S, Bytes, GpuUuid, Ppm, SharePolicy
from tests.kit.fakes.nvml import gpu_reading
from tests.kit.places import REPO

POLICY = load_health(HealthSettings())
GOOD = replace(gpu_reading(0), recovery_action="none")
OLD_DRIVER = replace(gpu_reading(0), energy_joules_total=500.0)
"""Gives no verdict of its own."""


class Bed:
    """One GPU at its doctor's."""

    def __init__(self) -> None:
        self.patient = Patient()
        self.now_s = 1000.0

    def see(self, reading: GpuReading | None, *xids: int, after_s: float = 1.0) -> Health:
        self.now_s += after_s
        now_ns = int(self.now_s * NS_PER_S)
        self.patient = examine(self.patient, reading, xids, POLICY, now_ns)
        return self.patient.health

    @property
    def reason(self) -> str:
        return self.patient.reason


def test_one_reading_that_fails_is_only_suspicious() -> None:
    bed = Bed()
    failed = replace(GOOD, error="Timeout")
    assert bed.see(failed) is Health.SUSPECT
    assert bed.patient.offered
    assert bed.see(failed, after_s=29) is Health.SUSPECT
    assert bed.see(GOOD) is Health.HEALTHY
    assert bed.see(failed) is Health.SUSPECT
    assert bed.see(failed, after_s=30) is Health.UNHEALTHY
    assert bed.reason == "Timeout"


def test_it_is_offered_again_after_a_minute_of_being_fit() -> None:
    bed = Bed()
    assert bed.see(replace(GOOD, recovery_action="reset")) is Health.UNHEALTHY
    assert bed.reason == "NVML's recovery action is reset"
    assert bed.see(GOOD) is Health.RECOVERING
    assert bed.reason == "NVML's recovery action is reset", "what it recovers from"
    assert bed.see(GOOD, after_s=59) is Health.RECOVERING
    assert bed.see(replace(GOOD, error="Timeout"), after_s=0.5) is Health.UNHEALTHY
    assert bed.see(GOOD) is Health.RECOVERING
    assert bed.see(GOOD, after_s=60) is Health.HEALTHY
    assert bed.reason == ""


def test_one_that_keeps_failing_waits_an_hour() -> None:
    bed = Bed()
    sick = replace(GOOD, recovery_action="reset")
    for _ in range(3):
        assert bed.see(sick) is Health.UNHEALTHY
        bed.see(GOOD)
        assert bed.see(GOOD, after_s=60) is Health.HEALTHY
    assert bed.see(sick) is Health.UNHEALTHY
    bed.see(GOOD)
    assert bed.see(GOOD, after_s=3599) is Health.RECOVERING
    assert bed.see(GOOD) is Health.HEALTHY


def test_nvml_comes_before_xids() -> None:
    bed = Bed()
    assert bed.see(GOOD, 48) is Health.HEALTHY, "the driver itself says that nothing is to be done"
    assert bed.see(replace(GOOD, recovery_action="reset"), 48) is Health.UNHEALTHY
    assert bed.reason == "XID 48, double bit ECC error; NVML's recovery action is reset"


def test_without_a_verdict_an_xid_holds_until_a_reset_is_seen() -> None:
    bed = Bed()
    assert bed.see(OLD_DRIVER, 95) is Health.UNHEALTHY
    assert bed.see(replace(OLD_DRIVER, energy_joules_total=600.0), after_s=7200) is Health.UNHEALTHY
    assert "XID 95, uncontained memory error, and no reset since" in bed.reason
    assert bed.see(replace(OLD_DRIVER, energy_joules_total=3.0)) is Health.RECOVERING
    assert bed.see(replace(OLD_DRIVER, energy_joules_total=9.0), after_s=60) is Health.HEALTHY


def test_a_gpu_that_was_away_in_between_was_reset() -> None:
    bed = Bed()
    assert bed.see(OLD_DRIVER, 95) is Health.UNHEALTHY
    assert bed.see(None) is Health.LOST
    assert bed.see(OLD_DRIVER) is Health.RECOVERING


@pytest.mark.parametrize(
    "reading", [None, replace(GOOD, error="GPU is lost"), replace(GOOD, recovery_action="reboot")]
)
def test_one_that_fell_off_the_bus_is_lost_and_may_come_back(reading: GpuReading | None) -> None:
    bed = Bed()
    assert bed.see(reading) is Health.LOST
    assert bed.see(replace(GOOD, error="Timeout")) is Health.LOST
    assert bed.see(GOOD) is Health.RECOVERING
    assert bed.see(reading) is Health.LOST


def test_an_upgraded_driver_is_named_as_such() -> None:
    for text in ("Driver/library version mismatch", "RM has detected an NVML/RM version mismatch."):
        bed = Bed()
        assert bed.see(replace(GOOD, error=text)) is Health.UNHEALTHY
        assert "of different versions: reload the module or reboot" in bed.reason
        bed.see(GOOD)
        assert bed.see(GOOD, after_s=60) is Health.HEALTHY


@pytest.mark.parametrize(
    "worn",
    [
        replace(GOOD, ecc_uncorrected_total=2),
        replace(GOOD, row_remap_pending=True),
        replace(GOOD, recovery_action="drain"),
    ],
    ids=["ECC", "row remap pending", "drain"],
)
def test_what_is_worn_is_offered_but_shown_at_once(worn: GpuReading) -> None:
    bed = Bed()
    assert bed.see(worn) is Health.DEGRADED
    assert bed.patient.offered
    assert bed.reason
    assert bed.see(GOOD) is Health.DEGRADED
    assert bed.see(GOOD, after_s=60) is Health.HEALTHY


@pytest.mark.parametrize("reason", ["hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake"])
def test_heat_and_power_count_when_they_last(reason: str) -> None:
    bed = Bed()
    strained = replace(GOOD, throttle_reasons=(reason,))
    assert bed.see(strained) is Health.HEALTHY
    assert bed.see(strained, after_s=59) is Health.HEALTHY
    assert bed.see(GOOD) is Health.HEALTHY
    assert bed.see(strained) is Health.HEALTHY
    assert bed.see(strained, after_s=60) is Health.DEGRADED
    assert bed.reason.startswith("throttled")
    assert bed.see(replace(GOOD, throttle_reasons=("sw_power_cap",))) is Health.DEGRADED
    assert bed.see(GOOD, after_s=60) is Health.HEALTHY, "a power cap is how cards are run"


def test_a_failed_row_remap_is_no_matter_of_time() -> None:
    bed = Bed()
    failed = replace(GOOD, row_remap_failed=True)
    assert bed.see(failed) is Health.UNHEALTHY
    assert bed.see(failed, after_s=86_400) is Health.UNHEALTHY
    assert "replace the card" in bed.reason


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68, 109])
def test_a_programs_own_faults_say_nothing_about_the_card(xid: int) -> None:
    bed = Bed()
    assert bed.see(OLD_DRIVER, xid) is Health.HEALTHY


def test_a_code_nobody_knows_is_looked_at() -> None:
    bed = Bed()
    assert bed.see(OLD_DRIVER, 4321) is Health.DEGRADED
    assert bed.reason == "XID 4321"


# --- the policy -------------------------------------------------------------------------------

CATALOGUE = {
    "lost": {79},
    "reset": {46, 62, 64, 95, 110, 119, 120, 136, 140, 143, 155, 156, 158},
    "application": {8, 11, 13, 25, 31, 32, 39, 40, 41, 60, *range(68, 73), 75, 76, 77, 80}
    | {*range(82, 87), 88, 89, 94, *range(96, 106), *range(126, 136), 139},
    "ignore": {14, 37, 38, 43, 44, 63, 66, 67, 92, 93, 106, 107, 108, 121, 137, 141}
    | {152, 153, 157, 160, 161},
}


def test_the_shipped_table_is_nvidias_catalogue() -> None:
    found = {
        name: {code for code, rule in POLICY.xids.items() if rule.consequence == name}
        for name in CATALOGUE
    }
    assert found["lost"] == CATALOGUE["lost"]
    assert found["reset"] == CATALOGUE["reset"] | {48, 74}
    assert found["application"] == CATALOGUE["application"] | {45, 109, 159}
    assert found["ignore"] == CATALOGUE["ignore"] | {154}
    assert all(rule.name for rule in POLICY.xids.values())
    assert set(POLICY.verdicts) == set(VERDICTS)
    document = tomllib.loads(SHIPPED_POLICY.read_text())
    assert set(document["condition"]) == set(CONDITIONS)


def test_an_operator_changes_single_lines(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(
        '[xid]\n31 = "degraded"\n79 = { means = "reset", name = "ours" }\nunknown = "ignore"\n'
        '[condition]\nthermal = "ignore"\n[verdict]\ndrain = "reset"\n'
    )
    found = load_health(HealthSettings(policy=str(path), good_s=7.0, falls_per_hour=9))
    assert found.xid(31).consequence is Consequence.DEGRADED
    assert found.xid(31).name == "memory page fault", "the name stays"
    assert (found.xid(79).consequence, found.xid(79).name) == (Consequence.RESET, "ours")
    assert found.xid(4321).consequence is Consequence.IGNORE
    assert found.conditions["thermal"] is Consequence.IGNORE
    assert found.verdicts["drain"] is Consequence.RESET
    assert found.xid(48) == POLICY.xid(48)
    assert (found.good_ns, found.falls_per_hour) == (7 * NS_PER_S, 9)


def test_mistakes_in_a_policy_are_all_told_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(
        '[xids]\n[xid]\nseven = "reset"\n0 = "reset"\n31 = "rest"\n32 = { name = "x" }\n'
        '[condition]\nthermic = "ignore"\n[verdict]\nnone = 1\n'
    )
    settings = tmp_path / "sluice.toml"
    settings.write_text(f'[health]\npolicy = "{path}"\n')
    with pytest.raises(ConfigError) as caught:
        load(settings, "host")
    assert [one.replace(f"{path}: ", "") for one in caught.value.problems] == [
        "[xids]: no such section (did you mean 'xid'?)",
        "xid.seven: must be the number of an XID, such as 79, or `unknown`",
        "xid.0: must be the number of an XID, such as 79, or `unknown`",
        "xid.31: must be one of ignore, application, degraded, reset, lost, got 'rest'",
        "xid.32: must be { means = \"…\", name = \"…\" }, not {'name': 'x'}",
        "condition.thermic: no such key (did you mean 'thermal'?)",
        "verdict.none: must be one of ignore, application, degraded, reset, lost, got 1",
    ]
    assert all(one.startswith(str(path)) for one in caught.value.problems)


def test_without_any_table_only_nvml_itself_is_believed() -> None:
    assert parse_policy({}) == HealthPolicy()
    assert examine(Patient(), GOOD, (), HealthPolicy(), 0).health is Health.HEALTHY


# --- what follows -----------------------------------------------------------------------------


def capacity(index: int, **changes: object) -> GpuCapacity:
    one = GpuCapacity(
        GpuUuid(f"GPU-{index}"), index, "H100", Bytes(80 * GIB), Bytes(80 * GIB), slots=10
    )
    return replace(one, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("strategy", ["pack", "spread"])
def test_degraded_gpus_are_taken_last(strategy: str) -> None:
    gpus = [capacity(0, degraded=True), capacity(1)]
    ask = GrantAsk(1, MemoryAsk(amount_bytes=Bytes(GIB)), Ppm(1000), SharePolicy.ELASTIC)
    placed = place(ask, gpus, {}, strategy=strategy)
    assert isinstance(placed, Placed)
    assert [one.gpu for one in placed.devices] == ["GPU-1"]
    both = place(replace(ask, gpus=2), gpus, {}, strategy=strategy)
    assert isinstance(both, Placed)
    assert [one.gpu for one in both.devices] == ["GPU-1", "GPU-0"]


def test_changes_are_told_and_counted() -> None:
    gpus = Gpus(10, 0)
    gpus.policy = POLICY
    told: list[HealthChange] = []
    gpus.on_health.append(told.append)
    gpus.take(NodeReading((GOOD,), "570.1"), 1, 100.0)
    gpus.take(NodeReading((GOOD,), "570.1", xid_events=((GOOD.uuid, 79),)), 2, 101.0)
    assert told == [
        HealthChange(GOOD.uuid, Health.HEALTHY, Health.LOST, "XID 79, fallen off the bus", 101.0)
    ]
    assert gpus.health_changes[GOOD.uuid] == 1
    assert not gpus.capacities()[0].healthy


def test_a_node_that_cannot_be_read_says_little_about_one_gpu() -> None:
    gpus = Gpus(10, 0)
    gpus.policy = POLICY
    gpus.take(NodeReading((GOOD,), "570.1"), 0)
    failed = NodeReading(error="NVML Shared Library Not Found")
    gpus.take(failed, 1)
    assert gpus.health(GOOD.uuid) is Health.SUSPECT
    gpus.take(failed, 31 * NS_PER_S)
    assert gpus.health(GOOD.uuid) is Health.UNHEALTHY
    gpus = Gpus(10, 0)
    gpus.policy = POLICY
    gpus.take(NodeReading((GOOD,), "570.1"), 0)
    gpus.take(NodeReading(error="Driver/library version mismatch"), 1)
    assert gpus.health(GOOD.uuid) is Health.UNHEALTHY


def test_the_page_has_every_state_condition_and_class() -> None:
    page = (REPO / "docs" / "node" / "health.md").read_text()
    for word in (*Health, *Consequence, *CONDITIONS):
        assert f"`{word}`" in page, word
