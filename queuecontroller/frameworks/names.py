"""Kueue's labels, annotations and gates of jobs and their pods, and the names of Workloads."""

from __future__ import annotations

import hashlib
from typing import Final

PREFIX: Final = "kueue.x-k8s.io/"
_OURS: Final = PREFIX
QUEUE_NAME: Final = f"{_OURS}queue-name"
PRIORITY_CLASS: Final = f"{_OURS}priority-class"
MAX_EXEC_SECONDS: Final = f"{_OURS}max-exec-time-seconds"
PREBUILT: Final = f"{_OURS}prebuilt-workload-name"
MIN_PARALLELISM: Final = f"{_OURS}job-min-parallelism"
COMPLETIONS_FOLLOW: Final = f"{_OURS}job-completions-equal-parallelism"
ELASTIC: Final = f"{_OURS}elastic-job"
GATED_BY: Final = f"{_OURS}admission-gated-by"
WAIT_FOR_PODS_READY: Final = f"{_OURS}wait-for-pods-ready"
ALLOWED_FLAVORS: Final = f"{_OURS}workload-allowed-resource-flavors"
REPLACEMENT_FOR: Final = f"{_OURS}workload-slice-replacement-for"
SLICE_NAME: Final = f"{_OURS}workload-slice-name"

MANAGED: Final = f"{_OURS}managed"
"""Label and finalizer of pods."""
JOB_UID: Final = f"{_OURS}job-uid"
POD_SET: Final = f"{_OURS}podset"
WORKLOAD: Final = f"{_OURS}workload"
RESOURCE_IN_USE: Final = f"{_OURS}resource-in-use"
"""Finalizer of Workloads."""
SUSPENDING_PARENT: Final = f"{_OURS}pod-suspending-parent"

GROUP_NAME: Final = f"{_OURS}pod-group-name"
GROUP_TOTAL: Final = f"{_OURS}pod-group-total-count"
GROUP_FAST: Final = f"{_OURS}pod-group-fast-admission"
GROUP_SERVING: Final = f"{_OURS}pod-group-serving"
GROUP_INDEX: Final = f"{_OURS}pod-group-pod-index"
GROUP_INDEX_LABEL: Final = f"{_OURS}pod-group-pod-index-label"
GROUP_MAX_NOT_READY: Final = f"{_OURS}pod-group-max-not-ready-count"
INDEX_OFFSET: Final = f"{_OURS}pod-index-offset"
"""Annotation of pods: the number of the first of them, where it is not 0."""
RETRIABLE: Final = f"{_OURS}retriable-in-group"
ROLE_HASH: Final = f"{_OURS}role-hash"
IS_GROUP: Final = f"{_OURS}is-group-workload"

ADMISSION_GATE: Final = f"{_OURS}admission"
TOPOLOGY_GATE: Final = f"{_OURS}topology"
ELASTIC_GATE: Final = f"{_OURS}elastic-job"

MULTIKUEUE: Final = f"{_OURS}multikueue"
"""managedBy of a job that runs in another cluster."""
ORIGIN: Final = f"{_OURS}multikueue-origin"
"""Label of a copy in another cluster: the origin of the manager that made it."""
DEFAULT_QUEUE: Final = "default"
"""The LocalQueue of a job that names none, where one of this name exists."""

PLACED: Final = "sluice.dev/topology"
"""Label of pods that go to the domains that their Workload was given."""
PATCHES_MANAGER: Final = f"{_OURS}manager"
"""Manager of the entry of a TrainJob's runtimePatches to which an admission is written."""
BEFORE_START: Final = "sluice.dev/before-start"
"""Annotation of a job: the values of its fields before it was started, until they are restored."""

DEFAULT_CLASS: Final = "default"
"""The WorkloadPriorityClass of a job that names none, if one of this name exists."""

LONGEST_NAME: Final = 253
LONGEST_LABEL: Final = 63
_HASH: Final = 5


def workload_name_of(
    kind: str, group: str, name: str, uid: str, extra: str = "", longest: int = LONGEST_NAME
) -> str:
    """Kueue's name for the Workload: its hash gives a recreated job another Workload. With its gate
    ShortWorkloadNames `longest` is 63, so that every name can be a label's value."""
    text = f"{kind}\n{group}\n{name}\n{uid}" + (f"\n{extra}" if extra else "")
    digest = hashlib.sha1(text.encode(errors="replace"), usedforsecurity=False).hexdigest()
    return f"{kind.lower()}-{name}"[: longest - 1 - _HASH] + f"-{digest[:_HASH]}"
