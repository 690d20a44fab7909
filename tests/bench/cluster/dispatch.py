"""MultiKueue on real API servers: from a Job's creation at the manager until it is let run in one of two workers, beside the same Job
created in the worker itself.

Three control planes, three controllers and the user share the machine, so that the difference is an upper bound: with a machine for
each cluster nothing waits for a processor, but for the network between them.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.bench.cluster.room import load
from tests.bench.entries import Entry, entry
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kueue.multikueue import MANAGER, STRATEGY, running_fleet
from tests.cluster.programs.build import Unbuildable
from tests.cluster.queueing import apply, door, quota

COUNT, QUICK = 100, 20
WARM = 10
"""Jobs before those that count."""
PER_S = 2
"""Below what two cores do for three clusters: at a higher rate the queue of Jobs is measured, not one Job."""
CONFIGURATION = """
apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
"""


def queues(plane: ControlPlane, name: str) -> None:
    """One with room for all; the manager's sends its jobs to the workers."""
    apply(plane, quota("all", 1_000_000, **(STRATEGY if name == MANAGER else {})))
    apply(plane, door("all", "all"))


def run(quick: bool) -> list[Entry]:
    try:
        return measured(QUICK if quick else COUNT)
    except Unbuildable as error:
        print(f"bench: multikueue: left out: {error}", file=sys.stderr)
        return []


def dispatched(plane: ControlPlane, name: str, count: int, *more: str) -> dict[str, Any]:
    return load(plane, "dispatch", "--count", count, "--name", name, "--per-s", PER_S, *more)


def measured(count: int) -> list[Entry]:
    with (
        tempfile.TemporaryDirectory(
            prefix="sluice-bench-", ignore_cleanup_errors=True
        ) as directory,
        running_fleet(Path(directory), CONFIGURATION, queues, durable=True) as fleet,
    ):
        workers = [
            word for one in fleet.workers.values() for word in ("--worker", str(one.kubeconfig))
        ]
        for name, many in (("warm", WARM), ("sent", count)):
            sent = dispatched(fleet.manager, name, many, *workers)
        for name, many in (("near", WARM), ("alone", count)):
            alone = dispatched(fleet.workers["w1"], name, many)
    print(f"\nmultikueue: {count} Jobs at {PER_S}/s through the manager: {sent}")
    print(f"  in a worker, without MultiKueue: {alone}")
    return [
        entry(
            f"multikueue_dispatch_{part}_ms",
            "ms",
            [sent[f"{part}_ms"]],
            baseline=alone[f"{part}_ms"],
            ratio=sent[f"{part}_ms"] / alone[f"{part}_ms"],
        )
        for part in ("p50", "p99")
    ]
