"""Port for devices of nodes that cannot be summed, since pods get parts of single cards.

The room by topologies asks through it how many pods a node takes, and where each of them would be.
Without it, a node has exactly its allocatable resources.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from queuecontroller.scheduler.model.objects import PlacedPods, PodSet, Workload, WorkloadKey
from queuecontroller.scheduler.placement.topology.ground import PODS, Amounts

SHARES: Final = "the GPU shares"
CLAIMED: Final = "the devices of its claims"
Places = Mapping[str, tuple[PlacedPods, ...]]
"""Device places by pod set."""
Picks = object
"""Devices that a trial placed, for `Devices.hold`, where admissions have no places of them."""


@dataclass(frozen=True, slots=True)
class Short:
    """Shortage of devices for a pod set's pods."""

    reason: str
    for_ever: bool = False
    """True if no preemption would change it."""


class Trial(Protocol):
    """A what-if without some workloads and with what was placed in it, until its undo."""

    def wants(self, pod_set: str) -> bool: ...

    def named(self, pod_set: str) -> str:
        """Devices that its pods want, in words: the name of a pseudo resource, the number of pods
        that still find theirs on a node."""

    def count(self, pod_set: str, node: str, most: int, after: str = "") -> int:
        """Number of its pods that the node still takes, up to `most`; beside a pod of the set
        `after`, where one is named (then 0 if that pod does not fit)."""

    def place(
        self, pod_set: str, limits: Mapping[str, int], count: int
    ) -> Mapping[str, int] | Short:
        """Place so many of its pods on these nodes, up to their limits; returns pods by node."""

    def why_not(self, pod_set: str, nodes: Collection[str]) -> str:
        """Reason, with amounts, why one of the nodes takes no more of its pods; empty: it does."""

    def places(self) -> Places: ...

    def picks(self) -> Picks: ...

    def undo(self) -> None: ...


class Devices(Protocol):
    @property
    def changes(self) -> int: ...

    @property
    def freed(self) -> int: ...

    @property
    def missing_input(self) -> str:
        """Input required for placement that was not received yet; empty: none."""

    def each(self, workload: Workload, pod_set: PodSet) -> Amounts:
        """Resources that one of its pods takes of a node besides devices."""

    def apart(self, workload: Workload, pod_set: PodSet) -> Amounts:
        """The same, for a pod set that has no topology."""

    def trial(self, workload: Workload, gone: Collection[WorkloadKey]) -> Trial: ...

    def hold(self, key: WorkloadKey, places: Places, picks: Picks = None) -> None:
        """Reserve the places and picks, in place of what the key held before."""

    def release(self, key: WorkloadKey) -> None: ...

    def restored(self, workload: Workload) -> None:
        """Reserve what the workload's admission says it holds, as far as it can be valid."""

    def nodes_of(self, places: Collection[PlacedPods]) -> Mapping[str, int]:
        """Pods by node."""

    def holders(self) -> Collection[WorkloadKey]:
        """Workloads that hold devices although they have no places."""

    def holds(self, key: WorkloadKey) -> bool:
        """True for one of `holders`."""

    def in_the_way(self, picks: Picks, gone: Collection[WorkloadKey]) -> set[WorkloadKey]:
        """Those of the `holders` in `gone` that are on the nodes of the picks."""


def each_of(pod_set: PodSet) -> Amounts:
    """Resources that one of its pods takes of a node."""
    return {**pod_set.pod_requests, PODS: 1}


class _Untouched:
    def wants(self, pod_set: str) -> bool:
        return False

    def named(self, pod_set: str) -> str:
        return SHARES

    def count(self, pod_set: str, node: str, most: int, after: str = "") -> int:
        return most

    def place(
        self, pod_set: str, limits: Mapping[str, int], count: int
    ) -> Mapping[str, int] | Short:
        return {}

    def why_not(self, pod_set: str, nodes: Collection[str]) -> str:
        return ""

    def places(self) -> Places:
        return {}

    def picks(self) -> Picks:
        return None

    def undo(self) -> None:
        """Undo nothing, since nothing was done."""


class WithPlaces:
    """Part of the port where all devices that workloads hold are places of their admissions."""

    def holders(self) -> Collection[WorkloadKey]:
        return ()

    def holds(self, key: WorkloadKey) -> bool:
        return False

    def in_the_way(self, picks: Picks, gone: Collection[WorkloadKey]) -> set[WorkloadKey]:
        return set()


class NoDevices(WithPlaces):
    """Stand-in where no pods request parts of devices."""

    changes = 0
    freed = 0
    missing_input = ""

    def each(self, workload: Workload, pod_set: PodSet) -> Amounts:
        return each_of(pod_set)

    def apart(self, workload: Workload, pod_set: PodSet) -> Amounts:
        return each_of(pod_set)

    def trial(self, workload: Workload, gone: Collection[WorkloadKey]) -> Trial:
        return _Untouched()

    def hold(self, key: WorkloadKey, places: Places, picks: Picks = None) -> None:
        """Reserve nothing."""

    def release(self, key: WorkloadKey) -> None:
        """Release nothing."""

    def restored(self, workload: Workload) -> None:
        """Restore nothing."""

    def nodes_of(self, places: Collection[PlacedPods]) -> Mapping[str, int]:
        return Counter()
