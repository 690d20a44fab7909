"""Fields that several kinds have: names, selectors, taints, conditions, quotas, usage."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from queuecontroller.kueueapi.fields import (
    LABEL_KEY,
    NAME,
    Amount,
    Field,
    ListOf,
    MapOf,
    Text,
    Time,
    Whole,
    choices,
    fields,
)
from queuecontroller.scheduler.model.objects import AdmissionMode, StopPolicy

OBJECT_NAME: Final = Text(NAME, 253)
RESOURCE: Final = Text(LABEL_KEY, 317)
"""A resource's name has the form of a label's key."""
MAX_FLAVORS: Final = 64
MAX_RESOURCES: Final = 64
MAX_GROUPS: Final = 16
MAX_CONDITIONS: Final = 16
EFFECTS: Final = ("NoExecute", "NoSchedule", "PreferNoSchedule")

STRING_MAP: Final = MapOf(Text(), 64)
LABEL_MAP: Final = MapOf(Text(longest=63), 8, atomic=True)

_REQUIREMENT: Final = fields(
    key=Field("Key of the label.", Text(LABEL_KEY, 317), required=True),
    operator=Field(
        "Comparison of the label's value with `values`.",
        Text(choices=("DoesNotExist", "Exists", "In", "NotIn")),
        required=True,
    ),
    values=Field("Values to compare with; none for Exists and DoesNotExist.", ListOf(Text(), 1000)),
)
_SELECTOR: Final = fields(
    matchLabels=Field("Labels that must have exactly these values.", MapOf(Text(), 1000)),
    matchExpressions=Field("Conditions on labels; all must hold.", ListOf(_REQUIREMENT, 1000)),
)
LABEL_SELECTOR: Final = replace(_SELECTOR, atomic=True)

TAINT: Final = fields(
    key=Field("Key of the taint.", Text(LABEL_KEY, 317), required=True),
    value=Field("Value of the taint.", Text(longest=63)),
    effect=Field("Effect on pods that do not tolerate it.", Text(choices=EFFECTS), required=True),
    timeAdded=Field("Time at which it was added.", Time()),
)
TOLERATION: Final = fields(
    key=Field("Key of the taint; empty with Exists means every taint.", Text(longest=317)),
    operator=Field("Equal (when left out): the value counts, too. Exists: any value.", Text()),
    value=Field("Value of the taint.", Text()),
    effect=Field("Effect of the taint; empty means every effect.", Text()),
    tolerationSeconds=Field(
        "Seconds for which a NoExecute taint is tolerated.",
        Whole(-(1 << 63), (1 << 63) - 1, wide=True),
    ),
)

CONDITION: Final = fields(
    type=Field("Type of the condition.", Text(longest=316), required=True),
    status=Field(
        "True, False or Unknown.", Text(choices=("False", "True", "Unknown")), required=True
    ),
    reason=Field("Reason, as one word.", Text(longest=1024), required=True),
    message=Field("Reason as text.", Text(longest=32768, may_be_empty=True), required=True),
    lastTransitionTime=Field("Time of the last change of the status.", Time(), required=True),
    observedGeneration=Field(
        "Generation of the object for which the condition was set.",
        Whole(0, (1 << 63) - 1, wide=True),
    ),
)
CONDITIONS: Final = Field(
    "Conditions set by the controller.",
    ListOf(CONDITION, MAX_CONDITIONS, keys=("type",)),
)

FAIR_SHARING: Final = Field(
    "Its part in fair sharing within the cohort.",
    fields(
        weight=Field(
            "Twice the weight is entitled to twice as much beyond its own quota. 0: always last.",
            Amount(),
            default="1",
        )
    ),
)
STOP_POLICY: Final = Field(
    "None: Workloads are admitted. Hold: no new ones are admitted. HoldAndDrain: admitted ones "
    "are evicted, too.",
    choices(StopPolicy),
    default="None",
)
ADMISSION_SCOPE: Final = Field(
    "Admission by the recorded usage of LocalQueues.",
    fields(
        admissionMode=Field(
            "UsageBasedAdmissionFairSharing: the LocalQueue with less recorded usage is served "
            "first.",
            choices(AdmissionMode),
            required=True,
        )
    ),
)

_QUOTA: Final = fields(
    name=Field("Name of the resource.", RESOURCE, required=True),
    nominalQuota=Field(
        "The nominal quota. `auto`: as much as the flavor's nodes have.",
        Amount(auto=True),
        required=True,
    ),
    borrowingLimit=Field(
        "The most that may be used beyond the quota, if the cohort has it. Left out: no limit.",
        Amount(),
    ),
    lendingLimit=Field(
        "The most of the unused quota that others in the cohort may use. Left out: all.", Amount()
    ),
)
_FLAVOR_QUOTAS: Final = fields(
    name=Field("Name of the ResourceFlavor.", OBJECT_NAME, required=True),
    resources=Field(
        "Quota of each resource on this flavor.",
        ListOf(_QUOTA, MAX_RESOURCES, least=1, keys=("name",)),
        required=True,
    ),
)
RESOURCE_GROUPS: Final = Field(
    "Resources that are taken from the same flavor together, each with its flavors and their "
    "quotas.",
    ListOf(
        fields(
            coveredResources=Field(
                "Resources of this group; none is in two groups.",
                ListOf(RESOURCE, MAX_RESOURCES, least=1, unique=True, atomic=True),
                required=True,
            ),
            flavors=Field(
                "Flavors of these resources, tried in this order.",
                ListOf(_FLAVOR_QUOTAS, MAX_FLAVORS, least=1, keys=("name",)),
                required=True,
            ),
        ),
        MAX_GROUPS,
    ),
)

OBJECT_REFERENCE: Final = fields(
    apiGroup=Field("Group of the object.", OBJECT_NAME, required=True),
    kind=Field(
        "Kind of the object.",
        Text(r"^[A-Za-z]([-A-Za-z0-9]*[A-Za-z0-9])?$", 63),
        required=True,
    ),
    name=Field("Name of the object.", Text(NAME, 63), required=True),
)
EFFECTIVE_QUOTAS: Final = Field(
    "Quotas that count instead of those in `spec`, with DynamicQuotaOrchestration.",
    fields(
        orchestratorRef=Field(
            "The object whose controller has set them.",
            fields(
                apiGroup=Field("Group of the object.", OBJECT_NAME, required=True),
                kind=Field("Kind of the object.", Text(longest=63), required=True),
                name=Field("Name of the object.", OBJECT_NAME, required=True),
            ),
            required=True,
        ),
        resourceGroups=RESOURCE_GROUPS,
    ),
)

WORKLOADS: Final = Whole(0)


def usage(borrowed: bool) -> ListOf:
    """Usage by flavor and resource; LocalQueues have no `borrowed`."""
    resource = {
        "name": Field("Name of the resource.", RESOURCE, required=True),
        "total": Field("The total, borrowed or not.", Amount()),
    }
    if borrowed:
        resource["borrowed"] = Field("The part beyond the own quota.", Amount())
    return ListOf(
        fields(
            name=Field("Name of the flavor.", OBJECT_NAME, required=True),
            resources=Field(
                "Amounts by resource.",
                ListOf(fields(**resource), MAX_RESOURCES, keys=("name",)),
                required=True,
            ),
        ),
        MAX_FLAVORS * MAX_GROUPS,
        keys=("name",),
    )


WEIGHTED_SHARE: Final = Field(
    "Largest share beyond the own quota, in thousandths of what the cohort lends, divided by the "
    "weight.",
    Whole(0, (1 << 63) - 1, wide=True),
)
