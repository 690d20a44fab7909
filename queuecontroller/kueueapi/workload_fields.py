"""Workload: the pods that are let in together, and what has been decided about them.

By far the most written kind: its schema is kept small and has no CEL, which the API server would
run at every write (docs/decisions/queue/0025-kueue-api.md).
"""

from __future__ import annotations

from typing import Final

from queuecontroller.kueueapi.fields import (
    AGE,
    LABEL_KEY,
    NAME,
    NEW,
    OLD,
    Amount,
    Column,
    Field,
    Flag,
    Kind,
    ListOf,
    MapOf,
    PodTemplate,
    Text,
    Time,
    Whole,
    choices,
    fields,
)
from queuecontroller.kueueapi.shared_fields import CONDITIONS, OBJECT_NAME, STRING_MAP, TOLERATION
from queuecontroller.scheduler.model.objects import CheckState

MOST_POD_SETS: Final = 18
MOST_CHECKS: Final = 8
MOST_GATES: Final = 8
MOST_LEVELS: Final = 16
MOST_SLICES: Final = 1000
MOST_DOMAINS: Final = 100_000
MOST_PLACES: Final = 4096
"""Of the pods of one pod set on GPUs."""
LONGEST_PLACE: Final = 65_536
OLD_CLASS_SOURCES: Final = {
    "kueue.x-k8s.io/workloadpriorityclass": ("kueue.x-k8s.io", "WorkloadPriorityClass"),
    "scheduling.k8s.io/priorityclass": ("scheduling.k8s.io", "PriorityClass"),
}
"""v1beta1's word for what v1beta2 says with a group and a kind."""

POD_SET_NAME: Final = Text(NAME, 63)
COUNT: Final = Whole(0)
_LABEL: Final = Text(LABEL_KEY, 317)

_TOPOLOGY_REQUEST: Final = fields(
    required=Field("All pods in one domain of this level.", _LABEL),
    preferred=Field("All pods in one domain of this level if it can be, else wider.", _LABEL),
    unconstrained=Field("Anywhere that there is room for each pod.", Flag()),
    podIndexLabel=Field("Label of the pods that has their index.", _LABEL),
    subGroupIndexLabel=Field("Label of the pods that has the index of their group.", _LABEL),
    subGroupCount=Field("Groups that the pods are in.", COUNT),
    podSetGroupName=Field("Pod sets of one name are placed together.", Text(longest=63)),
    podSetSliceRequiredTopology=Field(
        "Each slice of the pods in one domain of this level.", _LABEL
    ),
    podSetSliceSize=Field("Pods of a slice.", Whole(1)),
    podsetSliceRequiredTopologyConstraints=Field(
        "Slices of slices, from the widest level.",
        ListOf(
            fields(
                topology=Field("The level of the domain.", _LABEL, required=True),
                size=Field("Pods of the slice.", Whole(1), required=True),
            ),
            3,
        ),
    ),
)

_POD_SET: Final = fields(
    name=Field("Name of the pod set.", POD_SET_NAME, default="main"),
    count=Field("Pods.", COUNT, default=1),
    minCount=Field("As many pods are enough to begin with.", Whole(1)),
    template=Field("What each pod is.", PodTemplate(), required=True),
    topologyRequest=Field("Where the pods may stand, seen from each other.", _TOPOLOGY_REQUEST),
)

_SPEC: Final = fields(
    podSets=Field(
        "Groups of equal pods; all start together.",
        ListOf(_POD_SET, MOST_POD_SETS, keys=("name",)),
    ),
    queueName=Field("The LocalQueue that it waits in.", OBJECT_NAME),
    priority=Field("Its priority; the higher goes first.", Whole()),
    priorityClassRef=Field(
        "The class that its priority comes from.",
        fields(
            group=Field(
                "Group of the class.",
                Text(choices=("kueue.x-k8s.io", "scheduling.k8s.io")),
                required=True,
            ),
            kind=Field(
                "Kind of the class.",
                Text(choices=("PriorityClass", "WorkloadPriorityClass")),
                required=True,
            ),
            name=Field("Name of the class.", OBJECT_NAME, required=True),
        ),
        versions=NEW,
    ),
    priorityClassName=Field(
        "Name of the class that its priority comes from. v1beta2 has priorityClassRef.",
        OBJECT_NAME,
        versions=OLD,
    ),
    priorityClassSource=Field(
        "Kind of the class that its priority comes from. v1beta2 has priorityClassRef.",
        Text(choices=("", *OLD_CLASS_SOURCES)),
        versions=OLD,
    ),
    active=Field("false: it is stopped, and waits until this is true again.", Flag(), default=True),
    maximumExecutionTimeSeconds=Field(
        "How long it may run; then it is stopped for good.", Whole(1)
    ),
    preemptionGates=Field(
        "Gates that keep it from stopping others until they are open.",
        ListOf(
            fields(name=Field("Name of the gate.", _LABEL, required=True)),
            MOST_GATES,
            keys=("name",),
        ),
    ),
)

_PLACES: Final = fields(
    levels=Field("Labels of the levels, the widest first.", ListOf(_LABEL, MOST_LEVELS)),
    domains=Field(
        "Where pods stand: each domain by its value at every level. v1beta2 has slices.",
        ListOf(
            fields(
                values=Field("A value for each level.", ListOf(Text(), MOST_LEVELS), required=True),
                count=Field("Pods there.", Whole(1), required=True),
            ),
            MOST_DOMAINS,
        ),
        versions=OLD,
    ),
    slices=Field(
        "Where pods stand: domains, with what they have in common written once.",
        ListOf(
            fields(
                domainCount=Field("Domains of the slice.", Whole(1), required=True),
                podCounts=Field(
                    "Pods of each domain.",
                    fields(
                        universal=Field("The same in all.", Whole(1)),
                        individual=Field("One number for each.", ListOf(Whole(1), MOST_DOMAINS)),
                    ),
                    required=True,
                ),
                valuesPerLevel=Field(
                    "For each level, the domains' values.",
                    ListOf(
                        fields(
                            universal=Field("The same in all.", Text()),
                            individual=Field(
                                "One for each: prefix, root, suffix.",
                                fields(
                                    prefix=Field("What all begin with.", Text()),
                                    suffix=Field("What all end with.", Text()),
                                    roots=Field(
                                        "What is between.",
                                        ListOf(Text(), MOST_DOMAINS),
                                        required=True,
                                    ),
                                ),
                            ),
                        ),
                        MOST_LEVELS,
                    ),
                    required=True,
                ),
            ),
            MOST_SLICES,
        ),
        versions=NEW,
    ),
)

_ADMISSION: Final = fields(
    clusterQueue=Field("The ClusterQueue whose quota it holds.", OBJECT_NAME, required=True),
    podSetAssignments=Field(
        "What each pod set was given.",
        ListOf(
            fields(
                name=Field("Name of the pod set.", POD_SET_NAME, default="main"),
                flavors=Field("The flavor of each resource.", MapOf(OBJECT_NAME, 64)),
                resourceUsage=Field("What all its pods hold.", MapOf(Amount(), 64)),
                count=Field("Pods that were let in.", COUNT),
                topologyAssignment=Field("Where they stand.", _PLACES),
                gpuPlaces=Field(
                    "Ours: the GPUs that are kept for its pods.",
                    ListOf(
                        fields(
                            place=Field(
                                "Node and GPUs, as the annotation sluice.dev/placement has them.",
                                Text(longest=LONGEST_PLACE),
                                required=True,
                            ),
                            count=Field("Pods that have a place like it.", Whole(1), required=True),
                        ),
                        MOST_PLACES,
                    ),
                ),
                delayedTopologyRequest=Field(
                    "Whether it is yet to be decided where they stand.",
                    Text(choices=("Pending", "Ready")),
                ),
            ),
            MOST_POD_SETS,
            keys=("name",),
        ),
    ),
)

_CHECK: Final = fields(
    name=Field("Name of the AdmissionCheck.", OBJECT_NAME, required=True),
    state=Field("What the check says.", choices(CheckState), required=True),
    message=Field("Why, for people.", Text(longest=32768), required=True),
    lastTransitionTime=Field("When the state last changed.", Time(), required=True),
    retryCount=Field("How often it was tried again.", COUNT),
    requeueAfterSeconds=Field("How long to wait before it is tried again.", COUNT),
    podSetUpdates=Field(
        "What the check adds to the pods when they start.",
        ListOf(
            fields(
                name=Field("Name of the pod set.", POD_SET_NAME, required=True),
                labels=Field("Labels.", STRING_MAP),
                annotations=Field("Annotations.", STRING_MAP),
                nodeSelector=Field("Labels of nodes.", STRING_MAP),
                tolerations=Field("Tolerations.", ListOf(TOLERATION, 8)),
            ),
            MOST_POD_SETS,
        ),
    ),
)

_STATUS: Final = fields(
    admission=Field("What it was given; it holds this quota.", _ADMISSION),
    conditions=CONDITIONS,
    admissionChecks=Field(
        "What the AdmissionChecks say.", ListOf(_CHECK, MOST_CHECKS, keys=("name",))
    ),
    requeueState=Field(
        "How it comes back after it was stopped.",
        fields(
            count=Field("How often it was stopped since it last ran well.", COUNT),
            requeueAt=Field("When it may be let in again.", Time()),
        ),
    ),
    reclaimablePods=Field(
        "Pods that need their quota no more.",
        ListOf(
            fields(
                name=Field("Name of the pod set.", POD_SET_NAME, required=True),
                count=Field("Pods.", COUNT, required=True),
            ),
            MOST_POD_SETS,
            keys=("name",),
        ),
    ),
    resourceRequests=Field(
        "What each pod set asks for while it waits.",
        ListOf(
            fields(
                name=Field("Name of the pod set.", POD_SET_NAME, required=True),
                resources=Field("Of all its pods.", MapOf(Amount(), 64)),
            ),
            MOST_POD_SETS,
            keys=("name",),
        ),
    ),
    accumulatedPastExecutionTimeSeconds=Field(
        "How long it ran before it was last stopped.", COUNT, versions=NEW
    ),
    accumulatedPastExexcutionTimeSeconds=Field(
        "How long it ran before it was last stopped. v1beta2 has it without the misspelling.",
        COUNT,
        versions=OLD,
    ),
    schedulingStats=Field(
        "What happened to it.",
        fields(
            evictions=Field(
                "How often it was stopped, by reason.",
                ListOf(
                    fields(
                        reason=Field("Why.", Text(longest=316), required=True),
                        underlyingCause=Field(
                            "Why, more closely.", Text(longest=316), required=True, default=""
                        ),
                        count=Field("How often.", COUNT, required=True),
                    ),
                    64,
                    keys=("reason", "underlyingCause"),
                ),
            )
        ),
    ),
    nominatedClusterNames=Field(
        "Clusters that it may be sent to.", ListOf(Text(longest=256), 20, unique=True)
    ),
    clusterName=Field("The cluster that it was sent to.", Text(longest=256)),
    unhealthyNodes=Field(
        "Nodes that it stood on and that failed.",
        ListOf(
            fields(name=Field("Name of the node.", OBJECT_NAME, required=True)), 8, keys=("name",)
        ),
    ),
    preemptionGates=Field(
        "How the gates of the spec stand.",
        ListOf(
            fields(
                name=Field("Name of the gate.", _LABEL, required=True),
                position=Field(
                    "Open: others may be stopped.", Text(choices=("Closed", "Open")), required=True
                ),
                lastTransitionTime=Field("When it last changed.", Time(), required=True),
            ),
            MOST_GATES,
            keys=("name",),
        ),
    ),
)

WORKLOAD: Final = Kind(
    "Workload",
    "workloads",
    "Pods that wait for quota and are let in together.",
    fields(spec=Field("What is wanted.", _SPEC), status=Field("What is.", _STATUS)),
    short_names=("kwl", "kueueworkload", "kueueworkloads"),
    namespaced=True,
    columns=(
        Column("Queue", ".spec.queueName", "The LocalQueue that it waits in"),
        Column("Reserved in", ".status.admission.clusterQueue", "Whose quota it holds"),
        Column("Admitted", ".status.conditions[?(@.type=='Admitted')].status", "Whether it runs"),
        Column("Finished", ".status.conditions[?(@.type=='Finished')].status", "Whether it ended"),
        AGE,
    ),
)
