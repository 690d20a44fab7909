"""Sick GPUs from the driver's word to what people and programs see: the real daemon over simulated cards."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator

import pytest

from tests.kit.node import Node, running, until
from tests.kit.places import SIM
from tests.kit.workplace import workplace

SOON = "[health]\ngood_s = 1\nunread_s = 2\nstrain_s = 1\nfalls_per_hour = 100\n"
PACE = "[nvml]\ninterval_s = 0.1\nidle_interval_s = 0.1\ndeadline_s = 1\n"


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with workplace() as directory:
        policy = directory / "policy.toml"
        policy.write_text("")
        library = directory / "driver" / "libnvidia-ml.so.1"
        library.parent.mkdir()
        shutil.copy(SIM / library.name, library)
        settings = f'{PACE}library = "{library}"\n{SOON}policy = "{policy}"\n'
        with running(directory, gpus="2xh100-80gb", settings=settings) as node:
            yield node


@pytest.fixture(autouse=True)
def _well_again(node: Node) -> Iterator[None]:
    yield
    control(node)
    until("all GPUs are well again", lambda: states(node) == ["healthy", "healthy"], 60)


def control(node: Node, *lines: str) -> None:
    fresh = node.directory / "gpu" / "control.new"
    fresh.write_text("".join(f"{line}\n" for line in lines))
    # The simulator goes by the file's time of change.
    os.utime(fresh, ns=(time.time_ns(), time.time_ns()))
    fresh.replace(node.directory / "gpu" / "control")


def gpus(node: Node) -> list[dict[str, object]]:
    return sorted(node.info()["gpus"], key=lambda one: one["index"])


def states(node: Node) -> list[str]:
    return [str(one["health"]) for one in gpus(node)]


def state_is(node: Node, index: int, state: str) -> None:
    until(f"GPU {index} is {state}", lambda: states(node)[index] == state)


def events(node: Node) -> list[str]:
    return [str(one["text"]) for one in node.cli_json("events", "--kind", "gpu")]


def test_a_gpu_that_needs_a_reset_gets_no_more_work_and_everybody_is_told(node: Node) -> None:
    control(node, "recovery_action=1@1")
    state_is(node, 1, "unhealthy")
    sick = gpus(node)[1]
    assert sick["health_reason"] == "NVML's recovery action is reset"
    doctor = node.cli("doctor", check=False)
    assert "GPU 1: unhealthy: NVML's recovery action is reset" in doctor.stdout
    assert "nvidia-smi --gpu-reset -i 1" in doctor.stdout
    refused = node.cli(
        "run", "--gpu-uuid", str(sick["uuid"]), "--gpumem", "1Gi", "--", "true", check=False
    )
    assert refused.returncode != 0
    assert "not healthy" in refused.stderr
    metrics = node.metrics()
    assert 'state="unhealthy"} 1' in "\n".join(
        line for line in metrics.splitlines() if f'gpu="{sick["uuid"]}"' in line
    )
    assert any("GPU 1 is unhealthy, was healthy: NVML's recovery" in one for one in events(node))
    control(node)
    state_is(node, 1, "healthy")
    assert events(node)[-1].startswith("GPU 1 is healthy, was recovering")
    assert states(node)[0] == "healthy"


def test_a_gpu_that_fell_off_the_bus_is_lost_alone(node: Node) -> None:
    control(node, "gpu_lost=1")
    state_is(node, 1, "lost")
    assert states(node)[0] == "healthy"


def test_a_daemon_that_starts_beside_a_lost_gpu_serves_the_others(node: Node) -> None:
    control(node, "gpu_lost=1")
    state_is(node, 1, "lost")
    node.kill_daemon()
    node.start()
    until("the healthy GPU is served", lambda: [one["index"] for one in gpus(node)] == [0], 30)
    assert node.cli("run", "--gpumem", "1Gi", "--", "true").returncode == 0
    doctor = node.cli("doctor", check=False).stdout
    assert "GPU 1: cannot be read by NVML and is not served: GPU is lost" in doctor
    control(node)
    until("both are served", lambda: states(node) == ["healthy", "healthy"], 30)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("ecc_uncorrected=3@0", "uncorrectable memory errors"),
        ("row_remap_pending=1@0", "at the next reset"),
        ("throttle=0x40@0", "throttled by temperature"),
        ("throttle=0x80@0", "brake signal"),
        ("recovery_action=3@0", "recovery action is drain"),
    ],
    ids=["ECC", "row remap", "heat", "power brake", "drain"],
)
def test_a_worn_gpu_is_offered_and_shown(node: Node, line: str, reason: str) -> None:
    control(node, line)
    state_is(node, 0, "degraded")
    assert reason in str(gpus(node)[0]["health_reason"])
    assert node.cli("run", "--gpus", "2", "--gpumem", "1Gi", "--", "true").returncode == 0


def test_a_driver_that_was_upgraded_below_its_module_is_named_as_such(node: Node) -> None:
    library = node.directory / "driver" / "libnvidia-ml.so.1"
    fresh = library.with_name("new")
    shutil.copy(library, fresh)
    control(node, "version_skew=1")
    fresh.replace(library)
    until("both are unhealthy", lambda: states(node) == ["unhealthy", "unhealthy"])
    assert "of different versions" in str(gpus(node)[0]["health_reason"])
    doctor = node.cli("doctor", check=False).stdout
    assert "reload the module or reboot" in doctor


def test_a_driver_that_hangs_is_suspect_and_then_unhealthy(node: Node) -> None:
    control(node, "nvml_hang=1")
    until("both cannot be read for long", lambda: states(node) == ["unhealthy"] * 2, 40)
    assert any("is suspect, was healthy" in one for one in events(node))


def test_the_table_of_xids_can_be_changed_while_the_daemon_runs(node: Node) -> None:
    (node.directory / "policy.toml").write_text('[xid]\n31 = "degraded"\n')
    log = node.directory / "daemon.log"
    until(
        "the table is taken over",
        lambda: "configuration: changed the table of health.policy" in log.read_text(),
    )
    control(node, "xid=31@0")
    told = "GPU 0 is degraded, was healthy: XID 31, memory page fault"
    until("the XID is told", lambda: told in events(node))
