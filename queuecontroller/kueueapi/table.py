"""The one table: every kind of Kueue's API with all its fields in all versions."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from queuecontroller.kueueapi.alpha_fields import CAPACITY_PROVIDER, DYNAMIC_QUOTA_ORCHESTRATOR
from queuecontroller.kueueapi.check_fields import (
    ADMISSION_CHECK,
    MULTIKUEUE_CLUSTER,
    MULTIKUEUE_CONFIG,
    PROVISIONING_REQUEST_CONFIG,
)
from queuecontroller.kueueapi.fields import Kind
from queuecontroller.kueueapi.queue_fields import (
    CLUSTER_QUEUE,
    COHORT,
    LOCAL_QUEUE,
    RESOURCE_FLAVOR,
    TOPOLOGY,
    WORKLOAD_PRIORITY_CLASS,
)
from queuecontroller.kueueapi.workload_fields import WORKLOAD

GROUP: Final = "kueue.x-k8s.io"

KINDS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        one.name: one
        for one in (
            ADMISSION_CHECK,
            CLUSTER_QUEUE,
            COHORT,
            LOCAL_QUEUE,
            MULTIKUEUE_CLUSTER,
            MULTIKUEUE_CONFIG,
            PROVISIONING_REQUEST_CONFIG,
            RESOURCE_FLAVOR,
            TOPOLOGY,
            WORKLOAD,
            WORKLOAD_PRIORITY_CLASS,
        )
    }
)
ALPHA_KINDS: Final = (CAPACITY_PROVIDER, DYNAMIC_QUOTA_ORCHESTRATOR)
"""Kinds of which there is one version, without conversion and webhook."""
