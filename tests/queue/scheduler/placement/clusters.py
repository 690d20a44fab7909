"""Clusters for the search of room."""

from __future__ import annotations

from dataclasses import dataclass, field

from queuecontroller.cli.simulate.played_room import PlayedRoom
from queuecontroller.scheduler.model.decisions import CycleResult
from queuecontroller.scheduler.model.objects import (
    ClusterQueue,
    ClusterQueuePreemption,
    FlavorQuotas,
    LocalQueue,
    PodSet,
    PreemptionPolicy,
    ResourceFlavor,
    ResourceGroup,
    ResourceQuota,
    Workload,
    WorkloadKey,
)
from queuecontroller.scheduler.model.selectors import LabelSelector
from queuecontroller.scheduler.model.settings import EngineSettings
from queuecontroller.scheduler.placement.capacity import GpuCapacity, NodeCapacity
from queuecontroller.scheduler.scheduler import Scheduler

GIB = 1 << 30
LOWER = PreemptionPolicy.LOWER_PRIORITY
NEVER = PreemptionPolicy.NEVER
GPU, MEMORY, CORES = "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores"


@dataclass
class Cluster:
    """Queues of one cohort over nodes of 80 GiB GPUs; the preempted end at once."""

    nodes: dict[str, int]
    queues: dict[str, tuple[int, PreemptionPolicy, PreemptionPolicy]]
    """Nominal quota in GPUs, withinClusterQueue, reclaimWithinCohort."""
    settings: EngineSettings = field(default_factory=EngineSettings)
    cohort: str | None = "all"
    now_ns: int = 0
    room: PlayedRoom = field(init=False)
    scheduler: Scheduler = field(init=False)
    running: dict[WorkloadKey, Workload] = field(default_factory=dict)
    reasons: dict[WorkloadKey, str] = field(default_factory=dict)
    preempted: list[tuple[WorkloadKey, WorkloadKey]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.room = PlayedRoom({"gpus": ResourceFlavor("gpus")})
        for name, count in self.nodes.items():
            self.report(name, count)
        self.scheduler = Scheduler(self.settings, self.room)
        self.scheduler.put_namespace("t", {})
        self.scheduler.cache.put_flavor(ResourceFlavor("gpus"))
        for name, (nominal, within, reclaim) in self.queues.items():
            quota = FlavorQuotas("gpus", (ResourceQuota(GPU, nominal),))
            queue = ClusterQueue(
                name,
                cohort=self.cohort,
                namespace_selector=LabelSelector(),
                resource_groups=(ResourceGroup((GPU,), (quota,)),),
                preemption=ClusterQueuePreemption(
                    within_cluster_queue=within, reclaim_within_cohort=reclaim
                ),
            )
            self.scheduler.cache.put_cluster_queue(queue)
            self.scheduler.put_local_queue(LocalQueue("t", name, name))
        self.scheduler.settle()

    def report(self, name: str, count: int) -> None:
        gpus = tuple(GpuCapacity(f"{name}-{i}", i, "H100", 80 * GIB) for i in range(count))
        self.room.stock.report(name, NodeCapacity(gpus))

    def submit(
        self,
        name: str,
        queue: str = "a",
        gib: int = 80,
        cores: int = 100,
        gpus: int = 1,
        priority: int = 0,
        pods: int = 1,
    ) -> WorkloadKey:
        asks = {GPU: gpus, MEMORY: gib * 1024, CORES: cores}
        pod_set = PodSet("main", pods, {GPU: gpus}, containers=(asks,))
        self.now_ns += 1
        workload = Workload(
            "t",
            name,
            (pod_set,),
            queue_name=queue,
            priority=priority,
            uid=name,
            created_ns=self.now_ns,
        )
        self.scheduler.submit(workload, self.now_ns)
        return workload.key

    def cycle(self) -> CycleResult:
        self.now_ns += 1
        result = self.scheduler.cycle(self.now_ns)
        for one in result.pending:
            self.reasons[one.info.key] = one.message
        for reserved in result.reserved:
            self.running[reserved.info.key] = reserved.info.workload
        return result

    def stop(self, result: CycleResult) -> None:
        """Stop the preempted workloads, which wait again afterwards."""
        for one in result.preempted:
            key = one.target.key
            self.preempted.append((one.preemptor.key, key))
            del self.running[key]
            self.scheduler.release(key, self.now_ns)
            self.scheduler.submit(one.target.workload, self.now_ns)

    def settle(self) -> None:
        for _ in range(60):
            result = self.cycle()
            self.stop(result)
            self.check()
            if not (result.reserved or result.preempted or result.more):
                return
        raise AssertionError("the queue never came to rest")

    def check(self) -> None:
        for room in self.room.stock.nodes.values():
            for gpu in room.gpus.values():
                assert min(gpu.memory_bytes, gpu.share_ppm, gpu.slots) >= 0, "given twice"
        for key in self.running:
            assert self.room.kept(key), "admitted without a place"

    def picture(self) -> object:
        return {
            name: (room.keys, room.best_share_ppm, room.free_bytes)
            for name, room in self.room.stock.nodes.items()
        }
