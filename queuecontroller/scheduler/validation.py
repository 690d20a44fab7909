"""Reasons why a head cannot be admitted with any amount of quota, as Kueue's scheduler validates
it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from queuecontroller.scheduler.model.limit_range import LimitRange
from queuecontroller.scheduler.model.objects import CheckState
from queuecontroller.scheduler.model.reasons import PendingReason
from queuecontroller.scheduler.model.settings import EngineSettings
from queuecontroller.scheduler.model.workload_info import WorkloadInfo
from queuecontroller.scheduler.preemption.yielding import Yielding
from queuecontroller.scheduler.quota.cluster_queue import ClusterQueueState

Why = tuple[PendingReason, str]
"""Reason and message."""

NAMESPACE_MISMATCH: Final[Why] = (
    PendingReason.MISCONFIGURED,
    "Workload namespace doesn't match ClusterQueue selector",
)
NO_SELECTOR: Final[Why] = (
    PendingReason.MISCONFIGURED,
    f"{NAMESPACE_MISMATCH[1]}: it has none, which serves no namespace (namespaceSelector: {{}}"
    " serves every one)",
)


class Validation:
    def __init__(self, settings: EngineSettings, yielding: Yielding) -> None:
        self._settings = settings
        self._yielding = yielding
        self._namespaces: dict[str, Mapping[str, str]] = {}
        self._limit_ranges: dict[str, Sequence[LimitRange]] = {}

    def put_namespace(self, name: str, labels: Mapping[str, str]) -> bool:
        """Set a namespace's labels; True if that changes anything."""
        changed = self._namespaces.get(name) != labels
        self._namespaces[name] = labels
        return changed

    def put_limit_ranges(self, namespace: str, limits: Sequence[LimitRange]) -> bool:
        """Set a namespace's LimitRanges; True if that changes anything."""
        changed = self._limit_ranges.get(namespace, ()) != tuple(limits)
        self._limit_ranges[namespace] = tuple(limits)
        return changed

    def namespace_labels(self, name: str) -> Mapping[str, str]:
        return self._namespaces.get(name, {})

    def namespace_matches(self, queue: ClusterQueueState, info: WorkloadInfo) -> bool:
        """True if the ClusterQueue serves the workload's namespace."""
        selector = queue.spec.namespace_selector
        if selector is None:
            return self._settings.missing_selector_admits_all
        return selector.matches(self.namespace_labels(info.workload.namespace))

    def mismatch(self, queue: ClusterQueueState) -> Why:
        """Reason why the ClusterQueue does not serve the workload's namespace."""
        return NO_SELECTOR if queue.spec.namespace_selector is None else NAMESPACE_MISMATCH

    def why_inadmissible(self, info: WorkloadInfo) -> Why | None:
        """Reason why the workload is inadmissible; None: only quota and room decide."""
        workload = info.workload
        preemptor = self._yielding.preemptor_of(info.key)
        if preemptor is not None:
            message = f"Workload was preempted for {preemptor}, which is to start first"
            return PendingReason.WAITING_FOR_PREEMPTOR, message
        for check in workload.admission_checks:
            if check.state in (CheckState.RETRY, CheckState.REJECTED):
                return PendingReason.MISCONFIGURED, "The workload has failed admission checks"
        for one in workload.pod_sets:
            if one.over_limit is not None:
                message = f"resources validation failed: {one.over_limit}"
                return PendingReason.MISCONFIGURED, message
        for limits in self._limit_ranges.get(workload.namespace, ()):
            message = limits.violation(workload.pod_sets) or ""
            if message:
                return PendingReason.MISCONFIGURED, message
        return None
