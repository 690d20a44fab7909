"""Choice of a node for a pod, and of nodes for all pods of a workload; see `gpus` for one node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from queuecontroller.scheduler.model.selectors import (
    NodeSelectorTerm,
    Toleration,
    holds,
    untolerated,
)
from queuecontroller.scheduler.placement.gpus import choose_gpus, choose_instances
from queuecontroller.scheduler.placement.request import GpuRequest, Policy
from queuecontroller.scheduler.placement.stock import NodeRoom, Share, Stock

REASONS_SHOWN = 4
FEW_NODES = 8
"""Up to this number, nodes are evaluated one by one to give an exact reason."""


@dataclass(frozen=True, slots=True)
class Topology:
    """Node label by which the pods of a workload must, or should, be together. Both empty:
    anywhere."""

    required: str | None = None
    preferred: tuple[str, ...] = ()
    """Labels, the narrowest level first."""


@dataclass(frozen=True, slots=True)
class PodToPlace:
    pod: str
    request: GpuRequest
    node: str = ""
    """The only node allowed; empty: any."""
    labels: tuple[tuple[str, str], ...] = ()
    """Labels that the node must have, all of them."""
    affinity: tuple[NodeSelectorTerm, ...] | None = None
    """Terms of which the node must fulfil one, if given."""
    tolerations: tuple[Toleration, ...] = ()
    avoid: frozenset[str] = frozenset()
    again: tuple[Share, ...] = ()
    """Shares it holds on `node` from an earlier run: it continues on them, or nowhere."""

    def where_it_was(self, node: str, shares: tuple[Share, ...]) -> PodToPlace:
        return replace(self, node=node, again=shares)


@dataclass(frozen=True, slots=True)
class Chosen:
    pod: str
    node: str
    shares: tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class NoPlace:
    reason: str


@dataclass(slots=True)
class _Why:
    """Reasons with counts: a thousand nodes that are full for the same reason are one line."""

    counts: Counter[str] = field(default_factory=Counter)

    def __call__(self, reason: str) -> None:
        self.counts[reason] += 1

    def text(self) -> str:
        shown = self.counts.most_common(REASONS_SHOWN)
        parts = [f"{count} node{'s' if count > 1 else ''}: {why}" for why, count in shown]
        more = len(self.counts) - len(shown)
        return "; ".join([*parts, *([f"{more} more reasons"] if more > 0 else [])])


def place(
    stock: Stock, pods: Sequence[PodToPlace], topology: Topology | None = None
) -> list[Chosen] | NoPlace:
    """Place all pods or none; the stock is unchanged. Required: all within one value of the label.
    Preferred: within one value of the narrowest level that has room, else anywhere."""
    topology = topology or Topology()
    levels = [topology.required] if topology.required else [*topology.preferred, None]
    last: NoPlace = NoPlace("no node is connected")
    if not stock.nodes:
        return last
    for level in levels:
        for domain in _domains(stock, level):
            found = _place_within(stock, pods, domain)
            if not isinstance(found, NoPlace):
                return found
            last = found
    if topology.required:
        return NoPlace(f"no single {topology.required} has room for all: {last.reason}")
    return last


def _domains(stock: Stock, level: str | None) -> list[frozenset[str] | None]:
    """Sets of nodes with one value of the label, the smallest first so that large ones stay whole;
    None: every node."""
    if level is None:
        return [None]
    members: dict[str, list[str]] = {}
    for room in stock.nodes.values():
        value = room.capacity.labels.get(level)
        if value is not None:
            members.setdefault(value, []).append(room.name)
    free = {
        value: sum(stock.nodes[n].keys[0] for n in names if stock.nodes[n].keys[0] > 0)
        for value, names in members.items()
    }
    return [frozenset(members[value]) for value in sorted(members, key=lambda v: (free[v], v))]


def _place_within(
    stock: Stock, pods: Sequence[PodToPlace], domain: frozenset[str] | None
) -> list[Chosen] | NoPlace:
    if len(pods) == 1:
        found = _place_one(stock, pods[0], domain)
        return found if isinstance(found, NoPlace) else [found]
    chosen: list[Chosen] = []
    trial = stock.trial()
    try:
        for pod in sorted(pods, key=_large_first):
            found = _place_one(stock, pod, domain)
            if isinstance(found, NoPlace):
                return found
            trial.hold(found.node, found.shares)
            chosen.append(found)
    finally:
        trial.undo()
    order = {pod.pod: i for i, pod in enumerate(pods)}
    return sorted(chosen, key=lambda c: order[c.pod])


def _large_first(pod: PodToPlace) -> tuple[bool, int, int, int]:
    """Sort key: pods bound to a node first, then large ones; a small pod fits beside them."""
    request = pod.request
    return (
        not pod.again,
        -request.count,
        -(request.memory_bytes or 0),
        -(request.share_ppm if request.hard else 0),
    )


def _place_one(stock: Stock, pod: PodToPlace, domain: frozenset[str] | None) -> Chosen | NoPlace:
    request = pod.request
    if pod.node and pod.node not in stock.nodes:
        paused = "it is paused on " if pod.again else ""
        return NoPlace(f"{paused}node {pod.node}{', which' if paused else ''} is not connected")
    if pod.again:
        return _place_again(stock, pod)
    why = _Why()
    named = request.gpu_uuids or request.use_uuids
    if named and all(stock.node_of(uuid) is None for uuid in named):
        return NoPlace(f"GPU {', '.join(named)} is on no connected node")
    for room in rooms_for(stock, pod):
        shares = _on_node(room, pod, domain, why)
        if shares is not None:
            return Chosen(pod.pod, room.name, shares)
    missing = 0 if pod.node or named else len(stock.nodes) - why.counts.total()
    if missing and len(stock.nodes) <= FEW_NODES:
        why = _Why()
        for room in stock.nodes.values():
            _on_node(room, pod, domain, why)
    elif missing:
        foreign = 0 if request.mig else stock.index.members_without(request.least_bytes)
        if foreign:
            why.counts["no GPU is of a model it takes"] += foreign
        if missing > foreign:
            why.counts[_for_want_of_room(stock, request)] += missing - foreign
    return NoPlace(f"{request.describe()} for pod {pod.pod or 'main'}: {why.text()}")


def rooms_for(stock: Stock, pod: PodToPlace) -> Iterable[NodeRoom]:
    """Nodes that may have room, in the order of the request's policy."""
    request = pod.request
    if pod.node:
        return [stock.nodes[pod.node]]
    named = request.gpu_uuids or request.use_uuids
    if named:
        rooms = (stock.node_of(uuid) for uuid in named)
        return {room.name: room for room in rooms if room is not None}.values()
    emptiest_first = request.node_policy is Policy.SPREAD
    if request.mig:
        return stock.with_instances(Counter(request.mig), emptiest_first)
    share = request.share_ppm if request.hard else 0
    return stock.with_room(
        request.count,
        request.least_bytes,
        share,
        request.exclusive or request.idle_only,
        emptiest_first,
    )


def _for_want_of_room(stock: Stock, request: GpuRequest) -> str:
    """Summary of the reasons why nodes that were not evaluated have no room: they are many."""
    if request.mig:
        return "no room for such MIG instances"
    what = "GPU" if request.count == 1 else f"{request.count} GPUs"
    have = "has" if request.count == 1 else "have"
    share = request.share_ppm if request.hard else 0
    least = request.memory_bytes or 1
    if stock.index.most_bytes(request.count, 0, request.exclusive) < least:
        if request.exclusive and stock.index.most_bytes(request.count, 0, False) >= least:
            return f"no idle {what} for exclusive use"
        return f"no {what} {have} the memory free"
    return f"no {what} {have} {share // 10_000} % of the time free beside the memory"


def _place_again(stock: Stock, pod: PodToPlace) -> Chosen | NoPlace:
    """Place on the same parts of the same GPUs, if they are still free."""
    room = stock.nodes[pod.node]
    for share in pod.again:
        gpu = room.gpus.get(share.uuid)
        if gpu is None:
            return NoPlace(f"it is paused on GPU {share.uuid}, which node {pod.node} has no more")
        if share.share_ppm > gpu.share_ppm:
            return NoPlace(f"it is paused on GPU {share.uuid}, whose time is taken")
        if share.memory_bytes > gpu.memory_bytes or gpu.alone or (share.alone and gpu.holders):
            return NoPlace(f"it is paused on GPU {share.uuid}, which others have taken")
    return Chosen(pod.pod, pod.node, pod.again)


def _on_node(
    room: NodeRoom, pod: PodToPlace, domain: frozenset[str] | None, why: _Why
) -> tuple[Share, ...] | None:
    request = pod.request
    obstacle = why_infeasible(room, pod, domain)
    if obstacle is not None:
        why(obstacle)
        return None
    if request.mig:
        return choose_instances(room, request, why)
    some = room.keys[0] >= 0 and not request.exclusive
    if some and request.hard and room.best_share_ppm < request.share_ppm:
        most = max(0, room.best_share_ppm) // 10_000
        why(f"GPU time: has {most} of {request.share_ppm // 10_000} % free")
        return None
    return choose_gpus(room, request, why)


def why_infeasible(room: NodeRoom, pod: PodToPlace, domain: frozenset[str] | None) -> str | None:
    """Reason why the node is unsuitable, whatever is free on it; None: it is suitable."""
    capacity = room.capacity
    if domain is not None and room.name not in domain:
        return "is outside of the topology domain"
    if room.name in pod.avoid:
        return "refused it a moment ago"
    if capacity.unschedulable:
        return "takes no new work"
    for name, value in pod.labels:
        if capacity.labels.get(name) != value:
            return f"lacks the label {name}={value}"
    if pod.affinity is not None and not any(
        all(holds(one, capacity.labels) for one in term.expressions) for term in pod.affinity
    ):
        return "does not match the pod's node affinity"
    taint = untolerated(capacity.taints, pod.tolerations)
    return None if taint is None else f"has the taint {taint.key}={taint.value}"
