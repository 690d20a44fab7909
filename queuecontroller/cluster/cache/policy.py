"""Which jobs are queued at all, and how long what is over is kept: what Kueue's Configuration says
of integrations, namespaces and retention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from queuecontroller.frameworks import External, Framework, Holding
from queuecontroller.scheduler.model.selectors import LabelSelector, Requirement

EXCEPT: Final = LabelSelector(
    (Requirement("kubernetes.io/metadata.name", "NotIn", ("kube-system", "kueue-system")),)
)
"""Kueue's managedJobsNamespaceSelector where none is given."""


@dataclass(frozen=True, slots=True)
class Retention:
    """Kueue's objectRetentionPolicies.workloads, in seconds; None: for ever."""

    after_finished_s: float | None = None
    """From a Workload's end until it is deleted; its job stays."""
    after_deactivated_s: float | None = None
    """From an eviction that deactivated a Workload, for another reason than a user's word, until
    its job is deleted, and the Workload with it."""


@dataclass(frozen=True, slots=True)
class Policy:
    without_queue: bool = False
    """Jobs that name no queue wait, too, until they name one."""
    namespaces: LabelSelector = EXCEPT
    """Where that is so."""
    frameworks: frozenset[str] | None = None
    """Those that are queued; None: all of ours."""
    external: tuple[External, ...] = field(default=())
    """Kinds whose own controllers make Workloads: what they own follows them."""
    labels_to_copy: tuple[str, ...] = ()
    """From jobs to their Workloads."""
    retention: Retention = Retention()

    def has(self, framework: Framework) -> bool:
        return self.frameworks is None or framework.name in self.frameworks

    @property
    def has_pods(self) -> bool:
        """Whether pods are held one by one for any framework."""
        names = ("pod", "deployment", "statefulset", "leaderworkerset.x-k8s.io/leaderworkerset")
        return self.frameworks is None or any(one in self.frameworks for one in names)

    def wants(self, framework: Framework) -> bool:
        """As `has`; pods are held for whoever makes them."""
        return self.has(framework) or (framework.holding is Holding.GATE and self.has_pods)

    def is_external(self, owner: Mapping[str, Any]) -> bool:
        group, _, _ = str(owner.get("apiVersion") or "").rpartition("/")
        return any((one.group, one.kind) == (group, owner.get("kind")) for one in self.external)
