"""The entries of one scheduling cycle, one per ClusterQueue, and the order they are served in.

Without fair sharing the entries that borrow least come first, then the order is by priority, then
by age. With it, in each cohort the child whose share would be smallest with its entry admitted goes
first, after its own children were ordered in the same way; shares are computed again after every
entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from queuecontroller.scheduler.model.assignment import Assignment, Mode
from queuecontroller.scheduler.model.flavor_resources import FlavorResources
from queuecontroller.scheduler.model.reasons import PendingReason
from queuecontroller.scheduler.model.settings import EngineSettings
from queuecontroller.scheduler.model.workload_info import Target, WorkloadInfo
from queuecontroller.scheduler.quota.cache import Cache
from queuecontroller.scheduler.quota.cluster_queue import ClusterQueueState
from queuecontroller.scheduler.quota.shares import Share, dominant_share
from queuecontroller.scheduler.quota.tree import QuotaNode


class Status(Enum):
    NOT_NOMINATED = auto()
    SKIPPED = auto()
    PREEMPTING = auto()
    ADMITTED = auto()


class Entry:
    __slots__ = (
        "assignment",
        "deferred",
        "has_pending_flavors",
        "info",
        "message",
        "queue",
        "reason",
        "requeue_at_once",
        "resumed",
        "shape_is_to_blame",
        "status",
        "targets",
    )

    def __init__(
        self,
        info: WorkloadInfo,
        queue: ClusterQueueState,
        assignment: Assignment,
        targets: Sequence[Target],
    ) -> None:
        self.info = info
        self.queue = queue
        self.assignment = assignment
        self.targets = targets
        self.status = Status.NOT_NOMINATED
        self.reason = PendingReason.WAITING_FOR_QUOTA
        self.message = ""
        self.requeue_at_once = False
        self.resumed = False
        """True if only the flavors after the last one tried were evaluated."""
        self.has_pending_flavors = False
        """True if some flavors have not been evaluated yet."""
        self.deferred = False
        """True if the cycle had no time left to search room for it."""
        self.shape_is_to_blame = True
        """True if every workload of the same shape would have had the same result."""

    def inadmissible(self, reason: PendingReason, message: str, *, shape_is_to_blame: bool) -> None:
        self.reason = reason
        self.message = message
        self.shape_is_to_blame = shape_is_to_blame

    def skip(self, message: str) -> None:
        """Skip the entry because of an earlier one in this cycle; it is requeued at once."""
        self.status = Status.SKIPPED
        self.reason = PendingReason.WAITING_FOR_QUOTA
        self.message = message
        self.requeue_at_once = True


@dataclass(slots=True)
class Heads:
    """The workloads that a cycle evaluates."""

    to_nominate: list[tuple[WorkloadInfo, bool]] = field(default_factory=list)
    """Each head, and True if its cohort tree changed since its last evaluation."""
    inadmissible: list[Entry] = field(default_factory=list)
    """Entries that are inadmissible for reasons other than quota."""
    mismatched: list[Entry] = field(default_factory=list)
    """Entries from namespaces that their ClusterQueue does not serve."""


def in_classic_order(
    entries: Iterable[Entry], settings: EngineSettings, cache: Cache
) -> list[Entry]:
    def order(entry: Entry) -> tuple[int, int, int, str]:
        priority = entry.info.priority if settings.priority_sorting_within_cohort else 0
        return (entry.assignment.borrowing, -priority, entry.info.order_ns, entry.info.key)

    found = sorted(entries, key=order)
    return found if cache.history is None else _by_usage(found, cache)


def _by_usage(entries: list[Entry], cache: Cache) -> list[Entry]:
    """Order entries that borrow equally far by the recorded usage of their ClusterQueues, least
    first, under a cohort whose admissionScope is usage-based. An entry under no such cohort, or
    under another one, keeps its position, since their usage cannot be compared."""
    places: dict[tuple[QuotaNode, int], list[int]] = {}
    for at, entry in enumerate(entries):
        scope = cache.scope_of(entry.queue) if entry.assignment.borrowing else None
        if scope is not None:
            places.setdefault((scope, entry.assignment.borrowing), []).append(at)
    ordered = list(entries)
    for taken in places.values():
        those = sorted(
            (entries[at] for at in taken), key=lambda entry: cache.queue_has_used(entry.queue)
        )
        for at, entry in zip(taken, those, strict=True):
            ordered[at] = entry
    return ordered


_Rank = tuple[bool, Share]


class Tournament:
    """Serves entries by fair sharing. The caller uses quota between two entries."""

    def __init__(
        self, entries: Iterable[Entry], settings: EngineSettings, numbers: FlavorResources
    ) -> None:
        self._settings = settings
        self._numbers = numbers
        self._waiting: dict[QuotaNode, Entry] = {entry.queue.node: entry for entry in entries}
        self._below: dict[QuotaNode, list[QuotaNode]] = {}
        """Children with entries at or below them, by cohort."""
        self._ranks: dict[tuple[QuotaNode, QuotaNode], _Rank] = {}
        """Ranks by node and the queue of the entry; valid until the node's usage changes."""
        for node in self._waiting:
            for child, parent in zip(node.path, node.path[1:], strict=False):
                children = self._below.setdefault(parent, [])
                if child not in children:
                    children.append(child)

    def __iter__(self) -> Iterator[Entry]:
        while self._waiting:
            root = next(iter(self._waiting)).root
            entry = self._winner(root)
            assert entry is not None  # the root was found through a waiting entry
            node = entry.queue.node
            del self._waiting[node]
            yield entry
            self._forget(node.path)

    def _forget(self, path: Sequence[QuotaNode]) -> None:
        for node in path:
            if node.parent is not None:
                for pair in [pair for pair in self._ranks if pair[0] is node]:
                    del self._ranks[pair]

    def _winner(self, node: QuotaNode) -> Entry | None:
        if not node.is_cohort:
            return self._waiting.get(node)
        best: Entry | None = None
        best_child = node
        for child in self._below.get(node, ()):
            entry = self._winner(child)
            if entry is not None and (
                best is None or self._goes_before(entry, child, best, best_child)
            ):
                best, best_child = entry, child
        return best

    def _goes_before(self, one: Entry, at: QuotaNode, other: Entry, other_at: QuotaNode) -> bool:
        borrows, share = self._rank(at, one)
        other_borrows, other_share = self._rank(other_at, other)
        if self._settings.fair_nominal_first and borrows != other_borrows:
            return other_borrows
        order = share.compare(other_share)
        if order:
            return order < 0
        mine, theirs = one.info, other.info
        if self._settings.priority_sorting_within_cohort and mine.priority != theirs.priority:
            return mine.priority > theirs.priority
        return (mine.order_ns, mine.key) < (theirs.order_ns, theirs.key)

    def _rank(self, at: QuotaNode, entry: Entry) -> _Rank:
        """True if the node would borrow with the entry admitted, and its share then."""
        queue = entry.queue.node
        known = self._ranks.get((at, queue))
        if known is not None:
            return known
        usage = entry.assignment.usage
        queue.add_usage(usage)
        for node in queue.path:
            if node.parent is not None:
                borrows = not node.is_within_nominal(usage)
                self._ranks[node, queue] = (borrows, dominant_share(node, self._numbers))
        queue.remove_usage(usage)
        return self._ranks[at, queue]


def in_order(entries: Sequence[Entry], settings: EngineSettings, cache: Cache) -> Iterable[Entry]:
    """Order the entries; those without any fit change nothing, so they are served first."""
    if not settings.fair_sharing:
        return in_classic_order(entries, settings, cache)
    hopeless = [entry for entry in entries if entry.assignment.mode is Mode.NO_FIT]
    hopeful = [entry for entry in entries if entry.assignment.mode is not Mode.NO_FIT]
    return _chain(hopeless, Tournament(hopeful, settings, cache.numbers))


def _chain(first: Iterable[Entry], then: Iterable[Entry]) -> Iterator[Entry]:
    yield from first
    yield from then
