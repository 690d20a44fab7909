"""Third parties' programs, unmodified, bare and in a grant: `make test-clients`.

Each sees the grant's memory, is stopped at the cap with its library's own error, recovers, and is measured at its share; tools that
read NVML see the grant's part of the node. Which versions: tests/clients/requirements.txt.
"""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.clients.running import (
    BARE,
    CARD_BYTES,
    CARD_NVML_MIB,
    GIB,
    GRANT,
    GRANTED,
    HERE,
    MIB,
    last_object,
    output,
    started,
    version,
    without,
)
from tests.clients.table import ROWS, Row
from tests.kit.measure import shares
from tests.kit.node import Node, until
from tests.kit.pods import Kubelet
from tests.peers.peer import SOURCES, build

pytestmark = [pytest.mark.clients, pytest.mark.timeout(5400)]  # the first makes the place

CUDA = {
    "cuda.bindings": ("use_cuda_bindings.py", "cuda-bindings"),
    "cuda.core": ("use_cuda_core.py", "cuda-core"),
    "numba-cuda": ("use_numba.py", "numba-cuda"),
    "PyCUDA": ("use_pycuda.py", "pycuda"),
    "Triton": ("use_triton.py", "triton"),
}


NOT_RUN = {
    "PyTorch": "cudaGetDeviceCount: invalid argument (1), without NVIDIA's private tables",
    "JAX": "finds the cards, then cudaErrorInvalidValue from the runtime, for the same reason",
    "CuPy": "cudaErrorInvalidValue of its first call, for the same reason",
}
"""In the table as well: what is not tried is not to be taken for tried."""


@pytest.mark.parametrize("client", CUDA)
def test_a_program_of_the_driver_api(node: Node, place: Path, client: str) -> None:
    program, distribution = CUDA[client]
    found = version(place, distribution)
    if not found:
        without(client, "PyPI has its source alone; not in the environment of the clients")
    command = (place / "bin" / "python", HERE / "programs" / program, "2")

    bare = last_object(output(node, BARE, *command))
    assert bare["total_bytes"] == CARD_BYTES
    assert bare["held_gib"] == (CARD_BYTES - 520 * 2**20) // GIB
    assert bare["refused"]
    assert bare["recovered"]
    ROWS.append(Row(client, found, BARE, "holds", bare))

    granted: list[dict[str, Any]] = []

    def measure() -> list[float]:
        granted.append(last_object(output(node, GRANTED, *command)))
        return [granted[-1]["share_ratio"]]

    shares(measure, [0.40], 0.05)
    told = granted[-1]
    assert told["total_bytes"] == 8 * GIB
    assert told["held_gib"] == 7, "8 GiB less what the context takes"
    assert told["refused"] == bare["refused"], "the library's own error, as without us"
    assert told["recovered"]
    ROWS.append(Row(client, found, GRANTED, "holds", told))


def test_gpustat(node: Node, place: Path) -> None:
    found = version(place, "gpustat")
    for where, totals in ((BARE, [CARD_NVML_MIB] * 2), (GRANTED, [8192])):
        text = output(node, where, place / "bin" / "python", "-m", "gpustat", "--json")
        gpus = json.loads(text[text.index("{") :])["gpus"]
        assert [gpu["memory.total"] for gpu in gpus] == totals
        ROWS.append(Row("gpustat", found, where, "holds", {"MiB": totals}))


def test_nvitop(node: Node, place: Path) -> None:
    found = version(place, "nvitop")
    for where, shown, count in ((BARE, "79.65GiB", 2), (GRANTED, "8192MiB", 1)):
        text = output(node, where, place / "bin" / "python", "-m", "nvitop", "-1", "--ascii")
        assert text.count("H100 80GB HBM3") == count, text
        assert shown in text, text
        ROWS.append(Row("nvitop", found, where, "holds", {"memory": shown, "GPUs": count}))


def screen(node: Node, where: str, command: Path, until: str) -> str:
    """Text that a program draws on a terminal until `until` appears; then its own key ends the
    program."""
    master, slave = pty.openpty()
    environment = node.environment() if where == GRANTED else node.on_the_driver()
    prefix: tuple[str | Path, ...] = ()
    if where == GRANTED:
        from tests.kit.places import SLUICE

        prefix = (SLUICE, "run", "--name", "screen", *GRANT, "--")
    process = subprocess.Popen(
        [*prefix, command],
        env=environment | {"TERM": "xterm", "LINES": "50", "COLUMNS": "160"},
        stdin=slave,
        stdout=slave,
        stderr=subprocess.STDOUT,
    )
    os.close(slave)
    drawn, end = "", time.monotonic() + 120
    try:
        while until not in drawn and time.monotonic() < end and process.poll() is None:
            if select.select([master], [], [], 1)[0]:
                drawn += os.read(master, 65536).decode(errors="replace")
        os.write(master, b"q")
        process.wait(60)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(master)
    return drawn


def test_nvtop(node: Node, place: Path) -> None:
    program = place / "bin" / "nvtop"
    if not program.exists():
        without("nvtop", "no package of Debian's to be had")
    for where, shown in ((BARE, "79.647Gi"), (GRANTED, "8.000Gi")):
        drawn = screen(node, where, program, shown)
        assert "H100 80GB HBM3" in drawn, drawn[-2000:]
        assert shown in drawn, drawn[-2000:]
        ROWS.append(Row("nvtop", "Debian's", where, "holds", {"memory": shown}))


PLUGIN = "github.com/NVIDIA/k8s-device-plugin/cmd/nvidia-device-plugin"
IN_ITS_PLACE = """
set -e
mount -t tmpfs none "$2"
mkdir "$2/kubelet" "$2/sluice-libraries"
mount --bind "$1" "$2/kubelet"
[ ! -d /var/lib/sluice-libraries ] || mount --bind /var/lib/sluice-libraries "$2/sluice-libraries"
mount --rbind "$2" /var/lib
exec "$0"
"""
"""The plugin's sockets have a fixed place. What `sluice run` gives a program is beside it and stays."""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="the kubelet's fixed path needs a mount namespace")
@pytest.mark.parametrize(("where", "cards"), [(BARE, 2), (GRANTED, 1)], ids=[BARE, GRANTED])
def test_nvidias_device_plugin(node: Node, tmp_path: Path, where: str, cards: int) -> None:
    """It offers the kubelet the cards it sees, hands one out, and withdraws one that has failed."""
    program = build("device_plugin", package=PLUGIN)
    found = re.findall(
        r"k8s-device-plugin (v\S+)", (SOURCES / "device_plugin" / "go.mod").read_text()
    )[0]
    uuids = {str(gpu["uuid"]) for gpu in node.info()["gpus"]}
    control = node.directory / "gpu" / "control"
    for name in ("kubelet", "lib"):
        (tmp_path / name).mkdir()
    kubelet = Kubelet(tmp_path / "kubelet")
    places = (tmp_path / "kubelet", tmp_path / "lib")
    plugin = started(node, where, "unshare", "--mount", "sh", "-c", IN_ITS_PLACE, program, *places)
    try:
        until("the kubelet has its devices", lambda: len(kubelet.healthy()) == cards)
        seen = set(kubelet.healthy())
        assert seen <= uuids
        pod = {"name": "train", "containers": [{"name": "main", "gpus": 1}]}
        uid = kubelet.do("admit", pod=pod)["uid"]
        answer = kubelet.do("start_container", uid=uid, container="main")["answer"]
        (given,) = answer["environment"]["NVIDIA_VISIBLE_DEVICES"].split(",")
        assert given in seen
        mine = [gpu["uuid"] for gpu in node.info()["gpus"]].index(given)
        control.write_text(f"xid=79@{mine}\n")
        until("a failed card is withdrawn", lambda: given not in kubelet.healthy())
        assert len(kubelet.healthy()) == cards - 1
    finally:
        control.unlink(missing_ok=True)
        plugin.terminate()
        plugin.communicate(timeout=60)
        kubelet.stop()
    ROWS.append(Row("device plugin", found, where, "holds", {"devices": cards}))


LSPCI = """#!/bin/sh
echo '10:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1)'
"""
"""all-smi looks for a card on the PCI bus before it asks NVML, and the simulated ones are on none."""


def test_all_smi(node: Node, place: Path, tmp_path: Path) -> None:
    program = place / "bin" / "all-smi"
    if not program.exists():
        without(
            "all-smi",
            "crates.io has its source alone; no cargo, protoc or libdrm to build it with here",
        )
    (tmp_path / "lspci").write_text(LSPCI)
    (tmp_path / "lspci").chmod(0o755)
    found = subprocess.run([program, "--version"], capture_output=True, text=True).stdout.split()[
        -1
    ]
    for where, cards, total in ((BARE, 2, CARD_NVML_MIB * MIB), (GRANTED, 1, 8 * GIB)):
        text = output(
            node,
            where,
            *("env", f"PATH={tmp_path}:{os.environ['PATH']}"),
            *(program, "snapshot", "--include", "gpu,process"),
        )
        gpus = json.loads(text[text.index("{") :])["gpus"]
        assert [gpu["name"] for gpu in gpus] == ["NVIDIA H100 80GB HBM3"] * cards
        assert [gpu["total_memory"] for gpu in gpus] == [total] * cards
        ROWS.append(Row("all-smi", found, where, "holds", {"GPUs": cards, "bytes": total}))


@pytest.mark.parametrize("client", NOT_RUN)
def test_what_is_not_run_is_named(client: str) -> None:
    without(client, NOT_RUN[client])
