"""Policy from Kueue's Configuration: integrations, namespaces and retention; it decides which jobs
are queued and how long finished objects are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from queuecontroller.frameworks import External, Framework, Holding
from queuecontroller.scheduler.model.compatibility import Feature, Line, features_of
from queuecontroller.scheduler.model.selectors import LabelSelector, Requirement

EXCEPT: Final = LabelSelector(
    (Requirement("kubernetes.io/metadata.name", "NotIn", ("kube-system", "kueue-system")),)
)
"""Kueue's default managedJobsNamespaceSelector."""


@dataclass(frozen=True, slots=True)
class Retention:
    """Kueue's objectRetentionPolicies.workloads, in seconds; None: kept for ever."""

    after_finished_s: float | None = None
    """Time from a Workload's end until it is deleted; its job stays."""
    after_deactivated_s: float | None = None
    """Time from an eviction that deactivated a Workload, other than by its user, until its job is
    deleted together with it."""


@dataclass(frozen=True, slots=True)
class Policy:
    without_queue: bool = False
    """True if jobs without a queue name are suspended as well (manageJobsWithoutQueueName)."""
    namespaces: LabelSelector = EXCEPT
    """Namespaces whose jobs are queued, whether they name a queue or not."""
    frameworks: frozenset[str] | None = None
    """Names of the frameworks that are queued; None: all."""
    external: tuple[External, ...] = field(default=())
    """Kinds whose own controllers create Workloads; objects that they own are not queued."""
    labels_to_copy: tuple[str, ...] = ()
    """Labels copied from jobs to their Workloads."""
    retention: Retention = Retention()
    features: frozenset[Feature] = features_of(Line.V0_20)
    """Features of the line of Kueue, changed by its feature gates."""
    longest_ready_s: int = 7200
    """The longest timeout that a job may have of its own for its pods to be ready, in seconds
    (waitForPodsReady.maxTimeoutOnWorkload); Kueue's default."""

    def has(self, framework: Framework) -> bool:
        return self.frameworks is None or framework.name in self.frameworks

    @property
    def has_pods(self) -> bool:
        """True if pods are gated one by one for any framework."""
        names = ("pod", "deployment", "statefulset", "leaderworkerset.x-k8s.io/leaderworkerset")
        return self.frameworks is None or any(one in self.frameworks for one in names)

    def wants(self, framework: Framework) -> bool:
        """Return True if `has` does, or if the framework's pods are gated."""
        return self.has(framework) or (framework.holding is Holding.GATE and self.has_pods)

    def is_external(self, owner: Mapping[str, Any]) -> bool:
        group, _, _ = str(owner.get("apiVersion") or "").rpartition("/")
        return any((one.group, one.kind) == (group, owner.get("kind")) for one in self.external)
