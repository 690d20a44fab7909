"""Programs of other people that are at hand without an environment of their own: part of `make test`."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from pathlib import Path

import pytest

from tests.clients.running import (
    BARE,
    CARD_NVML_MIB,
    GIB,
    GRANTED,
    HERE,
    last_object,
    output,
    version,
    without,
)
from tests.clients.table import ROWS, Row
from tests.kit.node import Node
from tests.kit.places import SIM
from tests.peers.peer import SOURCES, build


def test_every_getter_of_nvidia_ml_py(node: Node) -> None:
    found = version(Path(sys.prefix), "nvidia-ml-py")
    command = (Path(sys.prefix) / "bin" / "python", HERE / "programs" / "nvml_getters.py")
    for where, devices, total in ((BARE, 2, CARD_NVML_MIB * 2**20), (GRANTED, 1, 8 * GIB)):
        told = last_object(output(node, where, *command))
        assert told["missing"] == [], "every name that the package asks for is exported"
        assert told["answers"]["answered"] > 60
        assert told["devices"] == devices
        assert abs(told["total_bytes"] - total) < 2**20
        ROWS.append(Row("nvidia-ml-py", found, where, "holds", told))


CTK = "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-ctk"


@pytest.mark.peers
@pytest.mark.timeout(1800)
def test_nvidia_ctk_writes_a_specification_of_the_cards(node: Node, tmp_path: Path) -> None:
    """NVIDIA's own generator for CDI finds the simulated node's cards, device files and driver by itself."""
    if os.geteuid():
        without("nvidia-ctk", "device files need root")
    program = build("ctk", package=CTK)
    pins = (SOURCES / "ctk" / "go.mod").read_text()
    found = re.findall(r"nvidia-container-toolkit (v\S+)", pins)[0]
    root = tmp_path / "root"
    (root / "dev").mkdir(parents=True)
    for name, minor in (("nvidia0", 0), ("nvidia1", 1), ("nvidiactl", 255)):
        os.mknod(root / "dev" / name, 0o666 | stat.S_IFCHR, os.makedev(195, minor))
    command = (
        *(program, "--quiet", "cdi", "generate", "--mode", "nvml", "--format", "json"),
        *("--dev-root", root, "--library-search-path", SIM),
    )
    for where, cards in ((BARE, 2), (GRANTED, 1)):
        told = output(node, where, *command)
        specification = json.loads(told[told.index("{") :])
        names = {device["name"] for device in specification["devices"]}
        assert specification["kind"] == "nvidia.com/gpu"
        assert len([name for name in names if name.startswith("GPU-")]) == cards
        assert {str(index) for index in range(cards)} | {"all"} <= names
        edits = [specification["containerEdits"]]
        edits += [device["containerEdits"] for device in specification["devices"]]
        nodes = {one["path"] for edit in edits for one in edit.get("deviceNodes", [])}
        mounts = {Path(one["hostPath"]).name for edit in edits for one in edit.get("mounts", [])}
        assert {"/dev/nvidiactl", *(f"/dev/nvidia{index}" for index in range(cards))} <= nodes
        assert {"libcuda.so.580.95.05", "libnvidia-ml.so.580.95.05"} <= mounts
        ROWS.append(Row("nvidia-ctk", found, where, "holds", {"devices": cards}))
