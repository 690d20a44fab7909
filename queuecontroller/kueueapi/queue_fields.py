"""The queues: ClusterQueue, LocalQueue, Cohort, ResourceFlavor, WorkloadPriorityClass, Topology."""

from __future__ import annotations

from typing import Final

from queuecontroller.kueueapi.fields import (
    LABEL_KEY,
    NEW,
    OLD,
    Amount,
    Column,
    Field,
    Kind,
    ListOf,
    MapOf,
    Rule,
    Text,
    Time,
    Version,
    Whole,
    choices,
    fields,
)
from queuecontroller.kueueapi.shared_fields import (
    ADMISSION_SCOPE,
    CONDITIONS,
    EFFECTIVE_QUOTAS,
    FAIR_SHARING,
    LABEL_MAP,
    LABEL_SELECTOR,
    OBJECT_NAME,
    RESOURCE_GROUPS,
    STOP_POLICY,
    TAINT,
    TOLERATION,
    WEIGHTED_SHARE,
    WORKLOADS,
    usage,
)
from queuecontroller.scheduler.model.objects import (
    FungibilityPolicy,
    FungibilityPreference,
    PreemptionPolicy,
    QueueingStrategy,
)

_NEVER, _LOWER = PreemptionPolicy.NEVER, PreemptionPolicy.LOWER_PRIORITY

_FUNGIBILITY: Final = Field(
    "Conditions that end the search for a flavor before the last one.",
    fields(
        whenCanBorrow=Field(
            "A flavor that fits by borrowing: MayStopSearch takes it, TryNextFlavor continues "
            "the search.",
            choices(FungibilityPolicy, old=("Borrow",)),
            default="MayStopSearch",
            old_default="Borrow",
        ),
        whenCanPreempt=Field(
            "A flavor that fits by preempting: MayStopSearch takes it, TryNextFlavor continues "
            "the search.",
            choices(FungibilityPolicy, old=("Preempt",)),
            default="TryNextFlavor",
        ),
        preference=Field(
            "The preference where no flavor fits without either.",
            choices(FungibilityPreference),
        ),
    ),
    default={},
)
_PREEMPTION: Final = Field(
    "Workloads that a pending one may preempt.",
    fields(
        Rule(
            "!(self.reclaimWithinCohort == 'Never' && has(self.borrowWithinCohort)"
            " && self.borrowWithinCohort.policy != 'Never')",
            "borrowWithinCohort has no effect while reclaimWithinCohort is Never",
        ),
        withinClusterQueue=Field(
            "In the same ClusterQueue.",
            choices(
                PreemptionPolicy,
                _NEVER,
                _LOWER,
                PreemptionPolicy.LOWER_OR_NEWER_EQUAL_PRIORITY,
            ),
            default="Never",
        ),
        reclaimWithinCohort=Field(
            "In ClusterQueues of the cohort that borrow, to reclaim this queue's own quota.",
            choices(PreemptionPolicy, _NEVER, _LOWER, PreemptionPolicy.ANY),
            default="Never",
        ),
        borrowWithinCohort=Field(
            "In ClusterQueues of the cohort while this one borrows itself.",
            fields(
                policy=Field(
                    "Never, or those of lower priority.",
                    choices(PreemptionPolicy, _NEVER, _LOWER),
                    default="Never",
                ),
                maxPriorityThreshold=Field(
                    "Only workloads of this priority or a lower one may be preempted.", Whole()
                ),
            ),
            default={},
        ),
    ),
    default={},
)
_CHECKS_STRATEGY: Final = Field(
    "AdmissionChecks that must be ready before a Workload is admitted, each for all flavors or "
    "for some.",
    fields(
        admissionChecks=Field(
            "The checks.",
            ListOf(
                fields(
                    name=Field("Name of the AdmissionCheck.", OBJECT_NAME, required=True),
                    onFlavors=Field(
                        "Flavors that require it; none: all.", ListOf(OBJECT_NAME, 64, unique=True)
                    ),
                ),
                64,
                keys=("name",),
            ),
            required=True,
        )
    ),
)
_CONCURRENT: Final = Field(
    "Variants of a workload that are tried on several flavors at once.",
    fields(
        migration=Field(
            "Migration once a flavor earlier in the list has room.",
            fields(
                mode=Field(
                    "TryPreferredFlavors moves it there, RetainFirstAdmission leaves it.",
                    Text(choices=("RetainFirstAdmission", "TryPreferredFlavors")),
                    required=True,
                ),
                constraints=Field(
                    "Limits of the search.",
                    fields(
                        lastAcceptableFlavorName=Field(
                            "The last flavor of the list that is tried.", OBJECT_NAME
                        )
                    ),
                ),
            ),
            required=True,
        )
    ),
)

CLUSTER_QUEUE: Final = Kind(
    "ClusterQueue",
    "clusterqueues",
    "Quota that spans the cluster, and the rules by which Workloads are admitted to it.",
    fields(
        spec=Field(
            "The desired state.",
            fields(
                cohortName=Field(
                    "The Cohort in which unused quota is shared; none: it is not shared.",
                    OBJECT_NAME,
                    versions=NEW,
                ),
                cohort=Field(
                    "The Cohort in which unused quota is shared. v1beta2 has cohortName.",
                    OBJECT_NAME,
                    versions=OLD,
                ),
                resourceGroups=RESOURCE_GROUPS,
                queueingStrategy=Field(
                    "StrictFIFO: the head blocks the queue. BestEffortFIFO: a Workload that does"
                    " not fit is passed over.",
                    choices(QueueingStrategy),
                    default="BestEffortFIFO",
                ),
                namespaceSelector=Field(
                    "Selector of the namespaces that may use the queue. Left out: none; empty: "
                    "all.",
                    LABEL_SELECTOR,
                ),
                flavorFungibility=_FUNGIBILITY,
                preemption=_PREEMPTION,
                admissionChecks=Field(
                    "Checks that must be ready before a Workload is admitted. v1beta2 has "
                    "admissionChecksStrategy.",
                    ListOf(OBJECT_NAME, 64, unique=True),
                    versions=OLD,
                ),
                admissionChecksStrategy=_CHECKS_STRATEGY,
                stopPolicy=STOP_POLICY,
                fairSharing=FAIR_SHARING,
                admissionScope=ADMISSION_SCOPE,
                concurrentAdmissionPolicy=_CONCURRENT,
            ),
        ),
        status=Field(
            "The observed state.",
            fields(
                conditions=CONDITIONS,
                flavorsReservation=Field(
                    "Reserved quota, by flavor and resource.", usage(borrowed=True)
                ),
                flavorsUsage=Field(
                    "Quota of admitted Workloads, by flavor and resource.", usage(borrowed=True)
                ),
                pendingWorkloads=Field("Number of pending Workloads.", WORKLOADS),
                reservingWorkloads=Field("Number of Workloads that hold quota.", WORKLOADS),
                admittedWorkloads=Field(
                    "Number of admitted Workloads that have not finished.", WORKLOADS
                ),
                fairSharing=Field("Its current share.", fields(weightedShare=WEIGHTED_SHARE)),
                effectiveQuotas=EFFECTIVE_QUOTAS,
            ),
        ),
    ),
    short_names=("cq",),
    versions=(Version.V1ALPHA2, Version.V1BETA1, Version.V1BETA2),
    columns=(
        Column("Cohort", ".spec.cohortName", "The cohort", old_path=".spec.cohort"),
        Column("Strategy", ".spec.queueingStrategy", "The queueing strategy", wide=True),
        Column(
            "Pending Workloads",
            ".status.pendingWorkloads",
            "Number of pending Workloads",
            "integer",
        ),
        Column(
            "Admitted Workloads",
            ".status.admittedWorkloads",
            "Number of admitted Workloads",
            "integer",
            wide=True,
        ),
    ),
)

LOCAL_QUEUE: Final = Kind(
    "LocalQueue",
    "localqueues",
    "A namespace's entry point to a ClusterQueue: jobs name it in a label.",
    fields(
        spec=Field(
            "The desired state.",
            fields(
                clusterQueue=Field(
                    "The ClusterQueue it belongs to. It cannot be changed: make another "
                    "LocalQueue.",
                    OBJECT_NAME,
                    required=True,
                    rules=(
                        Rule(
                            "self == oldSelf",
                            "cannot be changed (fix: make another LocalQueue)",
                        ),
                    ),
                ),
                stopPolicy=STOP_POLICY,
                fairSharing=FAIR_SHARING,
            ),
        ),
        status=Field(
            "The observed state.",
            fields(
                conditions=CONDITIONS,
                flavorsReservation=Field(
                    "Reserved quota, by flavor and resource.", usage(borrowed=False)
                ),
                flavorsUsage=Field(
                    "Quota of admitted Workloads, by flavor and resource.",
                    usage(borrowed=False),
                    versions=NEW,
                ),
                flavorUsage=Field(
                    "Quota of admitted Workloads. v1beta2 has flavorsUsage.",
                    usage(borrowed=False),
                    versions=OLD,
                ),
                pendingWorkloads=Field("Number of pending Workloads.", WORKLOADS),
                reservingWorkloads=Field("Number of Workloads that hold quota.", WORKLOADS),
                admittedWorkloads=Field(
                    "Number of admitted Workloads that have not finished.", WORKLOADS
                ),
                fairSharing=Field(
                    "Its current share.",
                    fields(
                        weightedShare=WEIGHTED_SHARE,
                        admissionFairSharingStatus=Field(
                            "Recorded usage, which decides the order of admission.",
                            fields(
                                consumedResources=Field(
                                    "Decayed usage by resource.", MapOf(Amount(), 64)
                                ),
                                lastUpdate=Field("Time of the last update.", Time()),
                            ),
                        ),
                    ),
                ),
            ),
        ),
    ),
    short_names=("lq", "queue", "queues"),
    namespaced=True,
    columns=(
        Column("ClusterQueue", ".spec.clusterQueue", "The ClusterQueue it belongs to"),
        Column(
            "Pending Workloads",
            ".status.pendingWorkloads",
            "Number of pending Workloads",
            "integer",
        ),
        Column(
            "Admitted Workloads",
            ".status.admittedWorkloads",
            "Number of admitted Workloads",
            "integer",
        ),
    ),
)

COHORT: Final = Kind(
    "Cohort",
    "cohorts",
    "ClusterQueues and other Cohorts that share unused quota.",
    fields(
        spec=Field(
            "The desired state.",
            fields(
                parentName=Field("The parent Cohort.", OBJECT_NAME),
                parent=Field(
                    "The parent Cohort. v1beta1 and v1beta2 have parentName.",
                    OBJECT_NAME,
                    versions=frozenset({Version.V1ALPHA1}),
                ),
                resourceGroups=RESOURCE_GROUPS,
                fairSharing=FAIR_SHARING,
                admissionScope=ADMISSION_SCOPE,
            ),
        ),
        status=Field(
            "The observed state.",
            fields(
                fairSharing=Field("Its current share.", fields(weightedShare=WEIGHTED_SHARE)),
                effectiveQuotas=EFFECTIVE_QUOTAS,
            ),
        ),
    ),
    short_names=("co",),
)

RESOURCE_FLAVOR: Final = Kind(
    "ResourceFlavor",
    "resourceflavors",
    "A kind of node for which quota is defined.",
    fields(
        spec=Field(
            "The desired state.",
            fields(
                Rule(
                    "!has(self.topologyName)"
                    " || (has(self.nodeLabels) && size(self.nodeLabels) > 0)",
                    "a flavor with topologyName needs nodeLabels",
                ),
                nodeLabels=Field(
                    "Labels of its nodes; pods admitted to it run only there.", LABEL_MAP
                ),
                nodeTaints=Field(
                    "Taints of its nodes; only pods that tolerate them are admitted to it.",
                    ListOf(TAINT, 8),
                ),
                tolerations=Field(
                    "Tolerations that are added to pods admitted to it.", ListOf(TOLERATION, 8)
                ),
                topologyName=Field("The Topology of its nodes.", OBJECT_NAME),
            ),
        )
    ),
    short_names=("rf", "flavor", "flavors"),
)

WORKLOAD_PRIORITY_CLASS: Final = Kind(
    "WorkloadPriorityClass",
    "workloadpriorityclasses",
    "A priority for queueing alone; the pods' own priority is unchanged.",
    fields(
        value=Field("The priority; higher ones are admitted first.", Whole(), required=True),
        description=Field("Its purpose.", Text(longest=4096)),
    ),
    short_names=("wpc",),
    columns=(Column("Value", ".value", "The priority", "integer"),),
)

TOPOLOGY: Final = Kind(
    "Topology",
    "topologies",
    "Levels in which nodes are grouped, from the widest to the narrowest.",
    fields(
        spec=Field(
            "The desired state.",
            fields(
                levels=Field(
                    "The levels, the widest first.",
                    ListOf(
                        fields(
                            nodeLabel=Field(
                                "The node label that names the block, rack or host.",
                                Text(LABEL_KEY, 316),
                                required=True,
                            )
                        ),
                        16,
                        least=1,
                        keys=("nodeLabel",),
                        atomic=True,
                    ),
                    required=True,
                    rules=(
                        Rule(
                            "!self.exists(one, one.nodeLabel == 'kubernetes.io/hostname')"
                            " || self[size(self) - 1].nodeLabel == 'kubernetes.io/hostname'",
                            "kubernetes.io/hostname has to be the lowest level",
                        ),
                        Rule(
                            "self == oldSelf || (self[size(self) - 1].nodeLabel =="
                            " 'kubernetes.io/hostname' && oldSelf[size(oldSelf) - 1].nodeLabel =="
                            " 'kubernetes.io/hostname')",
                            "can only be changed where kubernetes.io/hostname is and stays the"
                            " lowest level (fix: make another Topology)",
                        ),
                    ),
                )
            ),
            required=True,
        )
    ),
    short_names=("topo",),
)
