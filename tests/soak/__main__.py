"""Random tenants, random SIGKILLs of tenants and daemon; at every quiet point the books must balance.

Invariants: granted memory and shares never exceed a GPU, every job that was not killed ends well, and when all jobs
are gone nothing is granted, mounted or used any more. A second node beside it is loaded the same and never killed: its
memory, descriptors, threads, disk, mounts and latency are sampled at every quiet point, and must be flat (slopes.py).
What came out is written to build/soak.json.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path

from tests.demo.__main__ import driver_memory, workplace
from tests.node import Node, NodeError, Tenant, running, until
from tests.places import BUILD
from tests.soak.slopes import FEWEST, Watch


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


def quiet(node: Node) -> None:
    """Everybody is gone: nothing may be left."""
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
    jobs = kills = daemon_kills = rounds = 0
    with (
        workplace() as directory,
        running(directory, gpus="2xh100-80gb") as node,
        workplace() as steady_directory,
        running(steady_directory, gpus="1xh100-80gb") as steady,
    ):
        watch = Watch(steady_directory)
        while time.monotonic() < end:
            killed: set[str] = set()
            batch = [tenant(node, rng, jobs + i) for i in range(rng.randrange(1, 6))]
            jobs += len(batch)
            for job in batch:
                if rng.random() < 0.3:
                    time.sleep(
                        rng.uniform(0, 2)
                    )  # the moment of the kill is the input here, not a wait for logic
                    if job.process.poll() is None:
                        job.kill()
                        killed.add(job.name)
                        kills += 1
            if rng.random() < 0.2:
                node.kill_daemon()
                node.start()
                daemon_kills += 1
            for gpu in node.info()["gpus"]:
                if (
                    gpu["memory_granted_bytes"] > gpu["memory_total_bytes"]
                    or gpu["share_granted_ratio"] > 1.0001
                ):
                    raise NodeError(f"over-committed: {gpu}")
            for job in batch:
                if job.name not in killed and job.result()["exit"] != 0:
                    raise NodeError(f"{job.name} ended with {job.process.returncode}")
            node.tenants.clear()
            quiet(node)
            look(steady, watch, rounds)
            rounds += 1
            print(
                f"round {rounds}: {jobs} jobs, {kills} killed, daemon killed {daemon_kills} times",
                flush=True,
            )
    return report(watch, {"seed": options.seed, "rounds": rounds, "jobs": jobs, "kills": kills})


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


def report(watch: Watch, counts: dict[str, int]) -> int:
    """The exit status: 1 when something grows, and when too little was seen to say."""
    slopes = watch.slopes()
    for one in slopes:
        print(one)
    if not slopes:
        print(f"fewer than {FEWEST} rounds: nothing can be said of slopes, SOAK_S was too short")
    plain = {one.name: {"first": one.first, "gain": one.gain, "flat": one.flat} for one in slopes}
    (BUILD / "soak.json").write_text(json.dumps(counts | {"slopes": plain}, indent=1) + "\n")
    return 0 if slopes and all(one.flat for one in slopes) else 1


if __name__ == "__main__":
    sys.exit(main())
