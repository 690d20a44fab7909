"""The queue in front of a node: two teams in a cohort, borrowing, a preemption that pauses, and why a job waits."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, Protocol

from tests.kit.node import Node, Tenant, running, until
from tests.kit.places import SLUICE, TENANT
from tests.kit.queue.controller import QueueController, serving

MS = "1000000"
HALF = ("--gpumem", "20Gi", "--cores", "50")
LONG, SHORT = "4000", "1500"
"""Launches of 1 ms: at half a GPU, 8 s and 3 s."""


class Rows(Protocol):
    facts: dict[str, Any]

    def row(self, what: str, want: str, got: str, held: bool) -> None: ...


def the_queue(directory: Path, report: Rows) -> None:
    with serving(
        directory / "queue", settings=["nodes.report_s=0.5", "workloads.grace_s=2"]
    ) as controller:
        controller.apply((Path(__file__).parent / "teams.yaml").read_text())
        settings = f'[queue]\nserver = "{controller.address}"\nnode_name = "demo-1"\n'
        with running(directory / "node", gpus="2xh100-80gb", settings=settings) as node:
            until(
                "the node is in the queue", lambda: "Ready" in controller.cli("get", "nodes").stdout
            )
            try:
                _scene(controller, node, report)
            except BaseException:
                print(
                    (directory / "node" / "daemon.log").read_text()[-3000:], controller.log[-3000:]
                )
                raise


def submit(node: Node, name: str, team: str, launches: str, *flags: str) -> Tenant:
    """A job that does a fixed amount of work, under `sluice run --queue`; what it says goes to a file."""
    said = (node.directory / f"{name}.err").open("w")
    tenant = Tenant(
        name,
        subprocess.Popen(
            [
                *(SLUICE, "run", "--name", name, "--queue", f"{team}/train", *HALF, *flags, "--"),
                *(TENANT, "--kernel-ns", MS, "--launches", launches, "--hold", str(2**30)),
            ],
            env=node.environment(),
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            stdin=subprocess.DEVNULL,
        ),
    )
    node.tenants.append(tenant)
    return tenant


def _runs(node: Node, name: str) -> bool:
    grant = node.grant(name)
    return grant is not None and grant["devices"][0]["launches_total"] > 50


def _said(node: Node, name: str) -> str:
    return (node.directory / f"{name}.err").read_text()


def _scene(controller: QueueController, node: Node, report: Rows) -> None:
    jobs = {}
    for number in (1, 2, 3):
        name = f"vision-{number}"
        jobs[name] = submit(node, name, "vision", LONG)
        until(f"{name} runs", lambda name=name: _runs(node, name))  # type: ignore[misc]
    jobs["speech-1"] = submit(node, "speech-1", "speech", LONG)
    until("speech-1 runs", lambda: _runs(node, "speech-1"))
    print(controller.cli("get", "cq", "-o", "wide").stdout)
    borrowed = _used(controller, "vision") - 2
    report.row(
        "vision: 3 jobs on a quota of 2", "1 borrowed", f"{borrowed} borrowed", borrowed == 1
    )

    jobs["vision-4"] = submit(node, "vision-4", "vision", SHORT)
    # The submission is answered before the cycle that looks at it.
    waits = until(
        "vision-4 says why it waits",
        lambda: (said := _said(node, "vision-4").strip()) and "insufficient" in said and said,
    )
    print(f"    {waits.splitlines()[-1]}")
    explained = controller.cli("explain", _workload(controller, "vision", "Pending")).stdout.strip()
    print("    " + explained.replace("\n", "\n    "))
    told = "number 1 in line" in waits and "insufficient" in waits and "why:" in explained
    report.row("a fourth job of vision", "waits and says why", "said" if told else waits[:60], told)

    jobs["speech-urgent"] = submit(
        node, "speech-urgent", "speech", SHORT, "--priority-class", "urgent"
    )
    until("speech-urgent runs", lambda: _runs(node, "speech-urgent"))
    paused = [g["name"] for g in node.grants() if g["state"] == "paused"]
    victim = paused[0] if paused else ""
    before = node.grant(victim) if victim else None
    for line in controller.cli("get", "workloads", "-o", "wide").stdout.splitlines():
        print(f"    {line[:150]}")
    report.row(
        "an urgent job of speech",
        "takes back what was lent",
        ", ".join(paused) or "nobody made way",
        len(paused) == 1,
    )
    kept = before is not None and before["devices"][0]["memory_used_bytes"] >= 2**30
    report.row(
        "the preempted job", "paused, its memory kept", before["state"] if before else "gone", kept
    )

    results = {name: job.result() for name, job in jobs.items()}
    after = node.grant(victim) if victim else None
    exits = sorted({one["exit"] for one in results.values()})
    done = {n: r["launches"] for n, r in results.items()}
    whole = all(
        done[n] == int(LONG if n in ("vision-1", "vision-2", "vision-3", "speech-1") else SHORT)
        for n in done
    )
    report.row(
        "all jobs, the paused one too", "do all their work", f"exit {exits}", exits == [0] and whole
    )
    assert after is None
    until(
        "the queue has heard",
        lambda: controller.metric("kueue_finished_workloads_total") == len(jobs),
    )
    counts = {
        "submitted": len(jobs),
        "admitted": int(controller.metric("kueue_admitted_workloads_total")),
        "preempted": int(controller.metric("kueue_preempted_workloads_total")),
        "finished": int(controller.metric("kueue_finished_workloads_total")),
        "borrowed": borrowed,
        "paused": len(paused),
        "waiting_reason": waits.splitlines()[0],
    }
    report.facts["queue"] = counts
    sound = (
        counts["preempted"] == 1
        # The paused one is admitted a second time.
        and counts["admitted"] == len(jobs) + 1
        and counts["finished"] == len(jobs)
    )
    shown = f"{counts['admitted']} admitted, {counts['preempted']} preempted, {counts['finished']} finished"
    report.row("the queue's own count", "7 admitted, 1 preempted, 6 finished", shown, sound)


def _workload(controller: QueueController, namespace: str, phase: str) -> str:
    name = next(
        one["metadata"]["name"]
        for one in controller.workloads()
        if one["metadata"]["namespace"] == namespace and one["status"]["phase"] == phase
    )
    return f"{namespace}/{name}"


def _used(controller: QueueController, queue: str) -> int:
    usage = controller.get("cq", queue)["status"]["flavorsUsage"]
    return sum(int(resource["total"]) for flavor in usage for resource in flavor["resources"])
