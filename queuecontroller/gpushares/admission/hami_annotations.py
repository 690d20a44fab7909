"""HAMi's annotations for nodes and pods, written for other tools: dashboards, scripts. They are
never read back, because the ledger is the source of truth for our own cards."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from queuecontroller.scheduler.placement.capacity import TAKES_WORK, GpuCapacity
from queuecontroller.scheduler.placement.mig import compute_slices
from queuecontroller.scheduler.placement.stock import Share
from sluicecommon.hami.devices import Device, Part, encode, write_register
from sluicecommon.hami.handshake import deleted, reported
from sluicecommon.hami.names import (
    ALLOCATED,
    BIND_PHASE,
    BIND_TIME,
    BOUND,
    HAMI_CORE,
    HANDSHAKE,
    MIG,
    NODE,
    NVIDIA,
    REGISTER,
    SCORE,
    TIME,
)

ON_NODES: Final = frozenset({REGISTER, SCORE, HANDSHAKE})
WORKS: Final = TAKES_WORK | {"cordoned"}
"""Health of cards that work: HAMi's register has cordoned ones as healthy, too."""
OURS: Final = " sluice"
"""Suffix of our handshakes. When a node's agent is away, nodes with another plugin's handshake are
left unchanged."""
PER_LINK: Final = 100
"""HAMi's score of a pair of cards for each NVLink. A pair without NVLink scores by its NUMA nodes.
"""
SAME_NODE, OTHER_NODE = 20, 10
MAX_SLICES: Final = 7
"""Compute slices of a card in MIG mode."""
_MIB: Final = 1 << 20
_PERCENT_PPM: Final = 10_000


def register(gpus: Iterable[GpuCapacity]) -> str:
    """Register of a node's cards. MIG instances are part of their card."""
    cards = [one for one in gpus if not one.parent_uuid]
    return write_register(
        [
            Device(
                one.uuid,
                one.index,
                one.slots,
                one.memory_bytes // _MIB,
                100,
                one.type if one.type.startswith(NVIDIA) else f"{NVIDIA}-{one.type}",
                one.numa_node or 0,
                MIG if one.mig_enabled else HAMI_CORE,
                one.health in WORKS,
            )
            for one in cards
        ],
        {one.uuid: {"migProfiles": _profiles(one)} for one in cards if one.mig_enabled},
    )


def _profiles(gpu: GpuCapacity) -> list[dict[str, Any]]:
    found = []
    for one in gpu.mig_profiles:
        slices = compute_slices(one.name)
        found.append(
            {
                "name": one.name,
                "memoryMB": one.memory_bytes // _MIB,
                "core": slices * 100 // MAX_SLICES,
                "sliceCount": slices,
                "placements": [{"start": a, "size": b} for a, b in gpu.mig_spans(one.name)],
            }
        )
    return found


def differences(
    gpus: Sequence[GpuCapacity] | None, noted: Mapping[str, str], now_ns: int
) -> dict[str, str | None]:
    """Changes to a node's annotations `noted`, of those in ON_NODES; a value of None removes one.
    `gpus` is what the node's agent reports, None while it is away. The handshake is written with
    every change, in reply to a scheduler's `Requesting_TIME`, and as `Deleted_TIME` when the agent
    is away."""
    handshake = noted.get(HANDSHAKE, "")
    if gpus is None:
        return {HANDSHAKE: deleted(now_ns)} if handshake.endswith(OURS) else {}
    cards = [one for one in gpus if not one.parent_uuid]
    if not cards and REGISTER not in noted:
        return {}
    wanted: dict[str, str | None] = {REGISTER: register(gpus), SCORE: None}
    if len(cards) > 1:
        wanted[SCORE] = scores(cards)
    changed = {key: value for key, value in wanted.items() if noted.get(key) != value}
    if changed or not handshake.endswith(OURS):
        changed[HANDSHAKE] = reported(now_ns) + OURS
    return changed


def scores(gpus: Sequence[GpuCapacity]) -> str:
    """JSON with the link score of each pair of cards."""
    found = []
    for one in gpus:
        pairs = {other.uuid: _score(one, other) for other in gpus if other.uuid != one.uuid}
        found.append({"uuid": one.uuid, "score": pairs})
    return json.dumps(found, separators=(",", ":"))


def _score(one: GpuCapacity, other: GpuCapacity) -> int:
    if links := one.nvlinks.get(other.uuid, 0):
        return links * PER_LINK
    return SAME_NODE if one.numa_node == other.numa_node else OTHER_NODE


def allocation(
    containers: Sequence[str],
    given: Mapping[str, Sequence[Share]],
    node: str,
    now_ns: int,
) -> dict[str, str]:
    """Annotations of a bound pod. `containers` are its container names, init containers first."""
    parts = tuple(
        tuple(
            Part(one.uuid, -1, NVIDIA, one.memory_bytes // _MIB, one.share_ppm // _PERCENT_PPM)
            for one in given.get(name, ())
        )
        for name in containers
    )
    seconds = str(now_ns // 1_000_000_000)
    return {
        NODE: node,
        TIME: seconds,
        BIND_TIME: seconds,
        BIND_PHASE: BOUND,
        ALLOCATED: encode(parts),
    }
