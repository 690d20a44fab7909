"""Decisions of a scheduling cycle, for the shell to carry out and report."""

from __future__ import annotations

from dataclasses import dataclass, field

from queuecontroller.scheduler.model.assignment import Assignment
from queuecontroller.scheduler.model.objects import Admission, PodSetAssignment, WorkloadKey
from queuecontroller.scheduler.model.reasons import PendingReason, PreemptionReason
from queuecontroller.scheduler.model.workload_info import WorkloadInfo


@dataclass(frozen=True, slots=True)
class QuotaReserved:
    """The workload holds quota from now on."""

    info: WorkloadInfo
    assignment: Assignment
    checks_ready: bool
    """True if it is admitted at once: all admission checks are ready, or there are none."""

    def admission(self) -> Admission:
        return admission_of(self.info.cluster_queue, self.assignment)


@dataclass(frozen=True, slots=True)
class Preempted:
    """The target has to stop; it holds its quota until the shell reports that it has stopped."""

    target: WorkloadInfo
    reason: PreemptionReason
    preemptor: WorkloadInfo


@dataclass(frozen=True, slots=True)
class StillPending:
    info: WorkloadInfo
    reason: PendingReason
    message: str
    preempting: tuple[WorkloadKey, ...] = ()
    """Victims it waits for, of this cycle and of earlier ones."""
    frees: tuple[WorkloadKey, ...] = ()
    """Paused workloads without quota whose memory it waits for; they have to be stopped."""


@dataclass(slots=True)
class CycleResult:
    reserved: list[QuotaReserved] = field(default_factory=list)
    preempted: list[Preempted] = field(default_factory=list)
    pending: list[StillPending] = field(default_factory=list)
    replaced: list[WorkloadInfo] = field(default_factory=list)
    """Slices of elastic jobs that ended because a larger one took their place."""
    skipped_preemptions: dict[str, int] = field(default_factory=dict)
    """Number of entries by ClusterQueue that could have preempted but for an earlier entry."""
    recomputed: list[tuple[str, str]] = field(default_factory=list)
    """ClusterQueue and outcome of each search for other victims than those that an earlier entry
    took."""
    circling: list[WorkloadInfo] = field(default_factory=list)
    """Workloads whose flavor search reached a position a second time and was ended."""
    unreported: list[WorkloadKey] = field(default_factory=list)
    """Workloads of the same shape as one that cannot start, not yet reported; they are not
    evaluated."""
    heads: int = 0
    more: bool = False
    """True if another cycle at once may decide more though this one decided nothing: trees were
    left for it, or another workload became the head after one became inadmissible."""


def admission_of(cluster_queue: str, assignment: Assignment) -> Admission:
    return Admission(
        cluster_queue,
        tuple(
            PodSetAssignment(
                name=one.name,
                count=one.count,
                flavors={name: got.flavor for name, got in one.flavors.items()},
                usage={name: one.requests[name] for name in one.flavors},
                topology=assignment.topology.get(one.name),
                places=assignment.places.get(one.name, ()),
            )
            for one in assignment.pod_sets
        ),
    )
