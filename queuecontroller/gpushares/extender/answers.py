"""Responses of the extender from the current state: filter, prioritize, preempt, and the GPUs of a
pod that is bound to a node. Nothing is changed here; the caller that binds assumes the place in the
ledger."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from queuecontroller.gpushares.extender import ranking
from queuecontroller.gpushares.extender.ledger import HeldPod, PodLedger
from queuecontroller.gpushares.extender.pods import ANY_GPU, HAMI, PodAsk, PodPlace, read_pod
from queuecontroller.gpushares.extender.ranking import BINPACK
from queuecontroller.gpushares.extender.verdicts import (
    FITS,
    NOWHERE,
    Verdicts,
    move,
    place_on,
    scratch,
    takes,
)
from queuecontroller.gpushares.extender.victims import Budget, Holder, Victims, choose
from queuecontroller.gpushares.extender.wire import Passed
from queuecontroller.scheduler.placement.request import GpuRequest
from queuecontroller.scheduler.placement.stock import Stock
from sluicecommon.hami.names import ResourceNames

Queued = Callable[[Mapping[str, Any], Sequence[str] | None], PodPlace | str | None]
"""The place that is reserved for a pod of the queue or of a group, on one of these nodes if there
is a choice; the reason in words if it has none at present; None if the pod is placed by itself."""
NO_GPUS: Final = "has no known GPUs: its agent does not report"
STOPPED: Final = "has no allocatable GPUs at present, as while its agent restarts"

CLEARED: Final = "is being cleared for the pod"


@dataclass(frozen=True, slots=True)
class Defaults:
    """Defaults for pods without annotations."""

    node_policy: str = BINPACK
    request: GpuRequest = ANY_GPU
    """Default policies for GPUs; the other fields are ignored."""
    names: ResourceNames = HAMI
    best_only: bool = False
    """True if filter returns only the most suitable of the nodes with room."""


class Extender:
    def __init__(
        self,
        stock: Stock,
        ledger: PodLedger,
        defaults: Defaults,
        queued: Queued = lambda _, __: None,
        why_away: Callable[[str], str] = lambda _: NO_GPUS,
        is_stopped: Callable[[str], bool] = lambda _: False,
        numa_nodes: Callable[[Mapping[str, Any], str], Mapping[str, Collection[int]]] = (
            lambda _, __: NOWHERE
        ),
    ) -> None:
        """`why_away` returns the reason why a node is not in the stock. `is_stopped` returns True
        for a node whose kubelet has no GPUs to allocate now: a pod bound there would fail for
        good. `numa_nodes` returns where a node's kubelet will align a pod, by container."""
        self.stock = stock
        self.ledger = ledger
        self._defaults = defaults
        self._queued = queued
        self._why_away = why_away
        self._is_stopped = is_stopped
        self._numa_nodes = numa_nodes
        self._verdicts = Verdicts()

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
            if self._is_stopped(own.node):
                return Passed((), {n: STOPPED for n in names if n == own.node}, elsewhere)
            return Passed(tuple(one for one in names if one == own.node), {}, elsewhere)
        ask = self.read(pod)
        if ask.wrong:
            return Passed((), {}, dict.fromkeys(names, ask.wrong))
        if not ask.containers:
            return Passed(tuple(names))
        kept = self.ledger.kept
        if not kept:
            return self._judged(ask, names)
        with self._as_if_not_kept(ask.uid):
            passed = self._judged(ask, names)
        mine = kept.get(ask.uid)
        node = mine.place.node if mine is not None else ""
        if node in passed.failed:
            failed = dict(passed.failed)
            why = failed.pop(node)
            if self.is_ready(ask.uid):
                return replace(passed, names=(*passed.names, node), failed=failed)
            passed = replace(passed, failed={**failed, node: f"{CLEARED}; until then it {why}"})
        if not passed.names and any(one.priority < ask.priority for one in kept.values()):
            with self._as_if_not_kept(ask.uid, ask.priority):
                again = self._judged(ask, names)
            passed = again if again.names else passed
        return passed

    def is_ready(self, uid: str) -> bool:
        """True if the GPUs reserved for the pod are free. Reservations of other pods are ignored:
        they were counted when the place was chosen, and may not be free yet."""
        kept = self.ledger.kept.get(uid)
        room = self.stock.nodes.get(kept.place.node) if kept is not None else None
        if kept is None or room is None:
            return False
        undo = self.ledger.without_all_kept()
        try:
            return takes(room, kept.place.held)
        finally:
            undo()

    @contextmanager
    def _as_if_not_kept(self, uid: str, below: int | None = None) -> Iterator[None]:
        undo = self.ledger.without_kept(uid, below)
        try:
            yield
        finally:
            undo()

    def _judged(self, ask: PodAsk, names: Sequence[str]) -> Passed:
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
            if self._is_stopped(name):
                failed[name] = STOPPED
                continue
            why, would_never = judge.look(room)
            if why == FITS:
                passed.append(name)
            elif would_never:
                hopeless[name] = why
            else:
                failed[name] = why
        return Passed(tuple(passed), failed, hopeless)

    def best(self, ask: PodAsk, names: Sequence[str]) -> PodPlace | None:
        """The pod's place on the most suitable of these nodes with room for it; None if there is
        none."""
        judge = self._verdicts.of_shape(ask)
        known = [
            self.stock.nodes[name]
            for name in names
            if name in self.stock.nodes and not self._is_stopped(name)
        ]
        fit = [room for room in known if judge.look(room)[0] == FITS]
        if ask.wrong or not fit:
            return None
        policy = ask.node_policy or self._defaults.node_policy
        room = max(fit, key=lambda one: ranking.value(one, ask, policy))
        found = place_on(room, ask.containers)
        return found if isinstance(found, PodPlace) else None

    # -- prioritize -------------------------------------------------------------------------------

    def prioritize(self, pod: Mapping[str, Any], names: Sequence[str]) -> list[tuple[str, int]]:
        ask = self.read(pod)
        nodes = self.stock.nodes
        rooms = [nodes[name] for name in names if name in nodes]
        if not ask.containers or self._queued(pod, names) is not None:
            return [(name, 0) for name in names]
        points = ranking.points(rooms, ask, self._policy(ask))
        return [(name, points.get(name, 0)) for name in names]

    def narrowed(self, pod: Mapping[str, Any], names: Sequence[str]) -> tuple[str, ...]:
        """The first of the most suitable nodes; all nodes unless `best_only` is set and the pod
        requests GPUs."""
        if not self._defaults.best_only or len(names) < 2:
            return tuple(names)
        ask = self.read(pod)
        rooms = [self.stock.nodes[name] for name in names if name in self.stock.nodes]
        if not ask.containers or not rooms:
            return tuple(names)
        policy = self._policy(ask)
        return (max(rooms, key=lambda room: ranking.value(room, ask, policy)).name,)

    def _policy(self, ask: PodAsk) -> str:
        return ask.node_policy or self._defaults.node_policy

    # -- preempt ----------------------------------------------------------------------------------

    def preempt(
        self,
        pod: Mapping[str, Any],
        proposed: Mapping[str, tuple[list[str], int]],
        budgets: Sequence[Budget],
    ) -> dict[str, tuple[list[str], int]]:
        """Victims by node with the number of budgets they violate: those proposed, and further ones
        that free the GPU shares. Nodes where preemption would not help are left out."""
        ask = self.read(pod)
        if ask.wrong or self.is_queued(pod):
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
        self,
        ask: PodAsk,
        node: str,
        budgets: Sequence[Budget],
        going: Collection[str] = (),
        guarded: Collection[str] = (),
        soon: str = "",
    ) -> Victims | None:
        """Further victims on a node; empty if those `going` are enough, None if preemption would
        not help. Reservations of pods of lower priority are no obstacle. See `victims.choose`."""
        room = self.stock.nodes.get(node)
        if room is None:
            return None
        with self._as_if_not_kept(ask.uid, ask.priority):
            holders = [*self._holders(node), *self._ghosts(node, going)]
            return choose(room, ask, holders, budgets, going, guarded, soon)

    def is_promised(self, uid: str, going: Collection[str]) -> bool:
        """True if the GPUs reserved for the pod are free once these pods have gone, beside the
        reservations of pods of its priority and above."""
        kept = self.ledger.kept.get(uid)
        room = self.stock.nodes.get(kept.place.node) if kept is not None else None
        if kept is None or room is None:
            return False
        with self._as_if_not_kept(uid, kept.priority):
            trial = scratch(room)
        node = kept.place.node
        for one in (*self._holders(node), *self._ghosts(node, going)):
            if one.pod.leaving or one.pod.uid in going:
                move(trial, one.shares, -1)
        return takes(trial, kept.place.held)

    def is_queued(self, pod: Mapping[str, Any]) -> bool:
        """True if the pod belongs to the queue, with or without a place."""
        return self._queued(pod, None) is not None

    def _ghosts(self, node: str, going: Collection[str]) -> Iterable[Holder]:
        """Pods among those `going` that are gone from the API server but still on the node."""
        for uid in going:
            held = self.ledger.holding(uid) if uid not in self.ledger.pods else None
            if held is not None and held[0] == node:
                yield Holder(HeldPod(uid, "", "", node, leaving=True), held[1])

    def _holders(self, node: str) -> Iterable[Holder]:
        for uid, pod in self.ledger.on_node(node):
            held = self.ledger.holding(uid)
            if held is not None and not self.ledger.is_saved(uid):
                yield Holder(pod, held[1])

    # -- bind -------------------------------------------------------------------------------------

    def place(self, pod: Mapping[str, Any], node: str) -> PodPlace | str | None:
        """The pod's GPUs on a node, or the reason why it cannot have them; None if it requests
        none."""
        own = self._queued(pod, [node])
        if isinstance(own, str):
            return own
        if own is not None:
            if own.node != node:
                return f"the pod has its place on node {own.node}"
            return f"node {node} {STOPPED}" if self._is_stopped(node) else own
        ask = self.read(pod)
        if ask.wrong:
            return ask.wrong
        if not ask.containers:
            return None
        room = self.stock.nodes.get(node)
        if room is None:
            return f"node {node} {self._why_away(node)}"
        if self._is_stopped(node):
            return f"node {node} {STOPPED}"
        if ask.uid in self.ledger.kept and self.is_ready(ask.uid):
            kept = self.ledger.kept[ask.uid].place
            if kept.node == node:
                return kept
        near = self._numa_nodes(pod, node)
        for below in (None, ask.priority) if self.ledger.kept else (None,):
            with self._as_if_not_kept(ask.uid, below):
                found = place_on(room, ask.containers, near)
            if isinstance(found, PodPlace):
                return found
        return f"node {node} {found}"


def with_policies(chosen: Mapping[str, object]) -> Defaults:
    """Defaults from fields that `placement.request.gpu_policies` has parsed."""
    return Defaults(request=replace(GpuRequest(), **chosen))  # type: ignore[arg-type]
