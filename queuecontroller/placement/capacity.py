"""What a node reports it has: GPUs as shares can be given of them, and what is in use by others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from queuecontroller.engine.selectors import Taint

TAKES_WORK: Final = frozenset({"healthy", "suspect"})
"""Health states in which a GPU gets new work; the node agent's own rule."""


@dataclass(frozen=True, slots=True)
class MigProfile:
    name: str
    total: int
    free: int
    memory_bytes: int


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
    used_memory_bytes: int | None = None
    utilization_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    gpus: tuple[GpuCapacity, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    other: Mapping[str, int] = field(default_factory=dict)
    """CPU in milli, memory in bytes, others in base units."""


NOTHING: Final = NodeCapacity()
