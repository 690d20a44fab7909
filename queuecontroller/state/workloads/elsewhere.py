"""Port to what runs workloads besides the nodes: Kubernetes, through the reconcilers."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.state.records import WorkloadRecord


class RunningElsewhere(Protocol):
    """Runs workloads as jobs and pods that the nodes do not report."""

    def runs(self, key: WorkloadKey) -> bool:
        """Return True while something may use a workload's quota; until then it is kept."""
        ...

    def evicted_before(self, key: WorkloadKey) -> Collection[tuple[str, str]]:
        """Return the reasons and causes of evictions that its stored status lists already."""
        ...


class Checkpoints(Protocol):
    """Checkpoints of pods that Kubernetes runs."""

    def why_not(self, record: WorkloadRecord) -> str | None:
        """Return why the pods of a preempted workload are stopped and not checkpointed, empty if
        they are checkpointed, and None if nobody asked for it."""
        ...
