"""New nodes for pending requests: how many of which template are needed once everything that fits
on the present nodes, or after moves, has been placed there.

The requests are placed by their own placement code, on the stock with imaginary nodes added; the
stock is as before afterwards. Large requests are placed first, and a node is added only for a
request that fits on none. Placing shares one after the other may waste cards, so the result is
compared with the same requests in whole cards, which is a valid packing, too: the one with fewer
cards counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from queuecontroller.scheduler.placement.capacity import GpuCapacity, NodeCapacity
from queuecontroller.scheduler.placement.choose import NoPlace, PodToPlace, Topology, place
from queuecontroller.scheduler.placement.consolidation import Movable, Plan, consolidate
from queuecontroller.scheduler.placement.request import WHOLE_PPM, GpuRequest
from queuecontroller.scheduler.placement.stock import Share, Stock, Trial, Undo

Used = Mapping[str, Mapping[str, int]]
"""Amounts of resources besides GPUs, by node."""
NOTHING: Final[Mapping[str, int]] = MappingProxyType({})
_IMAGINARY: Final = "new/"
"""Prefix of imaginary nodes; names of Kubernetes' nodes have no slash."""
NO_TEMPLATE: Final = "no node template has room for it, even when empty"


class Placed(NamedTuple):
    """Place of a pod."""

    node: str
    shares: tuple[Share, ...]
    other: Mapping[str, int] = NOTHING
    """Resources besides GPUs that it takes there."""


@dataclass(frozen=True, slots=True)
class NodeTemplate:
    """A kind of node that an autoscaler can create."""

    name: str
    capacity: NodeCapacity
    most: int = 1 << 30
    """New nodes of it at a time."""

    def node(self, number: int) -> tuple[str, NodeCapacity]:
        """Name and capacity of an imaginary node, with GPUs of its own."""
        name = f"{_IMAGINARY}{self.name}/{number}"
        uuids = {gpu.uuid: f"{name}/{gpu.uuid}" for gpu in self.capacity.gpus}

        def own(gpu: GpuCapacity) -> GpuCapacity:
            links = {uuids.get(peer, peer): count for peer, count in gpu.nvlinks.items()}
            parent = uuids.get(gpu.parent_uuid, gpu.parent_uuid)
            return replace(gpu, uuid=uuids[gpu.uuid], nvlinks=links, parent_uuid=parent)

        return name, replace(self.capacity, gpus=tuple(map(own, self.capacity.gpus)), pods=())


def is_imaginary(node: str) -> bool:
    return node.startswith(_IMAGINARY)


def template_of(node: str) -> str:
    """Name of an imaginary node's template."""
    return node.removeprefix(_IMAGINARY).rpartition("/")[0]


class Pending(Protocol):
    """A pending request: all of its pods, which are placed together or not at all."""

    @property
    def key(self) -> str: ...

    @property
    def priority(self) -> int: ...

    @property
    def pods(self) -> int:
        """Number of its pods: it takes at most as many new nodes."""

    @property
    def cards(self) -> int:
        """Number of cards that all of its pods take at least if each share takes a whole one."""

    @property
    def size(self) -> tuple[int, int, int]:
        """Cards, memory and time of its largest pod: large requests are placed first."""

    @property
    def shape(self) -> Hashable:
        """Everything that decides where it fits: where one does not, no equal one does."""

    def fit(self, stock: Stock, whole: bool, used: Used) -> Sequence[Placed] | str:
        """A place for each of its pods, or the reason why there are none. The stock is unchanged.
        `whole`: each share takes a whole card. `used`: what requests that were placed before it
        take of the nodes' other resources."""


def whole_cards(request: GpuRequest) -> GpuRequest:
    """The request with a whole card for each share; MIG instances stay as they are."""
    if request.mig:
        return request
    return replace(
        request,
        memory_bytes=None,
        memory_ppm=WHOLE_PPM,
        share_ppm=WHOLE_PPM,
        hard=True,
        exclusive=True,
    )


def size_of(request: GpuRequest) -> tuple[int, int, int]:
    memory = request.memory_bytes if request.memory_bytes is not None else 1 << 62
    return request.count, memory, request.share_ppm if request.hard else 0


@dataclass(frozen=True, slots=True)
class PendingPods:
    """Pending pods of one GPU request each."""

    key: str
    requests: tuple[PodToPlace, ...]
    topology: Topology = field(default_factory=Topology)
    priority: int = 0

    @property
    def pods(self) -> int:
        return len(self.requests)

    @property
    def cards(self) -> int:
        return sum(one.request.count for one in self.requests if not one.request.mig)

    @property
    def size(self) -> tuple[int, int, int]:
        return max(size_of(one.request) for one in self.requests)

    @property
    def shape(self) -> Hashable:
        return tuple(replace(one, pod="") for one in self.requests), self.topology

    def fit(self, stock: Stock, whole: bool, used: Used) -> Sequence[Placed] | str:
        pods: Sequence[PodToPlace] = self.requests
        if whole:
            pods = [replace(one, request=whole_cards(one.request)) for one in pods]
        found = place(stock, pods, self.topology)
        if isinstance(found, NoPlace):
            return found.reason
        return [Placed(one.node, one.shares) for one in found]


@dataclass(frozen=True, slots=True)
class Moving:
    """Moves that consolidation would make for pending requests."""

    movable: Callable[[Hashable], Movable | None]
    """The pod of an owner that may be moved; None for others."""
    max_cost: Callable[[Sequence[PodToPlace]], int]
    """Most that the moves for a request may cost."""
    one_per_group: bool = True


@dataclass(slots=True)
class NewNodes:
    """Nodes that the pending requests need."""

    nodes: Counter[str] = field(default_factory=Counter)
    """Number of new nodes by template."""
    waits: dict[str, Counter[str]] = field(default_factory=dict)
    """New nodes by template on which each request would be placed."""
    moved: set[str] = field(default_factory=set)
    """Requests for which moves of running work would make room."""
    fitting: set[str] = field(default_factory=set)
    """Requests that fit on the present nodes."""
    unfit: dict[str, str] = field(default_factory=dict)
    """Requests that fit on no new node either, with the reason."""
    beyond: set[str] = field(default_factory=set)
    """Requests for which there would have to be more new nodes than permitted."""

    @property
    def total(self) -> int:
        return self.nodes.total()


def new_nodes(
    stock: Stock,
    pending: Collection[Pending],
    templates: Sequence[NodeTemplate],
    most: int,
    moving: Moving | None = None,
) -> NewNodes:
    """New nodes for the pending requests, at most `most`. The stock is unchanged."""
    by_size = sorted(pending, key=lambda one: (*(-part for part in one.size), one.key))
    found = _fewest(stock, by_size, templates, most, moving)
    if found.beyond:  # Not all get a node: those of high priority come first.
        by_priority = sorted(by_size, key=lambda one: -one.priority)
        found = _fewest(stock, by_priority, templates, most, moving)
    return found


def _fewest(
    stock: Stock,
    pending: Sequence[Pending],
    templates: Sequence[NodeTemplate],
    most: int,
    moving: Moving | None,
) -> NewNodes:
    packing = _Packing(stock, templates, most, moving)
    try:
        left = packing.use_present(pending)
        found = packing.add_nodes(left, whole=False)
        # In whole cards they take at least so many: usually more than are needed for shares.
        if packing.cards(found) > sum(one.cards for one in left if one.key in found.waits):
            whole = packing.add_nodes(left, whole=True)
            serves_all = whole.waits.keys() >= found.waits.keys()
            if serves_all and packing.cards(whole) < packing.cards(found):
                found = whole
    finally:
        packing.undo()
    return found


class _Packing:
    def __init__(
        self,
        stock: Stock,
        templates: Sequence[NodeTemplate],
        most: int,
        moving: Moving | None,
    ) -> None:
        self._stock = stock
        self._templates = templates
        self._most = most
        self._moving = moving
        self._trial = stock.trial()
        self._undos: list[Undo] = []
        self._fitting: set[str] = set()
        self._moved: set[str] = set()
        self._movers: set[Hashable] = set()
        """Owners that a plan moves; none is moved twice."""
        self._used: dict[str, Counter[str]] = {}

    def undo(self) -> None:
        self._trial.undo()
        for undo in reversed(self._undos):
            undo()

    def cards(self, found: NewNodes) -> int:
        each = {one.name: len(one.capacity.gpus) for one in self._templates}
        return sum(each[name] * count for name, count in found.nodes.items())

    # -- the present nodes ------------------------------------------------------------------------

    def use_present(self, pending: Sequence[Pending]) -> list[Pending]:
        """Place what fits on the present nodes, also by moves; returns the others."""
        left = []
        failed: set[Hashable] = set()
        for one in pending:
            if one.shape in failed:
                left.append(one)
                continue
            found = one.fit(self._stock, False, self._used)
            if isinstance(found, str):
                failed.add(one.shape)
                left.append(one)
            else:
                _hold(self._trial, found, self._used)
                self._fitting.add(one.key)
        return [one for one in left if not self._is_moved_for(one)]

    def _is_moved_for(self, one: Pending) -> bool:
        if self._moving is None or not isinstance(one, PendingPods):
            return False
        plan = consolidate(
            self._stock,
            one.requests,
            self._movable,
            one.topology,
            self._moving.max_cost(one.requests),
            self._moving.one_per_group,
        )
        if plan is None:
            return False
        self._carry_out(plan)
        self._moved.add(one.key)
        return True

    def _movable(self, owner: Hashable) -> Movable | None:
        if self._moving is None or owner in self._movers:
            return None
        return self._moving.movable(owner)

    def _carry_out(self, plan: Plan) -> None:
        owners = [one.owner for one in plan.moves]
        self._movers.update(owners)
        self._undos.append(self._stock.without(owners))
        for move in plan.moves:
            self._trial.hold(move.to.node, move.to.shares)
        for chosen in plan.places:
            self._trial.hold(chosen.node, chosen.shares)

    # -- new nodes --------------------------------------------------------------------------------

    def add_nodes(self, pending: Sequence[Pending], whole: bool) -> NewNodes:
        """Place the requests on as few new nodes as found, and undo it."""
        found = NewNodes(fitting=set(self._fitting), moved=set(self._moved))
        trial = self._stock.trial()
        used = {name: Counter(amounts) for name, amounts in self._used.items()}
        try:
            for one in pending:
                places = one.fit(self._stock, whole, used)
                if isinstance(places, str):
                    places = self._open_for(trial, one, whole, found, used)
                if not isinstance(places, str):
                    _hold(trial, places, used)
                    names = {one.node for one in places if is_imaginary(one.node)}
                    found.waits[one.key] = Counter(map(template_of, names))
        finally:
            trial.undo()
        return found

    def _open_for(
        self, trial: Trial, one: Pending, whole: bool, found: NewNodes, used: Used
    ) -> Sequence[Placed] | str:
        """Add the cheapest nodes on which the request fits, and return its places there."""
        best: tuple[int, NodeTemplate, int] | None = None
        why, could = NO_TEMPLATE, False
        for template in self._templates:
            free = min(self._most - found.total, template.most - found.nodes[template.name])
            count, reason = self._needed(one, template, found.nodes[template.name], whole, used)
            if count is None:
                why = f"{NO_TEMPLATE}: {template.name}: {reason}"
                continue
            could = True
            cards = count * len(template.capacity.gpus)
            if count <= free and (best is None or cards < best[0]):
                best = cards, template, count
        if best is None:
            if could:
                found.beyond.add(one.key)
            else:
                found.unfit[one.key] = why
            return why
        _, template, count = best
        for _ in range(count):
            trial.add_node(*template.node(found.nodes[template.name]))
            found.nodes[template.name] += 1
        return one.fit(self._stock, whole, used)

    def _needed(
        self, one: Pending, template: NodeTemplate, first: int, whole: bool, used: Used
    ) -> tuple[int | None, str]:
        """Number of further nodes of a template with which the request fits, or None and the
        reason."""
        trial = self._stock.trial()
        why = ""
        try:
            for count in range(1, one.pods + 1):
                trial.add_node(*template.node(first + count - 1))
                places = one.fit(self._stock, whole, used)
                if not isinstance(places, str):
                    return count, ""
                why = places
        finally:
            trial.undo()
        return None, why


def _hold(trial: Trial, places: Sequence[Placed], used: dict[str, Counter[str]]) -> None:
    for one in places:
        trial.hold(one.node, one.shares)
        if one.other:
            used.setdefault(one.node, Counter()).update(one.other)


def in_words(waits: Mapping[str, int]) -> str:
    """New nodes for users: 2 new nodes of template large."""
    parts = [
        f"{count} new node{'s' if count > 1 else ''} of template {name}"
        for name, count in sorted(waits.items())
    ]
    return " and ".join(parts)
