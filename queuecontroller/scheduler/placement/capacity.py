"""Capacity that a node reports: GPUs that can be shared, and what is in use outside the queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from queuecontroller.scheduler.model.selectors import Taint
from queuecontroller.scheduler.placement.mig import Span, known_spans

TAKES_WORK: Final = frozenset({"healthy", "suspect"})
"""Health states in which a GPU gets new work, as in the node agent."""


@dataclass(frozen=True, slots=True)
class MigProfile:
    name: str
    total: int
    free: int
    memory_bytes: int
    spans: tuple[Span, ...] = ()
    """Possible places of an instance, in memory slices; empty: those of its profile's name."""


@dataclass(frozen=True, slots=True)
class GpuCapacity:
    uuid: str
    index: int
    type: str
    memory_bytes: int
    """Memory that can be granted."""
    share_ppm: int = 1_000_000
    slots: int = 10
    numa_node: int | None = None
    nvlinks: Mapping[str, int] = field(default_factory=dict)
    """NVLinks by the UUID of the peer."""
    mig_enabled: bool = False
    mig_profiles: tuple[MigProfile, ...] = ()
    health: str = "healthy"
    pci_bus_id: str | None = None
    sm_count: int | None = None
    outside_memory_bytes: int = 0
    """Memory in use by processes that the queue did not start."""
    outside_share_ppm: int = 0
    outside_slots: int = 0
    outside_spans: tuple[Span, ...] = ()
    """MIG instances that the queue did not start, in memory slices."""
    used_memory_bytes: int | None = None
    utilization_ratio: float | None = None
    parent_uuid: str = ""
    """UUID of the card, for a MIG instance: a GPU in MIG mode with one profile and one place."""
    mig_profile: str = ""
    mig_span: Span | None = None
    """Place of a MIG instance on its card."""
    health_reason: str = ""
    """Reason why it is not healthy, for people; empty if its node reports none."""

    def mig_spans(self, profile: str) -> tuple[Span, ...]:
        """Places where an instance of the profile may be; empty: the GPU does not offer it."""
        for one in self.mig_profiles:
            if one.name == profile:
                return one.spans or known_spans(profile, (p.name for p in self.mig_profiles))
        return ()

    def mig_memory_bytes(self, profile: str) -> int:
        return next((one.memory_bytes for one in self.mig_profiles if one.name == profile), 0)


@dataclass(frozen=True, slots=True)
class PodShare:
    uuid: str
    memory_bytes: int
    share_ppm: int
    """Promised time in ppm; 0: a weight."""
    alone: bool = False


class CheckpointState(StrEnum):
    """State of a pod's checkpoint, as its node reports it."""

    MOVING = "moving"
    """On its way to the host or back, or waiting for room on its GPUs."""
    SAVED = "saved"
    """All its GPU memory is on the host, and stays there until it is told to restore it."""
    RESTORED = "restored"
    REFUSED = "refused"
    """It cannot do what it was told."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    told: str
    """Value of the annotation that this answers."""
    state: CheckpointState
    why: str = ""


@dataclass(frozen=True, slots=True)
class PodGpus:
    """GPU shares of one pod's containers that the kubelet started without a decision of the queue;
    they are also counted in the GPUs' use outside."""

    uid: str
    namespace: str
    name: str
    shares: tuple[PodShare, ...]
    """Without those whose memory is on the host."""
    checkpoint: Checkpoint | None = None
    """Its answer to the annotation that tells it to be checkpointed; None: it has none."""


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    gpus: tuple[GpuCapacity, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    other: Mapping[str, int] = field(default_factory=dict)
    """CPU in milli, memory in bytes, other resources in base units."""
    pods: tuple[PodGpus, ...] = ()


NOTHING: Final = NodeCapacity()
