"""Which of the nodes with room suit a pod best, in kube-scheduler's points: 0 to 10.

Points are spread over the nodes that are asked about, from the least to the most suitable of them:
in a large cluster that is nearly full, all would have the same otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from queuecontroller.gpushares.extender.pods import PodAsk
from queuecontroller.gpushares.extender.verdicts import place_on
from queuecontroller.scheduler.placement.request import BY_TOPOLOGY
from queuecontroller.scheduler.placement.stock import NodeRoom

MOST_POINTS: Final = 10
BINPACK: Final = "binpack"
SPREAD: Final = "spread"
NODE_POLICIES: Final = (BINPACK, SPREAD, BY_TOPOLOGY)


class Ranking:
    def __init__(self) -> None:
        self._used: dict[str, tuple[int, int]] = {}
        """By node: which version of it was looked at, and what was found."""

    def points(self, rooms: Sequence[NodeRoom], ask: PodAsk, policy: str) -> dict[str, int]:
        values = {room.name: self.value(room, ask, policy) for room in rooms}
        least, most = min(values.values(), default=0), max(values.values(), default=0)
        span = (most - least) or 1
        return {name: (value - least) * MOST_POINTS // span for name, value in values.items()}

    def value(self, room: NodeRoom, ask: PodAsk, policy: str) -> int:
        """More is better."""
        if policy == BY_TOPOLOGY:
            return _togetherness(room, ask)
        return -self._used_ppm(room) if policy == SPREAD else self._used_ppm(room)

    def _used_ppm(self, room: NodeRoom) -> int:
        known = self._used.get(room.name)
        if known is None or known[0] != room.version:
            known = self._used[room.name] = (room.version, used_ppm(room))
        return known[1]


def used_ppm(room: NodeRoom) -> int:
    """Of the node's GPUs, by whichever of memory and time is scarcer on each."""
    total = 0
    for gpu in room.gpus.values():
        whole = gpu.gpu.memory_bytes or 1
        memory = 1_000_000 - max(0, gpu.memory_bytes) * 1_000_000 // whole
        time = 1_000_000 - max(0, gpu.share_ppm)
        total += max(memory, time)
    return total // (len(room.gpus) or 1)


def _togetherness(room: NodeRoom, ask: PodAsk) -> int:
    """Links between every two of the GPUs it would get; without any, whether they share a NUMA
    node."""
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
