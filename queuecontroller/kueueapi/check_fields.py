"""What decides besides quota, and other clusters: AdmissionCheck, ProvisioningRequestConfig,
MultiKueueCluster, MultiKueueConfig."""

from __future__ import annotations

from typing import Final

from queuecontroller.kueueapi.fields import (
    AGE,
    LABEL_KEY,
    NAME,
    NEW,
    OLD,
    Column,
    Field,
    Kind,
    ListOf,
    MapOf,
    Rule,
    Text,
    Whole,
    fields,
)
from queuecontroller.kueueapi.shared_fields import CONDITIONS, OBJECT_NAME, RESOURCE

ADMISSION_CHECK: Final = Kind(
    "AdmissionCheck",
    "admissionchecks",
    "Something that must say yes before work starts, besides quota.",
    fields(
        spec=Field(
            "What is wanted.",
            fields(
                controllerName=Field(
                    "Who answers, such as sluice.dev/placement. It cannot be changed.",
                    Text(LABEL_KEY, 153),
                    required=True,
                    rules=(
                        Rule(
                            "self == oldSelf",
                            "cannot be changed (fix: make another AdmissionCheck)",
                        ),
                    ),
                ),
                parameters=Field(
                    "An object with more for whoever answers.",
                    fields(
                        apiGroup=Field("Group of the object.", OBJECT_NAME, required=True),
                        kind=Field(
                            "Kind of the object.",
                            Text(r"^[A-Za-z]([-A-Za-z0-9]*[A-Za-z0-9])?$", 63),
                            required=True,
                        ),
                        name=Field("Name of the object.", Text(NAME, 63), required=True),
                    ),
                ),
                retryDelayMinutes=Field(
                    "Not used. v1beta2 does not have it.",
                    Whole(0, (1 << 63) - 1, wide=True),
                    versions=OLD,
                ),
            ),
            required=True,
        ),
        status=Field("What is.", fields(conditions=CONDITIONS)),
    ),
    short_names=("ac",),
)

PROVISIONING_REQUEST_CONFIG: Final = Kind(
    "ProvisioningRequestConfig",
    "provisioningrequestconfigs",
    "How an AdmissionCheck asks an autoscaler for nodes.",
    fields(
        spec=Field(
            "What is wanted.",
            fields(
                provisioningClassName=Field(
                    "The class of the ProvisioningRequests.", OBJECT_NAME, required=True
                ),
                parameters=Field(
                    "Parameters of the ProvisioningRequests.", MapOf(Text(longest=255), 100)
                ),
                managedResources=Field(
                    "Only pods that ask for one of these are asked for; none: all.",
                    ListOf(RESOURCE, 100, unique=True),
                ),
                retryStrategy=Field(
                    "How a refused request is made again.",
                    fields(
                        backoffLimitCount=Field(
                            "How often; then the workload is stopped.", Whole(0), default=3
                        ),
                        backoffBaseSeconds=Field(
                            "The first wait; each is twice the one before.", Whole(0), default=60
                        ),
                        backoffMaxSeconds=Field("The longest wait.", Whole(0), default=1800),
                    ),
                    default={
                        "backoffLimitCount": 3,
                        "backoffBaseSeconds": 60,
                        "backoffMaxSeconds": 1800,
                    },
                ),
                podSetUpdates=Field(
                    "What the pods are given to reach the new nodes.",
                    fields(
                        nodeSelector=Field(
                            "Labels of nodes.",
                            ListOf(
                                fields(
                                    key=Field("The label.", Text(LABEL_KEY, 317), required=True),
                                    valueFromProvisioningClassDetail=Field(
                                        "The detail of the answer that has its value.",
                                        Text(longest=32768),
                                        required=True,
                                    ),
                                ),
                                8,
                                keys=("key",),
                            ),
                        )
                    ),
                ),
                podSetMergePolicy=Field(
                    "Which pod sets are asked for as one.",
                    Text(
                        choices=(
                            "IdenticalPodTemplates",
                            "IdenticalWorkloadSchedulingRequirements",
                        )
                    ),
                ),
            ),
            required=True,
        )
    ),
    short_names=("prc",),
)

_KUBECONFIG: Final = fields(
    location=Field(
        "Name of the Secret (key kubeconfig), or path of the file.",
        Text(longest=256),
        required=True,
    ),
    locationType=Field(
        "Whether it is in a Secret or at a path.",
        Text(choices=("Path", "Secret")),
        default="Secret",
    ),
)
_PROFILE: Final = fields(
    name=Field("Name of the ClusterProfile.", Text(longest=256), required=True)
)

MULTIKUEUE_CLUSTER: Final = Kind(
    "MultiKueueCluster",
    "multikueueclusters",
    "Another cluster that work may be sent to.",
    fields(
        spec=Field(
            "What is wanted.",
            fields(
                clusterSource=Field(
                    "How it is reached: one of the two.",
                    fields(
                        Rule(
                            "has(self.kubeConfig) != has(self.clusterProfileRef)",
                            "needs exactly one of kubeConfig and clusterProfileRef",
                        ),
                        kubeConfig=Field("By a kubeconfig.", _KUBECONFIG),
                        clusterProfileRef=Field("By a ClusterProfile.", _PROFILE),
                    ),
                    required=True,
                    versions=NEW,
                ),
                kubeConfig=Field(
                    "How it is reached. v1beta2 has clusterSource.", _KUBECONFIG, versions=OLD
                ),
                clusterProfileRef=Field(
                    "How it is reached. v1beta2 has clusterSource.", _PROFILE, versions=OLD
                ),
            ),
            required=True,
        ),
        status=Field("What is.", fields(conditions=CONDITIONS)),
    ),
    short_names=("mkc",),
    columns=(
        Column(
            "Connected",
            ".status.conditions[?(@.type=='Active')].status",
            "Whether it is reached",
        ),
        AGE,
    ),
)

MULTIKUEUE_CONFIG: Final = Kind(
    "MultiKueueConfig",
    "multikueueconfigs",
    "Clusters among which work is spread.",
    fields(
        spec=Field(
            "What is wanted.",
            fields(
                clusters=Field(
                    "Names of MultiKueueClusters.",
                    ListOf(Text(longest=256), 20, least=1, unique=True),
                    required=True,
                ),
                quotaManagement=Field(
                    "Whether quota is kept by hand or follows the clusters.",
                    Text(choices=("Automated", "Manual")),
                ),
            ),
            required=True,
        )
    ),
    short_names=("mkconf",),
)
