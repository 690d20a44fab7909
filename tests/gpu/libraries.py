"""Libraries of other people that fill a grant, each by its own way to memory: what do they hold, and what says the card?"""

from __future__ import annotations

import functools
import json
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from tests.gpu.fill_job import BLOCK
from tests.gpu.pythons import python_with
from tests.gpu.scenes import play
from tests.kit.node import Node, NodeError
from tests.kit.places import SLUICE
from tests.kit.report import Report, heading

GIB = 2**30
JOB = Path(__file__).with_name("fill_job.py")
CAP_BYTES = 6 * GIB
LEAST_BYTES = CAP_BYTES - 2 * GIB
"""Least that a program gets: of a grant of 6 GiB a context with its libraries' kernels may take one
GiB, and a library's allocation step another."""
WAYS = {
    "torch": ("PyTorch", "torch"),
    "torch-segments": ("PyTorch, expandable segments", "torch"),
    "torch-async": ("PyTorch, cudaMallocAsync", "torch"),
    "cupy": ("CuPy", "cupy"),
    "cupy-async": ("CuPy, cudaMallocAsync", "cupy"),
    "cupy-managed": ("CuPy, managed memory", "cupy"),
    "jax": ("JAX", "jax"),
    "numba": ("Numba", "numba.cuda"),
}
WITHIN_S = 90.0


def line(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next JSON object that it prints; libraries print lines of their own. Without one in WITHIN_S it is killed."""
    assert process.stdout is not None
    end = threading.Timer(WITHIN_S, process.kill)
    end.start()
    try:
        for text in process.stdout:
            if text.startswith("{"):
                told: dict[str, Any] = json.loads(text)
                return told
    finally:
        end.cancel()
    raise NodeError(f"ended with {process.wait()} and no word")


def on_the_card(node: Node) -> int:
    """Bytes in use on the first GPU, by NVML, once they are the same twice."""
    last = -1
    while (now := int(node.info()["gpus"][0]["memory_used_bytes"])) != last:
        last = now
        time.sleep(1.2)  # the daemon looks once a second
    return now


def fill(node: Node, report: Report, way: str) -> None:
    name, module = WAYS[way]
    python = python_with(module)
    if python is None:
        print(f"  --   {name}: not on this machine")
        return
    before = on_the_card(node)
    flags = ("--gpumem", f"{CAP_BYTES // GIB}Gi", "--cores", "100", "--name", way)
    process = subprocess.Popen(
        [SLUICE, "run", *flags, "--", python, JOB, way],
        env=node.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        told = line(process)
        taken = on_the_card(node) - before
        grant = node.grant(way)
        charged = grant["devices"][0]["memory_used_bytes"] if grant else -1
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        recovered = line(process).get("recovered")
    finally:
        process.kill()
        process.communicate()
    report.facts.setdefault("fills", []).append(
        {"way": way, "on_the_card_bytes": taken, "charged_bytes": charged} | told
    )
    report.row(
        f"{name} fills a grant of 6 GiB",
        "refused, no more than 6 GiB on the card",
        f"{'refused' if told['refused'] else 'no refusal'} at {told['held_bytes'] / GIB:.2f} GiB,"
        f" {taken / GIB:.3f} on the card, {charged / GIB:.3f} charged",
        bool(told["refused"])
        and LEAST_BYTES <= told["held_bytes"] <= CAP_BYTES - BLOCK
        and taken <= CAP_BYTES
        and charged <= CAP_BYTES
        and bool(recovered),
    )
    report.row(
        f"{name}: what it believes the GPU has",
        "6 GiB",
        f"{told['total_bytes'] / GIB:.2f} GiB",
        abs(told["total_bytes"] - CAP_BYTES) < 2**20,
    )


def run(node: Node, report: Report) -> None:
    heading("Memory, by libraries of others")
    play(
        report,
        {name: functools.partial(fill, node, report, way) for way, (name, _) in WAYS.items()},
    )
