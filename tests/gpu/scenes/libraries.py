"""Scene F: programs that fill a grant, each by its own way to memory: libraries of other people, and the driver's own ways.
All of a group run side by side, and what each has on the card is NVML's figure of its process."""

from __future__ import annotations

import functools
import json
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.gpu.jobs.fill import BLOCK
from tests.gpu.jobs.pythons import python_with
from tests.gpu.play import play
from tests.gpu.stage import WAYS as DRIVER_WAYS
from tests.gpu.stage import Stage
from tests.kit.node import Node, NodeError
from tests.kit.places import SLUICE

GIB = 2**30
JOB = Path(__file__).resolve().parents[1] / "jobs" / "fill.py"
CAP_BYTES = 6 * GIB
LEAST_BYTES = CAP_BYTES - 2 * GIB
"""Least that a program gets: of a grant of 6 GiB a context with its libraries' kernels may take one
GiB, and a library's allocation step another."""
LIBRARIES = {
    "torch": ("PyTorch", "torch"),
    "torch-segments": ("PyTorch, expandable segments", "torch"),
    "torch-async": ("PyTorch, cudaMallocAsync", "torch"),
    "cupy": ("CuPy", "cupy"),
    "cupy-async": ("CuPy, cudaMallocAsync", "cupy"),
    "cupy-managed": ("CuPy, managed memory", "cupy"),
    "jax": ("JAX", "jax"),
    "numba": ("Numba", "numba.cuda"),
}
OF_THE_DRIVER = {
    "driver": "cuMemAlloc",
    "driver-pool": "cuMemAllocAsync",
    "driver-vmm": "cuMemCreate and cuMemMap",
    "driver-exported": "the same, exported as descriptors",
    "driver-arrays": "cuArrayCreate",
    "driver-graph": "memory nodes of graphs",
}
WITHIN_S = 90.0
READINGS_S = 2.5
"""Seconds until NVML's figures have been read since all were full; the daemon reads once a second."""


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


def start(stage: Stage, way: str, command: tuple[str | Path, ...]) -> subprocess.Popen[str]:
    flags = ("--gpumem", f"{CAP_BYTES // GIB}Gi", "--cores", "100", "--policy", "elastic")
    return subprocess.Popen(
        [SLUICE, "run", *flags, "--name", way, "--", *command],
        env=stage.node.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def release(process: subprocess.Popen[str]) -> bool:
    """Let it give all back; True if it can take memory again then."""
    assert process.stdin is not None
    try:
        process.stdin.write("\n")
        process.stdin.flush()
        return bool(line(process).get("recovered"))
    except (OSError, NodeError):
        return False


def report_fill(
    stage: Stage,
    name: str,
    way: str,
    told: dict[str, Any],
    taken: int,
    charged: int,
    recovered: bool,
) -> None:
    stage.report.facts.setdefault("fills", []).append(
        {"way": way, "on_the_card_bytes": taken, "charged_bytes": charged} | told
    )
    stage.report.row(
        f"{name} fills a grant of 6 GiB",
        "refused, no more than 6 GiB on the card, and recovers",
        f"{'refused' if told['refused'] else 'no refusal'} at {told['held_bytes'] / GIB:.2f} GiB,"
        f" {taken / GIB:.3f} on the card, {charged / GIB:.3f} charged,"
        f" {'recovered' if recovered else 'not recovered'}",
        bool(told["refused"])
        and LEAST_BYTES <= told["held_bytes"] <= CAP_BYTES - BLOCK
        and taken <= CAP_BYTES
        and charged <= CAP_BYTES
        and recovered,
    )
    stage.report.row(
        f"{name}: what it believes the GPU has",
        "6 GiB",
        f"{told['total_bytes'] / GIB:.2f} GiB",
        abs(told["total_bytes"] - CAP_BYTES) < 2**20,
    )


def fill_all(stage: Stage, group: dict[str, tuple[str, tuple[str | Path, ...]]]) -> None:
    """Each way: (name, command). All at once; first all are full, then what they hold is read, then they end."""
    node = stage.started()
    processes = {way: start(stage, way, command) for way, (_, command) in group.items()}
    try:
        full: dict[str, dict[str, Any]] = {}
        with ThreadPoolExecutor(len(processes)) as pool:
            answers = {way: pool.submit(line, process) for way, process in processes.items()}
        for way, answer in answers.items():
            if error := answer.exception():
                stage.report.row(
                    f"{group[way][0]} fills a grant", "refused", str(error)[-300:], False
                )
            else:
                full[way] = answer.result()
        time.sleep(READINGS_S)
        info, grants = node.info(), {grant["name"]: grant for grant in node.grants()}
        for way, told in full.items():
            grant = grants[way]
            taken = sum(
                one["memory_bytes"] or 0
                for one in info["processes"]
                if one["grant"] == grant["grant"]
            )
            charged = grant["devices"][0]["memory_used_bytes"]
            recovered = release(processes[way])
            report_fill(stage, group[way][0], way, told, taken, charged, recovered)
    finally:
        for process in processes.values():
            process.kill()
            process.communicate()


def run(stage: Stage) -> None:
    libraries: dict[str, tuple[str, tuple[str | Path, ...]]] = {}
    for way, (name, module) in LIBRARIES.items():
        python = python_with(module)
        if python is None:
            stage.report.figure(name, "not on this machine")
        else:
            libraries[way] = (name, (python, JOB, way))
    drivers: dict[str, tuple[str, tuple[str | Path, ...]]] = {
        way: (name, (DRIVER_WAYS, way)) for way, name in OF_THE_DRIVER.items()
    }
    parts: dict[str, Callable[[], None]] = {
        "the driver's ways": functools.partial(fill_all, stage, drivers)
    }
    if libraries:
        parts["libraries"] = functools.partial(fill_all, stage, libraries)
    play(stage.report, parts)
