"""Choices of the whole engine, as opposed to choices of one queue."""

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
    """Kueue's `admissionFairSharing`: LocalQueues of one ClusterQueue are served by what they have
    used, where the ClusterQueue's admissionScope says so."""

    half_life_ns: int
    """After this time half of a past usage is forgotten; 0 forgets at once, so nothing counts."""
    sampling_interval_ns: int = 300_000_000_000
    """How often the order is renewed, and how long a new admission counts as having run. Five
    minutes, as in Kueue."""
    resource_weights: Mapping[str, int] = field(default_factory=dict)
    """In billionths; 1 for a resource that is not named."""


@dataclass(frozen=True, slots=True)
class PreemptionProtection:
    """Who is not preempted though a policy allows it. The times are from when it was admitted, in
    ns; 0: none. One that waits for its admission checks has not begun, and is not protected."""

    reclaim_ns: int = 0
    """From ClusterQueues that take back what they lent."""
    fair_sharing_ns: int = 0
    """From those that have a smaller share."""
    within_queue_ns: int = 0
    """From higher priorities of its own ClusterQueue. Kueue's proposal leaves this out."""
    classes: frozenset[str] = frozenset()
    """WorkloadPriorityClasses that are never preempted."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    fair_sharing: bool = False
    """Order entries and choose preemption targets by dominant resource share; off, as in Kueue."""
    fair_strategies: tuple[FairPreemptionStrategy, ...] = (
        FairPreemptionStrategy.LESS_THAN_OR_EQUAL_TO_FINAL_SHARE,
        FairPreemptionStrategy.LESS_THAN_INITIAL_SHARE,
    )
    """Tried in this order; the second only where the first found too little."""
    fair_reclaim_within_nominal: bool = True
    """Whether a preemptor within its nominal quota takes it back without comparing shares."""
    fair_nominal_first: bool = True
    """Whether, under fair sharing, an entry that does not borrow comes before any that does."""
    partial_admission: bool = True
    """Whether minCount may shrink a pod set; on, as in Kueue since it is stable there."""
    reclaimable_pods: bool = True
    """Whether finished pods give their quota back before the workload ends."""
    priority_sorting_within_cohort: bool = True
    """Whether entries of one cohort are ordered by priority before age."""
    recompute_overlapping_targets: bool = True
    """Whether an entry whose targets another entry took in this cycle is assigned anew at once."""
    omitted_resource_is_unlimited: bool = True
    """A flavor may leave out a covered resource of its group. True: it is then not limited there,
    which is what people who write such manifests mean (`lint` says so aloud). False: the flavor
    does not provide the resource, which is Kueue's reading."""
    missing_selector_admits_all: bool = False
    """A ClusterQueue without namespaceSelector serves no namespace in Kueue. True: it serves all,
    which is what published examples that leave it out take for granted."""
    preemption_gates: bool = False
    """Whether a closed preemption gate keeps a workload from preempting; off, as in Kueue."""
    wait_for_pods_ready: bool = False
    """Whether admission waits until the pods of all admitted workloads are ready."""
    preserve_scan_progress: bool = True
    """Whether a search for flavors goes on where it ended also after something happened; on, as in
    Kueue, so that it comes to its last flavor however much happens. It may then be inadmissible
    until quota is freed again though a flavor it passed over has become free. False: from the
    first."""
    protection: PreemptionProtection = PreemptionProtection()
    requeue_delay_ns: int = 0
    """How long freed quota is collected before the inadmissible are requeued, ns. 0: at once.
    Kueue collects for 1 s: fewer evaluations, and low priorities are not started into a gap that a
    high one would preempt them from a moment later."""
    room_steps_per_cycle: int = 3_000
    """How much one cycle searches for room by preemption, in steps: a few thousand for each search
    on a thousand nodes, about 3 microseconds each. Who comes after that keeps its quota from others
    and is the first to be looked at in the next cycle, which comes at once."""
    max_heads_per_cycle: int = 64
    """How many heads one cycle looks at before it leaves the remaining cohort trees to the next,
    so that decisions keep coming with a thousand queues. A tree is never divided: the order of
    entries within it, and so every decision, stays the same."""
