"""How a third party's program is run: bare, and in a grant; and what the cards are."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.clients.table import ROWS, Row
from tests.kit.measure import ahead
from tests.kit.node import Node

MIB, GIB = 2**20, 2**30
GRANT = ("--gpumem", "8Gi", "--cores", "40")
CARD_BYTES = 81_008 * 2**20
CARD_NVML_MIB = 81_559
"""Memory of the card as NVML and its tools count it, with the driver's own part."""
BARE, GRANTED = "bare", "in a grant"
HERE = Path(__file__).resolve().parent


def version(place: Path, distribution: str) -> str:
    script = f"import importlib.metadata as m; print(m.version({distribution!r}))"
    done = subprocess.run(
        [place / "bin" / "python", "-c", script], capture_output=True, text=True, timeout=120
    )
    return done.stdout.strip()


def started(node: Node, where: str, *command: str | Path) -> subprocess.Popen[str]:
    """A command straight on the driver, or under `sluice run`; on the first card alone in both cases."""
    if where == GRANTED:
        return node.run("client", *command, flags=GRANT, measured=True).process
    process = subprocess.Popen(
        command,
        env=node.on_the_driver() | {"CUDA_VISIBLE_DEVICES": "0"},
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    ahead(process.pid)
    return process


def output(node: Node, where: str, *command: str | Path) -> str:
    process = started(node, where, *command)
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 0, out[-2000:]
    return out


def last_object(text: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads([row for row in text.splitlines() if row.startswith("{")][-1])
    return told


def without(client: str, why: str) -> None:
    for where in (BARE, GRANTED):
        ROWS.append(Row(client, "", where, f"not run: {why}"))
    pytest.skip(f"{client}: {why}")
