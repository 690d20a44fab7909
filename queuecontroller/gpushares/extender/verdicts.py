"""Verdicts: whether a node can take a pod, the reason in amounts if not, and the choice of the
pod's GPUs.

A thousand nodes are evaluated for each pod, and most pods are alike. A verdict is therefore cached
by the pod's shape until the node changes, and no GPU is inspected if the node's figures in the
index decide.
"""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from queuecontroller.gpushares.extender.pods import ContainerAsk, PodAsk, PodPlace
from queuecontroller.scheduler.placement.gpus import choose_gpus
from queuecontroller.scheduler.placement.node_index import IDLE, SIZES, TIMES
from queuecontroller.scheduler.placement.request import GpuRequest
from queuecontroller.scheduler.placement.stock import GpuRoom, NodeRoom, Share

MAX_SHAPES: Final = 128
"""Shapes in the cache: pods come in few shapes at a time, and each shape takes an entry per node.
"""
FITS: Final = ""
NOWHERE: Final[Mapping[str, Collection[int]]] = MappingProxyType({})
"""No NUMA nodes for any container."""
Known = dict[str, tuple[int, tuple[str, bool]]]
"""Verdicts by node, each with the node's version that it holds for."""

_PER_SIZE: Final = IDLE + 1


def describe(request: GpuRequest) -> str:
    """The request in words for the pod's author."""
    if request.memory_bytes is not None:
        memory = f"{request.memory_bytes >> 20} MiB"
    else:
        memory = f"{(request.memory_ppm or 0) / 10_000:g} % of the memory"
    if request.exclusive:
        time = " exclusively"
    elif request.hard:
        time = f" and {request.share_ppm / 10_000:g} % of the time"
    else:
        time = ""
    return f"{request.count} GPU{'s' if request.count > 1 else ''} with {memory}{time}"


class Verdicts:
    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, Known] = OrderedDict()

    def of_shape(self, ask: PodAsk) -> Judge:
        known = self._known.get(ask.shape)
        if known is None:
            known = self._known[ask.shape] = {}
            while len(self._known) > MAX_SHAPES:
                self._known.popitem(last=False)
        self._known.move_to_end(ask.shape)
        return Judge(ask.containers, known)


class Judge:
    def __init__(self, containers: tuple[ContainerAsk, ...], known: Known) -> None:
        self._containers = containers
        self._known = known
        self._quick = _Quick(containers[0].request) if len(containers) == 1 else None

    def look(self, room: NodeRoom) -> tuple[str, bool]:
        """Reason why the pod does not fit (FITS if it does), and True if it would not fit an empty
        node of that kind either."""
        known = self._known.get(room.name)
        if known is not None and known[0] == room.version:
            return known[1]
        if self._quick is not None and self._quick.fits(room):
            verdict = FITS, False
        elif self._quick is not None:
            verdict = _look_at(room, self._containers[0].request)
        else:
            placed = place_on(room, self._containers)
            verdict = (FITS, False)
            if isinstance(placed, str):
                verdict = placed, any(_look_at(room, one.request)[1] for one in self._containers)
        self._known[room.name] = (room.version, verdict)
        return verdict


@dataclass(frozen=True, slots=True)
class _Quick:
    """Quick check that accepts a pod by a node's figures alone, where they suffice."""

    request: GpuRequest

    def fits(self, room: NodeRoom) -> bool:
        ask = self.request
        if any(ask.picks):
            return False
        if ask.one_numa_node or not room.keys or ask.count > SIZES[-1]:
            return False
        idle = ask.exclusive or ask.idle_only
        if idle and ask.hard:  # The index does not have the total time of idle GPUs.
            return False
        size = bisect_left(SIZES, ask.count)
        time = IDLE if idle else bisect_left(TIMES, ask.share_ppm) if ask.hard else 0
        need = ask.memory_bytes
        if need is None:
            need = max((memory for _, memory in room.pool), default=0)
            need = need * (ask.memory_ppm or 0) // 1_000_000
        return room.keys[size * _PER_SIZE + time] >= need


def why_not(room: NodeRoom, request: GpuRequest) -> str:
    """Reason why the request does not fit; FITS if it does."""
    return _look_at(room, request)[0]


def _look_at(room: NodeRoom, request: GpuRequest) -> tuple[str, bool]:
    """Reason why the request does not fit, and True if it would not fit the empty node either."""
    obstacles: Counter[str] = Counter()
    best_bytes = best_ppm = fitting = able = 0
    for gpu in room.gpus.values():
        kind = _obstacle(gpu, request)
        if kind == FITS:
            fitting += 1
            continue
        obstacles[kind] += 1
        able += kind not in _FOR_EVER and gpu.gpu.memory_bytes >= request.memory_on(gpu.gpu)
        if kind == "memory":
            best_bytes = max(best_bytes, gpu.memory_bytes)
        elif kind == "time":
            best_ppm = max(best_ppm, gpu.share_ppm)
    if fitting >= request.count:
        if request.one_numa_node and choose_gpus(room, request, lambda _: None) is None:
            return f"needs {describe(request)} on one NUMA node: none has so many free", False
        return FITS, False
    if not room.gpus:
        return f"needs {describe(request)}: has none", True
    need = request.memory_bytes
    if need is None:
        need = max(request.memory_on(gpu.gpu) for gpu in room.gpus.values())
    words = {
        "memory": f"lack memory (most free on one: {max(0, best_bytes) >> 20} of {need >> 20} MiB)",
        "time": f"lack time (most free on one: {max(0, best_ppm) // 10_000} of"
        f" {request.share_ppm // 10_000} %)",
    }
    lacking = [f"{count} {words.get(kind, kind)}" for kind, count in obstacles.most_common()]
    have = f"{fitting} of {len(room.gpus)} fit"
    why = f"needs {describe(request)}: {have}; {', '.join(lacking) or 'the node has no more'}"
    return why, fitting + able < request.count


_IN_MIG_MODE: Final = "are in MIG mode"
_FOREIGN: Final = "do not match its GPU selection"
_FOR_EVER: Final = frozenset((_IN_MIG_MODE, _FOREIGN))


def _obstacle(gpu: GpuRoom, request: GpuRequest) -> str:
    """Kind of obstacle, equal for GPUs that can be counted together."""
    card = gpu.gpu
    if not gpu.gives_shares:
        return _IN_MIG_MODE if card.mig_enabled else f"are {card.health}"
    if request.wants(card) is not None:
        return _FOREIGN
    if gpu.slots < 1:
        return f"have all {card.slots} slots taken"
    if gpu.alone:
        return "are in exclusive use"
    if gpu.holders and (request.exclusive or request.idle_only):
        return "are in use"
    if gpu.memory_bytes < request.memory_on(card):
        return "memory"
    if request.hard and gpu.share_ppm < request.share_ppm:
        return "time"
    return FITS


# --- the choice -------------------------------------------------------------------------------


def place_on(
    room: NodeRoom,
    containers: Sequence[ContainerAsk],
    numa_nodes: Mapping[str, Collection[int]] = NOWHERE,
) -> PodPlace | str:
    """The pod's GPUs on the node, or the reason why it does not fit. Containers that run together
    get GPUs one after the other; an init container that ends before them uses theirs first.
    `numa_nodes`: where a container's GPUs are if there is room, by its name."""
    trial = scratch(room) if len(containers) > 1 else room
    chosen: dict[str, tuple[Share, ...]] = {}
    for one in containers:
        if one.before:
            continue
        shares = _near(trial, one.request, numa_nodes.get(one.name, ()))
        if shares is None:
            return why_not(trial, one.request) or f"needs {describe(one.request)}: not together"
        chosen[one.name] = shares
        if len(containers) > 1:
            move(trial, shares, 1)
    together = tuple(share for shares in chosen.values() for share in shares)
    beyond: dict[str, Share] = {}
    for one in containers:
        if not one.before:
            continue
        shares = _before(room, one.request, [share.uuid for share in together])
        if shares is None:
            return why_not(room, one.request) or f"needs {describe(one.request)}: not together"
        chosen[one.name] = shares
        for share in shares:
            _raise(beyond, share, together)
    first = tuple(one.name for one in containers if one.before)
    return PodPlace(room.name, chosen, first, tuple(beyond.values()))


def _near(
    room: NodeRoom, request: GpuRequest, numa_nodes: Collection[int]
) -> tuple[Share, ...] | None:
    """GPUs on these NUMA nodes if they have room, else any."""
    if numa_nodes:
        near = {u: gpu for u, gpu in room.gpus.items() if gpu.gpu.numa_node in numa_nodes}
        shares = choose_gpus(NodeRoom(room.name, room.capacity, near), request, lambda _: None)
        if shares is not None:
            return shares
    return choose_gpus(room, request, lambda _: None)


def scratch(room: NodeRoom) -> NodeRoom:
    """A copy of the node's room that may be changed."""
    gpus = {uuid: copy.copy(gpu) for uuid, gpu in room.gpus.items()}
    return NodeRoom(room.name, room.capacity, gpus)


def move(room: NodeRoom, shares: Iterable[Share], sign: int) -> None:
    """Add (`sign` 1) or remove (-1) shares."""
    for share in shares:
        gpu = room.gpus.get(share.uuid)
        if gpu is not None:
            gpu.memory_bytes -= sign * share.memory_bytes
            gpu.share_ppm -= sign * share.share_ppm
            gpu.slots -= sign
            gpu.holders += sign
            gpu.alone += sign * share.alone


def takes(room: NodeRoom, shares: Iterable[Share]) -> bool:
    """True if exactly these shares fit."""
    trial = scratch(room)
    for share in shares:
        gpu = trial.gpus.get(share.uuid)
        if gpu is None or not gpu.gives_shares or gpu.slots < 1 or gpu.alone:
            return False
        if share.alone and gpu.holders:
            return False
        if gpu.memory_bytes < share.memory_bytes or gpu.share_ppm < share.share_ppm:
            return False
        move(trial, (share,), 1)
    return True


def _before(room: NodeRoom, request: GpuRequest, uuids: Sequence[str]) -> tuple[Share, ...] | None:
    """GPUs of an init container: those that the pod has later if they suffice, because the kubelet
    passes on the same devices."""
    if len(set(uuids)) >= request.count and not request.use_uuids:
        shares = choose_gpus(room, replace(request, use_uuids=tuple(uuids)), lambda _: None)
        if shares is not None:
            return shares
    return choose_gpus(room, request, lambda _: None)


def _raise(beyond: dict[str, Share], share: Share, together: Sequence[Share]) -> None:
    """Add the amounts of a share that exceed those of the other containers on the same GPU."""
    have = [one for one in together if one.uuid == share.uuid]
    memory = share.memory_bytes - sum(one.memory_bytes for one in have)
    time = share.share_ppm - sum(one.share_ppm for one in have)
    known = beyond.get(share.uuid, Share(share.uuid, 0, 0))
    memory, time = max(memory, known.memory_bytes), max(time, known.share_ppm)
    if not have or memory > 0 or time > 0:
        beyond[share.uuid] = Share(share.uuid, max(0, memory), max(0, time), share.alone)
