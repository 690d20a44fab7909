"""Short ways to say a queue setup in a test."""

from __future__ import annotations

from collections.abc import Mapping

from queuecontroller.scheduler.model.objects import (
    BorrowWithinCohort,
    ClusterQueue,
    ClusterQueuePreemption,
    Cohort,
    FlavorQuotas,
    LocalQueue,
    PodSet,
    PreemptionPolicy,
    ResourceFlavor,
    ResourceGroup,
    ResourceQuota,
    Workload,
)
from queuecontroller.scheduler.model.selectors import LabelSelector
from queuecontroller.scheduler.model.settings import EngineSettings
from queuecontroller.scheduler.scheduler import Scheduler

EVERYONE = LabelSelector()
SECOND = 1_000_000_000


def quota(
    nominal: int, borrow: int | None = None, lend: int | None = None, resource: str = "gpu"
) -> ResourceQuota:
    return ResourceQuota(resource, nominal, borrow, lend)


def group(**flavors: ResourceQuota) -> ResourceGroup:
    """One resource group; a flavor's name is the argument's."""
    resources = tuple(dict.fromkeys(one.resource for one in flavors.values()))
    return ResourceGroup(
        resources, tuple(FlavorQuotas(name, (one,)) for name, one in flavors.items())
    )


def preempting(
    within: str = "Never",
    reclaim: str = "Never",
    borrow: str = "Never",
    threshold: int | None = None,
) -> ClusterQueuePreemption:
    return ClusterQueuePreemption(
        PreemptionPolicy(within),
        PreemptionPolicy(reclaim),
        BorrowWithinCohort(PreemptionPolicy(borrow), threshold),
    )


def cluster_queue(name: str, *groups: ResourceGroup, **fields: object) -> ClusterQueue:
    fields.setdefault("namespace_selector", EVERYONE)
    return ClusterQueue(name=name, resource_groups=groups, **fields)  # type: ignore[arg-type]


def workload(
    name: str,
    queue: str,
    amount: int | Mapping[str, int],
    *,
    count: int = 1,
    **fields: object,
) -> Workload:
    requests = {"gpu": amount} if isinstance(amount, int) else amount
    fields.setdefault("pod_sets", (PodSet("main", count, requests),))
    return Workload(namespace="ns", name=name, queue_name=queue, **fields)  # type: ignore[arg-type]


def scheduler(
    *queues: ClusterQueue,
    cohorts: tuple[Cohort, ...] = (),
    flavors: tuple[str | ResourceFlavor, ...] = ("default",),
    settings: EngineSettings | None = None,
) -> Scheduler:
    """Each ClusterQueue gets a LocalQueue of its own name."""
    made = Scheduler(settings)
    made.put_namespace("ns", {})
    for flavor in flavors:
        made.cache.put_flavor(ResourceFlavor(flavor) if isinstance(flavor, str) else flavor)
    for cohort in cohorts:
        made.cache.put_cohort(cohort)
    for queue in queues:
        made.cache.put_cluster_queue(queue)
        made.put_local_queue(LocalQueue("ns", queue.name, queue.name))
    made.settle()
    return made


def started(made: Scheduler, now_ns: int = SECOND) -> list[str]:
    """Names of who starts in one cycle, in order."""
    return [one.info.workload.name for one in made.cycle(now_ns).reserved]


def used(made: Scheduler, queue: str) -> dict[str, int]:
    """Usage of a ClusterQueue as {"flavor/resource": amount}, without zeros."""
    state = made.cache.queues[queue]
    return {
        "/".join(made.cache.numbers.pair(fr)): amount
        for fr, amount in state.node.usage.items()
        if amount
    }


def queue_with(**fields: object) -> ClusterQueue:
    return cluster_queue("q", group(default=quota(8)), **fields)
