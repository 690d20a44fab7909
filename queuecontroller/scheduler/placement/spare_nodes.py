"""Nodes that are not needed: everything that is held on them would fit on other nodes.

Nodes are judged one after the other, the emptiest first. What is held on one that is not needed is
placed elsewhere before the next is judged, so all of them may go together. Only free room counts:
whether the work may be interrupted is for its owner, and for whatever drains the node. The stock is
as before afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from queuecontroller.scheduler.placement.capacity import TAKES_WORK
from queuecontroller.scheduler.placement.choose import NoPlace, PodToPlace, place
from queuecontroller.scheduler.placement.request import GpuRequest
from queuecontroller.scheduler.placement.stock import Holding, NodeRoom, Share, Stock

MAX_NODES: Final = 16
"""Nodes judged in one look, the emptiest."""
MOST_USED_PPM: Final = 500_000
"""Nodes that are used more are not judged: no autoscaler removes them by itself."""


def spare_nodes(
    stock: Stock, names: Sequence[str], others: frozenset[str] = frozenset()
) -> dict[str, bool]:
    """The nodes in little use among `names`, each with True if it is not needed. `others` are
    nodes that may not take over what these hold."""
    rooms = [stock.nodes[name] for name in names if name in stock.nodes]
    used = sorted((used_ppm(room), room.name) for room in rooms)
    judged = [name for ppm, name in used if ppm <= MOST_USED_PPM and stock.held_at(name)]
    trial = stock.trial()
    found: dict[str, bool] = {}
    spare: set[str] = set()
    try:
        for name in judged[:MAX_NODES]:
            avoid = others | spare | {name}
            places = _elsewhere(stock, [held for _, held in stock.held_at(name)], avoid)
            found[name] = places is not None
            if places is not None:
                spare.add(name)
                for node, shares in places:
                    trial.hold(node, shares)
    finally:
        trial.undo()
    return found


def used_ppm(room: NodeRoom) -> int:
    """The larger of the parts of memory and of time in use, over all of the node's GPUs."""
    gpus = [one for one in room.gpus.values() if one.gpu.health in TAKES_WORK]
    memory = sum(one.gpu.memory_bytes for one in gpus) or 1
    time = sum(one.gpu.share_ppm for one in gpus) or 1
    free_memory = sum(max(0, one.memory_bytes) for one in gpus)
    free_time = sum(max(0, one.share_ppm) for one in gpus)
    return 1_000_000 - min(free_memory * 1_000_000 // memory, free_time * 1_000_000 // time)


def _elsewhere(
    stock: Stock, held: Sequence[Holding], avoid: frozenset[str]
) -> list[tuple[str, tuple[Share, ...]]] | None:
    """Places for the holdings on other nodes; None if there are none for some."""
    trial = stock.trial()
    found: list[tuple[str, tuple[Share, ...]]] = []
    try:
        for one in sorted(held, key=_large_first):
            request = _request_of(one.shares)
            if request is None:
                return None
            places = place(stock, [PodToPlace("", request, avoid=avoid)])
            if isinstance(places, NoPlace):
                return None
            trial.hold(places[0].node, places[0].shares)
            found.append((places[0].node, places[0].shares))
    finally:
        trial.undo()
    return found


def _large_first(one: Holding) -> tuple[int, int]:
    return -len(one.shares), -sum(share.memory_bytes for share in one.shares)


def _request_of(shares: Sequence[Share]) -> GpuRequest | None:
    """The request for equal shares of different GPUs; None for others, which are not judged."""
    kinds = {(one.memory_bytes, one.share_ppm, one.alone, one.mig) for one in shares}
    if len(kinds) != 1 or len({one.uuid for one in shares}) != len(shares):
        return None
    [(memory, share, alone, mig)] = kinds
    if mig:
        return None
    return GpuRequest(len(shares), memory, share_ppm=share or 1, hard=share > 0, exclusive=alone)
