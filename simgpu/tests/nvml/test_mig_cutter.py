"""The code of the process that makes MIG instances: its errors for a card that a process holds open, and without root."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.places import REPO, SIM
from tests.kit.simulator.clients import Card, Cuda, card

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="changing MIG is root's")

GPUS = "h100-80gb:3g.40gb,h100-80gb"
AS_NOBODY = "import os, sys; from nodeagent.adapters.nvml import mig_child as c; c.Cutter(None); os.seteuid(65534); sys.exit(c.main())"


@pytest.fixture
def gpus(tmp_path: Path) -> Iterator[Card]:
    with card(tmp_path / "sim", GPUS) as it:
        yield it


def ask(gpus: Card, program: tuple[str, ...] = (), **request: Any) -> Any:
    done = subprocess.run(
        [sys.executable, *(program or ("-m", "nodeagent.adapters.nvml.mig_child"))],
        input=json.dumps(request) + "\n",
        env={
            **os.environ,
            "PYTHONPATH": str(REPO),
            "LD_LIBRARY_PATH": str(SIM),
            "SLUICE_SIM_DIR": str(gpus.directory),
            "SLUICE_SIM_GPUS": GPUS,
        },
        text=True,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def uuids(gpus: Card) -> list[str]:
    return [one["gpu"] for one in ask(gpus, do="states")["states"]]


def _hold(cuda: Cuda) -> None:
    cuda.context(1)


def test_whoever_came_between_the_look_and_the_change_is_found(gpus: Card) -> None:
    client = gpus.client()
    client.call(_hold)
    outcome = ask(gpus, do="change", gpu=uuids(gpus)[1], wanted=["7g.80gb"])["outcome"]
    assert outcome["error"].startswith("in use by ")
    assert f"(pid {client.pid})" in outcome["error"]
    assert outcome["after"] == outcome["before"]
    assert outcome["before"]["processes"][0]["uid"] == 0


def test_without_root_nothing_is_changed_and_it_says_why(gpus: Card) -> None:
    wanted = ["1g.10gb"]
    outcome = ask(gpus, ("-c", AS_NOBODY), do="change", gpu=uuids(gpus)[0], wanted=wanted)
    found = outcome["outcome"]
    assert "3g.40gb at 0:4 cannot be destroyed: permission denied by the driver" in found["error"]
    assert [one["profile"] for one in found["after"]["instances"]] == ["3g.40gb"]
    assert len(found["after"]["instances"][0]["devices"]) == 1


def test_an_instance_that_nobody_can_use_is_made_anew(gpus: Card) -> None:
    """`nvidia-smi mig -cgi` without `-C` leaves such an instance."""
    first = uuids(gpus)[0]
    gpus.control("fail=nvmlGpuInstanceCreateComputeInstance:0:999")
    failed = ask(gpus, do="change", gpu=first, wanted=["2g.20gb"])["outcome"]
    assert "2g.20gb at 4:2 cannot be made: Unknown Error; undoing it failed too" in failed["error"]
    assert not failed["rolled_back"]
    (half,) = failed["after"]["instances"]
    assert (half["profile"], half["devices"]) == ("3g.40gb", [])
    gpus.control()
    done = ask(gpus, do="change", gpu=first, wanted=["3g.40gb"])["outcome"]
    assert done["error"] == ""
    assert len(done["after"]["instances"][0]["devices"]) == 1


def test_a_library_that_is_not_there_is_named(gpus: Card) -> None:
    program = ("-m", "nodeagent.adapters.nvml.mig_child", "/nowhere/libnvidia-ml.so.1")
    assert "/nowhere/libnvidia-ml.so.1" in ask(gpus, program, do="states")["error"]


@pytest.mark.parametrize(
    ("at", "wanted", "call"),
    [
        (1, ["7g.80gb"], "nvmlDeviceCreateGpuInstanceWithPlacement:1:23"),
        (0, None, "nvmlDeviceSetMigMode:1:19"),
        (0, ["7g.80gb"], "nvmlGpuInstanceDestroy:1:19"),
    ],
    ids=["the mode goes off again", "the instances come back", "what was destroyed comes back"],
)
def test_every_step_is_taken_back(gpus: Card, at: int, wanted: Any, call: str) -> None:
    gpu = uuids(gpus)[at]
    gpus.control(f"fail={call}")
    outcome = ask(gpus, do="change", gpu=gpu, wanted=wanted)["outcome"]
    assert outcome["error"] != ""
    assert outcome["rolled_back"]
    assert outcome["after"]["instances"] == outcome["before"]["instances"]
    assert outcome["after"]["enabled"] is (at == 0)
