"""Scores of the nodes with room for a pod, in kube-scheduler's points: 0 to 10.

Points are spread over the requested nodes, from the least to the most suitable: in a large, nearly
full cluster all nodes would score the same otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from queuecontroller.gpushares.extender.pods import PodAsk
from queuecontroller.gpushares.extender.verdicts import place_on
from queuecontroller.scheduler.placement.request import BY_TOPOLOGY
from queuecontroller.scheduler.placement.stock import NodeRoom

MAX_POINTS: Final = 10
BINPACK: Final = "binpack"
SPREAD: Final = "spread"
NODE_POLICIES: Final = (BINPACK, SPREAD, BY_TOPOLOGY)


class Ranking:
    def __init__(self) -> None:
        self._used: dict[str, tuple[int, int]] = {}
        """Usage in parts per million by node, with the node's version that it was computed from."""

    def points(self, rooms: Sequence[NodeRoom], ask: PodAsk, policy: str) -> dict[str, int]:
        values = {room.name: self.value(room, ask, policy) for room in rooms}
        least, most = min(values.values(), default=0), max(values.values(), default=0)
        span = (most - least) or 1
        return {name: (value - least) * MAX_POINTS // span for name, value in values.items()}

    def value(self, room: NodeRoom, ask: PodAsk, policy: str) -> int:
        """Suitability of a node; more is better."""
        if policy == BY_TOPOLOGY:
            return _togetherness(room, ask)
        return -self._used_ppm(room) if policy == SPREAD else self._used_ppm(room)

    def _used_ppm(self, room: NodeRoom) -> int:
        known = self._used.get(room.name)
        if known is None or known[0] != room.version:
            known = self._used[room.name] = (room.version, used_ppm(room))
        return known[1]


def used_ppm(room: NodeRoom) -> int:
    """Usage of the node's GPUs in parts per million, by the scarcer of memory and time on each."""
    total = 0
    for gpu in room.gpus.values():
        whole = gpu.gpu.memory_bytes or 1
        memory = 1_000_000 - max(0, gpu.memory_bytes) * 1_000_000 // whole
        time = 1_000_000 - max(0, gpu.share_ppm)
        total += max(memory, time)
    return total // (len(room.gpus) or 1)


def _togetherness(room: NodeRoom, ask: PodAsk) -> int:
    """Mean number of links between the GPUs that the pod would get; pairs without a link count if
    they share a NUMA node."""
    placed = place_on(room, ask.containers)
    if isinstance(placed, str):
        return 0
    uuids = list(dict.fromkeys(share.uuid for share in placed.held))
    gpus = [room.gpus[uuid].gpu for uuid in uuids]
    pairs = [(a, b) for i, a in enumerate(gpus) for b in gpus[i + 1 :]]
    if not pairs:
        return used_ppm(room)
    linked = sum(10 * a.nvlinks.get(b.uuid, 0) for a, b in pairs)
    near = sum(a.numa_node is not None and a.numa_node == b.numa_node for a, b in pairs)
    return (linked + near) * 1000 // len(pairs)
