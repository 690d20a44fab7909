"""The card itself, what the doctor says, and what the daemon reports about a program that runs."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.gpu.play import play
from tests.gpu.stage import JOB, Stage
from tests.kit.node import until
from tests.kit.places import TENANT

GIB = 2**30
QUERY = "name,driver_version,memory.total,clocks.sm,clocks.mem,power.draw,temperature.gpu"


def machine(stage: Stage) -> None:
    if shutil.which("nvidia-smi") and not stage.simulated:
        for query in (f"--query-gpu={QUERY}", "--query-compute-apps=pid,process_name,used_memory"):
            done = subprocess.run(
                ["nvidia-smi", query, "--format=csv,noheader"], capture_output=True, text=True
            )
            stage.report.figure(query.partition("=")[0].strip("-"), done.stdout.strip() or "none")
    stage.report.figure("iterations of the test kernel in 1 ms", str(stage.per_ms))


def doctor(stage: Stage) -> None:
    done = stage.started().cli("doctor", check=False)
    print(done.stdout + done.stderr)
    stage.report.facts["doctor"] = done.stdout.splitlines()
    stage.report.row(
        "sluice doctor finds what it needs",
        "exit 0",
        f"exit {done.returncode}",
        done.returncode == 0,
    )


def memory(stage: Stage) -> None:
    arguments = ("--launches", "1", "--hold", str(6 * GIB), "--alloc", str(6 * GIB))
    held = stage.granted("memory", TENANT, *arguments, cores=50, gpumem="8Gi").result()
    for what, want, got, right in (
        (
            "6 GiB under a cap of 8 GiB",
            "error 0",
            f"error {held['hold_result']}",
            held["hold_result"] == 0,
        ),
        ("6 GiB more", "error 2", f"error {held['alloc_result']}", held["alloc_result"] == 2),
        (
            "memory it believes the GPU has",
            "8 GiB",
            f"{held['total_bytes'] / GIB:.2f} GiB",
            held["total_bytes"] == 8 * GIB,
        ),
    ):
        stage.report.row(what, want, got, right)


def told(stage: Stage) -> None:
    node, report = stage.started(), stage.report
    arguments = ("--kernel-ns", str(stage.per_ms), "--warm", "0", "--seconds", "60")
    job = stage.granted("told", JOB, "train", *arguments, cores=50)
    until("its kernels run", lambda: (node.grant("told") or {}).get("processes"), 30)
    time.sleep(stage.seconds(4))
    info, grants = node.info(), node.grants()
    report.facts |= {"top": info, "ps": grants, "metrics": node.metrics().splitlines()}
    numa_node(stage, info["gpus"][0])
    job.kill()
    (grant,) = (one for one in grants if one["name"] == "told")
    (device,) = grant["devices"]
    used, charged, (gpu, *_) = device["used_ratio"], device["memory_used_bytes"], info["gpus"]
    mine = [one["memory_bytes"] or 0 for one in info["processes"] if one["grant"] == grant["grant"]]
    report.row("share of 50 % as `sluice ps` shows it", "50 %", f"{used}", abs(used - 0.5) <= 0.05)
    report.row(
        "memory of its process, charged and by NVML",
        "NVML's is no more",
        f"{charged / GIB:.3f} and {json.dumps([one / GIB for one in mine])}",
        bool(mine) and sum(mine) <= charged,
    )
    report.row(
        "the card",
        "healthy, with power and temperature",
        f"{gpu['health']}, {gpu['power_watts']} W, {gpu['temperature_celsius']} degrees, {gpu['sm_count']} SMs",
        gpu["health"] == "healthy" and bool(gpu["power_watts"]) and bool(gpu["sm_count"]),
    )


def numa_node(stage: Stage, gpu: dict[str, Any]) -> None:
    """The daemon asks NVML; the kernel knows it by itself. -1: the machine has one NUMA node only, or does not say."""
    if stage.simulated:
        return
    device = Path("/sys/bus/pci/devices", gpu["pci_bus_id"][-12:].lower(), "numa_node")
    known = int(device.read_text()) if device.exists() else -1
    told = gpu.get("numa_node")
    stage.report.row("NUMA node of the card", f"{known}", f"{told}", told == known or known < 0)


def run(stage: Stage) -> None:
    play(
        stage.report,
        {
            "machine": lambda: machine(stage),
            "doctor": lambda: doctor(stage),
            "memory": lambda: memory(stage),
            "told": lambda: told(stage),
        },
    )
