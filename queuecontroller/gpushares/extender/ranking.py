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


def points(rooms: Sequence[NodeRoom], ask: PodAsk, policy: str) -> dict[str, int]:
    values = {room.name: value(room, ask, policy) for room in rooms}
    least, most = min(values.values(), default=0), max(values.values(), default=0)
    span = (most - least) or 1
    # Of thousands of nodes most have one of a few values.
    scores = {one: (one - least) * MAX_POINTS // span for one in set(values.values())}
    return {name: scores[one] for name, one in values.items()}


def value(room: NodeRoom, ask: PodAsk, policy: str) -> int:
    """Suitability of a node; more is better."""
    if policy == BY_TOPOLOGY:
        return _togetherness(room, ask)
    return -room.used_ppm if policy == SPREAD else room.used_ppm


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
        return room.used_ppm
    linked = sum(10 * a.nvlinks.get(b.uuid, 0) for a, b in pairs)
    near = sum(a.numa_node is not None and a.numa_node == b.numa_node for a, b in pairs)
    return (linked + near) * 1000 // len(pairs)
