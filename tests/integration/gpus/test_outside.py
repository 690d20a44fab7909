"""On simulated GPUs: the doctor reports what runs beside the grants and is not divided by them, and a grant that is
smaller than the driver's own needs is reported before its program starts."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.kit.node import Node, running, until
from tests.kit.places import AT_REST, SLUICE, TENANT


def doctor(node: Node) -> str:
    return node.cli("doctor", check=False).stdout


def test_the_doctor_tells_of_graphics_and_of_an_mps_server(tmp_path: Path) -> None:
    server = tmp_path / "nvidia-cuda-mps-server"
    shutil.copy(TENANT, server)
    with running(tmp_path / "n", gpus="2xh100-80gb") as node:
        before = doctor(node)
        assert "graphics" not in before
        assert "an MPS server runs" not in before

        (node.directory / "gpu" / "control").write_text(f"graphics={os.getpid()}:300@1\n")
        mps = node.bare(server, *AT_REST)
        until("graphics are told", lambda: "graphics on GPU 1" in doctor(node))
        text = doctor(node)
        assert f"pid {os.getpid()}, 300Mi" in text
        until(
            "MPS is told",
            lambda: f"an MPS server runs: pid {mps.process.pid} on GPU 0" in doctor(node),
        )
        # A graphics program is no evader: it has no context for compute.
        kinds = {(event["kind"], event["pid"]) for event in node.cli_json("events")}
        assert ("unregistered_gpu_user", os.getpid()) not in kinds


def test_the_doctor_tells_of_an_mps_control_daemon_by_its_pipes(tmp_path: Path) -> None:
    environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}

    def told() -> str:
        done = subprocess.run(
            [SLUICE, "doctor", "--socket", tmp_path / "none"],
            env=environment,
            capture_output=True,
            text=True,
        )
        return done.stdout

    assert "mps control" not in told()
    (tmp_path / "control").touch()
    assert f"the control daemon of an MPS server has its pipes in {tmp_path}" in told()


def test_a_grant_smaller_than_the_drivers_own_memory_is_told_before_the_program_starts(
    tmp_path: Path,
) -> None:
    with running(tmp_path / "n", gpus="1xh100-80gb") as node:
        told = {
            size: node.cli("run", *quiet, "--gpumem", size, "--cores", "10", "--", "true").stderr
            for size, quiet in (("800Mi", ()), ("2Gi", ()), ("900Mi", ("--quiet",)))
        }
    assert "the driver itself takes up to 1050 MiB for each process" in told["800Mi"]
    assert told["2Gi"] == ""
    assert told["900Mi"] == ""
