"""The answers of an extender over what is known now: filter, prioritize, preempt, and where a pod
goes that is bound to a node. Nothing is changed here; who binds assumes the place in the ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from queuecontroller.extender.ledger import PodLedger
from queuecontroller.extender.pods import ANY_GPU, HAMI, PodAsk, PodPlace, ResourceNames, read_pod
from queuecontroller.extender.ranking import BINPACK, Ranking
from queuecontroller.extender.verdicts import FITS, Verdicts, place_on
from queuecontroller.extender.victims import Budget, Holder, Victims, choose
from queuecontroller.extender.wire import Passed
from queuecontroller.placement.request import GpuRequest
from queuecontroller.placement.stock import Stock

Queued = Callable[[Mapping[str, Any], Sequence[str] | None], PodPlace | str | None]
"""Where the queue has placed a pod, on one of these nodes if there is a choice; in words, why it
has no place for one of its own now; None: it is none of its own."""
NO_GPUS: Final = "has no GPUs that are known here: no agent of it reports"


@dataclass(frozen=True, slots=True)
class Defaults:
    """Where a pod says nothing."""

    node_policy: str = BINPACK
    request: GpuRequest = ANY_GPU
    """Of it, the policies for GPUs count."""
    names: ResourceNames = HAMI
    best_only: bool = False
    """Of the nodes with room only the one that suits best is answered."""


class Extender:
    def __init__(
        self,
        stock: Stock,
        ledger: PodLedger,
        defaults: Defaults,
        queued: Queued = lambda _, __: None,
        why_away: Callable[[str], str] = lambda _: NO_GPUS,
    ) -> None:
        """`why_away`: why a node that is not in the stock is not."""
        self.stock = stock
        self.ledger = ledger
        self._defaults = defaults
        self._queued = queued
        self._why_away = why_away
        self._verdicts = Verdicts()
        self._ranking = Ranking()

    def read(self, pod: Mapping[str, Any]) -> PodAsk:
        return read_pod(pod, self._defaults.names, self._defaults.request)

    # -- filter -----------------------------------------------------------------------------------

    def filter(self, pod: Mapping[str, Any], names: Sequence[str]) -> Passed:
        assumed = self.ledger.assumed_place(str(pod["metadata"].get("uid")))
        own = assumed or self._queued(pod, names)
        if isinstance(own, str):
            return Passed((), dict.fromkeys(names, own))
        if own is not None:
            placed = f"the pod has its place on node {own.node}"
            elsewhere = {name: placed for name in names if name != own.node}
            return Passed(tuple(one for one in names if one == own.node), {}, elsewhere)
        ask = self.read(pod)
        if ask.wrong:
            return Passed((), {}, dict.fromkeys(names, ask.wrong))
        if not ask.containers:
            return Passed(tuple(names))
        judge = self._verdicts.of_shape(ask)
        passed: list[str] = []
        failed: dict[str, str] = {}
        hopeless: dict[str, str] = {}
        nodes = self.stock.nodes
        for name in names:
            room = nodes.get(name)
            if room is None:
                hopeless[name] = self._why_away(name)
                continue
            why, would_never = judge.look(room)
            if why == FITS:
                passed.append(name)
            elif would_never:
                hopeless[name] = why
            else:
                failed[name] = why
        return Passed(tuple(passed), failed, hopeless)

    # -- prioritize -------------------------------------------------------------------------------

    def prioritize(self, pod: Mapping[str, Any], names: Sequence[str]) -> list[tuple[str, int]]:
        ask = self.read(pod)
        nodes = self.stock.nodes
        rooms = [nodes[name] for name in names if name in nodes]
        if not ask.containers or self._queued(pod, names) is not None:
            return [(name, 0) for name in names]
        points = self._ranking.points(rooms, ask, self._policy(ask))
        return [(name, points.get(name, 0)) for name in names]

    def best(self, pod: Mapping[str, Any], names: Sequence[str]) -> tuple[str, ...]:
        """The first of those that suit best; all of them where every one is wanted, or where GPUs
        do not decide."""
        if not self._defaults.best_only or len(names) < 2:
            return tuple(names)
        ask = self.read(pod)
        rooms = [self.stock.nodes[name] for name in names if name in self.stock.nodes]
        if not ask.containers or not rooms:
            return tuple(names)
        policy = self._policy(ask)
        return (max(rooms, key=lambda room: self._ranking.value(room, ask, policy)).name,)

    def _policy(self, ask: PodAsk) -> str:
        return ask.node_policy or self._defaults.node_policy

    # -- preempt ----------------------------------------------------------------------------------

    def preempt(
        self,
        pod: Mapping[str, Any],
        proposed: Mapping[str, tuple[list[str], int]],
        budgets: Sequence[Budget],
    ) -> dict[str, tuple[list[str], int]]:
        """By node who is to go: those proposed, and whom it takes besides for the shares; without
        the nodes where that does not help."""
        ask = self.read(pod)
        if ask.wrong or self._queued(pod, None) is not None:
            return {}
        if not ask.containers:
            return dict(proposed)
        found = {}
        for node, (uids, broken) in proposed.items():
            more = self.displaced(ask, node, budgets, frozenset(uids))
            if more is not None:
                every = [*uids, *(one.uid for one in more.pods)]
                found[node] = (every, broken + more.violations)
        return {node: one for node, one in found.items() if one[0]}

    def displaced(
        self, ask: PodAsk, node: str, budgets: Sequence[Budget], going: frozenset[str] = frozenset()
    ) -> Victims | None:
        """Who has to leave the node besides; nobody, where those who go are enough. None: it would
        not help."""
        room = self.stock.nodes.get(node)
        if room is None:
            return None
        return choose(room, ask, self._holders(node), budgets, going)

    def _holders(self, node: str) -> Iterable[Holder]:
        for uid, pod in self.ledger.on_node(node):
            held = self.ledger.holding(uid)
            if held is not None:
                yield Holder(pod, held[1])

    # -- bind -------------------------------------------------------------------------------------

    def place(self, pod: Mapping[str, Any], node: str) -> PodPlace | str | None:
        """Its GPUs there, or why it cannot have them; None: it wants none."""
        own = self._queued(pod, [node])
        if isinstance(own, str):
            return own
        if own is not None:
            if own.node == node:
                return own
            return f"the queue has placed the pod on node {own.node}"
        ask = self.read(pod)
        if ask.wrong:
            return ask.wrong
        if not ask.containers:
            return None
        room = self.stock.nodes.get(node)
        if room is None:
            return f"node {node} {self._why_away(node)}"
        found = place_on(room, ask.containers)
        return f"node {node} {found}" if isinstance(found, str) else found


def with_policies(chosen: Mapping[str, object]) -> Defaults:
    """Of fields that `placement.request.gpu_policies` has read."""
    return Defaults(request=replace(GpuRequest(), **chosen))  # type: ignore[arg-type]
