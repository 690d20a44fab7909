"""SIGKILL of everything that can be killed, and the count of what was lost, doubled, overshot or admitted without running:
all must be 0.

On one simulated node the daemon, its NVML and eBPF children and processes of tenants die at random moments; on a queue
the controller does, while jobs come and go. After each death the books are looked at: a grant whose owner lives is there
once and with its limits (lost, doubled), no GPU is promised or used beyond what it has (overshoot), a job that was
let in runs exactly once, and no job stays admitted that no node runs (idle).

`python -m tests.faults.kills [--seed N] [--scale 1.0]` prints one JSON object and fails if anything is not 0.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from nodeagent import native
from nodeagent.adapters.api.client import Client
from nodeagent.adapters.api.wire import Wire
from nodeagent.adapters.ebpf import host as ebpf_host
from tests.kit.driver_memory import driver_memory
from tests.kit.node import Node, until
from tests.kit.places import AT_REST, SLUICE, TENANT
from tests.kit.queue.controller import QueueController
from tests.kit.workplace import workplace
from tests.queue.serving.puppet import Puppet
from tests.queue.serving.puppet import until as eventually
from tests.queue.state.world import TEAMS

DEVICE = "1:7"
"""/dev/full, not the substitute of tests that run beside: a daemon holds every process that opens its device, on the whole host."""
FULL = {"tenant": 1700, "daemon": 120, "nvml child": 80, "ebpf child": 30, "controller": 80}
"""2,010 in about ten minutes on two busy cores. What costs is the start of what was killed: 13 ms for a tenant, 2 s for
the daemon or one of its children, 4 s for the controller; so the kinds are as many as fit, and each is counted apart."""
GIB = 1 << 30
STEADY = 4
SWARM_BYTES = 21 * GIB // 2
"""Its four processes want three each beside their contexts of half a one, eleven for three of them: two get them, two are
refused. What two have with four contexts leaves room for five contexts of processes that are killed and still charged: a new
one without a context would end, and was not lost."""

IDLE_KILLS = 4
"""Kills of the controller from one look at the admitted jobs to the next, 15 seconds or more: a job that runs nowhere at
two looks in a row is not just about to start or to end."""


@dataclass
class Result:
    kills: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    overshoot: list[str] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)
    """Jobs that hold quota while no node runs them."""
    looks: int = 0
    jobs: int = 0

    def plain(self) -> dict[str, Any]:
        return {
            "kills": dict(self.kills),
            "kills_total": self.kills.total(),
            "lost": len(self.lost),
            "doubled": len(self.doubled),
            "overshoot": len(self.overshoot),
            "idle": len(self.idle),
            "looks": self.looks,
            "jobs": self.jobs,
            "first": [*self.lost, *self.doubled, *self.overshoot, *self.idle][:10],
        }

    @property
    def held(self) -> bool:
        return not (self.lost or self.doubled or self.overshoot or self.idle)


class NodeUnderFire:
    def __init__(self, node: Node, chance: random.Random, result: Result) -> None:
        self.node, self.chance, self.result = node, chance, result
        self.wire = Wire(native.locate().wire_descriptors)
        self.swarm: subprocess.Popen[str] | None = None
        self.bees: list[int] = []
        self.limits: dict[str, list[tuple[str, int, float]]] = {}

    # --- who is there ---

    def begin(self) -> None:
        for number in range(STEADY):
            flags = ("--gpumem", "2Gi", "--cores", "10")
            words = (*AT_REST, "--hold", str(GIB))
            self.node.run_tenant(f"steady-{number}", *words, flags=flags)
        self.swarm = subprocess.Popen(
            [
                *(
                    SLUICE,
                    "run",
                    "--name",
                    "swarm",
                    "--gpumem",
                    f"{SWARM_BYTES >> 20}Mi",
                    "--cores",
                    "20",
                ),
                *("--", sys.executable, "-m", "tests.faults.programs.swarm"),
            ],
            env=self.node.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.swarm.stdout is not None
        assert self.swarm.stdout.readline() == "ready\n"
        until("the steady ones are registered", lambda: self.alive() == STEADY)
        self.bees = [self.spawn() for _ in range(4)]
        self.limits = {one.name: self.limits_of(one) for one in self.grants()}
        assert len(self.limits) == STEADY + 1

    def spawn(self) -> int:
        assert self.swarm is not None
        assert self.swarm.stdin is not None
        assert self.swarm.stdout is not None
        self.swarm.stdin.write(f"{shlex.quote(str(TENANT))} {' '.join(AT_REST)} --hold {3 * GIB}\n")
        self.swarm.stdin.flush()
        return int(self.swarm.stdout.readline())

    def grants(self) -> list[Any]:
        with contextlib.closing(Client(self.node.socket, self.wire)) as client:
            return client.list_grants()

    def alive(self) -> int:
        return sum(one.processes for one in self.grants() if one.name.startswith("steady"))

    @staticmethod
    def limits_of(grant: Any) -> list[tuple[str, int, float]]:
        return [(str(d.gpu), int(d.memory_limit_bytes), d.share_ratio) for d in grant.devices]

    def child(self, module: str) -> int:
        assert self.node.daemon is not None
        for one in psutil.Process(self.node.daemon.pid).children():
            with contextlib.suppress(psutil.Error):
                if f"nodeagent.adapters.{module}" in one.cmdline():
                    return one.pid
        return 0

    # --- deaths ---

    def kill_tenant(self) -> None:
        pid = self.bees.pop(self.chance.randrange(len(self.bees)))
        time.sleep(self.chance.uniform(0, 0.02))  # the moment is the input
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            self.result.lost.append("a process of the swarm ended by itself")
        self.bees.append(self.spawn())

    def kill_daemon(self) -> None:
        time.sleep(self.chance.uniform(0, 0.1))
        self.node.kill_daemon()
        self.node.start()

    def kill_child(self, module: str) -> None:
        pid = until(f"there is an {module}", lambda: self.child(module), 120)
        time.sleep(self.chance.uniform(0, 0.05))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        until("there is another", lambda: self.child(module) not in (0, pid), 120)

    # --- the books ---

    def look(self, driver_too: bool = False) -> None:
        self.result.looks += 1
        grants = self.grants()
        counted = Counter(one.name for one in grants)
        for name, limits in self.limits.items():
            mine = [one for one in grants if one.name == name]
            if not mine:
                self.result.lost.append(f"{name} after {dict(self.result.kills)}")
            elif self.limits_of(mine[0]) != limits:
                self.result.lost.append(f"{name} has other limits")
        self.result.doubled += [name for name, times in counted.items() if times > 1]
        for tenant in self.node.tenants:
            if tenant.process.poll() is not None:
                self.result.lost.append(f"{tenant.name} ended with {tenant.process.returncode}")
        with contextlib.closing(Client(self.node.socket, self.wire)) as client:
            gpus = client.node_info().gpus
        for gpu in gpus:
            if (
                gpu.memory_granted_bytes > gpu.memory_total_bytes
                or gpu.share_granted_ratio > 1.0001
            ):
                self.result.overshoot.append(f"promised beyond {gpu.uuid}")
        if driver_too:
            used = sum(used for _, used in driver_memory(self.node))
            if used > STEADY * 2 * GIB + SWARM_BYTES:
                self.result.overshoot.append(f"{used} bytes in use")

    def fire(self, kills: dict[str, int]) -> None:
        order = [what for what, count in kills.items() for _ in range(count)]
        self.chance.shuffle(order)
        for number, what in enumerate(order):
            if what == "tenant":
                self.kill_tenant()
            elif what == "daemon":
                self.kill_daemon()
            else:
                self.kill_child(what.replace(" ", "."))
            self.result.kills[what] += 1
            if what != "tenant" or number % 10 == 0:
                self.look(driver_too=number % 100 == 0)
        self.look(driver_too=True)

    def end(self) -> None:
        """All tenants end; nothing may stay."""
        assert self.swarm is not None
        for pid in self.bees:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.swarm.kill()
        self.swarm.wait()
        for tenant in self.node.tenants:
            tenant.kill()
        until("all grants have ended", lambda: not self.grants())
        until("no memory is in use", lambda: not any(used for _, used in driver_memory(self.node)))
        left = list((self.node.directory / "run" / "grants").iterdir())
        if left:
            self.result.lost.append(f"left behind: {left}")


@contextlib.contextmanager
def node_for(directory: Path, kills: dict[str, int]) -> Iterator[Node]:
    settings = f'[ebpf]\nenabled = "on"\ndevices = "{DEVICE}"\n' if kills.get("ebpf child") else ""
    node = Node(directory, gpus="2xh100-80gb", settings=settings)
    try:
        node.start()
        yield node
    finally:
        node.stop()


def on_a_node(kills: dict[str, int], seed: int, result: Result) -> None:
    mine = {what: count for what, count in kills.items() if what != "controller" and count}
    with workplace() as directory, node_for(directory, mine) as node:
        under = NodeUnderFire(node, random.Random(seed), result)
        under.begin()
        try:
            under.fire(mine)
        finally:
            under.end()


def admitted(controller: QueueController) -> set[str]:
    """Names of the jobs that hold quota."""
    return {
        str(one["metadata"]["name"])
        for one in controller.workloads()
        if one["status"]["phase"] in ("QuotaReserved", "Admitted", "Running", "Evicting")
    }


async def _jobs(
    controller: QueueController, kills: int, chance: random.Random, result: Result
) -> None:
    stop = asyncio.Event()
    async with Puppet(controller.address) as node:

        async def work(name: str) -> None:
            number = 0
            while not stop.is_set():
                number += 1
                grant = await asyncio.wait_for(node.wait(f"{name}-{number}"), 180)
                result.jobs += 1
                await asyncio.sleep(chance.uniform(0, 0.05))
                node.keeper.end(grant)

        workers = [asyncio.create_task(work(f"w{index}")) for index in range(3)]
        idle: set[str] = set()
        for number in range(1, kills + 1):
            await asyncio.sleep(chance.uniform(0, 0.3))
            assert controller.process is not None
            controller.process.send_signal(signal.SIGKILL)
            await asyncio.to_thread(controller.process.wait)
            controller.launch()
            result.kills["controller"] += 1
            before = result.jobs
            await eventually("jobs start again", lambda least=before: result.jobs > least, 120)
            if number % IDLE_KILLS == 0:
                now = await asyncio.to_thread(admitted, controller)
                now -= {str(one.name) for one in node.keeper.grants.values()}
                result.idle += sorted(idle & now)
                result.looks += 1
                idle = now
        stop.set()
        await asyncio.gather(*workers)
        await eventually("nothing is left to tell", lambda: not node.ledger.works, 120)
        times = Counter(node.keeper.started)
        result.doubled += [name for name, count in times.items() if count != 1]
        result.doubled += [
            f"{d.uid} attempt {d.attempt}" for d in node.ledger.done if d.attempt != 1
        ]
        if len(times) != result.jobs:
            result.lost.append(f"{len(times)} started of {result.jobs}")


def on_a_queue(kills: dict[str, int], seed: int, result: Result) -> None:
    count = kills.get("controller", 0)
    if not count:
        return
    with workplace() as directory:
        settings = ["nodes.lease_s=4", "nodes.report_s=0.3", "server.log_level=warning"]
        controller = QueueController(directory / "queue", settings=settings)
        try:
            controller.start()
            controller.apply(TEAMS)
            asyncio.run(_jobs(controller, count, random.Random(seed), result))
            until("it answers", controller.is_ready)
            for one in controller.workloads():
                if (one["status"]["phase"], one["status"]["attempt"]) != ("Finished", 1):
                    result.lost.append(f"{one['metadata']['name']}: {one['status']['phase']}")
            if controller.get("cq", "a")["status"]["reservingWorkloads"]:
                result.lost.append("quota is held without a workload")
        finally:
            controller.stop()


def run(kills: dict[str, int], seed: int) -> Result:
    result = Result()
    kills = dict(kills)
    if kills.get("ebpf child") and ebpf_host.missing():
        kills["tenant"] = kills.get("tenant", 0) + kills.pop("ebpf child")
    with ThreadPoolExecutor() as both:  # they have nothing in common, and mostly wait
        parts = [both.submit(part, kills, seed, result) for part in (on_a_node, on_a_queue)]
        for part in parts:
            part.result()
    return result


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.kills", description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--scale", type=float, default=1.0, help="so many times the usual number")
    options = parser.parse_args()
    began_s = time.monotonic()
    kills = {what: max(1, int(count * options.scale)) for what, count in FULL.items()}
    result = run(kills, options.seed)
    took = {"seed": options.seed, "seconds": round(time.monotonic() - began_s)}
    print(json.dumps(result.plain() | took))
    return 0 if result.held else 1


if __name__ == "__main__":
    sys.exit(main())
