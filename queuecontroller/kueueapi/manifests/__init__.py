"""Reads Kueue's objects (v1alpha2, v1beta1, v1beta2) and Kubernetes' pods and jobs into the
scheduler's model."""

from queuecontroller.kueueapi.manifests.kueue import (
    read_cluster_queue,
    read_cohort,
    read_flavor,
    read_limit_range,
    read_local_queue,
    read_topology_levels,
)
from queuecontroller.kueueapi.manifests.workloads import read_workload
from sluicecommon.reader import ManifestError, Problem, Reader

__all__ = [
    "ManifestError",
    "Problem",
    "Reader",
    "read_cluster_queue",
    "read_cohort",
    "read_flavor",
    "read_limit_range",
    "read_local_queue",
    "read_topology_levels",
    "read_workload",
]
