"""Programs that nobody here wrote, unmodified, bare and in a grant: `make test-clients`.

Each sees the grant's memory, is stopped at the cap with its library's own error, recovers, and is measured at its share; tools that
read NVML see the grant's part of the node. Which versions: tests/clients/requirements.txt.
"""

from __future__ import annotations

import json
import os
import pty
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
    last_object,
    output,
    version,
    without,
)
from tests.clients.table import ROWS, Row
from tests.measure import shares
from tests.node import Node

pytestmark = [pytest.mark.clients, pytest.mark.timeout(1800)]

CUDA = {
    "cuda.bindings": ("use_cuda_bindings.py", "cuda-bindings"),
    "cuda.core": ("use_cuda_core.py", "cuda-core"),
    "numba-cuda": ("use_numba.py", "numba-cuda"),
    "PyCUDA": ("use_pycuda.py", "pycuda"),
    "Triton": ("use_triton.py", "triton"),
}


NOT_RUN = {
    "all-smi": "a Rust crate, which nothing here builds yet",
    "device plugin": "NVIDIA's k8s-device-plugin is not to be had as a Go module",
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
    """What a program draws on a terminal, until it has drawn that text; then it is asked to end by its key."""
    master, slave = pty.openpty()
    environment = node.environment() if where == GRANTED else node.on_the_driver()
    prefix: tuple[str | Path, ...] = ()
    if where == GRANTED:
        from tests.places import SLUICE

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


@pytest.mark.parametrize("client", NOT_RUN)
def test_what_is_not_run_is_named(client: str) -> None:
    without(client, NOT_RUN[client])
