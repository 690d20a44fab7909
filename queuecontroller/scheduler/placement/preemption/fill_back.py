"""Fill-back: the chosen victims that need not leave are put back one by one, as Kueue's
fillBackWorkloads does for quota. Only the nodes of each victim are counted again, by their bounds,
so that GPUs and nodes need not be chosen for the pods every time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.placement.choose import PodToPlace, rooms_for, why_infeasible
from queuecontroller.scheduler.placement.preemption.estimate import NodeEstimate
from queuecontroller.scheduler.placement.stock import NodeRoom, Share, Stock

_Held = tuple[str, tuple[Share, ...]]


class _Kind:
    """Pods with equal requests: upper bounds of how many each node takes, without the victims."""

    __slots__ = ("_estimates", "_most", "spare", "wanted")

    def __init__(self, wanted: int, elsewhere: int, estimates: dict[str, NodeEstimate]) -> None:
        self.wanted = wanted
        self._estimates = estimates
        self._most = {name: estimate.most(wanted) for name, estimate in estimates.items()}
        self.spare = elsewhere + sum(self._most.values()) - wanted
        """Number of pods there is room for beyond those requested."""

    def come_back(self, held: Iterable[_Held], time_only: bool) -> None:
        for name, shares in held:
            estimate = self._estimates.get(name)
            if estimate is not None:
                estimate.come_back(shares, time_only)
                self._count(name, estimate)

    def leave(self, held: Iterable[_Held], time_only: bool) -> None:
        for name, shares in held:
            estimate = self._estimates.get(name)
            if estimate is not None:
                estimate.leave(shares, time_only)
                self._count(name, estimate)

    def _count(self, name: str, estimate: NodeEstimate) -> None:
        now = estimate.most(self.wanted)
        self.spare += now - self._most[name]
        self._most[name] = now


class FillBack:
    """Fill-back of the victims `who`: with `gone` and `who` removed there is room for the pods,
    with `gone` alone removed there is none."""

    def __init__(
        self,
        stock: Stock,
        pods: Sequence[PodToPlace],
        gone: Collection[WorkloadKey],
        who: Collection[WorkloadKey],
        time_only: Callable[[WorkloadKey], bool],
    ) -> None:
        self._held: dict[WorkloadKey, list[_Held]] = {}
        self._time_only = {key: time_only(key) for key in {*gone, *who}}
        for key in self._time_only:
            self._held[key] = [(one.node, one.shares) for one in stock.holdings(key)]
        nodes = {name for held in self._held.values() for name, _ in held}
        alone = len(pods) == 1  # there is no room for it on other nodes: nothing has changed there
        self._kinds: list[_Kind] = []
        for pod, wanted in Counter(replace(pod, pod="") for pod in pods).items():
            rooms = (stock.nodes[name] for name in nodes if name in stock.nodes)
            estimates = {
                room.name: NodeEstimate(room, pod) for room in rooms if _may_take(room, pod)
            }
            for key, held in self._held.items():
                for name, shares in held:
                    if name in estimates:
                        estimates[name].leave(shares, self._time_only[key])
            elsewhere = 0 if alone else _elsewhere(stock, pod, wanted, nodes)
            self._kinds.append(_Kind(wanted, elsewhere, estimates))

    def may_stay(self, key: WorkloadKey) -> bool:
        """True if there may be room without this victim leaving, given the earlier answers; it then
        stays. False: there is certainly none."""
        held, time_only = self._held[key], self._time_only[key]
        for kind in self._kinds:
            kind.come_back(held, time_only)
        if all(kind.spare >= 0 for kind in self._kinds):
            return True
        for kind in self._kinds:
            kind.leave(held, time_only)
        return False


def _elsewhere(stock: Stock, pod: PodToPlace, wanted: int, but: Collection[str]) -> int:
    """Number of pods that could be on other nodes as they are."""
    found = 0
    for room in rooms_for(stock, pod):
        if room.name not in but and _may_take(room, pod):
            found += NodeEstimate(room, pod).most(wanted - found)
            if found == wanted:
                break
    return found


def _may_take(room: NodeRoom, pod: PodToPlace) -> bool:
    return pod.node in ("", room.name) and why_infeasible(room, pod, None) is None
