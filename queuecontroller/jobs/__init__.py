"""What users submit to be queued, and what has to be done about it: no I/O, no clock.

`framework_of` says of which kind a document is; `reconcile` compares a job with its Workload and
says what is to be done; `start_patch` and `stop_patch` are how it is let run and stopped. Whatever
cannot be read raises the reader's ManifestError, and nothing else.
"""

from .creating import on_create
from .infos import pod_set_infos
from .pods import (
    DeletePod,
    PodAction,
    ReleasePod,
    StartPod,
    WaitForReplacements,
    elastic_pod_patch,
    group_of,
    reconcile_pods,
    role_of,
    start_pod_patch,
)
from .reconcile import (
    Action,
    CreateWorkload,
    DeleteWorkload,
    FinishWorkload,
    Refuse,
    ReleaseQuota,
    ResetStartTime,
    Restore,
    SetPodsReady,
    Setting,
    Start,
    Suspend,
    UpdateReclaimable,
    UpdateWorkload,
    effective_queue,
    is_elastic,
    is_managed,
    reconcile,
    reconcile_slices,
)
from .serving import join_group_patch, reconcile_set
from .slots import runtime_of
from .starting import PodSetInfo, is_suspended, queue_of, start_patch, stop_patch
from .state import Finished, finished, is_active, pods_ready, reclaimable
from .table import Framework, Holding, framework_named, framework_of, frameworks
from .workload import (
    PriorityClass,
    pod_sets,
    prebuilt_of,
    priority_class_of,
    workload_name,
    workload_of,
)

__all__ = [
    "Action",
    "CreateWorkload",
    "DeletePod",
    "DeleteWorkload",
    "FinishWorkload",
    "Finished",
    "Framework",
    "Holding",
    "PodAction",
    "PodSetInfo",
    "PriorityClass",
    "Refuse",
    "ReleasePod",
    "ReleaseQuota",
    "ResetStartTime",
    "Restore",
    "SetPodsReady",
    "Setting",
    "Start",
    "StartPod",
    "Suspend",
    "UpdateReclaimable",
    "UpdateWorkload",
    "WaitForReplacements",
    "effective_queue",
    "elastic_pod_patch",
    "finished",
    "framework_named",
    "framework_of",
    "frameworks",
    "group_of",
    "is_active",
    "is_elastic",
    "is_managed",
    "is_suspended",
    "on_create",
    "join_group_patch",
    "pod_set_infos",
    "pod_sets",
    "pods_ready",
    "prebuilt_of",
    "priority_class_of",
    "queue_of",
    "reclaimable",
    "reconcile",
    "reconcile_pods",
    "reconcile_set",
    "reconcile_slices",
    "role_of",
    "runtime_of",
    "start_patch",
    "start_pod_patch",
    "stop_patch",
    "workload_name",
    "workload_of",
]
