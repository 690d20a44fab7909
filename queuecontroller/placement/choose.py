"""The choice: GPUs within a node, a node for a pod, nodes for all pods of a workload."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from queuecontroller.engine.selectors import Toleration
from queuecontroller.placement.capacity import TAKES_WORK
from queuecontroller.placement.request import GpuRequest, Policy
from queuecontroller.placement.stock import GpuRoom, NodeRoom, Share, Stock

REASONS_SHOWN = 4
FEW_NODES = 8
"""So many are looked at one by one for the sake of an exact reason."""


@dataclass(frozen=True, slots=True)
class Topology:
    """Where the pods of a workload must, or should, be together: a node label. Both empty:
    anywhere."""

    required: str | None = None
    preferred: tuple[str, ...] = ()
    """Narrowest first."""


@dataclass(frozen=True, slots=True)
class PodToPlace:
    pod: str
    request: GpuRequest
    node: str = ""
    """Only there."""
    labels: tuple[tuple[str, str], ...] = ()
    """The node has all of these."""
    tolerations: tuple[Toleration, ...] = ()
    avoid: frozenset[str] = frozenset()


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
    """Reasons, counted: a thousand nodes full for the same reason are one line."""

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
    """All pods or none; the stock is as before. Required: all within one value of the label.
    Preferred: within one of the narrowest level that has room, else anywhere."""
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
    """Sets of nodes with one value of the label, the smallest first so that large ones stay
    whole; None: every node."""
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
    chosen: list[Chosen] = []
    marks: list[object] = []
    try:
        # Large ones first: a small one fits into what they leave.
        for pod in sorted(pods, key=lambda p: (-p.request.count, -(p.request.memory_bytes or 0))):
            found = _place_one(stock, pod, domain)
            if isinstance(found, NoPlace):
                return found
            mark = object()
            stock.hold(mark, found.node, found.shares)
            marks.append(mark)
            chosen.append(found)
    finally:
        for mark in marks:
            stock.release(mark)
    order = {pod.pod: i for i, pod in enumerate(pods)}
    return sorted(chosen, key=lambda c: order[c.pod])


def _place_one(stock: Stock, pod: PodToPlace, domain: frozenset[str] | None) -> Chosen | NoPlace:
    request = pod.request
    why = _Why()
    least = 0 if request.memory_bytes is None else request.memory_bytes
    if pod.node:
        rooms = iter([stock.nodes[pod.node]] if pod.node in stock.nodes else [])
        if pod.node not in stock.nodes:
            return NoPlace(f"node {pod.node} is not connected")
    else:
        rooms = stock.with_room(request.count, least, request.node_policy is Policy.SPREAD)
    for room in rooms:
        shares = _on_node(room, pod, domain, why)
        if shares is not None:
            return Chosen(pod.pod, room.name, shares)
    missing = 0 if pod.node else len(stock.nodes) - why.counts.total()
    if missing and len(stock.nodes) <= FEW_NODES:
        why = _Why()
        for room in stock.nodes.values():
            _on_node(room, pod, domain, why)
    elif missing:
        many = f"no {request.count} GPUs have" if request.count > 1 else "no GPU has"
        why.counts[f"{many} the memory free"] = missing
    return NoPlace(f"{request.describe()} for pod {pod.pod or 'main'}: {why.text()}")


def _on_node(
    room: NodeRoom, pod: PodToPlace, domain: frozenset[str] | None, why: _Why
) -> tuple[Share, ...] | None:
    request = pod.request
    obstacle = _unfit(room, pod, domain)
    some = room.keys[0] >= 0
    if obstacle is None and some and request.hard and room.best_share_ppm < request.share_ppm:
        most = max(0, room.best_share_ppm) // 10_000
        obstacle = f"GPU time: has {most} of {request.share_ppm // 10_000} % free"
    if obstacle is not None:
        why(obstacle)
        return None
    return choose_gpus(room, request, why)


def _unfit(room: NodeRoom, pod: PodToPlace, domain: frozenset[str] | None) -> str | None:
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
    for taint in capacity.taints:
        if taint.effect != "PreferNoSchedule" and not any(
            t.tolerates(taint) for t in pod.tolerations
        ):
            return f"has the taint {taint.key}={taint.value}"
    return None


def choose_gpus(
    room: NodeRoom, request: GpuRequest, why: Callable[[str], None]
) -> tuple[Share, ...] | None:
    """The GPUs of one node, or None and the reason to `why`."""
    fitting: list[GpuRoom] = []
    obstacle = "has too few GPUs"
    for gpu in room.gpus.values():
        reason = request.wants(gpu.gpu) or _full(gpu, request)
        if reason is None:
            fitting.append(gpu)
        else:
            obstacle = f"GPU {gpu.gpu.index} {reason}"
    if len(fitting) < request.count:
        why(obstacle)
        return None
    together = _together(fitting, request)
    if together is None:
        why("has its free GPUs on several NUMA nodes")
        return None
    return tuple(
        Share(
            gpu.gpu.uuid,
            request.memory_on(gpu.gpu),
            request.share_ppm if request.hard else 0,
            request.exclusive,
        )
        for gpu in together
    )


def _full(gpu: GpuRoom, request: GpuRequest) -> str | None:
    if gpu.gpu.health not in TAKES_WORK:
        return f"is {gpu.gpu.health}"
    if gpu.slots < 1:
        return "has no slot left"
    if gpu.alone:
        return "is held by a pod that wants no company"
    if request.exclusive and gpu.holders:
        return "has company, and this pod wants none"
    need = request.memory_on(gpu.gpu)
    if need > gpu.memory_bytes:
        return f"has {max(0, gpu.memory_bytes) >> 20} of {need >> 20} MiB free"
    if request.hard and request.share_ppm > gpu.share_ppm:
        free = max(0, gpu.share_ppm) // 10_000
        return f"has {free} of {request.share_ppm // 10_000} % free"
    return None


def _together(fitting: Sequence[GpuRoom], request: GpuRequest) -> list[GpuRoom] | None:
    """The wanted number of them: linked ones first, then of one NUMA node, by the policy else."""
    sign = 1 if request.gpu_policy is Policy.BINPACK else -1

    def fullness(gpu: GpuRoom) -> tuple[int, int, int]:
        return (sign * gpu.memory_bytes, sign * gpu.share_ppm, gpu.gpu.index)

    ordered = sorted(fitting, key=fullness)
    count = request.count
    if count == 1:
        return ordered[:1]
    groups = [*_linked(ordered), *_numa_groups(ordered)]
    if request.one_numa_node:
        groups = [
            group for group in groups if len({gpu.gpu.numa_node for gpu in group[:count]}) == 1
        ]
    enough = [group for group in groups if len(group) >= count]
    if enough:
        # The smallest group that does: larger ones stay whole for those who need them.
        return min(enough, key=len)[:count]
    return None if request.one_numa_node else ordered[:count]


def _linked(gpus: Sequence[GpuRoom]) -> list[list[GpuRoom]]:
    """Sets in which every two have links, grown around each GPU, most links first."""
    groups = []
    for start in gpus:
        group = [start]
        links = start.gpu.nvlinks
        for other in sorted(gpus, key=lambda g: -links.get(g.gpu.uuid, 0)):
            if other is not start and all(m.gpu.nvlinks.get(other.gpu.uuid) for m in group):
                group.append(other)
        if len(group) > 1:
            groups.append(group)
    return groups


def _numa_groups(gpus: Sequence[GpuRoom]) -> list[list[GpuRoom]]:
    groups: dict[int, list[GpuRoom]] = {}
    for gpu in gpus:
        if gpu.gpu.numa_node is not None:
            groups.setdefault(gpu.gpu.numa_node, []).append(gpu)
    return list(groups.values())
