"""The search for openings against the plain one: the same decisions on random clusters, with every
kind of request, several queues of one cohort and victims that are only paused."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from queuecontroller.cli.simulate.played_room import PlayedRoom
from queuecontroller.scheduler.model.objects import (
    AdmissionMode,
    ClusterQueue,
    ClusterQueuePreemption,
    FlavorQuotas,
    LocalQueue,
    PodSet,
    PreemptionPolicy,
    QueueingStrategy,
    ResourceFlavor,
    ResourceGroup,
    ResourceQuota,
    Workload,
    WorkloadKey,
)
from queuecontroller.scheduler.model.selectors import LabelSelector
from queuecontroller.scheduler.model.settings import AdmissionFairSharing, EngineSettings
from queuecontroller.scheduler.placement.capacity import GpuCapacity, MigProfile, NodeCapacity
from queuecontroller.scheduler.scheduler import Scheduler
from sluicecommon.hami.names import GPU_POLICY, NODE_POLICY, NUMA_BIND
from tests.queue.scheduler.placement.plain_room import plain_room_preemption

GIB = 1 << 30
GPU, MEMORY, CORES = "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores"
LOWER, NEVER, ANY = PreemptionPolicy.LOWER_PRIORITY, PreemptionPolicy.NEVER, PreemptionPolicy.ANY
BEST = QueueingStrategy.BEST_EFFORT_FIFO
NEWER = PreemptionPolicy.LOWER_OR_NEWER_EQUAL_PRIORITY
SMALL_MIG, LARGE_MIG = "1g.10gb", "3g.40gb"
PROFILES = (MigProfile(SMALL_MIG, 7, 7, 10 * GIB), MigProfile(LARGE_MIG, 2, 2, 40 * GIB))


class PausingRoom(PlayedRoom):
    """Some keep their memory when they are preempted, unless the preemptor is more important."""

    priorities: dict[WorkloadKey, int]

    def pauses(self, key: WorkloadKey) -> bool:
        return self.priorities.get(key, 1) % 2 == 0 and key.endswith("p")

    def yields(self, key: WorkloadKey, priority: int) -> bool:
        return self.priorities.get(key, 0) + 3 < priority


@dataclass
class World:
    seed: int
    now_ns: int = 0
    log: list[object] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = rng = random.Random(self.seed)
        self.room = PausingRoom({"gpus": ResourceFlavor("gpus")})
        self.room.priorities = {}
        self.mig = rng.random() < 0.25
        for n in range(rng.randint(1, 5)):
            gpus = [
                GpuCapacity(
                    f"n{n}-{i}",
                    i,
                    "H100",
                    80 * GIB,
                    slots=rng.choice([2, 4, 10]),
                    numa_node=i % 2,
                    nvlinks={f"n{n}-{i ^ 1}": 4} if rng.random() < 0.5 else {},
                    mig_enabled=self.mig and i == 0,
                    mig_profiles=PROFILES if self.mig and i == 0 else (),
                )
                for i in range(rng.randint(1, 4))
            ]
            labels = {"zone": f"z{n % 2}"} if n else {}
            self.room.stock.report(f"n{n}", NodeCapacity(tuple(gpus), labels))
        made = self.scheduler = Scheduler(EngineSettings(), self.room)
        made.put_namespace("t", {})
        made.cache.put_flavor(ResourceFlavor("gpus"))
        self.queues = [f"q{i}" for i in range(rng.choice([1, 1, 2, 3]))]
        by_usage = rng.random() < 0.2
        if by_usage:
            made.share_admission(AdmissionFairSharing(half_life_ns=1000), 0)
        for name in self.queues:
            quota = ResourceQuota(GPU, rng.choice([0, 4, 100, 100]))
            made.cache.put_cluster_queue(
                ClusterQueue(
                    name,
                    cohort="all",
                    admission_mode=AdmissionMode.BY_USAGE if by_usage else AdmissionMode.NONE,
                    queueing_strategy=rng.choice([BEST, BEST, QueueingStrategy.STRICT_FIFO]),
                    namespace_selector=LabelSelector(),
                    resource_groups=(ResourceGroup((GPU,), (FlavorQuotas("gpus", (quota,)),)),),
                    preemption=ClusterQueuePreemption(
                        within_cluster_queue=rng.choice([NEVER, LOWER, LOWER, LOWER, NEWER]),
                        reclaim_within_cohort=rng.choice([NEVER, LOWER, ANY]),
                    ),
                )
            )
            made.put_local_queue(LocalQueue("t", name, name))
            made.put_local_queue(LocalQueue("t", f"{name}-too", name))
        made.settle()
        self.running: dict[WorkloadKey, Workload] = {}

    def arrive(self, number: int) -> None:
        rng = self.rng
        asks = {
            GPU: rng.choice([1, 1, 1, 1, 2, 3]),
            MEMORY: rng.choice([5, 10, 20, 40, 60, 80]) * 1024,
            CORES: rng.choice([0, 10, 25, 50, 100]),
        }
        if self.mig and rng.random() < 0.5:
            profile = rng.choice([SMALL_MIG, LARGE_MIG])
            asks = {f"nvidia.com/mig-{profile}": rng.randint(1, 2)}
        notes = {}
        if rng.random() < 0.2:
            notes[NUMA_BIND] = "true"
        if rng.random() < 0.4:
            notes[rng.choice([NODE_POLICY, GPU_POLICY])] = "spread"
        pods = rng.choice([1, 1, 1, 1, 2, 3])
        zone = rng.choice(["zone", None, None]) if pods > 1 else None
        selector = {"zone": "z1"} if rng.random() < 0.1 else {}
        units = asks.get(GPU, 1)
        pod_sets = [
            PodSet(
                "main",
                pods,
                {GPU: units},
                containers=(asks,),
                annotations=notes,
                node_selector=selector,
                required_topology=zone,
            )
        ]
        if rng.random() < 0.15:
            small = {GPU: 1, MEMORY: 5 * 1024, CORES: 10}
            pod_sets.append(PodSet("aux", 1, {GPU: 1}, containers=(small,), required_topology=zone))
        workload = Workload(
            "t",
            f"w{number}{rng.choice(['', 'p'])}",
            tuple(pod_sets),
            queue_name=rng.choice(self.queues) + rng.choice(["", "-too"]),
            priority=rng.choice([0, 0, 1, 2] if number < 14 else [2, 5, 10, 20]),
            uid=f"w{number}",
            created_ns=self.now_ns,
        )
        self.room.priorities[workload.key] = workload.priority
        self.scheduler.submit(workload, self.now_ns)

    def cycle(self) -> bool:
        """Run one cycle; True if anything was decided. The preempted end at once, some come
        again."""
        self.now_ns += 1
        result = self.scheduler.cycle(self.now_ns)
        for one in result.reserved:
            self.running[one.info.key] = one.info.workload
            self.log.append(("runs", one.info.key, self.room.kept(one.info.key)))
        for gone in result.preempted:
            why = (gone.preemptor.key, gone.target.key, gone.reason)
            self.log.append(("preempts", *why, self.room.kept(gone.preemptor.key)))
        for pending in result.pending:
            self.log.append(("waits", pending.info.key, pending.message, pending.frees))
        for gone in result.preempted:
            key = gone.target.key
            workload = self.running.pop(key)
            self.scheduler.release(key, self.now_ns)
            if self.rng.random() < 0.5:
                self.scheduler.submit(workload, self.now_ns)
        return bool(result.reserved or result.preempted or result.more)

    def play(self) -> list[object]:
        for number in range(self.rng.randint(18, 32)):
            self.now_ns += 1
            self.arrive(number)
            if self.rng.random() < 0.15 and self.running:
                done = self.rng.choice(sorted(self.running))
                del self.running[done]
                self.scheduler.delete(done, self.now_ns)
            for _ in range(self.rng.choice([0, 1, 30])):
                if not self.cycle():
                    break
        return self.log


@pytest.mark.parametrize("block", range(10))
def test_it_decides_as_the_plain_search_does(block: int) -> None:
    preemptions = 0
    for seed in range(block * 30, block * 30 + 30):
        with plain_room_preemption():
            plain = World(seed).play()
        found = World(seed).play()
        assert found == plain, f"seed {seed}"
        preemptions += sum(isinstance(one, tuple) and one[0] == "preempts" for one in found)
    assert preemptions > 30, "worlds in which nothing is preempted say nothing"
