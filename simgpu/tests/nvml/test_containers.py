"""The simulated node as containers see it: pids are those of their own namespace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.node import until
from tests.kit.places import SIM, TENANT
from tests.kit.simulator.clients import Card, card

GPUS = "h100-80gb"
NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="a PID namespace wants root")


@pytest.fixture
def gpus(tmp_path: Path) -> Iterator[Card]:
    with card(tmp_path / "sim", GPUS) as it:
        yield it


def environment(gpus: Card) -> dict[str, str]:
    return {
        **os.environ,
        "SLUICE_SIM_DIR": str(gpus.directory),
        "SLUICE_SIM_GPUS": GPUS,
        "LD_LIBRARY_PATH": str(SIM),
    }


def nvml(gpus: Card, expression: str, *before: str) -> Any:
    script = f"import json, pynvml as n\nn.nvmlInit()\ngpu = n.nvmlDeviceGetHandleByIndex\nprint(json.dumps({expression}))"
    done = subprocess.run(
        [*before, sys.executable, "-c", script],
        env=environment(gpus),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return json.loads(done.stdout)


PIDS = "[p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(gpu(0))]"


@as_root
def test_nvml_names_a_process_by_its_pid_where_nvml_is_asked(gpus: Card) -> None:
    inside = subprocess.Popen(
        [*NAMESPACE, TENANT, "--warm", "0", "--launches", "1", "--idle", "3600"],
        env=environment(gpus),
        stdout=subprocess.DEVNULL,
    )
    try:
        (pid,) = until("the process is on the GPU", lambda: nvml(gpus, PIDS) or None)
        assert Path(f"/proc/{pid}/exe").resolve() == TENANT.resolve()
        status = Path(f"/proc/{pid}/status").read_text()
        assert "NSpid:\t" in status
        assert status.split("NSpid:\t")[1].split("\n")[0].split()[1:] == ["1"]
        assert nvml(gpus, PIDS, *NAMESPACE) == [], "another container does not see it"
        at_pid = nvml(gpus, PIDS, "nsenter", "--target", str(pid), "--pid", "--mount")
        assert at_pid == [1]
    finally:
        inside.kill()
        inside.wait()
