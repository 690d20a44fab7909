"""The outcome of the flavor search: what each pod set would get, and at what price."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from queuecontroller.scheduler.model.flavor_resources import Fr
from queuecontroller.scheduler.model.objects import PlacedPods, TopologyAssignment, WorkloadKey
from queuecontroller.scheduler.model.reasons import PendingReason


class Mode(IntEnum):
    """Mode in which an assignment is available; higher is better."""

    NO_FIT = 0
    PREEMPT = 1
    FIT = 2


class PreemptionMode(IntEnum):
    """Mode in finer steps, by what preemption would achieve; higher is better."""

    NO_FIT = 0
    NO_CANDIDATES = 1
    PREEMPT = 2
    RECLAIM = 3
    FIT = 4

    @property
    def mode(self) -> Mode:
        if self is PreemptionMode.FIT:
            return Mode.FIT
        return Mode.NO_FIT if self is PreemptionMode.NO_FIT else Mode.PREEMPT


NO_ROOM: Final = frozenset(
    {PendingReason.WAITING_FOR_PLACEMENT, PendingReason.TOPOLOGY_PLACEMENT_FAILED}
)
HOPELESS: Final = frozenset(
    {
        PendingReason.EXCEEDS_MAX_QUOTA,
        PendingReason.NO_MATCHING_FLAVOR,
        PendingReason.MISCONFIGURED,
    }
)
"""Reasons that do not resolve with time: the workload, a queue or a flavor must be changed."""

# The pod set's reason is that of the flavor, among those tried, which is nearest to fitting.
NEARNESS: Mapping[PendingReason, int] = {
    PendingReason.NO_MATCHING_FLAVOR: 0,
    PendingReason.EXCEEDS_MAX_QUOTA: 1,
    PendingReason.WAITING_FOR_QUOTA: 2,
}


@dataclass(slots=True)
class FlavorAssignment:
    """The flavor of one resource."""

    flavor: str
    mode: Mode
    borrow: int
    """Height in the cohort tree of the quota borrowed from; 0 is the own quota."""
    tried_index: int = -1
    fr: Fr | None = None
    """None if the flavor does not limit the resource."""


@dataclass(slots=True)
class Attempt:
    """One flavor that was evaluated."""

    flavor: str
    preemption_mode: PreemptionMode
    borrow: int
    reasons: list[str] = field(default_factory=list)
    pending_reason: PendingReason | None = None


@dataclass(slots=True)
class PodSetResult:
    name: str
    count: int
    requests: Mapping[str, int]
    flavors: dict[str, FlavorAssignment] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    failed: bool = False
    pending_reason: PendingReason | None = None

    @property
    def mode(self) -> Mode:
        if self.failed:
            return Mode.NO_FIT
        return min((one.mode for one in self.flavors.values()), default=Mode.FIT)


@dataclass(slots=True)
class Assignment:
    pod_sets: list[PodSetResult] = field(default_factory=list)
    usage: dict[Fr, int] = field(default_factory=dict)
    borrowing: int = 0
    tried: list[dict[str, int]] = field(default_factory=list)
    mode: Mode = Mode.NO_FIT
    no_room: str = ""
    """Reason why no node has room; empty if room is not what is missing."""
    no_room_reason: PendingReason = PendingReason.WAITING_FOR_PLACEMENT
    topology: Mapping[str, TopologyAssignment] = field(default_factory=dict)
    """Reserved domains, by pod set."""
    places: Mapping[str, tuple[PlacedPods, ...]] = field(default_factory=dict)
    """Reserved devices, by pod set."""
    frees: frozenset[WorkloadKey] = frozenset()
    """Paused workloads without quota that must be stopped because their memory is needed."""

    @property
    def pending_reason(self) -> PendingReason:
        """Reason why nothing was found: that of the pod set at which the search ended."""
        if self.no_room:
            return self.no_room_reason
        for one in reversed(self.pod_sets):
            if one.failed and one.pending_reason is not None:
                return one.pending_reason
        return PendingReason.WAITING_FOR_QUOTA

    def frs_needing_preemption(self) -> frozenset[Fr]:
        return frozenset(
            one.fr
            for pod_set in self.pod_sets
            for one in pod_set.flavors.values()
            if one.mode is Mode.PREEMPT and one.fr is not None
        )

    def message(self) -> str:
        parts = [
            f"couldn't assign flavors to pod set {one.name}: {', '.join(one.reasons)}"
            for one in self.pod_sets
            if one.reasons
        ]
        if self.no_room:
            parts.append(f"couldn't place: {self.no_room}")
        return "; ".join(parts)
