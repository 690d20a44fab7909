"""Containers as a runtime starts them with the devices that the kubelet names."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from tests.kit.measure import ahead
from tests.kit.places import REPO, TENANT
from tests.kit.pods import PodNode


def container(
    place: PodNode,
    devices: Sequence[str],
    *command: str,
    env: dict[str, str] | None = None,
    measured: bool = False,
) -> subprocess.Popen[str]:
    """Start a container as the runtime does when the kubelet hands it these devices."""
    gpu = place.node.directory / "gpu"
    flags = ["--cdi-dir", str(place.cdi_dir)]
    for device in devices:
        flags += ["--device", device]
    for shared in (f"{gpu}:{gpu}", f"{TENANT}:{TENANT}:ro"):
        flags += ["--volume", shared]
    simulated = {"SLUICE_SIM_DIR": str(gpu), "SLUICE_SIM_GPUS": place.node.gpus}
    for name, value in (simulated | (env or {})).items():
        flags += ["--env", f"{name}={value}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.kit.fakes.runtime", "run", *flags, "--", *command],
        cwd=REPO,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    if measured:
        ahead(process.pid)
    return process


def result(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=120)
    lines = [line for line in out.splitlines() if line.startswith("{")]
    assert lines, f"exit {process.returncode}: {err[-2000:]}"
    found: dict[str, Any] = json.loads(lines[-1])
    return found
