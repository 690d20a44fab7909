"""Condition types, their reasons, and the reasons of events: the one place where each is written.

Where Kueue has the same condition or event, the text is Kueue's to the letter. A new one is added
here and imported where it is set; `tests/queue/scheduler/model/test_reasons.py` fails if another
module defines a constant with the same text.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

# -- condition types ------------------------------------------------------------------------------

QUOTA_RESERVED: Final = "QuotaReserved"
"""Workload: set by the scheduler when it reserves quota, cleared by an eviction."""
ADMITTED: Final = "Admitted"
"""Workload: set once quota is reserved and all admission checks are ready."""
PODS_READY: Final = "PodsReady"
"""Workload: set by the job and pod reconcilers and by nodes' reports."""
EVICTED: Final = "Evicted"
"""Workload: set by an eviction, cleared when quota is reserved again."""
PREEMPTED: Final = "Preempted"
"""Workload: set beside EVICTED on a victim of preemption. Event of a victim, too."""
GROUP_GIVEN_BACK: Final = "GroupGivenBack"
"""Event of a pod whose group has lost its reserved places before all were bound."""
CHECKPOINTED: Final = "Checkpointed"
"""Workload: True while its pods are checkpointed in the memory of their nodes and it waits for its
GPUs; False while they are saved or restored, and afterwards. Its reason while True, too. Event of
its pod. Not one of Kueue's."""
NOT_PLACED_HERE: Final = "SharesNotPlaced"
"""Event of a pod with GPU shares whose scheduler has no node for it and does not know of shares."""
REQUEUED: Final = "Requeued"
"""Workload: False while an evicted Workload is in back-off, True once it is pending again."""
FINISHED: Final = "Finished"
"""Workload: set when its job has succeeded or failed."""
WAITING_FOR_PODS: Final = "WaitingForReplacementPods"
"""Workload of a pod group: set by the pod reconciler while pods of it are missing."""
ACTIVE: Final = "Active"
"""ClusterQueue, LocalQueue and AdmissionCheck: set by their status writers. Reason while True of
an AdmissionCheck."""
BLOCKED_ON_PREEMPTION_GATES: Final = "BlockedOnPreemptionGates"
"""Workload: set when it would preempt and one of its preemption gates is closed, cleared by a
reservation or an eviction."""
TERMINATION_TARGET: Final = "TerminationTarget"
"""Pod: set by the pod reconciler on a pod that is deleted because of its Workload."""
DISRUPTION_TARGET: Final = "DisruptionTarget"
"""Pod: set by the extender's preemption on a victim, as kube-scheduler does."""

# -- reasons of QuotaReserved and Admitted --------------------------------------------------------


class PendingReason(StrEnum):
    """Reasons of QuotaReserved=False: Kueue's, except where stated. Set by the scheduler."""

    EXCEEDS_MAX_QUOTA = "ExceedsMaxQuota"
    WAITING_FOR_QUOTA = "WaitingForQuota"
    NO_MATCHING_FLAVOR = "NoMatchingFlavor"
    MISCONFIGURED = "Misconfigured"
    ADMISSION_GATED = "AdmissionGated"
    WAITING_FOR_PREEMPTED_WORKLOADS = "WaitingForPreemptedWorkloads"
    WAITING_FOR_PODS_READY = "WaitingForPodsReady"
    PENDING_EVALUATION = "PendingEvaluation"
    SUSPENDED = "Suspended"
    WAITING_FOR_PLACEMENT = "WaitingForPlacement"
    """There is quota, but no node has room. Not one of Kueue's."""
    TOPOLOGY_PLACEMENT_FAILED = "TopologyPlacementFailed"
    """There is quota, but no domain of the topology has room."""
    WAITING_FOR_PREEMPTOR = "WaitingForPreemptor"
    """It was preempted for a workload that has not started yet. Not one of Kueue's."""
    WAITING_FOR_PODS_TO_STOP = "WaitingForPodsToStop"
    """It was checkpointed, could not go on, and its pods still end. Not one of Kueue's."""


DEVICES_UNRESOLVED: Final = "DRAResourcesUnresolved"
"""QuotaReserved=False and Requeued=False: the devices that its pods get by claims cannot be
counted. Set by the workload writer."""
DEVICES_RESOLVED: Final = "DRAResourcesResolved"
"""Requeued=True: they can be counted again."""
ON_HOLD: Final = "OnHold"
"""QuotaReserved=False: its StatefulSet is scaled to zero, or its evicted pods are not replaced."""
SCALED_TO_ZERO: Final = "Quota intentionally released while scaled to zero"
"""Message of QuotaReserved=False with ON_HOLD, Kueue's."""
TO_BE_REPLACED: Final = "Quota released until its evicted pods are replaced"
"""Message of QuotaReserved=False with ON_HOLD of a pod group. Not one of Kueue's."""
PREEMPTION_GATED: Final = "PreemptionGated"
"""Reason of BlockedOnPreemptionGates=True."""
NO_RESERVATION: Final = "NoReservation"
"""Admitted=False of a Workload that lost its quota; also a label of the metric of unadmitted."""
UNSATISFIED_CHECKS: Final = "UnsatisfiedAdmissionChecks"
"""Label of the metric of unadmitted Workloads that hold quota and wait for admission checks."""

# -- reasons of Evicted and Preempted -------------------------------------------------------------


class EvictionReason(StrEnum):
    """Reasons of Evicted=True, Kueue's. Set by `scheduler/lifecycle.py`."""

    PREEMPTED = "Preempted"
    PODS_READY_TIMEOUT = "PodsReadyTimeout"
    ADMISSION_CHECK = "AdmissionCheck"
    CLUSTER_QUEUE_STOPPED = "ClusterQueueStopped"
    LOCAL_QUEUE_STOPPED = "LocalQueueStopped"
    DEACTIVATED = "Deactivated"
    REJECTED = "DeactivatedDueToAdmissionCheck"
    REQUEUING_LIMIT = "DeactivatedDueToRequeuingLimitExceeded"
    MAXIMUM_EXECUTION_TIME = "DeactivatedDueToMaximumExecutionTimeExceeded"


DEACTIVATED_FOR: Final = "DeactivatedDueTo"
"""Prefix of an EvictionReason; the rest is the underlying cause in the Workload's statistics."""
NODE_FAILURES: Final = "NodeFailures"
"""Evicted: a node of its placement failed and no replacement was found."""
NODE_REFUSED: Final = "NodeRefused"
"""Evicted: the node daemon refused to start it (a queue without a cluster), or could not restore
its checkpoint."""


CHECKPOINT_REQUESTED: Final = "CheckpointRequested"
"""Checkpointed=False: it is preempted, and its pods are told to write their GPU memory to the host.
"""
RESTORING: Final = "Restoring"
"""Checkpointed=False: it has quota again, and its pods are told to read their memory back."""
RESTORED: Final = "Restored"
"""Checkpointed=False: its pods run again. Event of its pod, too."""
CHECKPOINT_FAILED: Final = "CheckpointFailed"
"""Checkpointed=False: its pods are stopped instead. Event of its pod, too."""


class PreemptionReason(StrEnum):
    """Reasons of Preempted=True, Kueue's and our last one. Set by `scheduler/preemption`."""

    IN_CLUSTER_QUEUE = "InClusterQueue"
    IN_COHORT_RECLAMATION = "InCohortReclamation"
    IN_COHORT_FAIR_SHARING = "InCohortFairSharing"
    IN_COHORT_RECLAIM_WHILE_BORROWING = "InCohortReclaimWhileBorrowing"
    CONSOLIDATION = "Consolidation"
    """Restarted on other GPUs so that another workload fits."""


PREEMPTION_WORDS: Final[Mapping[PreemptionReason, str]] = {
    PreemptionReason.IN_CLUSTER_QUEUE: "prioritization in the ClusterQueue",
    PreemptionReason.IN_COHORT_RECLAMATION: "reclamation within the cohort",
    PreemptionReason.IN_COHORT_FAIR_SHARING: "Fair Sharing within the cohort",
    PreemptionReason.IN_COHORT_RECLAIM_WHILE_BORROWING: (
        "reclamation within the cohort while borrowing"
    ),
    PreemptionReason.CONSOLIDATION: "consolidation, since it also fits on other GPUs",
}
"""The reasons in the message of a preemption, Kueue's words."""

# -- reasons of PodsReady, WaitingForReplacementPods and Finished ---------------------------------

STARTED: Final = "Started"
"""PodsReady=True for the first time since the admission. Event of a job that is unsuspended."""
RECOVERED: Final = "Recovered"
"""PodsReady=True again, after pods that were ready had stopped being ready."""
WAIT_FOR_SCHEDULING: Final = "WaitForScheduling"
"""PodsReady=False since the admission, and some pods are on no node yet; cause in the statistics of
evictions."""
WAIT_FOR_START: Final = "WaitForStart"
"""PodsReady=False since the admission; cause in the statistics of evictions."""
WAIT_FOR_RECOVERY: Final = "WaitForRecovery"
"""PodsReady=False after it was True; cause in the statistics of evictions."""
PODS_FAILED: Final = "PodsFailed"
"""WaitingForReplacementPods=True: pods of the group ended early."""
SUCCEEDED: Final = "Succeeded"
"""Finished: the job or the pod group succeeded."""
FAILED: Final = "Failed"
"""Finished: the job or the pod group failed."""
OWNER_NOT_FOUND: Final = "OwnerNotFound"
"""Finished: the job was deleted, and its Workload was left without an owner."""
FAILED_TO_START: Final = "FailedToStart"
"""Finished, and event of the job: the API server rejects the job with its pod set infos."""

# -- reasons of TerminationTarget and DisruptionTarget of pods ------------------------------------

WORKLOAD_DELETED: Final = "WorkloadDeleted"
"""TerminationTarget: the pod's Workload is being deleted."""
WORKLOAD_EVICTED: Final = "WorkloadEvicted"
"""TerminationTarget: prefix of the reason; the Workload's EvictionReason follows."""
UNMATCHED: Final = "NoMatchingWorkload"
"""TerminationTarget: no Workload matches the pod."""
NOT_ADMITTED: Final = "NotAdmitted"
"""TerminationTarget: the pod runs although its Workload is not admitted."""
PREEMPTION_BY_SCHEDULER: Final = "PreemptionByScheduler"
"""DisruptionTarget: kube-scheduler looks for no other victims while a pod with it terminates."""

# -- reasons of Active of queues and admission checks ---------------------------------------------

MISCONFIGURED: Final = PendingReason.MISCONFIGURED.value
"""Active=False of a ClusterQueue or LocalQueue whose document is invalid."""
TERMINATING: Final = "Terminating"
"""Active=False of a ClusterQueue that is being deleted."""
STOPPED: Final = "Stopped"
"""Active=False while stopPolicy is set. Event of a job or pod that is stopped. Reason of Finished
of a workload that a node stopped (a queue without a cluster)."""
FLAVOR_NOT_FOUND: Final = "FlavorNotFound"
"""Active=False of a ClusterQueue: a ResourceFlavor it references is missing."""
TOPOLOGY_NOT_FOUND: Final = "TopologyNotFound"
"""Active=False of a ClusterQueue: the Topology of a ResourceFlavor of it is missing."""
CHECK_NOT_FOUND: Final = "AdmissionCheckNotFound"
"""Active=False of a ClusterQueue: an AdmissionCheck it references is missing."""
CHECK_INACTIVE: Final = "AdmissionCheckInactive"
"""Active=False of a ClusterQueue: an AdmissionCheck it references is not active."""
COHORT_CYCLE: Final = "CohortCycleDetected"
"""Active=False of a ClusterQueue whose cohorts are their own ancestors."""
CLUSTER_QUEUE_MISSING: Final = "ClusterQueueDoesNotExist"
"""Active=False of a LocalQueue whose ClusterQueue is missing."""
CLUSTER_QUEUE_INACTIVE: Final = "ClusterQueueIsInactive"
"""Active=False of a LocalQueue whose ClusterQueue is not active."""
BAD_PARAMETERS: Final = "BadParametersRef"
"""Active=False of an AdmissionCheck whose parameters are missing or invalid."""

# -- reasons of events ----------------------------------------------------------------------------

CREATED_WORKLOAD: Final = "CreatedWorkload"
"""Job or pod: its Workload was created."""
TEMPLATE_CHANGED: Final = "TemplateChanged"
"""Deployment and the like: its pod template got its queue, which no webhook had passed on."""
TEMPLATE_NOT_CHANGED: Final = "TemplateNotChanged"
"""Deployment and the like: its pod template lacks its queue, and is left alone."""
UPDATED_WORKLOAD: Final = "UpdatedWorkload"
"""Job or pod: its Workload's spec was changed."""
DELETED_WORKLOAD: Final = "DeletedWorkload"
"""Job or pod: its Workload was deleted."""
FINISHED_WORKLOAD: Final = "FinishedWorkload"
"""Job or pod: its Workload was marked finished."""
PREEMPTED_WORKLOAD: Final = "PreemptedWorkload"
"""Workload of a preemptor: one of its victims was evicted."""
OWNER_REFERENCES_ADDED: Final = "OwnerReferencesAdded"
"""Pod group: pods were added to the owners of its Workload."""
WORKLOAD_NOT_COMPOSED: Final = "ErrWorkloadCompose"
"""Job or pod: no Workload can be made from it; warning."""
PRIORITY_CLASS_NOT_FOUND: Final = "PriorityClassNotFound"
"""Job or pod: it has no Workload until the PriorityClass that it names exists; warning."""
WORKLOAD_PRIORITY_CLASS_NOT_FOUND: Final = "WorkloadPriorityClassNotFound"
"""Job or pod: the same for its WorkloadPriorityClass; warning."""
NAME_CONFLICT: Final = "WorkloadNameConflict"
"""Pod group: a Workload of another owner has the group's name; warning."""
CONTESTED: Final = "Contested"
"""Job: another controller keeps unsuspending it; warning."""
EXCESS_POD_DELETED: Final = "ExcessPodDeleted"
"""Pod of a group that has more pods than its total count."""
DELETED: Final = "Deleted"
"""Workload or job: deleted by the retention policy."""
ADMISSION_GATE_CLEARED: Final = "AdmissionGateCleared"
"""Workload: the last of its admission gates was removed."""
EVICTED_DUE_TO: Final = "EvictedDueTo"
"""Workload: prefix of the reason; the EvictionReason follows."""
MAXIMUM_EXECUTION_TIME_EXCEEDED: Final = "MaximumExecutionTimeExceeded"
"""Workload: it ran for longer than its limit; warning."""
CHECK_REJECTED: Final = "AdmissionCheckRejected"
"""Workload: an admission check rejected it, so it was deactivated; warning."""
CHECK_UPDATED: Final = "AdmissionCheckUpdated"
"""Workload: the state of an admission check of it changed."""
PROVISIONING_REQUEST_CREATED: Final = "ProvisioningRequestCreated"
"""Workload: a ProvisioningRequest was created for it."""
MULTIKUEUE: Final = "MultiKueue"
"""Workload: a worker cluster admitted it, or it lost its worker."""
FAILED_CREATE: Final = "FailedCreate"
"""Workload: a ProvisioningRequest for it could not be created; warning."""
NEW_NODES_REQUESTED: Final = "NewNodesRequested"
"""Workload or pod: new nodes were requested from the autoscaler for its GPU shares."""
NO_NODE_TEMPLATE: Final = "NoNodeTemplate"
"""Workload or pod: its GPU shares fit on no new node of any template; warning."""
