"""Instructions that a job's or a pod group's reconciliation returns; `cluster.writers` carries them
out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from queuecontroller.frameworks.state import Finished
from queuecontroller.frameworks.workload import NoPriorityClass
from queuecontroller.scheduler.model.reasons import PODS_FAILED, WORKLOAD_NOT_COMPOSED
from sluicecommon.reader import ManifestError, Problem


@dataclass(frozen=True, slots=True)
class CreateWorkload:
    document: dict[str, Any]


@dataclass(frozen=True, slots=True)
class UpdateWorkload:
    """Patch of its spec and metadata, not its status."""

    patch: dict[str, Any]
    why: str


@dataclass(frozen=True, slots=True)
class DeleteWorkload:
    """Delete the Workload and remove the finalizer, which would block the deletion."""

    why: str


@dataclass(frozen=True, slots=True)
class FinishWorkload:
    """Set its condition Finished to True."""

    finished: Finished


@dataclass(frozen=True, slots=True)
class ReleaseQuota:
    """Remove its admission and requeue it: it was evicted and its pods have terminated."""


@dataclass(frozen=True, slots=True)
class HoldWorkload:
    """Release its quota and keep it out of its queue: its owner wants no pods for now, or its pods
    have to be replaced first."""

    message: str
    """Message of its condition QuotaReserved."""


@dataclass(frozen=True, slots=True)
class ResumeWorkload:
    """Queue a Workload again that was on hold."""


@dataclass(frozen=True, slots=True)
class UpdateReclaimable:
    pods: dict[str, int]
    """Pods by pod set; those not named need all their pods."""


@dataclass(frozen=True, slots=True)
class SetPodsReady:
    ready: bool


@dataclass(frozen=True, slots=True)
class Start:
    """Unsuspend the job: patch it with `start_patch` for the pod sets of its admission."""


@dataclass(frozen=True, slots=True)
class Suspend:
    patch: dict[str, Any]
    """Merge patch of the job."""
    why: str


@dataclass(frozen=True, slots=True)
class Restore:
    """Restore the original pod templates of a job that is suspended already."""

    patch: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ResetStartTime:
    """Reset the start time: Kubernetes rejects changes of a Job's pods while it has one."""

    patch: dict[str, Any]
    """Merge patch of the job's status."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Record an event: no Workload can be made from the job, or its Workload cannot follow it."""

    problems: tuple[Problem, ...]
    reason: str = WORKLOAD_NOT_COMPOSED


def refusal(error: ManifestError) -> Refuse:
    if isinstance(error, NoPriorityClass):
        return Refuse(error.problems, error.reason)
    return Refuse(error.problems)


Action: TypeAlias = (
    CreateWorkload
    | UpdateWorkload
    | DeleteWorkload
    | FinishWorkload
    | ReleaseQuota
    | UpdateReclaimable
    | SetPodsReady
    | Start
    | Suspend
    | Restore
    | ResetStartTime
    | Refuse
)


@dataclass(frozen=True, slots=True)
class StartPod:
    """Patch the pod with `start_pod_patch` and what its admission gives its role."""

    pod: str
    role: str


@dataclass(frozen=True, slots=True)
class DeletePod:
    pod: str
    why: str
    reason: str = ""
    """Reason of the condition TerminationTarget, which the pod gets first; empty: the group has
    more pods than its total count, and the pod gets no condition."""


@dataclass(frozen=True, slots=True)
class ReleasePod:
    """The pod has ended and is counted: its finalizer is removed."""

    pod: str
    patch: dict[str, Any]


@dataclass(frozen=True, slots=True)
class MovePod:
    """The pod waits in another queue than its StatefulSet: its label is changed."""

    pod: str
    patch: dict[str, Any]


@dataclass(frozen=True, slots=True)
class WaitForReplacements:
    """Pods of the group ended early or were evicted; the Workload's condition states it."""

    waiting: bool
    reason: str = PODS_FAILED
    message: str = "Some Failed pods need replacement"
    """Reason and message of the condition while it is True."""


PodAction: TypeAlias = (
    CreateWorkload
    | UpdateWorkload
    | DeleteWorkload
    | FinishWorkload
    | ReleaseQuota
    | HoldWorkload
    | ResumeWorkload
    | UpdateReclaimable
    | SetPodsReady
    | StartPod
    | DeletePod
    | ReleasePod
    | MovePod
    | WaitForReplacements
    | Refuse
)
