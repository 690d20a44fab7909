"""Watched kinds besides jobs: Kueue's objects, and objects of Kubernetes that affect queueing."""

from __future__ import annotations

from typing import Final

from queuecontroller.frameworks.names import PLACED as TOPOLOGY_LABEL
from queuecontroller.kueueapi import GROUP, KINDS
from queuecontroller.kueueapi.alpha_fields import CAPACITY_PROVIDER, DYNAMIC_QUOTA_ORCHESTRATOR
from queuecontroller.kueueapi.fields import STORED, Kind
from sluicecommon.kubernetes.resources import NAMESPACES, Resource


def of_kueue(kind: str) -> Resource:
    row = KINDS[kind]
    return Resource(GROUP, str(STORED), row.plural, row.name, row.namespaced)


def _alpha(row: Kind) -> Resource:
    return Resource(GROUP, str(row.versions[-1]), row.plural, row.name, row.namespaced)


WORKLOADS: Final = of_kueue("Workload")
CLUSTER_QUEUES: Final = of_kueue("ClusterQueue")
LOCAL_QUEUES: Final = of_kueue("LocalQueue")
COHORTS: Final = of_kueue("Cohort")
FLAVORS: Final = of_kueue("ResourceFlavor")
CHECKS: Final = of_kueue("AdmissionCheck")
TOPOLOGIES: Final = of_kueue("Topology")
PRIORITY_CLASSES: Final = of_kueue("WorkloadPriorityClass")
POD_CLASSES: Final = Resource(
    "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False
)
LIMIT_RANGES: Final = Resource("", "v1", "limitranges", "LimitRange")
OBJECTS: Final = (
    NAMESPACES,
    FLAVORS,
    TOPOLOGIES,
    CHECKS,
    COHORTS,
    CLUSTER_QUEUES,
    LOCAL_QUEUES,
    PRIORITY_CLASSES,
    POD_CLASSES,
    LIMIT_RANGES,
)
"""Kinds that the book keeps as objects; a kind comes after those that it refers to."""
CAPACITY_PROVIDERS: Final = _alpha(CAPACITY_PROVIDER)
ORCHESTRATORS: Final = _alpha(DYNAMIC_QUOTA_ORCHESTRATOR)
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases", "Lease")
CRDS: Final = Resource(
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    namespaced=False,
)
RUNTIMES: Final = (
    Resource("trainer.kubeflow.org", "v1alpha1", "trainingruntimes", "TrainingRuntime"),
    Resource(
        "trainer.kubeflow.org",
        "v1alpha1",
        "clustertrainingruntimes",
        "ClusterTrainingRuntime",
        namespaced=False,
    ),
)
"""Training runtimes, which hold the pod templates of TrainJobs."""
BUDGETS: Final = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
MANAGED: Final = "kueue.x-k8s.io/managed"
"""Label of pods that are queued by a scheduling gate of their own."""
MANAGED_PODS: Final = (("labelSelector", f"{MANAGED}=true"),)
ELASTIC_PODS: Final = "sluice.dev/elastic"
"""Label of the pods of an elastic Job, which are gated one by one."""
PLACED_PODS: Final = TOPOLOGY_LABEL
"""Label of pods whose Workload was assigned topology domains."""
IN_USE: Final = "kueue.x-k8s.io/resource-in-use"
"""Finalizer of objects that others use."""
