"""Pods of admitted Workloads: those that kube-scheduler has not bound yet, for waitForPodsReady's
`unscheduledTimeout`, and those whose claims have devices. Followed by every replica; only the
leader reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple

from queuecontroller.cluster.cache.objects import annotations_of, labels_of, split_key
from queuecontroller.frameworks.names import POD_SET, WORKLOAD
from queuecontroller.gpushares.claims.room import PodOf
from queuecontroller.scheduler.model.objects import WorkloadKey
from sluicecommon.kubernetes.reflector import Change, Changed, Removed

SELECTOR: Final = (("labelSelector", POD_SET),)
"""Parameters of a list of pods that a Workload counts: an admission labels them."""


class Scheduled(NamedTuple):
    """Facts that are kept of a pod."""

    workload: str
    """Name of its Workload; empty: it has none."""
    pod_set: str
    is_bound: bool
    """True if it is on a node, or was."""
    is_over: bool = False
    """True if all its containers have ended."""


def read_scheduled(pod: Mapping[str, Any]) -> Scheduled:
    bound = bool((pod.get("spec") or {}).get("nodeName"))
    name = annotations_of(pod).get(WORKLOAD) or ""
    over = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
    return Scheduled(name, labels_of(pod).get(POD_SET) or "main", bound, over)


class PodScheduling:
    def __init__(self) -> None:
        self._pods: dict[str, tuple[WorkloadKey, str, bool]] = {}
        self._of: dict[WorkloadKey, dict[str, None]] = {}
        self.on_change: Callable[[WorkloadKey], None] = lambda key: None
        """Called with the Workload of each pod that is created, bound or deleted."""
        self.on_end: Callable[[str], None] = lambda pod: None
        """Called with each pod that has ended or is gone."""
        self._over: set[str] = set()

    def changed(self, change: Change[Scheduled]) -> None:
        match change:
            case Changed(item):
                before = self._forget(item.key)
                found = item.value
                workload = WorkloadKey(f"{split_key(item.key)[0]}/{found.workload}")
                after = (workload, found.pod_set, found.is_bound)
                if found.workload:
                    self._pods[item.key] = after
                    self._of.setdefault(workload, {})[item.key] = None
                if before != after and found.workload:
                    self.on_change(workload)
                if found.is_over and found.workload:
                    self._over.add(item.key)
                    self.on_end(item.key)
            case Removed(key):
                before = self._forget(key)
                self._over.discard(key)
                if before is not None:
                    self.on_change(before[0])
                    self.on_end(key)
            case _:
                pass  # Each pod was reported by itself.

    def _forget(self, key: str) -> tuple[WorkloadKey, str, bool] | None:
        before = self._pods.pop(key, None)
        if before is not None:
            self._of[before[0]].pop(key)
            if not self._of[before[0]]:
                del self._of[before[0]]
        return before

    def pods_of(self, workload: WorkloadKey) -> Collection[str]:
        """Return the pods, NAMESPACE/NAME, that the Workload counts."""
        return self._of.get(workload, {}).keys()

    def pod(self, key: str) -> PodOf | None:
        """Return the Workload of a pod that has not ended; None: there is no such pod."""
        found = self._pods.get(key) if key not in self._over else None
        return PodOf(found[0], found[1]) if found is not None else None

    def all_bound(self, workload: WorkloadKey, counts: Mapping[str, int]) -> bool:
        """Return True if each pod set has as many pods on nodes as `counts` says."""
        bound: Counter[str] = Counter()
        for key in self._of.get(workload, ()):
            _, pod_set, is_bound = self._pods[key]
            bound[pod_set] += is_bound
        return all(bound[name] >= count for name, count in counts.items())
