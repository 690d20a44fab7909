"""A driver that hangs, a reader that is killed, a driver that is replaced: everything else goes on,
and the recovery is seen."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.kit.node import Node, running, until

SETTINGS = "[nvml]\ndeadline_s = 0.5\n[health]\ngood_s = 1\n"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with running(tmp_path, gpus="2xh100-80gb", settings=SETTINGS) as made:
        yield made


def control(node: Node, *lines: str) -> None:
    fresh = node.directory / "gpu" / "control.new"
    fresh.write_text("".join(f"{line}\n" for line in lines))
    fresh.replace(node.directory / "gpu" / "control")


def figure(node: Node, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", node.metrics(), re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def reader(node: Node) -> psutil.Process:
    assert node.daemon is not None
    children = psutil.Process(node.daemon.pid).children(recursive=True)
    (found,) = [one for one in children if "nodeagent.adapters.nvml.child" in one.cmdline()]
    return found


def healthy(node: Node) -> bool:
    return all(gpu["health"] == "healthy" for gpu in node.info()["gpus"])


def everything_else_works(node: Node, name: str) -> None:
    assert node.grant(name) is not None
    node.cli("resize", name, "--cores", "45")
    grant = node.grant(name)
    assert grant is not None
    assert grant["devices"][0]["share_ratio"] == 0.45
    assert "sluice_gpu_memory_used_bytes{" in node.metrics(), "the last reading is still served"
    node.cli("pause", name)
    node.cli("resume", name)
    assert node.cli("events").returncode == 0


def test_a_hung_driver_leaves_running_grants_and_all_else_alone(node: Node) -> None:
    job = node.run_tenant(
        "job", "--warm", "0.2", "--seconds", "3600", flags=("--gpumem", "4Gi", "--cores", "50")
    )
    until("it is registered", lambda: (node.grant("job") or {}).get("processes") == 1)
    control(node, "nvml_hang=1")
    until("the reader was given up", lambda: figure(node, "sluice_nvml_restarts_total") >= 1)
    until("the reading grows old", lambda: figure(node, "sluice_nvml_reading_age_seconds") > 1.5)
    everything_else_works(node, "job")
    assert job.process.poll() is None
    control(node)
    until("it is read again", lambda: figure(node, "sluice_nvml_reading_age_seconds") < 1.5, 30)
    until("the GPUs are offered again", lambda: healthy(node), 30)
    other = node.run_tenant("after", "--seconds", "0.5", flags=("--gpumem", "4Gi", "--cores", "20"))
    assert other.result()["exit"] == 0


def test_a_killed_reader_is_replaced_and_nobody_notices(node: Node) -> None:
    node.run_tenant(
        "job", "--warm", "0.2", "--seconds", "3600", flags=("--gpumem", "4Gi", "--cores", "50")
    )
    until("it is registered", lambda: (node.grant("job") or {}).get("processes") == 1)
    first = reader(node)
    os.kill(first.pid, signal.SIGKILL)
    until("it is noticed", lambda: figure(node, "sluice_nvml_restarts_total") >= 1)
    everything_else_works(node, "job")
    until("there is another", lambda: not first.is_running() and reader(node).pid != first.pid, 30)
    until("and it reads", lambda: figure(node, "sluice_nvml_reading_age_seconds") < 1.5, 30)
    grant = node.grant("job")
    assert grant is not None
    assert grant["processes"] == 1


def test_a_replaced_driver_is_read_by_a_new_process_and_told(node: Node) -> None:
    first = reader(node)
    control(node, "version_skew=1", "driver_version=999.10")
    os.kill(
        first.pid, signal.SIGKILL
    )  # as a reload of the module does to a process that has it open
    until("the mismatch is told", lambda: "mismatch" in (node.info().get("nvml_error") or ""), 30)
    assert node.cli("ps").returncode == 0
    control(node, "driver_version=999.10")
    until("the new one is read", lambda: node.info()["driver_version"] == "999.10", 60)
    until("the GPUs are offered again", lambda: healthy(node), 30)
    assert "the driver was 580.95.05 and is 999.10 now" in (
        (node.directory / "daemon.log").read_text()
    )
    told = [event["text"] for event in node.cli_json("events")]
    assert any("mismatch" in text for text in told)
    assert "the driver was 580.95.05 and is 999.10 now" in told
    assert any("is healthy, was" in text for text in told)
    job = node.run_tenant("after", "--seconds", "0.5", flags=("--gpumem", "4Gi", "--cores", "20"))
    assert job.result()["exit"] == 0


def test_the_figures_of_our_own_processes_are_within_their_budgets(node: Node) -> None:
    until("they are sampled", lambda: 'process="nvml"' in node.metrics())
    mib = 2**20
    daemon = figure(node, 'sluice_process_resident_memory_bytes{process="daemon"}')
    child = figure(node, 'sluice_process_resident_memory_bytes{process="nvml"}')
    assert 10 * mib < daemon < 160 * mib, "twice the budget is a leak, not noise"
    assert 10 * mib < child < 110 * mib
