"""Who cannot be spared of those who are to leave: told from the nodes they stand on, each of them
put back by itself, without a choice of GPUs and nodes for everybody who might be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from queuecontroller.engine.model import WorkloadKey
from queuecontroller.placement.choose import PodToPlace, rooms_for, unfit
from queuecontroller.placement.ground import Ground
from queuecontroller.placement.stock import NodeRoom, Share, Stock

_Held = tuple[WorkloadKey, tuple[Share, ...], bool]


def indispensable(
    stock: Stock,
    pods: Sequence[PodToPlace],
    gone: Iterable[WorkloadKey],
    who: Collection[WorkloadKey],
    time_only: Callable[[WorkloadKey], bool],
) -> set[WorkloadKey]:
    """Of `who`, those without whom leaving there surely is no room for the pods, though `gone` and
    all others of `who` leave; there is none without any of them leaving. Rather too few than too
    many: whether the others can be spared has to be tried."""
    held: dict[str, list[_Held]] = {}
    for owner in {*gone, *who}:
        for one in stock.holdings(owner):
            held.setdefault(one.node, []).append((owner, one.shares, time_only(owner)))
    found: set[WorkloadKey] = set()
    alone = len(pods) == 1  # elsewhere there is no room for it then
    for pod, wanted in Counter(replace(pod, pod="") for pod in pods).items():
        spare = -wanted if alone else _elsewhere(stock, pod, wanted, held.keys()) - wanted
        lost: Counter[WorkloadKey] = Counter()
        for name, those in held.items():
            room = stock.nodes.get(name)
            if room is None or not _may_take(room, pod):
                continue
            ground = Ground(room, pod)
            for _, shares, time in those:
                ground.leave(shares, time)
            most = ground.most(wanted)
            spare += most
            for owner, shares, time in those:
                if owner in who and most:
                    ground.come_back(shares, time)
                    lost[owner] += most - ground.most(most)
                    ground.leave(shares, time)
        found.update(owner for owner, count in lost.items() if count > max(0, spare))
    return found


def _elsewhere(stock: Stock, pod: PodToPlace, wanted: int, but: Collection[str]) -> int:
    """How many could be on other nodes, as they are."""
    found = 0
    for room in rooms_for(stock, pod):
        if room.name not in but and _may_take(room, pod):
            found += Ground(room, pod).most(wanted - found)
            if found == wanted:
                break
    return found


def _may_take(room: NodeRoom, pod: PodToPlace) -> bool:
    return pod.node in ("", room.name) and unfit(room, pod, None) is None
