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
    "When the search for a flavor stops before the last one.",
    fields(
        whenCanBorrow=Field(
            "A flavor that fits by borrowing: MayStopSearch takes it, TryNextFlavor looks on.",
            choices(FungibilityPolicy, old=("Borrow",)),
            default="MayStopSearch",
            old_default="Borrow",
        ),
        whenCanPreempt=Field(
            "A flavor that fits by preempting: MayStopSearch takes it, TryNextFlavor looks on.",
            choices(FungibilityPolicy, old=("Preempt",)),
            default="TryNextFlavor",
        ),
        preference=Field(
            "Which is preferred where no flavor fits without either.",
            choices(FungibilityPreference),
        ),
    ),
    default={},
)
_PREEMPTION: Final = Field(
    "Whom a waiting workload may stop to take its place.",
    fields(
        withinClusterQueue=Field(
            "In the same queue.",
            choices(
                PreemptionPolicy,
                _NEVER,
                _LOWER,
                PreemptionPolicy.LOWER_OR_NEWER_EQUAL_PRIORITY,
            ),
            default="Never",
        ),
        reclaimWithinCohort=Field(
            "In queues of the cohort that have borrowed, for quota that is the own.",
            choices(PreemptionPolicy, _NEVER, _LOWER, PreemptionPolicy.ANY),
            default="Never",
        ),
        borrowWithinCohort=Field(
            "In queues of the cohort while this one borrows itself.",
            fields(
                policy=Field(
                    "Never, or those of lower priority.",
                    choices(PreemptionPolicy, _NEVER, _LOWER),
                    default="Never",
                ),
                maxPriorityThreshold=Field(
                    "Only those of this priority or a lower one may be stopped.", Whole()
                ),
            ),
        ),
    ),
    default={},
)
_CHECKS_STRATEGY: Final = Field(
    "AdmissionChecks that must pass before work starts, each for all flavors or for some.",
    fields(
        admissionChecks=Field(
            "The checks.",
            ListOf(
                fields(
                    name=Field("Name of the AdmissionCheck.", OBJECT_NAME, required=True),
                    onFlavors=Field(
                        "Flavors that it is for; none: all.", ListOf(OBJECT_NAME, 64, unique=True)
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
    "Whether work may be tried on several flavors at once.",
    fields(
        migration=Field(
            "What becomes of it when a flavor earlier in the list has room.",
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
    "Quota of the whole cluster, and how waiting work is let in to it.",
    fields(
        spec=Field(
            "What is wanted.",
            fields(
                cohortName=Field(
                    "The Cohort that unused quota is shared in; none: it is not shared.",
                    OBJECT_NAME,
                    versions=NEW,
                ),
                cohort=Field(
                    "The Cohort that unused quota is shared in. v1beta2 has cohortName.",
                    OBJECT_NAME,
                    versions=OLD,
                ),
                resourceGroups=RESOURCE_GROUPS,
                queueingStrategy=Field(
                    "StrictFIFO: the first in line blocks those behind it. BestEffortFIFO: who "
                    "does not fit is passed.",
                    choices(QueueingStrategy),
                    default="BestEffortFIFO",
                ),
                namespaceSelector=Field(
                    "Namespaces whose work is let in, by their labels. Left out: none; empty: all.",
                    LABEL_SELECTOR,
                ),
                flavorFungibility=_FUNGIBILITY,
                preemption=_PREEMPTION,
                admissionChecks=Field(
                    "Checks that must pass before work starts. v1beta2 has "
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
            "What is.",
            fields(
                conditions=CONDITIONS,
                flavorsReservation=Field(
                    "What is reserved, by flavor and resource.", usage(borrowed=True)
                ),
                flavorsUsage=Field(
                    "What admitted work uses, by flavor and resource.", usage(borrowed=True)
                ),
                pendingWorkloads=Field("Workloads that wait.", WORKLOADS),
                reservingWorkloads=Field("Workloads that hold quota.", WORKLOADS),
                admittedWorkloads=Field("Workloads that are admitted and not finished.", WORKLOADS),
                fairSharing=Field("Its present share.", fields(weightedShare=WEIGHTED_SHARE)),
            ),
        ),
    ),
    short_names=("cq",),
    versions=(Version.V1ALPHA2, Version.V1BETA1, Version.V1BETA2),
    columns=(
        Column("Cohort", ".spec.cohortName", "The cohort", old_path=".spec.cohort"),
        Column("Strategy", ".spec.queueingStrategy", "How it queues", wide=True),
        Column("Pending Workloads", ".status.pendingWorkloads", "Who waits", "integer"),
        Column("Admitted Workloads", ".status.admittedWorkloads", "Who runs", "integer", wide=True),
    ),
)

LOCAL_QUEUE: Final = Kind(
    "LocalQueue",
    "localqueues",
    "A namespace's door to a ClusterQueue: jobs name it in a label.",
    fields(
        spec=Field(
            "What is wanted.",
            fields(
                clusterQueue=Field(
                    "The ClusterQueue behind it. It cannot be changed: make another LocalQueue.",
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
            "What is.",
            fields(
                conditions=CONDITIONS,
                flavorsReservation=Field(
                    "What is reserved, by flavor and resource.", usage(borrowed=False)
                ),
                flavorsUsage=Field(
                    "What admitted work uses, by flavor and resource.",
                    usage(borrowed=False),
                    versions=NEW,
                ),
                flavorUsage=Field(
                    "What admitted work uses. v1beta2 has flavorsUsage.",
                    usage(borrowed=False),
                    versions=OLD,
                ),
                pendingWorkloads=Field("Workloads that wait.", WORKLOADS),
                reservingWorkloads=Field("Workloads that hold quota.", WORKLOADS),
                admittedWorkloads=Field("Workloads that are admitted and not finished.", WORKLOADS),
                fairSharing=Field(
                    "Its present share.",
                    fields(
                        weightedShare=WEIGHTED_SHARE,
                        admissionFairSharingStatus=Field(
                            "Past use, which decides who is next.",
                            fields(
                                consumedResources=Field(
                                    "Use over time, by resource.", MapOf(Amount(), 64)
                                ),
                                lastUpdate=Field("When it was reckoned.", Time()),
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
        Column("ClusterQueue", ".spec.clusterQueue", "The ClusterQueue behind it"),
        Column("Pending Workloads", ".status.pendingWorkloads", "Who waits", "integer"),
        Column("Admitted Workloads", ".status.admittedWorkloads", "Who runs", "integer"),
    ),
)

COHORT: Final = Kind(
    "Cohort",
    "cohorts",
    "ClusterQueues and other Cohorts that share unused quota.",
    fields(
        spec=Field(
            "What is wanted.",
            fields(
                parentName=Field("The Cohort that this one is part of.", OBJECT_NAME),
                parent=Field(
                    "The Cohort that this one is part of. v1beta1 and v1beta2 have parentName.",
                    OBJECT_NAME,
                    versions=frozenset({Version.V1ALPHA1}),
                ),
                resourceGroups=RESOURCE_GROUPS,
                fairSharing=FAIR_SHARING,
                admissionScope=ADMISSION_SCOPE,
            ),
        ),
        status=Field(
            "What is.",
            fields(fairSharing=Field("Its present share.", fields(weightedShare=WEIGHTED_SHARE))),
        ),
    ),
    short_names=("co",),
)

RESOURCE_FLAVOR: Final = Kind(
    "ResourceFlavor",
    "resourceflavors",
    "A kind of node that quota is given on.",
    fields(
        spec=Field(
            "What is wanted.",
            fields(
                nodeLabels=Field(
                    "Labels of its nodes; pods admitted to it run only there.", LABEL_MAP
                ),
                nodeTaints=Field(
                    "Taints of its nodes; only pods that tolerate them are admitted to it.",
                    ListOf(TAINT, 8),
                ),
                tolerations=Field(
                    "Tolerations that pods admitted to it are given.", ListOf(TOLERATION, 8)
                ),
                topologyName=Field("The Topology that its nodes are placed by.", OBJECT_NAME),
            ),
        )
    ),
    short_names=("rf", "flavor", "flavors"),
)

WORKLOAD_PRIORITY_CLASS: Final = Kind(
    "WorkloadPriorityClass",
    "workloadpriorityclasses",
    "A priority for queueing alone; the pods' own is left as it is.",
    fields(
        value=Field("The priority; the higher goes first.", Whole(), required=True),
        description=Field("When to use it.", Text(longest=4096)),
    ),
    short_names=("wpc",),
    columns=(Column("Value", ".value", "The priority", "integer"),),
)

TOPOLOGY: Final = Kind(
    "Topology",
    "topologies",
    "How nodes stand together, from the widest level to the narrowest.",
    fields(
        spec=Field(
            "What is wanted.",
            fields(
                levels=Field(
                    "The levels, the widest first.",
                    ListOf(
                        fields(
                            nodeLabel=Field(
                                "The label that says which block, rack or node it is.",
                                Text(LABEL_KEY, 316),
                                required=True,
                            )
                        ),
                        16,
                        least=1,
                        keys=("nodeLabel",),
                    ),
                    required=True,
                )
            ),
            required=True,
        )
    ),
    short_names=("topo",),
)
