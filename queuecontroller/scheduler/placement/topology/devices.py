"""What nodes have for pods that is no sum: devices of which pods get parts, card by card.

The room by topologies asks through this how many pods a node takes, and where each of them would
be. Without it, all that a node has is what it says is allocatable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from queuecontroller.scheduler.model.objects import PlacedPods, PodSet, Workload, WorkloadKey
from queuecontroller.scheduler.placement.topology.ground import PODS, Amounts

DEVICES: Final = "the GPU shares"
"""In the place of a resource's name: so many pods still find their parts on a node."""
LEADS: Final = "the GPU shares of the leader"
Places = Mapping[str, tuple[PlacedPods, ...]]
"""By pod set."""


@dataclass(frozen=True, slots=True)
class Short:
    """There are not enough for a pod set's pods."""

    reason: str
    for_ever: bool = False
    """Nobody's going would change it."""


class Trial(Protocol):
    """As if some had gone, and with what was placed in it so far, until its undo."""

    def wants(self, pod_set: str) -> bool: ...

    def count(self, pod_set: str, node: str, most: int, after: str = "") -> int:
        """How many of its pods the node takes still, `most` at most; beside a pod of the set
        `after`, where one is named (then 0 where not even that fits)."""

    def place(
        self, pod_set: str, limits: Mapping[str, int], count: int
    ) -> Mapping[str, int] | Short:
        """So many of its pods on these nodes, on each no more than its limit; how many each got."""

    def why_not(self, pod_set: str, nodes: Collection[str]) -> str:
        """Of one of the nodes, why it takes no more of its pods, in amounts; empty: it does."""

    def places(self) -> Places: ...

    def undo(self) -> None: ...


class Devices(Protocol):
    @property
    def changes(self) -> int: ...

    @property
    def freed(self) -> int: ...

    @property
    def unheard(self) -> str:
        """What has not been heard of yet, and without which nothing can be placed."""

    def each(self, workload: Workload, pod_set: PodSet) -> Amounts:
        """What one of its pods takes of a node besides devices."""

    def trial(self, workload: Workload, gone: Collection[WorkloadKey]) -> Trial: ...

    def hold(self, key: WorkloadKey, places: Places) -> None:
        """In place of what it held before."""

    def release(self, key: WorkloadKey) -> None: ...

    def restored(self, workload: Workload) -> None:
        """What its admission says is held, as far as it can be its own."""

    def nodes_of(self, places: Collection[PlacedPods]) -> Mapping[str, int]:
        """Pods by node."""


def each_of(pod_set: PodSet) -> Amounts:
    """What one of its pods takes of a node."""
    return {**pod_set.pod_requests, PODS: 1}


class _Untouched:
    def wants(self, pod_set: str) -> bool:
        return False

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

    def undo(self) -> None:
        """Nothing was done."""


class NoDevices:
    """Nobody asks for parts of them."""

    changes = 0
    freed = 0
    unheard = ""

    def each(self, workload: Workload, pod_set: PodSet) -> Amounts:
        return each_of(pod_set)

    def trial(self, workload: Workload, gone: Collection[WorkloadKey]) -> Trial:
        return _Untouched()

    def hold(self, key: WorkloadKey, places: Places) -> None:
        """None are."""

    def release(self, key: WorkloadKey) -> None:
        """As above."""

    def restored(self, workload: Workload) -> None:
        """As above."""

    def nodes_of(self, places: Collection[PlacedPods]) -> Mapping[str, int]:
        return Counter()
