"""The whole node on simulated GPUs: a program that goes around the interposer is noticed, and held
where the policy says so, and no other process is touched."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from nodeagent.units import NS_PER_S
from tests.kit.node import Node, Tenant, running, until
from tests.kit.places import AT_REST, SIM, TENANT

REPORTED_S, CONTAINED_S = 2.0, 3.0
SLACK = 2.5
"""The promises are for a machine with room; this one runs other tests too."""


def node_with(directory: Path, detection: str) -> Any:
    return running(directory, gpus="2xh100-80gb", settings=f"[detection]\n{detection}\n")


@pytest.fixture(scope="module")
def observing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with node_with(tmp_path_factory.mktemp("o"), "") as node:
        yield node


@pytest.fixture(scope="module")
def containing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with node_with(tmp_path_factory.mktemp("c"), 'bare_metal = "contain"') as node:
        yield node


def events(node: Node, kind: str = "") -> list[dict[str, Any]]:
    found = node.cli_json("events")
    return [event for event in found if not kind or event["kind"] == kind]


def bare(node: Node) -> subprocess.Popen[str]:
    return node.run_bare("bare", *AT_REST).process


def of_pid(node: Node, pid: int, kind: str) -> list[dict[str, Any]]:
    return [event for event in events(node, kind) if event["pid"] == pid]


ENDLESS = ("--warm", "0.2", "--seconds", "3600", "--report", "0.5")


def goes_on(neighbour: Tenant) -> bool:
    """True if the neighbour goes on after now, too."""
    return neighbour.report(time.monotonic_ns() + NS_PER_S) > 0.1


def stopped(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_STOPPED


def test_a_program_without_a_grant_is_reported_and_left_alone(observing: Node) -> None:
    process = bare(observing)
    began_s = time.time()
    (event,) = until(
        "it is reported", lambda: of_pid(observing, process.pid, "unregistered_gpu_user")
    )
    assert event["at_unix_s"] - began_s <= REPORTED_S * SLACK
    evidence = json.loads(event["evidence"])
    assert evidence["memory_bytes"] > 0
    assert evidence["program"] == str(TENANT.resolve())
    assert event["level"] == "warning"
    time_of_a_freeze_s = 1.0
    end_s = time.monotonic() + time_of_a_freeze_s
    while time.monotonic() < end_s:
        assert not stopped(process.pid)
        time.sleep(0.05)
    assert 'sluice_detections_total{rule="unregistered_gpu_user"} 1' in observing.metrics()
    process.kill()
    until(
        "the suspicion ends with it",
        lambda: 'sluice_suspicions_active{rule="unregistered_gpu_user"} 0' in observing.metrics(),
    )


def test_a_registered_program_is_never_suspected(observing: Node) -> None:
    before = len(events(observing))
    job = observing.run_tenant(
        "honest", "--warm", "0.5", "--seconds", "3", flags=("--gpumem", "4Gi", "--cores", "50")
    )
    assert job.result()["exit"] == 0
    assert events(observing)[before:] == []


def test_contain_stops_it_in_time_and_touches_nobody_else(containing: Node) -> None:
    neighbour = containing.run_tenant(
        "neighbour", *ENDLESS, flags=("--gpumem", "4Gi", "--cores", "40")
    )
    until("the neighbour runs", lambda: (containing.grant("neighbour") or {}).get("processes"))
    process = bare(containing)
    until("it is stopped", lambda: stopped(process.pid), CONTAINED_S * SLACK)
    assert not stopped(neighbour.process.pid)
    (act,) = until("the act is told", lambda: of_pid(containing, process.pid, "act"))
    assert act["text"].startswith("freeze: pid")
    assert goes_on(neighbour)
    rows = audit(containing)
    mine = [row for row in rows if row["pid"] == process.pid]
    assert [row["step"] for row in mine] == ["throttle", "deny_opens", "freeze"]
    assert {row["rule"] for row in mine} == {"unregistered_gpu_user"}
    assert mine[0]["starttime_ticks"] > 0
    neighbour.kill()
    os.kill(process.pid, signal.SIGKILL)
    process.wait(60)


def audit(node: Node) -> list[dict[str, Any]]:
    with sqlite3.connect(f"file:{node.directory}/state/ledger.sqlite?mode=ro", uri=True) as db:
        return [json.loads(body) for (body,) in db.execute("SELECT body FROM audit ORDER BY id")]


def test_in_a_grant_it_is_held_by_default_and_its_neighbours_are_not(
    observing: Node, tmp_path: Path
) -> None:
    """A program that brought a driver of its own into its grant."""
    copied(tmp_path)
    neighbour = observing.run_tenant("beside", *ENDLESS, flags=("--gpumem", "4Gi", "--cores", "30"))
    evader = observing.run(
        "evader",
        "env",
        "-u",
        "LD_PRELOAD",
        f"LD_LIBRARY_PATH={tmp_path}",
        TENANT,
        *AT_REST,
        flags=("--gpumem", "4Gi", "--cores", "30"),
    )
    pid = evader.process.pid
    until("it is held", lambda: stopped(pid), CONTAINED_S * SLACK)
    (event,) = of_pid(observing, pid, "unregistered_gpu_user")
    assert event["level"] == "critical"
    grant = observing.grant("evader")
    assert grant is not None
    assert grant["state"] == "paused"
    assert grant["held"] == "unregistered_gpu_user (throttle, freeze)"
    listed = observing.cli("ps").stdout
    assert "! held: unregistered_gpu_user (throttle, freeze)" in listed
    assert f"`sluice resume {grant['grant'][:8]}`" in listed
    other = observing.grant("beside")
    assert other is not None
    assert other["state"] == "active"
    assert other["held"] == ""
    assert goes_on(neighbour)
    neighbour.kill()
    evader.kill()
    until("its grant ends", lambda: observing.grant("evader") is None)


RUNAWAY = ("--kernel-ns", str(10**12), "--launches", "1", "--warm", "0")


def test_a_kernel_that_never_ends_is_reported_and_goes_on_by_default(tmp_path: Path) -> None:
    """Kernels that run for ever on purpose are honest; who wants them ended says so."""
    with node_with(tmp_path / "n", "runaway_kernel_s = 1") as node:
        job = node.run_tenant("forever", *RUNAWAY, flags=("--gpumem", "4Gi", "--cores", "50"))
        (event,) = until("it is reported", lambda: events(node, "runaway_kernel"))
        assert event["level"] == "warning"
        time_of_a_freeze_s = 1.5
        end_s = time.monotonic() + time_of_a_freeze_s
        while time.monotonic() < end_s:
            assert not stopped(job.process.pid)
            time.sleep(0.1)
        assert (node.grant("forever") or {})["held"] == ""
        job.kill()


def copied(directory: Path) -> Path:
    copy = directory / "libcuda.so.1"
    copy.write_bytes((SIM / "libcuda.so.1").read_bytes())
    copy.chmod(0o755)
    return copy


def test_a_copied_driver_is_named(observing: Node, tmp_path: Path) -> None:
    copy = copied(tmp_path)
    process = subprocess.Popen(
        [TENANT, "--warm", "0", "--seconds", "3600"],
        env={**observing.on_the_driver(), "LD_LIBRARY_PATH": str(tmp_path)},
        stdout=subprocess.DEVNULL,
    )
    try:
        (event,) = until(
            "its library is named", lambda: of_pid(observing, process.pid, "foreign_libcuda"), 10
        )
        assert json.loads(event["evidence"])["library"] == str(copy)
    finally:
        process.kill()
        process.wait(60)


def test_kill_is_for_who_asks_for_it(tmp_path: Path) -> None:
    settings = 'bare_metal = "kill"'
    with node_with(tmp_path, settings) as node:
        process = bare(node)
        until("it is frozen first", lambda: stopped(process.pid), CONTAINED_S * SLACK)
        assert process.poll() is None


def test_switched_off_it_says_nothing(tmp_path: Path) -> None:
    with node_with(tmp_path, "enabled = false") as node:
        process = bare(node)
        until(
            "it is on the GPU",
            lambda: (
                "sluice_gpu_processes" in node.metrics()
                and any(
                    line.startswith("sluice_gpu_processes{") and line.endswith(" 1")
                    for line in node.metrics().splitlines()
                )
            ),
        )
        assert events(node) == []
        process.kill()
