"""Writes to the API server by the number of nodes: while nothing happens, and for each pod with a share that is placed.

A real API server with etcd and kube-scheduler, the controller with its extender, and for each node an object and a session that reports every
few seconds. The pods' creation is left out; Leases, events and annotations of nodes are not. Counts do not depend on what else runs on
the machine.
"""

from __future__ import annotations

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.bench.cluster.sides import less, look
from tests.bench.entries import Entry, entry
from tests.cluster.control_plane import ControlPlane
from tests.cluster.programs.build import Unbuildable
from tests.cluster.queueing import define
from tests.cluster.scheduling import PODS, Fleet, bound, create_all, gpu_pod, replicas, scheduler
from tests.kit.node import until

FLEETS = (100, 1000, 5000)
GPUS = 8
ASKED = 200
QUIET_S = 60.0
OWN = "POST pods"
"""Request of the benchmark itself, in the time that is counted."""


def counted(plane: ControlPlane) -> dict[str, float]:
    return {name: count for name, count in look(plane).writes.items() if name != OWN}


def is_settled(plane: ControlPlane) -> bool:
    """True if no node was written for a while: each is annotated once for HAMi's programs."""
    before = counted(plane).get("PATCH nodes", 0.0)
    time.sleep(10)
    return counted(plane).get("PATCH nodes", 0.0) == before


def of_fleet(nodes: int, quiet_s: float) -> tuple[dict[str, float], dict[str, float]]:
    """Writes per second while nothing happens, and per pod, by request."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as directory:
        place = Path(directory)
        with ControlPlane(place / "plane") as plane:
            define(plane)
            with replicas(plane, place, 1) as (replica,):
                fleet = Fleet(plane, {place / "0.sock": replica}, gpus=GPUS)
                with ThreadPoolExecutor(8) as pool:
                    list(pool.map(fleet.add, (f"gpu-{n}" for n in range(nodes))))
                with fleet, scheduler(plane, place, replica.near_port, near=True):
                    until("all report", lambda: fleet.sessions_total >= nodes, 600)
                    until("each node has its annotation", lambda: is_settled(plane), 600)
                    before, began_s = counted(plane), time.monotonic()
                    time.sleep(quiet_s)
                    took_s = time.monotonic() - began_s
                    quiet = less(counted(plane), before)
                    before = counted(plane)
                    create_all(plane, [gpu_pod(f"p-{n}", gpumem=8000, gpucores=10) for n in range(ASKED)])  # fmt: skip
                    until("all are bound", lambda: all(map(bound, plane.api.get(PODS)["items"])), 600)  # fmt: skip
                    time.sleep(5)
                    placed = less(counted(plane), before)
    return (
        {name: count / took_s for name, count in sorted(quiet.items())},
        {name: count / ASKED for name, count in sorted(placed.items())},
    )


def run(quick: bool) -> list[Entry]:
    entries: list[Entry] = []
    for nodes in FLEETS[:2] if quick else FLEETS:
        try:
            quiet, placed = of_fleet(nodes, QUIET_S / 4 if quick else QUIET_S)
        except Unbuildable as error:
            print(f"writes: left out: {error}")
            return entries
        for what, found, unit in (("quiet", quiet, "1/s"), ("a pod", placed, "1")):
            print(f"writes: {nodes} nodes, {what}: " + ", ".join(f"{one} {n:.2f}" for one, n in found.items()))  # fmt: skip
            name = f"api_writes_{what.replace(' ', '_')}_{nodes}_nodes"
            entries.append(entry(name, unit, [sum(found.values())]))
    return entries
