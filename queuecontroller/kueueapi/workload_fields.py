"""Workload: pods that are admitted together, and the decisions about them.

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

MAX_POD_SETS: Final = 18
MAX_CHECKS: Final = 8
MAX_GATES: Final = 8
MAX_LEVELS: Final = 16
MAX_SLICES: Final = 1000
MAX_DOMAINS: Final = 100_000
MAX_PLACES: Final = 4096
"""Limit of the GPU places of one pod set's pods."""
LONGEST_PLACE: Final = 65_536
OLD_CLASS_SOURCES: Final = {
    "kueue.x-k8s.io/workloadpriorityclass": ("kueue.x-k8s.io", "WorkloadPriorityClass"),
    "scheduling.k8s.io/priorityclass": ("scheduling.k8s.io", "PriorityClass"),
}
"""v1beta1's name for a class that v1beta2 names by group and kind."""

POD_SET_NAME: Final = Text(NAME, 63)
COUNT: Final = Whole(0)
_LABEL: Final = Text(LABEL_KEY, 317)

_TOPOLOGY_REQUEST: Final = fields(
    required=Field("All pods in one domain of this level.", _LABEL),
    preferred=Field(
        "All pods in one domain of this level if possible, else of a wider one.", _LABEL
    ),
    unconstrained=Field("Any domains with room for the pods.", Flag()),
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
    minCount=Field("The fewest pods with which it may be admitted.", COUNT),
    template=Field("Template of the pods.", PodTemplate(), required=True),
    topologyRequest=Field("Topology constraints of the pods.", _TOPOLOGY_REQUEST),
)

_SPEC: Final = fields(
    podSets=Field(
        "Groups of equal pods; all start together.",
        ListOf(_POD_SET, MAX_POD_SETS, keys=("name",)),
    ),
    queueName=Field("The LocalQueue that it waits in.", OBJECT_NAME),
    priority=Field("Its priority; higher ones are admitted first.", Whole()),
    priorityClassRef=Field(
        "The class of its priority.",
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
        "Name of the class of its priority. v1beta2 has priorityClassRef.",
        OBJECT_NAME,
        versions=OLD,
    ),
    priorityClassSource=Field(
        "Kind of the class of its priority. v1beta2 has priorityClassRef.",
        Text(choices=("", *OLD_CLASS_SOURCES)),
        versions=OLD,
    ),
    active=Field(
        "false: it is evicted, and is not queued until this is true again.", Flag(), default=True
    ),
    maximumExecutionTimeSeconds=Field(
        "Seconds it may run; it is deactivated afterwards.", Whole(1)
    ),
    preemptionGates=Field(
        "Gates that prevent it from preempting others until they are open.",
        ListOf(
            fields(name=Field("Name of the gate.", _LABEL, required=True)),
            MAX_GATES,
            keys=("name",),
        ),
    ),
)

_PLACES: Final = fields(
    levels=Field("Labels of the levels, the widest first.", ListOf(_LABEL, MAX_LEVELS)),
    domains=Field(
        "Domains of the pods: each by its value at every level. v1beta2 has slices.",
        ListOf(
            fields(
                values=Field("A value for each level.", ListOf(Text(), MAX_LEVELS), required=True),
                count=Field("Number of pods in the domain.", Whole(1), required=True),
            ),
            MAX_DOMAINS,
        ),
        versions=OLD,
    ),
    slices=Field(
        "Domains of the pods, with common values written once.",
        ListOf(
            fields(
                domainCount=Field("Domains of the slice.", Whole(1), required=True),
                podCounts=Field(
                    "Pods of each domain.",
                    fields(
                        universal=Field("The common value.", Whole(1)),
                        individual=Field(
                            "One number for each domain.", ListOf(Whole(1), MAX_DOMAINS)
                        ),
                    ),
                    required=True,
                ),
                valuesPerLevel=Field(
                    "For each level, the domains' values.",
                    ListOf(
                        fields(
                            universal=Field("The common value.", Text()),
                            individual=Field(
                                "One value for each domain, without prefix and suffix.",
                                fields(
                                    prefix=Field("The common prefix.", Text()),
                                    suffix=Field("The common suffix.", Text()),
                                    roots=Field(
                                        "The parts between prefix and suffix.",
                                        ListOf(Text(), MAX_DOMAINS),
                                        required=True,
                                    ),
                                ),
                            ),
                        ),
                        MAX_LEVELS,
                    ),
                    required=True,
                ),
            ),
            MAX_SLICES,
        ),
        versions=NEW,
    ),
)

_ADMISSION: Final = fields(
    clusterQueue=Field("The ClusterQueue whose quota it holds.", OBJECT_NAME, required=True),
    podSetAssignments=Field(
        "Assignment of each pod set.",
        ListOf(
            fields(
                name=Field("Name of the pod set.", POD_SET_NAME, default="main"),
                flavors=Field("The flavor of each resource.", MapOf(OBJECT_NAME, 64)),
                resourceUsage=Field("Resources of all its pods.", MapOf(Amount(), 64)),
                count=Field("Number of admitted pods.", COUNT),
                topologyAssignment=Field("Domains of its pods.", _PLACES),
                gpuPlaces=Field(
                    "GPUs reserved for its pods. Not a field of Kueue's.",
                    ListOf(
                        fields(
                            place=Field(
                                "Node and GPUs, as the annotation sluice.dev/placement has them.",
                                Text(longest=LONGEST_PLACE),
                                required=True,
                            ),
                            count=Field(
                                "Number of pods with an equal place.", Whole(1), required=True
                            ),
                        ),
                        MAX_PLACES,
                    ),
                ),
                delayedTopologyRequest=Field(
                    "Pending while the domains are not assigned yet.",
                    Text(choices=("Pending", "Ready")),
                ),
            ),
            MAX_POD_SETS,
            keys=("name",),
        ),
    ),
)

_CHECK: Final = fields(
    name=Field("Name of the AdmissionCheck.", OBJECT_NAME, required=True),
    state=Field("State of the check.", choices(CheckState), required=True),
    message=Field("Reason as text.", Text(longest=32768, may_be_empty=True), required=True),
    lastTransitionTime=Field("Time of the last change of the state.", Time(), required=True),
    retryCount=Field("Number of retries.", COUNT),
    requeueAfterSeconds=Field("Seconds before the next retry.", COUNT),
    podSetUpdates=Field(
        "Fields that the check adds to the pods when they start.",
        ListOf(
            fields(
                name=Field("Name of the pod set.", POD_SET_NAME, required=True),
                labels=Field("Labels.", STRING_MAP),
                annotations=Field("Annotations.", STRING_MAP),
                nodeSelector=Field("Labels of nodes.", STRING_MAP),
                tolerations=Field("Tolerations.", ListOf(TOLERATION, 8)),
            ),
            MAX_POD_SETS,
        ),
    ),
)

_STATUS: Final = fields(
    admission=Field("Its admission; it holds this quota.", _ADMISSION),
    checkpointed=Field(
        "What it keeps while its pods are checkpointed, or still stop after that: quota without the"
        " GPUs', and the GPUs that it returns to. Not a field of Kueue's.",
        _ADMISSION,
    ),
    conditions=CONDITIONS,
    admissionChecks=Field(
        "States of the AdmissionChecks.", ListOf(_CHECK, MAX_CHECKS, keys=("name",))
    ),
    requeueState=Field(
        "Back-off after an eviction.",
        fields(
            count=Field("Number of evictions since its pods were last ready.", COUNT),
            requeueAt=Field("Time at which it is queued again.", Time()),
        ),
    ),
    reclaimablePods=Field(
        "Finished pods whose quota is released.",
        ListOf(
            fields(
                name=Field("Name of the pod set.", POD_SET_NAME, required=True),
                count=Field("Pods.", COUNT, required=True),
            ),
            MAX_POD_SETS,
            keys=("name",),
        ),
    ),
    resourceRequests=Field(
        "Requests of each pod set while it is pending.",
        ListOf(
            fields(
                name=Field("Name of the pod set.", POD_SET_NAME, required=True),
                resources=Field("Requests of all its pods.", MapOf(Amount(), 64)),
            ),
            MAX_POD_SETS,
            keys=("name",),
        ),
    ),
    accumulatedPastExecutionTimeSeconds=Field(
        "Seconds it ran before its last eviction.", COUNT, versions=NEW
    ),
    accumulatedPastExexcutionTimeSeconds=Field(
        "Seconds it ran before its last eviction. v1beta2 has it without the misspelling.",
        COUNT,
        versions=OLD,
    ),
    schedulingStats=Field(
        "Statistics of its scheduling.",
        fields(
            evictions=Field(
                "Number of evictions by reason.",
                ListOf(
                    fields(
                        reason=Field("Why.", Text(longest=316), required=True),
                        underlyingCause=Field(
                            "The underlying cause.", Text(longest=316), required=True, default=""
                        ),
                        count=Field("Number of evictions.", COUNT, required=True),
                    ),
                    256,
                    keys=("reason", "underlyingCause"),
                ),
            )
        ),
    ),
    nominatedClusterNames=Field(
        "Clusters to which it may be dispatched.",
        ListOf(Text(longest=256), 20, unique=True, atomic=True),
    ),
    clusterName=Field("The cluster to which it was dispatched.", Text(longest=256)),
    unhealthyNodes=Field(
        "Failed nodes with pods of it.",
        ListOf(
            fields(name=Field("Name of the node.", OBJECT_NAME, required=True)), 8, keys=("name",)
        ),
    ),
    preemptionGates=Field(
        "States of the spec's gates.",
        ListOf(
            fields(
                name=Field("Name of the gate.", _LABEL, required=True),
                position=Field(
                    "Open: it may preempt others.", Text(choices=("Closed", "Open")), required=True
                ),
                lastTransitionTime=Field("Time of the last change.", Time(), required=True),
            ),
            MAX_GATES,
            keys=("name",),
        ),
    ),
)

WORKLOAD: Final = Kind(
    "Workload",
    "workloads",
    "Pods that are queued and admitted together.",
    fields(spec=Field("The desired state.", _SPEC), status=Field("The observed state.", _STATUS)),
    short_names=("kwl", "kueueworkload", "kueueworkloads"),
    namespaced=True,
    columns=(
        Column("Queue", ".spec.queueName", "The LocalQueue that it waits in"),
        Column(
            "Reserved in", ".status.admission.clusterQueue", "The ClusterQueue whose quota it holds"
        ),
        Column(
            "Admitted",
            ".status.conditions[?(@.type=='Admitted')].status",
            "True while it is admitted",
        ),
        Column(
            "Finished",
            ".status.conditions[?(@.type=='Finished')].status",
            "True once it has finished",
        ),
        AGE,
    ),
)
