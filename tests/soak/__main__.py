"""Random tenants, random SIGKILLs of tenants and daemon; at every quiet point the books must balance.

Invariants: granted memory and hard shares never exceed a GPU, every job that was not killed ends well, and when all jobs
are gone nothing is granted, mounted or used any more. A second node beside it is never killed, and has one short job after
the other: after each its memory, descriptors, threads, disk, mounts and latency are sampled, and must be flat (slopes.py).
What came out is written to build/soak.json.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.kit.driver_memory import driver_memory
from tests.kit.node import Node, NodeError, Tenant, running, until
from tests.kit.places import BUILD
from tests.kit.workplace import workplace
from tests.soak.slopes import FEWEST, Watch

JOB_S = 120.0
NOT_STARTED = 125
"""Exit status of `sluice run` when no daemon answers for 5 s: a start takes longer on a machine
that is busy enough. No job that ran has it."""


def tenant(node: Node, rng: random.Random, number: int) -> Tenant:
    return node.run_tenant(
        f"soak-{number}",
        "--kernel-ns",
        str(rng.choice([20_000, 500_000, 3_000_000, 30_000_000])),
        "--seconds",
        f"{rng.uniform(0.5, 6):.2f}",
        "--hold",
        str(rng.randrange(1, 4) * 2**30),
        "--door",
        rng.choice(["plain", "ex", "coop", "graph", "ptsz"]),
        *(["--sync"] if rng.random() < 0.5 else []),
        flags=(
            "--gpumem",
            f"{rng.randrange(5, 20)}Gi",
            "--cores",
            str(rng.randrange(5, 60)),
            "--policy",
            rng.choice(["hard", "elastic"]),
            "--wait",
            "30",
        ),
    )


def promised(node: Node) -> None:
    """Memory and hard shares are promises, and no GPU has more of them than there is; an elastic share is a weight."""
    hard: Counter[str] = Counter()
    for grant in node.grants():
        for device in grant["devices"] if grant["policy"] == "hard" else ():
            hard[device["gpu"]] += device["share_ratio"]
    for gpu in node.info()["gpus"]:
        if gpu["memory_granted_bytes"] > gpu["memory_total_bytes"] or hard[gpu["uuid"]] > 1.0001:
            raise NodeError(f"over-committed: {gpu}, hard shares {hard[gpu['uuid']]}")


def quiet(node: Node) -> None:
    """All tenants have ended: nothing may be left."""
    until("all grants are gone", lambda: not node.grants(), 10)
    leftovers = list((Path(node.directory) / "run" / "grants").glob("*"))
    used = [used for _, used in driver_memory(node)]
    if leftovers or any(used):
        raise NodeError(f"left behind: {leftovers}, device memory {used}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=14_400)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    rng = random.Random(options.seed)
    print(f"seed {options.seed}", flush=True)
    end = time.monotonic() + options.seconds
    jobs = kills = daemon_kills = turned_away = rounds = 0
    with (
        workplace() as directory,
        running(directory, gpus="2xh100-80gb") as node,
        workplace() as steady_directory,
        running(steady_directory, gpus="1xh100-80gb") as steady,
        Steady(steady, steady_directory) as watched,
    ):
        while time.monotonic() < end:
            killed: set[str] = set()
            batch = [tenant(node, rng, jobs + i) for i in range(rng.randrange(1, 6))]
            jobs += len(batch)
            for job in batch:
                if rng.random() < 0.3:
                    # The moment of the kill is the input here, not a wait for logic.
                    time.sleep(rng.uniform(0, 2))
                    if job.process.poll() is None:
                        job.kill()
                        killed.add(job.name)
                        kills += 1
            daemon_killed = rng.random() < 0.2
            if daemon_killed:
                node.kill_daemon()
                node.start()
                daemon_kills += 1
            promised(node)
            for job in batch:
                if job.name in killed:
                    continue
                if daemon_killed and job.process.wait(JOB_S) == NOT_STARTED:
                    turned_away += 1
                elif job.result(JOB_S)["exit"] != 0:
                    raise NodeError(f"{job.name} ended with {job.process.returncode}")
            node.tenants.clear()
            quiet(node)
            watched.check()
            rounds += 1
            print(
                f"round {rounds}: {jobs} jobs, {kills} killed, {turned_away} found no daemon, which was killed"
                f" {daemon_kills} times",
                flush=True,
            )
    counts = {"seed": options.seed, "rounds": rounds, "jobs": jobs, "kills": kills}
    counts |= {"daemon_kills": daemon_kills, "turned_away": turned_away}
    return report(watched.watch, options.seconds, counts)


class Steady:
    """The node that is not killed, under its own load as long as the block lasts."""

    def __init__(self, node: Node, directory: Path) -> None:
        self._node = node
        self.watch = Watch(directory)
        self._over = threading.Event()
        self._thread = ThreadPoolExecutor(1)

    def __enter__(self) -> Steady:
        self._load = self._thread.submit(self._run)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        with self._thread:
            self._load.result()

    def check(self) -> None:
        """Raises what went wrong there."""
        if self._load.done():
            self._load.result()

    def _run(self) -> None:
        number = 0
        while not self._over.is_set():
            look(self._node, self.watch, number)
            number += 1


def look(node: Node, watch: Watch, number: int) -> None:
    """One short job, and the figures once it is gone."""
    flags = ("--gpumem", "1Gi", "--cores", "10", "--wait", "30")
    job = node.run_tenant(f"steady-{number}", "--launches", "20", flags=flags)
    if job.result()["exit"] != 0:
        raise NodeError(f"{job.name} ended with {job.process.returncode}")
    node.tenants.clear()
    quiet(node)
    began_s = time.monotonic()
    node.metrics()
    assert node.daemon is not None
    watch.sample(node.daemon.pid, time.monotonic() - began_s)


def report(watch: Watch, seconds: float, counts: dict[str, int]) -> int:
    """The exit status: 1 when something grows, and when too little was seen to say."""
    slopes, hours = watch.slopes(), seconds / 3600
    for one in slopes:
        print(f"{one}; a leak of less than {one.allowed / hours:,.3g} an hour is not seen so soon")
    if not slopes:
        print(f"fewer than {FEWEST} samples: nothing can be said of slopes, SOAK_S was too short")
    plain = {
        one.name: {"first": one.first, "gain": one.gain, "allowed": one.allowed, "flat": one.flat}
        for one in slopes
    }
    (BUILD / "soak.json").write_text(
        json.dumps(counts | {"seconds": seconds, "slopes": plain}, indent=1) + "\n"
    )
    return 0 if slopes and all(one.flat for one in slopes) else 1


if __name__ == "__main__":
    sys.exit(main())
