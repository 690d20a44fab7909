"""The queue on a real API server: how fast Jobs are let run and what one costs, beside the same writes without us.

API server, etcd, controller and the user who makes the Jobs share the machine. The processor time of one Job is the steadier
figure, rates are of this machine with all of them on it.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from tests.bench.cluster import large
from tests.bench.cluster.room import deciding, load, plane, queues, sample
from tests.bench.cluster.sides import each, look
from tests.bench.entries import Entry, entry
from tests.cluster.control_plane import ControlPlane
from tests.cluster.programs.build import Unbuildable
from tests.cluster.queueing import Replica, define

MANY = 2000
QUIET_S = 2.0
USER = ("POST jobs", "PATCH jobs/status")
"""Requests that the user sends himself."""


def ours(writes: dict[str, float]) -> float:
    return sum(count for name, count in writes.items() if name not in USER)


def burst(made: ControlPlane, replica: Replica, count: int, name: str = "burst") -> dict[str, Any]:
    assert replica.process is not None
    pid = replica.process.pid
    before = look(made, pid)
    found = load(made, "jobs", "--count", count, "--name", name)
    work = look(made, pid) - before
    writes = each(work.writes, count)
    return {
        **found,
        "cpu_ms": each(work.cpu_s, count, 1000),
        "writes": writes,
        "webhook_calls": each(work.webhook_calls, count),
        "of_writes": ours(writes),
    }


def quiet(made: ControlPlane) -> None:
    """Wait until nothing but Leases has been written for a while: events are written after the
    changes they report."""

    def written() -> float:
        return sum(count for name, count in look(made).writes.items() if "leases" not in name)

    before, now = -1.0, written()
    while now != before:
        time.sleep(QUIET_S)
        before, now = now, written()


def bare(like: Path, count: int) -> dict[str, Any]:
    """The same writes, on an API server without webhooks."""
    with plane() as (made, _):
        define(made)
        queues(made)
        load(made, "bare", "--count", 200, "--name", "warm", "--sample", like)
        before = look(made)
        found = load(made, "bare", "--count", count, "--sample", like)
        work = look(made) - before
        return {**found, "cpu_ms": each(work.cpu_s, count, 1000)}


def run(quick: bool) -> list[Entry]:
    try:
        return measured(quick)
    except Unbuildable as error:
        print(f"bench: cluster: left out: {error}", file=sys.stderr)
        return []


def measured(quick: bool) -> list[Entry]:
    many = 400 if quick else MANY
    with plane() as (made, place):
        with deciding(made, place) as replica:
            queues(made)
            load(made, "jobs", "--count", 200, "--name", "warm")
            like = sample(made, place, "warm-0")
            found = burst(made, replica, many)
            print(f"\ncluster: {many} Jobs at once: {found}")
            assert replica.process is not None
            pid = replica.process.pid
            quiet(made)
            before = look(made, pid)
            count = 60 if quick else 150
            slow = load(made, "stream", "--count", count, "--per-s", 5, "--name", "slow")
            quiet(made)
            work = look(made, pid) - before
            print(
                f"  {count} Jobs at 5/s, to their end: {slow}, each: CPU ms {each(work.cpu_s, count, 1000)},"
                f" writes {each(work.writes, count)}, webhook calls {each(work.webhook_calls, count)}"
            )
            hooks = large.webhooks(replica, place, like, 400 if quick else 1000)
            print(f"  webhooks, asked beside nothing else: {hooks}")
        without = bare(like, many)
        text = like.read_text()
    print(f"  the same writes without us: {without}")
    cpu = found["cpu_ms"]
    return [
        entry(
            "cluster_admissions_per_s",
            "1/s",
            [found["per_s"]],
            baseline=without["per_s"],
            ratio=found["per_s"] / without["per_s"],
            target=">= 80 and >= 80 %",
        ),
        entry("bare_writes_per_s", "1/s", [4 * without["per_s"]]),
        entry(
            "cluster_admission_cpu_ms",
            "ms",
            [sum(cpu.values())],
            baseline=sum(without["cpu_ms"].values()),
            target="<= 26",
        ),
        entry("cluster_admission_own_cpu_ms", "ms", [cpu["controller"]]),
        entry("api_writes_per_admission", "1", [found["of_writes"]], target="<= 5"),
        entry(
            "webhook_calls_per_admission",
            "1",
            [sum(found["webhook_calls"].values())],
            target="<= 3",
        ),
        entry("cluster_start_p50_ms", "ms", [slow["p50_ms"]], target="<= 50"),
        entry("cluster_start_p99_ms", "ms", [slow["p99_ms"]], target="<= 100"),
        entry("webhook_p99_ms", "ms", [hooks["p99_ms"]], target="<= 5"),
        *large.many(quick, text),
        *large.killed(quick),
    ]
