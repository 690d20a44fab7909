"""Runs every scene, prints a table, writes build/demo.json, and exits non-zero if any promise did not hold.

Shares are measured by what tenants got done (launches of a known length over wall time), memory by what the driver
says was used, never by what Sluice says of itself.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable

from tests.demo.queue import the_queue
from tests.kit.driver_memory import used_bytes
from tests.kit.node import Node, running, soon_ns, until
from tests.kit.places import BUILD
from tests.kit.report import Report, heading
from tests.kit.workplace import workplace

GIB = 2**30
MS = "1000000"
QUOTA_BACK_S = 1.0
CUDA_ERROR_OUT_OF_MEMORY = 2


def gpu(node: Node, index: int) -> str:
    uuid: str = next(g["uuid"] for g in node.info()["gpus"] if g["index"] == index)
    return uuid


def side_by_side(node: Node, report: Report) -> None:
    heading("Two jobs on one GPU: 30 % and 70 % of its time")
    uuid, start = gpu(node, 0), soon_ns(3)
    jobs = [
        (
            want,
            node.run_tenant(
                f"share-{want}",
                "--kernel-ns",
                MS,
                "--warm",
                "2",
                "--seconds",
                "6",
                "--start-ns",
                start,
                flags=("--gpu-uuid", uuid, "--gpumem", "8Gi", "--cores", str(want)),
            ),
        )
        for want in (30, 70)
    ]
    for want, job in jobs:
        report.share(f"a job that may use {want} %", want / 100, job.result()["share_ratio"])


def out_of_memory(node: Node, report: Report) -> None:
    heading("A job asks for more memory than its cap; its neighbour goes on")
    uuid = gpu(node, 0)
    before = used_bytes(node, 0)
    neighbour = node.run_tenant(
        "neighbour",
        "--kernel-ns",
        MS,
        "--seconds",
        "4",
        "--hold",
        str(2 * GIB),
        flags=("--gpu-uuid", uuid, "--gpumem", "4Gi", "--cores", "40"),
    )
    greedy = node.run_tenant(
        "greedy",
        "--launches",
        "10",
        "--hold",
        str(GIB),
        "--alloc",
        str(4 * GIB),
        "--idle",
        "60",
        flags=("--gpu-uuid", uuid, "--gpumem", "4Gi", "--cores", "40"),
    )
    assert greedy.process.stdout is not None
    answer = json.loads(greedy.process.stdout.readline())
    peak = used_bytes(node, 0) - before
    greedy.kill()
    went_on = neighbour.result()
    denied = answer["alloc_result"] == CUDA_ERROR_OUT_OF_MEMORY and answer["hold_result"] == 0
    overshoot = max(0, peak - 8 * GIB)
    report.facts |= {"oom_denied": denied, "overshoot_bytes": overshoot}
    report.row(
        "4 GiB more under a cap of 4 GiB",
        "CUDA_ERROR_OUT_OF_MEMORY",
        f"error {answer['alloc_result']}",
        denied,
    )
    report.row(
        "memory it believes the GPU has",
        "4.0 GiB",
        f"{answer['total_bytes'] / GIB:.1f} GiB",
        answer["total_bytes"] == 4 * GIB,
    )
    report.row(
        "the driver's own count beyond the caps", "0 bytes", f"{overshoot} bytes", overshoot == 0
    )
    report.row(
        "its neighbour meanwhile",
        "exit 0, launches go on",
        f"exit {went_on['exit']}, {went_on['launches']}",
        went_on["exit"] == 0 and went_on["launches"] > 0,
    )


def resize(node: Node, report: Report) -> None:
    heading("A resize while the job runs: from 20 % to 60 %")
    job = node.run_tenant(
        "grows",
        "--kernel-ns",
        MS,
        "--warm",
        "1",
        "--seconds",
        "8",
        "--report",
        "0.5",
        flags=("--gpu-uuid", gpu(node, 1), "--gpumem", "8Gi", "--cores", "20"),
    )
    until(
        "the job runs",
        lambda: (g := node.grant("grows")) and g["devices"][0]["launches_total"] > 300,
    )
    node.cli("resize", "grows", "--cores", "60")
    at_ns = time.monotonic_ns()
    reports = job.result()["reports"]
    before = [r["share_ratio"] for r in reports if r["at_ns"] <= at_ns]
    after = [r["share_ratio"] for r in reports if r["at_ns"] >= at_ns + 1_000_000_000]
    report.share("before the resize", 0.2, sum(before) / len(before))
    report.share("after the resize", 0.6, sum(after) / len(after))


def quota_back(node: Node, report: Report) -> None:
    heading("A job is killed with SIGKILL while it holds memory")
    flags = ("--gpu-uuid", gpu(node, 1), "--gpumem", "60Gi", "--cores", "90")
    holds = ("--launches", "100", "--hold", str(20 * GIB), "--idle", "600")
    job = node.run_tenant("victim", *holds, flags=flags)
    assert job.process.stdout is not None
    job.process.stdout.readline()
    assert node.grant("victim") is not None
    began = time.monotonic()
    job.kill()
    # The proof is another job that needs the same quota, not a number on a screen.
    refused = 0
    while True:
        next_job = node.run_tenant("successor", "--launches", "1", flags=(*flags, "--wait", "5"))
        if next_job.process.wait() == 0 or refused > 10:
            break
        refused += 1
    whole_s = time.monotonic() - began
    began = time.monotonic()
    job = node.run_tenant("victim-2", *holds, flags=flags)
    assert job.process.stdout is not None
    job.process.stdout.readline()
    began = time.monotonic()
    os.kill(job.process.pid, signal.SIGKILL)
    until("the grant is gone", lambda: node.grant("victim-2") is None, 10)
    back_s = time.monotonic() - began
    job.process.wait()
    report.facts["quota_back_s"] = round(back_s, 3)
    report.row(
        "its quota is back", f"within {QUOTA_BACK_S:g} s", f"{back_s:.2f} s", back_s <= QUOTA_BACK_S
    )
    report.row(
        "another job gets the same quota",
        "exit 0",
        f"exit {next_job.process.returncode} after {whole_s:.1f} s",
        next_job.process.returncode == 0,
    )


def daemon_dies(node: Node, report: Report) -> None:
    heading("kill -9 of the daemon while jobs run, and its return")
    start = soon_ns(3)
    jobs = [
        node.run_tenant(
            f"survivor-{index}",
            "--kernel-ns",
            MS,
            "--warm",
            "1",
            "--seconds",
            "8",
            "--start-ns",
            start,
            flags=("--gpu-uuid", gpu(node, index), "--gpumem", "8Gi", "--cores", "50"),
        )
        for index in (0, 1)
    ]
    until(
        "both jobs run",
        lambda: (
            len(
                [
                    g
                    for g in node.grants()
                    if g["name"].startswith("survivor") and g["devices"][0]["launches_total"] > 100
                ]
            )
            == 2
        ),
    )
    before = {g["grant"] for g in node.grants()}
    node.kill_daemon()
    running_without = all(job.process.poll() is None for job in jobs)
    node.start()
    adopted = {g["grant"] for g in node.grants()} == before
    results = [job.result() for job in jobs]
    survived = running_without and all(r["exit"] == 0 for r in results)
    report.facts["jobs_survived_daemon_kill"] = survived and adopted
    report.row(
        "jobs while the daemon was dead",
        "run to their end",
        "exit " + ", ".join(str(r["exit"]) for r in results),
        survived,
    )
    report.row(
        "the daemon that came back",
        "knows the same grants",
        "the same" if adopted else "others",
        adopted,
    )
    for index, result in enumerate(results):
        report.share(
            f"50 % cap through the daemon's death, GPU {index}", 0.5, result["share_ratio"]
        )


SCENES: list[Callable[[Node, Report], None]] = [
    side_by_side,
    out_of_memory,
    resize,
    quota_back,
    daemon_dies,
]


def main() -> int:
    report = Report()
    with workplace() as directory, running(directory, gpus="2xh100-80gb") as node:
        print("A node with two simulated GPUs:")
        print(node.cli("top", "-n", "1").stdout)
        try:
            for scene in SCENES:
                scene(node, report)
        except BaseException:
            print((directory / "daemon.log").read_text()[-4000:], file=sys.stderr)
            raise
    heading("The queue in front of a node: two teams, four half GPUs")
    with workplace() as directory:
        the_queue(directory, report)
    (BUILD / "demo.json").write_text(json.dumps(report.facts, indent=1) + "\n")
    print(
        f"\n{'Everything held.' if report.held else 'NOT everything held.'} Figures: build/demo.json"
    )
    return 0 if report.held else 1


if __name__ == "__main__":
    sys.exit(main())
