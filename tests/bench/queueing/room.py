"""Preemption for room alone: a full cluster of 1,000 nodes of 8 GPUs, quota to spare, every GPU in use.

24,000 workloads of low priority hold it, about three on each GPU. More important ones come, of every size from
a twentieth of a GPU to all eight of a node, and each needs a preemption. What is measured is the
CPU time of the one cycle that decides it, the preempted then go and do not come back.
"""

from __future__ import annotations

import gc
import random
import time
from dataclasses import dataclass, field

from queuecontroller.cli.simulate.played_room import PlayedRoom
from queuecontroller.scheduler.model.decisions import CycleResult
from queuecontroller.scheduler.model.objects import (
    Admission,
    ClusterQueue,
    ClusterQueuePreemption,
    Condition,
    FlavorQuotas,
    LocalQueue,
    PodSet,
    PodSetAssignment,
    PreemptionPolicy,
    ResourceFlavor,
    ResourceGroup,
    ResourceQuota,
    Workload,
)
from queuecontroller.scheduler.model.reasons import QUOTA_RESERVED, PendingReason
from queuecontroller.scheduler.model.selectors import LabelSelector
from queuecontroller.scheduler.model.settings import EngineSettings
from queuecontroller.scheduler.placement.capacity import GpuCapacity, NodeCapacity
from queuecontroller.scheduler.placement.stock_room import GivenPods
from queuecontroller.scheduler.scheduler import Scheduler
from sluicecommon.hami.names import USE_UUID
from tests.bench.entries import Entry, entry, quantile

GIB = 1 << 30
GPU, MEMORY, CORES = "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores"
PREEMPTION = ClusterQueuePreemption(
    within_cluster_queue=PreemptionPolicy.LOWER_PRIORITY,
    reclaim_within_cohort=PreemptionPolicy.ANY,
)
FILLINGS = ((40, 20, 20), (50, 20, 10), (70, 5, 5), (30, 25, 25), (60, 10, 10))
"""GiB of an 80 GiB card; as much of its time."""


@dataclass
class FullCluster:
    """`teams` of 0: the important stand in the queue of those who go. Else each team has a queue of
    its own in one cohort, and takes back what the crowd has borrowed."""

    teams: int = 0
    nodes: int = 1000
    gpus: int = 8
    seed: int = 1
    now_ns: int = 0
    room: PlayedRoom = field(init=False)
    scheduler: Scheduler = field(init=False)
    arrivals: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.room = PlayedRoom({"gpus": ResourceFlavor("gpus")})
        for n in range(self.nodes):
            gpus = tuple(
                GpuCapacity(f"GPU-{n}-{i}", i, "NVIDIA H100 80GB HBM3", 80 * GIB)
                for i in range(self.gpus)
            )
            self.room.stock.report(f"node-{n:04}", NodeCapacity(gpus))
        made = self.scheduler = Scheduler(EngineSettings(), self.room)
        made.put_namespace("t", {})
        made.cache.put_flavor(ResourceFlavor("gpus"))
        plenty = self.nodes * self.gpus * 10
        self.queues = [f"team-{i}" for i in range(self.teams)] or ["crowd"]
        for name in dict.fromkeys([*self.queues, "crowd"]):
            nominal = plenty if name in self.queues else 0
            self.add_queue(name, nominal)
        made.settle()
        self.fill()

    def add_queue(self, name: str, nominal: int) -> None:
        group = ResourceGroup((GPU,), (FlavorQuotas("gpus", (ResourceQuota(GPU, nominal),)),))
        self.scheduler.cache.put_cluster_queue(
            ClusterQueue(
                name,
                cohort="all",
                namespace_selector=LabelSelector(),
                resource_groups=(group,),
                preemption=PREEMPTION,
            )
        )
        self.scheduler.put_local_queue(LocalQueue("t", name, name))

    def fill(self) -> None:
        places = [
            (f"GPU-{n}-{i}", gib)
            for n in range(self.nodes)
            for i in range(self.gpus)
            for gib in self.rng.choice(FILLINGS)
        ]
        times = list(range(len(places)))
        self.rng.shuffle(times)
        for number, ((uuid, gib), time_ns) in enumerate(zip(places, times, strict=True)):
            asks = {GPU: 1, MEMORY: gib * 1024, CORES: gib * 100 // 80}
            given = PodSetAssignment("main", 1, {GPU: "gpus"}, {GPU: 1})
            low = Workload(
                "t",
                f"low-{number}",
                (PodSet("main", 1, {GPU: 1}, containers=(asks,), annotations={USE_UUID: uuid}),),
                queue_name="crowd",
                uid=f"low-{number}",
                created_ns=time_ns,
                admission=Admission("crowd", (given,)),
                conditions=(Condition(QUOTA_RESERVED, True, changed_ns=time_ns),),
            )
            verdict = self.room.claim(low, [GivenPods("main", 1, {GPU: "gpus"})])
            assert not verdict.refusal, verdict.refusal
            self.scheduler.submit(low, time_ns)
        self.now_ns = len(places)

    def arrive(self, gpus: int, gib: int, cores: int, queue: str, pods: int = 1) -> None:
        self.now_ns += 1
        self.arrivals += 1
        asks = {GPU: gpus, MEMORY: gib * 1024, CORES: cores}
        self.scheduler.submit(
            Workload(
                "t",
                f"high-{self.arrivals}",
                (PodSet("main", pods, {GPU: gpus}, containers=(asks,)),),
                queue_name=queue,
                priority=10,
                uid=f"high-{self.arrivals}",
                created_ns=self.now_ns,
            ),
            self.now_ns,
        )

    def anybody(self, queue: str) -> None:
        """A size at random."""
        gpus, gib = self.rng.choice([1, 1, 1, 1, 2, 4, 8]), self.rng.choice([4, 8, 16, 40, 80])
        self.arrive(gpus, gib, self.rng.choice([10, 20, 25, 50, 100]), queue)

    def gang(self, queue: str) -> None:
        """Several pods that have to find room together."""
        gpus, gib = self.rng.choice([1, 2, 4, 8]), self.rng.choice([16, 40, 80])
        self.arrive(
            gpus, gib, self.rng.choice([20, 50, 100]), queue, self.rng.choice([2, 4, 8, 16])
        )

    def cycle(self) -> tuple[CycleResult, float]:
        """Run one cycle; returns its result and its CPU time in ms."""
        self.now_ns += 1
        begin = time.process_time_ns()
        result = self.scheduler.cycle(self.now_ns)
        return result, (time.process_time_ns() - begin) / 1e6

    def vacate(self, result: CycleResult) -> None:
        """The preempted have gone, for good."""
        for one in result.preempted:
            self.scheduler.delete(one.target.key, self.now_ns)


def play(
    made: FullCluster, rounds: int, at_once: int = 1, gangs: bool = False
) -> tuple[list[float], int]:
    """The CPU time in ms of every cycle that preempted or had to leave a search to the next one, and how many
    were preempted."""
    spent: list[float] = []
    preempted = 0
    collect_nothing()
    for _ in range(rounds):
        for i in range(at_once):
            come = made.gang if gangs else made.anybody
            come(made.queues[i % len(made.queues)])
        for _ in range(200):
            result, took_ms = made.cycle()
            put_off = any(one.reason is PendingReason.PENDING_EVALUATION for one in result.pending)
            if result.preempted or put_off:
                spent.append(took_ms)
                preempted += len(result.preempted)
            made.vacate(result)
            if not (result.reserved or result.preempted or result.more):
                break
    return spent, preempted


def collect_nothing() -> None:
    """Run Python's collector between decisions, as the service does."""
    gc.collect()
    gc.freeze()


def run(quick: bool) -> list[Entry]:
    rounds = 40 if quick else 200
    alone = play(FullCluster(), rounds)
    gangs = play(FullCluster(), rounds // 2, gangs=True)
    many = play(FullCluster(teams=64), max(1, rounds // 40), at_once=64)
    found = (("one_at_a_time", alone), ("gangs", gangs), ("64_queues_at_once", many))
    print("\nroom: a full cluster of 1,000 nodes of 8 GPUs")
    for what, (spent, preempted) in found:
        print(
            f"  {what}: {preempted} preempted in {len(spent)} cycles, p50 {quantile(spent, 0.5):.1f} ms, "
            f"p95 {quantile(spent, 0.95):.1f} ms, worst {max(spent):.1f} ms"
        )
    return [
        entry(f"queue_room_{what}_ms", "ms", spent, value=max(spent), target="<= 50")
        for what, (spent, _) in found
    ]
