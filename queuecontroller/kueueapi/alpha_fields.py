"""Kinds that are served as v1alpha1 only: CapacityProvider and DynamicQuotaOrchestrator."""

from __future__ import annotations

from typing import Final

from queuecontroller.kueueapi.fields import (
    AGE,
    NAME,
    Amount,
    Column,
    Field,
    Kind,
    ListOf,
    MapOf,
    Rule,
    Text,
    Version,
    fields,
)
from queuecontroller.kueueapi.shared_fields import (
    CONDITIONS,
    MAX_FLAVORS,
    MAX_RESOURCES,
    OBJECT_NAME,
    OBJECT_REFERENCE,
)

MAX_PROVIDERS: Final = 8
MAX_EFFECTIVE_FLAVORS: Final = 128
_ALPHA: Final = (Version.V1ALPHA1,)


def _capacity(text: str, flavors: int) -> Field:
    return Field(
        text,
        fields(
            flavors=Field(
                "Capacity by flavor and resource.",
                ListOf(
                    fields(
                        name=Field("Name of the ResourceFlavor.", OBJECT_NAME, required=True),
                        resources=Field(
                            "Amounts by resource.", MapOf(Amount(), MAX_RESOURCES), required=True
                        ),
                    ),
                    flavors,
                    keys=("name",),
                ),
                required=True,
            )
        ),
    )


CAPACITY_PROVIDER: Final = Kind(
    "CapacityProvider",
    "capacityproviders",
    "Capacity that another controller reports for some flavors.",
    fields(
        spec=Field(
            "The desired state.",
            fields(
                orchestratedFlavors=Field(
                    "Flavors whose capacity it reports; others in its status do not count.",
                    ListOf(
                        fields(
                            name=Field("Name of the ResourceFlavor.", OBJECT_NAME, required=True)
                        ),
                        MAX_FLAVORS,
                        least=1,
                        keys=("name",),
                    ),
                    required=True,
                ),
                controllerName=Field(
                    "The controller that writes its status. It cannot be changed.",
                    Text(longest=253),
                    required=True,
                    rules=(
                        Rule(
                            "self == oldSelf",
                            "cannot be changed (fix: make another CapacityProvider)",
                        ),
                    ),
                ),
                parameters=Field("An object with that controller's parameters.", OBJECT_REFERENCE),
            ),
            required=True,
        ),
        status=Field(
            "The observed state.",
            fields(
                conditions=CONDITIONS,
                capacity=_capacity("The capacity, as its controller reports it.", MAX_FLAVORS),
            ),
        ),
    ),
    short_names=("cp",),
    versions=_ALPHA,
    columns=(Column("Controller", ".spec.controllerName", "The controller"), AGE),
)

DYNAMIC_QUOTA_ORCHESTRATOR: Final = Kind(
    "DynamicQuotaOrchestrator",
    "dynamicquotaorchestrators",
    "Distribution of reported capacity over a ClusterQueue, or over a Cohort and all below it.",
    fields(
        spec=Field(
            "The desired state.",
            fields(
                capacityDiscovery=Field(
                    "The capacity.",
                    fields(
                        providers=Field(
                            "CapacityProviders whose capacity is added up.",
                            ListOf(
                                fields(
                                    name=Field(
                                        "Name of the CapacityProvider.", OBJECT_NAME, required=True
                                    ),
                                    effectiveCapacityMultiplier=Field(
                                        "Factor for its capacity.", Amount(), default=1
                                    ),
                                ),
                                MAX_PROVIDERS,
                                least=1,
                                keys=("name",),
                            ),
                            required=True,
                        )
                    ),
                    required=True,
                ),
                capacityDistribution=Field(
                    "The distribution, in proportion to nominal quotas. Left out: the capacity is"
                    " only added up.",
                    fields(
                        subtreeRootQuotaRef=Field(
                            "Root of the quotas that get the capacity.",
                            fields(
                                kind=Field(
                                    "Kind of the root.",
                                    Text(choices=("ClusterQueue", "Cohort")),
                                    required=True,
                                ),
                                name=Field("Name of the root.", Text(NAME, 253), required=True),
                            ),
                            required=True,
                        )
                    ),
                ),
            ),
            required=True,
        ),
        status=Field(
            "The observed state.",
            fields(
                conditions=CONDITIONS,
                effectiveCapacity=_capacity(
                    "The capacity of all providers together.", MAX_EFFECTIVE_FLAVORS
                ),
            ),
        ),
    ),
    short_names=("dqo",),
    versions=_ALPHA,
    columns=(
        Column(
            "Distributed",
            ".status.conditions[?(@.type=='Distributed')].status",
            "True if quotas have been set",
        ),
        AGE,
    ),
)
