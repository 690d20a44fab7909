"""Job frameworks: the kinds of jobs that can be queued, and the actions for each; no I/O, no clock.

`framework_of` returns a document's framework; `reconcile` compares a job with its Workload and
returns actions; `start_patch` and `stop_patch` unsuspend and suspend it. Whatever cannot be read
raises the reader's ManifestError, and nothing else.
"""

from queuecontroller.frameworks.actions import (
    Action,
    CreateWorkload,
    DeletePod,
    DeleteWorkload,
    FinishWorkload,
    HoldWorkload,
    MovePod,
    PodAction,
    Refuse,
    ReleasePod,
    ReleaseQuota,
    ResetStartTime,
    Restore,
    ResumeWorkload,
    SetPodsReady,
    Start,
    StartPod,
    Suspend,
    UpdateReclaimable,
    UpdateWorkload,
    WaitForReplacements,
)
from queuecontroller.frameworks.annotations.pod_groups import group_of, role_of
from queuecontroller.frameworks.creating import group_of_set, on_create, resizing
from queuecontroller.frameworks.infos import pod_set_infos
from queuecontroller.frameworks.pods import (
    elastic_pod_patch,
    reconcile_pods,
    start_pod_patch,
)
from queuecontroller.frameworks.reconcile import (
    Setting,
    effective_queue,
    is_elastic,
    is_managed,
    reconcile,
    reconcile_slices,
    runs_elsewhere,
)
from queuecontroller.frameworks.serving import join_group_patch, reconcile_set
from queuecontroller.frameworks.slots import runtime_of
from queuecontroller.frameworks.starting import PodSetInfo, is_suspended, start_patch, stop_patch
from queuecontroller.frameworks.state import Finished, finished, is_active, pods_ready, reclaimable
from queuecontroller.frameworks.table import (
    External,
    Framework,
    Holding,
    external_frameworks,
    framework_named,
    framework_of,
    frameworks,
    queues_its_own,
)
from queuecontroller.frameworks.validation import job_problems
from queuecontroller.frameworks.workload import (
    PriorityClass,
    pod_sets,
    prebuilt_of,
    priority_class_of,
    queue_of,
    workload_name,
    workload_of,
)

__all__ = [
    "Action",
    "CreateWorkload",
    "DeletePod",
    "HoldWorkload",
    "MovePod",
    "DeleteWorkload",
    "External",
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
    "ResumeWorkload",
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
    "external_frameworks",
    "finished",
    "framework_named",
    "group_of_set",
    "job_problems",
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
    "queues_its_own",
    "reclaimable",
    "reconcile",
    "reconcile_pods",
    "reconcile_set",
    "reconcile_slices",
    "resizing",
    "role_of",
    "runs_elsewhere",
    "runtime_of",
    "start_patch",
    "start_pod_patch",
    "stop_patch",
    "workload_name",
    "workload_of",
]
