"""Kinds for checks besides quota, and for other clusters: AdmissionCheck,
ProvisioningRequestConfig, MultiKueueCluster, MultiKueueConfig."""

from __future__ import annotations

from typing import Final

from queuecontroller.kueueapi.fields import (
    AGE,
    LABEL_KEY,
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
from queuecontroller.kueueapi.shared_fields import (
    CONDITIONS,
    OBJECT_NAME,
    OBJECT_REFERENCE,
    RESOURCE,
)

ADMISSION_CHECK: Final = Kind(
    "AdmissionCheck",
    "admissionchecks",
    "A check besides quota that must be ready before a Workload is admitted.",
    fields(
        spec=Field(
            "The desired state.",
            fields(
                controllerName=Field(
                    "The controller that sets the check's state, such as sluice.dev/placement. "
                    "It cannot be changed.",
                    Text(longest=253),
                    required=True,
                    rules=(
                        Rule(
                            "self == oldSelf",
                            "cannot be changed (fix: make another AdmissionCheck)",
                        ),
                    ),
                ),
                parameters=Field(
                    "An object with parameters for that controller.", OBJECT_REFERENCE
                ),
                retryDelayMinutes=Field(
                    "Not used. v1beta2 does not have it.",
                    Whole(0, (1 << 63) - 1, wide=True),
                    versions=OLD,
                ),
            ),
            required=True,
        ),
        status=Field("The observed state.", fields(conditions=CONDITIONS)),
    ),
    short_names=("ac",),
)

PROVISIONING_REQUEST_CONFIG: Final = Kind(
    "ProvisioningRequestConfig",
    "provisioningrequestconfigs",
    "ProvisioningRequests by which an AdmissionCheck requests nodes from an autoscaler.",
    fields(
        spec=Field(
            "The desired state.",
            fields(
                provisioningClassName=Field(
                    "The class of the ProvisioningRequests.", OBJECT_NAME, required=True
                ),
                parameters=Field(
                    "Parameters of the ProvisioningRequests.", MapOf(Text(longest=255), 100)
                ),
                managedResources=Field(
                    "Resources whose pods need the request; none: all pods.",
                    ListOf(RESOURCE, 100, unique=True),
                ),
                retryStrategy=Field(
                    "Retries of a failed request.",
                    fields(
                        backoffLimitCount=Field(
                            "Number of retries, after which the workload is deactivated.",
                            Whole(0),
                            default=3,
                        ),
                        backoffBaseSeconds=Field(
                            "The first delay in seconds; each further one is twice as long.",
                            Whole(0),
                            default=60,
                        ),
                        backoffMaxSeconds=Field(
                            "The longest delay in seconds.", Whole(0), default=1800
                        ),
                    ),
                    default={
                        "backoffLimitCount": 3,
                        "backoffBaseSeconds": 60,
                        "backoffMaxSeconds": 1800,
                    },
                ),
                podSetUpdates=Field(
                    "Fields that are added to the pods so that they run on the new nodes.",
                    fields(
                        nodeSelector=Field(
                            "Labels of nodes.",
                            ListOf(
                                fields(
                                    key=Field("The label.", Text(LABEL_KEY, 317), required=True),
                                    valueFromProvisioningClassDetail=Field(
                                        "The detail of the ProvisioningRequest's status that has"
                                        " its value.",
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
                    "Pod sets that are requested together.",
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
        "Secret, or Path of a file.",
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
    "Another cluster to which jobs can be dispatched.",
    fields(
        spec=Field(
            "The desired state.",
            fields(
                clusterSource=Field(
                    "Connection to the cluster: one of the two.",
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
                    "Connection to the cluster. v1beta2 has clusterSource.",
                    _KUBECONFIG,
                    versions=OLD,
                ),
                clusterProfileRef=Field(
                    "Connection to the cluster. v1beta2 has clusterSource.", _PROFILE, versions=OLD
                ),
            ),
            required=True,
        ),
        status=Field("The observed state.", fields(conditions=CONDITIONS)),
    ),
    short_names=("mkc",),
    columns=(
        Column(
            "Connected",
            ".status.conditions[?(@.type=='Active')].status",
            "True while the cluster is connected",
        ),
        AGE,
    ),
)

MULTIKUEUE_CONFIG: Final = Kind(
    "MultiKueueConfig",
    "multikueueconfigs",
    "Clusters among which jobs are distributed.",
    fields(
        spec=Field(
            "The desired state.",
            fields(
                clusters=Field(
                    "Names of MultiKueueClusters.",
                    ListOf(Text(longest=256), 20, least=1, unique=True, atomic=True),
                    required=True,
                ),
                quotaManagement=Field(
                    "Manual quota, or quota that follows the clusters.",
                    Text(choices=("Automated", "Manual")),
                ),
            ),
            required=True,
        )
    ),
    short_names=("mkconf",),
)
