"""Parts that several kinds have: names, selectors, taints, conditions, quotas, use."""

from __future__ import annotations

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
MOST_FLAVORS: Final = 64
MOST_RESOURCES: Final = 64
MOST_GROUPS: Final = 16
MOST_CONDITIONS: Final = 16
EFFECTS: Final = ("NoExecute", "NoSchedule", "PreferNoSchedule")

STRING_MAP: Final = MapOf(Text(), 64)
LABEL_MAP: Final = MapOf(Text(longest=63), 8)

_REQUIREMENT: Final = fields(
    key=Field("Key of the label.", Text(LABEL_KEY, 317), required=True),
    operator=Field(
        "How the label's value is compared with `values`.",
        Text(choices=("DoesNotExist", "Exists", "In", "NotIn")),
        required=True,
    ),
    values=Field("Values to compare with; none for Exists and DoesNotExist.", ListOf(Text(), 1000)),
)
LABEL_SELECTOR: Final = fields(
    matchLabels=Field("Labels that must have exactly these values.", MapOf(Text(), 1000)),
    matchExpressions=Field("Conditions on labels; all must hold.", ListOf(_REQUIREMENT, 1000)),
)

TAINT: Final = fields(
    key=Field("Key of the taint.", Text(LABEL_KEY, 317), required=True),
    value=Field("Value of the taint.", Text(longest=63)),
    effect=Field(
        "What happens to pods that do not tolerate it.", Text(choices=EFFECTS), required=True
    ),
    timeAdded=Field("When it was added.", Time()),
)
TOLERATION: Final = fields(
    key=Field("Key of the taint; empty with Exists means every taint.", Text(longest=317)),
    operator=Field("Equal (when left out): the value counts, too. Exists: any value.", Text()),
    value=Field("Value of the taint.", Text()),
    effect=Field("Effect of the taint; empty means every effect.", Text()),
    tolerationSeconds=Field(
        "How long a NoExecute taint is tolerated.", Whole(-(1 << 63), (1 << 63) - 1, wide=True)
    ),
)

CONDITION: Final = fields(
    type=Field("What is said.", Text(longest=316), required=True),
    status=Field("Whether it holds.", Text(choices=("False", "True", "Unknown")), required=True),
    reason=Field("Why, as one word.", Text(longest=1024), required=True),
    message=Field("Why, for people.", Text(longest=32768), required=True),
    lastTransitionTime=Field("When the status last changed.", Time(), required=True),
    observedGeneration=Field(
        "Generation of the object that it was said of.", Whole(0, (1 << 63) - 1, wide=True)
    ),
)
CONDITIONS: Final = Field(
    "What the controller says of the object.",
    ListOf(CONDITION, MOST_CONDITIONS, keys=("type",)),
)

FAIR_SHARING: Final = Field(
    "How it shares with its neighbours in the cohort.",
    fields(
        weight=Field(
            "Twice the weight is entitled to twice as much beyond its own quota. 0: always last.",
            Amount(),
            default="1",
        )
    ),
)
STOP_POLICY: Final = Field(
    "None: work is admitted. Hold: nothing new is admitted. HoldAndDrain: what runs is stopped, "
    "too.",
    choices(StopPolicy),
    default="None",
)
ADMISSION_SCOPE: Final = Field(
    "Whether past use of LocalQueues decides who is next here.",
    fields(
        admissionMode=Field(
            "UsageBasedAdmissionFairSharing: who has used less goes first.",
            choices(AdmissionMode),
            required=True,
        )
    ),
)

_QUOTA: Final = fields(
    name=Field("Name of the resource.", RESOURCE, required=True),
    nominalQuota=Field(
        "How much of it is here. `auto`: as much as the flavor's nodes have.",
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
        ListOf(_QUOTA, MOST_RESOURCES, keys=("name",)),
        required=True,
    ),
)
RESOURCE_GROUPS: Final = Field(
    "Resources that are taken from the same flavor together, each with its flavors and their "
    "quotas.",
    ListOf(
        fields(
            coveredResources=Field(
                "Resources that this group is about; none is in two groups.",
                ListOf(RESOURCE, MOST_RESOURCES, unique=True),
                required=True,
            ),
            flavors=Field(
                "Flavors to take them from, tried in this order.",
                ListOf(_FLAVOR_QUOTAS, MOST_FLAVORS, keys=("name",)),
                required=True,
            ),
        ),
        MOST_GROUPS,
    ),
)

WORKLOADS: Final = Whole(0)


def usage(borrowed: bool) -> ListOf:
    """By flavor and resource; queues of a namespace do not borrow themselves."""
    resource = {
        "name": Field("Name of the resource.", RESOURCE, required=True),
        "total": Field("All of it, borrowed or not.", Amount()),
    }
    if borrowed:
        resource["borrowed"] = Field("What of it is beyond the own quota.", Amount())
    return ListOf(
        fields(
            name=Field("Name of the flavor.", OBJECT_NAME, required=True),
            resources=Field(
                "By resource.",
                ListOf(fields(**resource), MOST_RESOURCES, keys=("name",)),
                required=True,
            ),
        ),
        MOST_FLAVORS * MOST_GROUPS,
        keys=("name",),
    )


WEIGHTED_SHARE: Final = Field(
    "Largest share beyond the own quota, in thousandths of what the cohort lends, divided by the "
    "weight.",
    Whole(0, (1 << 63) - 1, wide=True),
)
