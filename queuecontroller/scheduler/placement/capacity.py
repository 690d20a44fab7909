"""What a node reports it has: GPUs as shares can be given of them, and what is in use by others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from queuecontroller.scheduler.model.selectors import Taint
from queuecontroller.scheduler.placement.mig import Span, known_spans

TAKES_WORK: Final = frozenset({"healthy", "suspect"})
"""Health states in which a GPU gets new work; the node agent's own rule."""


@dataclass(frozen=True, slots=True)
class MigProfile:
    name: str
    total: int
    free: int
    memory_bytes: int
    spans: tuple[Span, ...] = ()
    """Where an instance may be, in memory slices; empty: as its name says."""


@dataclass(frozen=True, slots=True)
class GpuCapacity:
    uuid: str
    index: int
    type: str
    memory_bytes: int
    """Grantable."""
    share_ppm: int = 1_000_000
    slots: int = 10
    numa_node: int | None = None
    nvlinks: Mapping[str, int] = field(default_factory=dict)
    """Links by the UUID of the peer."""
    mig_enabled: bool = False
    mig_profiles: tuple[MigProfile, ...] = ()
    health: str = "healthy"
    pci_bus_id: str | None = None
    sm_count: int | None = None
    outside_memory_bytes: int = 0
    """In use by what the queue did not start."""
    outside_share_ppm: int = 0
    outside_slots: int = 0
    outside_spans: tuple[Span, ...] = ()
    """MIG instances that the queue did not start, in memory slices."""
    used_memory_bytes: int | None = None
    utilization_ratio: float | None = None
    parent_uuid: str = ""
    """This is a MIG instance of that card: a GPU in MIG mode with one profile and one place."""
    mig_profile: str = ""
    mig_span: Span | None = None
    """Of an instance: where it is on its card."""

    def mig_spans(self, profile: str) -> tuple[Span, ...]:
        """Where an instance of the profile may be; empty: the GPU does not offer it."""
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
    """Promised; 0: a weight."""
    alone: bool = False


@dataclass(frozen=True, slots=True)
class PodGpus:
    """What the containers of one pod have, that the kubelet started and no decision of the queue's;
    it is also in what the GPUs have in use outside."""

    uid: str
    namespace: str
    name: str
    shares: tuple[PodShare, ...]


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    gpus: tuple[GpuCapacity, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    other: Mapping[str, int] = field(default_factory=dict)
    """CPU in milli, memory in bytes, others in base units."""
    pods: tuple[PodGpus, ...] = ()


NOTHING: Final = NodeCapacity()
