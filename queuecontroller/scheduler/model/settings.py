"""Settings of the whole scheduler, as opposed to settings of one queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final


class FairPreemptionStrategy(StrEnum):
    LESS_THAN_OR_EQUAL_TO_FINAL_SHARE = "LessThanOrEqualToFinalShare"
    LESS_THAN_INITIAL_SHARE = "LessThanInitialShare"


WEIGHT_UNIT: Final = 1_000_000_000
"""Weights of resources are counted in billionths."""


@dataclass(frozen=True, slots=True)
class AdmissionFairSharing:
    """Kueue's `admissionFairSharing`: LocalQueues of one ClusterQueue are ordered by their recorded
    usage, where the ClusterQueue's admissionScope enables it."""

    half_life_ns: int
    """Time in ns after which half of a past usage is forgotten; 0 forgets at once."""
    sampling_interval_ns: int = 300_000_000_000
    """Interval in ns at which the order is renewed, and the time a new admission counts as having
    run. Five minutes, as in Kueue."""
    resource_weights: Mapping[str, int] = field(default_factory=dict)
    """Weights in billionths, by resource; 1 for a resource that is not named."""


@dataclass(frozen=True, slots=True)
class PreemptionProtection:
    """Workloads that are not preempted although a policy allows it. Times are in ns from admission,
    0: no protection. A workload that waits for its admission checks is not protected."""

    reclaim_ns: int = 0
    """Protection from ClusterQueues that reclaim what they lent."""
    fair_sharing_ns: int = 0
    """Protection from ClusterQueues that have a smaller share."""
    within_queue_ns: int = 0
    """Protection from higher priorities of its own ClusterQueue. Not in Kueue's proposal."""
    classes: frozenset[str] = frozenset()
    """WorkloadPriorityClasses that are never preempted."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    fair_sharing: bool = False
    """True: order entries and choose victims by dominant resource share; off, as in Kueue."""
    fair_strategies: tuple[FairPreemptionStrategy, ...] = (
        FairPreemptionStrategy.LESS_THAN_OR_EQUAL_TO_FINAL_SHARE,
        FairPreemptionStrategy.LESS_THAN_INITIAL_SHARE,
    )
    """Strategies in the order they are tried; the second only where the first found too little."""
    fair_reclaim_within_nominal: bool = True
    """True if a preemptor within its nominal quota reclaims it without comparing shares."""
    fair_nominal_first: bool = True
    """True if, under fair sharing, an entry that does not borrow precedes any that does."""
    partial_admission: bool = True
    """True if minCount may shrink a pod set; on, as in Kueue since it is stable there."""
    reclaimable_pods: bool = True
    """True if finished pods release their quota before the workload ends."""
    priority_sorting_within_cohort: bool = True
    """True if entries of one cohort are ordered by priority before age."""
    recompute_overlapping_targets: bool = True
    """True if an entry whose targets another entry took in this cycle is assigned again at once."""
    omitted_resource_is_unlimited: bool = True
    """A flavor may omit a covered resource of its group. True: the resource is then not limited
    there, which is what the authors of such manifests intend (`lint` reports it). False: the flavor
    does not provide the resource, which is Kueue's interpretation."""
    missing_selector_admits_all: bool = False
    """A ClusterQueue without namespaceSelector serves no namespace in Kueue. True: it serves all,
    which is what published examples that omit it assume."""
    preemption_gates: bool = False
    """True if a closed preemption gate prevents a workload from preempting; off, as in Kueue."""
    wait_for_pods_ready: bool = False
    """True if admission waits until the pods of all admitted workloads are ready."""
    preserve_scan_progress: bool = True
    """True if a flavor search continues where it ended even after a change; on, as in Kueue, so
    that it reaches its last flavor with any number of changes. The workload may then be
    inadmissible until quota is freed again though a flavor it passed over has become free. False:
    it starts with the first flavor."""
    protection: PreemptionProtection = PreemptionProtection()
    requeue_delay_ns: int = 0
    """Time in ns for which freed quota is collected before inadmissible workloads are requeued; 0:
    at once. Kueue collects for 1 s, which saves evaluations and does not start a low priority into
    a gap from which a high one would preempt it a moment later."""
    room_steps_per_cycle: int = 3_000
    """Limit of one cycle's search for room by preemption, in steps: a few thousand for each search
    on a thousand nodes, about 3 microseconds each. A workload whose search is deferred reserves its
    quota and is the first to be searched in the next cycle, which follows at once."""
    consolidation: bool = False
    """True if workloads whose owners permit it are restarted on other GPUs where a pending workload
    that has quota fits nowhere else."""
    max_heads_per_cycle: int = 64
    """Number of heads one cycle evaluates before it leaves the remaining cohort trees to the next,
    so that decisions keep coming with a thousand queues. A tree is never divided: the order of
    entries within it, and so every decision, stays the same."""
