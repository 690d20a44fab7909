"""Nodes: who is connected, what they have, and what each of them has been told to do.

Safety rests on three numbers, none of them a clock of ours: the term (which controller), the epoch
(which session of the node), the revision (which decision about a pod). A node that is away keeps
what it runs, and its shares stay taken; only `lost_policy = requeue` gives its work to others, and
then the node itself pauses that work when its lease ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from queuecontroller.engine.model import WorkloadKey
from queuecontroller.placement.capacity import NOTHING, NodeCapacity
from queuecontroller.records import (
    Assignment,
    Desired,
    GpuShare,
    NodeRecord,
    PodKey,
    PodState,
)

from .journal import Journal

REVISION_GAP: Final = 1_000_000
"""How far past a node's memory a restored database jumps: other nodes may have seen more."""
SECOND_NS: Final = 1_000_000_000


class StaleEpoch(Exception):
    """The message belongs to an earlier session of the node: it has to connect again."""


class Superseded(Exception):
    """Another controller has taken over: this one must decide nothing more."""


@dataclass(frozen=True, slots=True)
class Held:
    """One piece of work as a node says it has it."""

    workload: WorkloadKey
    pod: str
    uid: str
    attempt: int
    state: str
    """offered, running, paused, stopping, stopped, finished, refused."""
    reason: str = ""
    exit_status: int = 0
    gpus: tuple[GpuShare, ...] = ()
    record: str = ""
    """The controller's own row of the workload, as it was sent with the decision."""
    started: bool = True
    """It ran there at some time."""

    @property
    def key(self) -> PodKey:
        return PodKey(self.workload, self.pod)


@dataclass(frozen=True, slots=True)
class Hello:
    node: str
    boot_id: str = ""
    version: str = ""
    cluster_id: str = ""
    seen_term: int = 0
    seen_revision: int = 0
    epoch: int = 0
    held: tuple[Held, ...] = ()
    waiting: frozenset[WorkloadKey] = frozenset()
    capacity: NodeCapacity = NOTHING


@dataclass(slots=True)
class Node:
    record: NodeRecord
    capacity: NodeCapacity = NOTHING
    connected: bool = False
    """Has connected since this controller started."""
    version: str = ""
    sequence: int = 0
    lease_until_ns: int = 0
    usage: dict[tuple[WorkloadKey, int], tuple[int, float | None]] = field(default_factory=dict)
    """Measured memory and GPU time ratio, by workload and attempt."""

    @property
    def name(self) -> str:
        return self.record.name


def rests(one: Assignment) -> bool:
    """Paused, and meant to be."""
    return one.state is PodState.PAUSED and one.desired is Desired.PAUSE


class Nodes:
    def __init__(self, journal: Journal, lease_s: float, lost_after_s: float) -> None:
        self._journal = journal
        self._lease_ns = int(lease_s * SECOND_NS)
        self._lost_ns = int(lost_after_s * SECOND_NS)
        self.nodes: dict[str, Node] = {}
        self.assignments: dict[PodKey, Assignment] = {}
        self._by_node: dict[str, dict[PodKey, Assignment]] = {}
        self._by_workload: dict[WorkloadKey, dict[str, Assignment]] = {}
        self.moved: dict[PodKey, None] = {}
        """Pods whose assignments changed, in order; for whoever takes them from here."""
        self.version = 0
        """Grows with every change of what the nodes say of themselves."""
        self.regressions_total = 0
        """Times a node remembered more than the database did."""
        self.stale_total = 0
        """Messages of earlier sessions, refused."""

    def restore(
        self, nodes: Iterable[NodeRecord], assignments: Iterable[Assignment], now_ns: int
    ) -> None:
        """Each node gets a whole lease to come back: we were away, not they."""
        for record in nodes:
            self.nodes[record.name] = Node(record, lease_until_ns=now_ns + self._lease_ns)
        for one in assignments:
            self._index(one)

    # -- assignments ------------------------------------------------------------------------------

    def of_node(self, node: str) -> Iterable[Assignment]:
        return self._by_node.get(node, {}).values()

    def of_workload(self, key: WorkloadKey) -> dict[str, Assignment]:
        """By pod."""
        return self._by_workload.get(key, {})

    def decisions_after(self, node: str, revision: int) -> list[Assignment]:
        found = [one for one in self.of_node(node) if one.revision > revision]
        return sorted(found, key=lambda one: one.revision)

    def decide(self, one: Assignment, now_ns: int) -> Assignment:
        """A new decision for the pod's node; replaces the one before."""
        one = replace(one, revision=self._journal.next_revision(), changed_ns=now_ns)
        self._put(one, tell=True)
        return one

    def tell(self, one: Assignment, desired: Desired, reason: str, now_ns: int) -> Assignment:
        if one.desired is desired or one.desired is Desired.STOP:
            return one  # nothing undoes a stop: the processes are being killed
        return self.decide(replace(one, desired=desired, reason=reason), now_ns)

    def forget(self, key: PodKey) -> None:
        one = self.assignments.pop(key, None)
        if one is None:
            return
        self.moved[key] = None
        del self._by_node[one.node][key]
        del self._by_workload[key.workload][key.pod]
        if not self._by_workload[key.workload]:
            del self._by_workload[key.workload]
        self._journal.drop_assignment(key)
        self._journal.touched.add(("Node", "", one.node))

    def note_state(
        self, one: Assignment, state: PodState, gpus: Sequence[GpuShare], now_ns: int
    ) -> Assignment:
        found = tuple(gpus) or one.gpus
        if one.state is state and one.gpus == found:
            return one
        one = replace(one, state=state, gpus=found, changed_ns=now_ns)
        self._put(one, tell=False)
        return one

    def adopt(self, one: Assignment) -> None:
        """Work a node has and the database had forgotten."""
        self._put(replace(one, revision=self._journal.next_revision()), tell=True)

    def _put(self, one: Assignment, tell: bool) -> None:
        self._index(one)
        self._journal.put_assignment(one, tell)
        self._journal.touched.add(("Node", "", one.node))

    def _index(self, one: Assignment) -> None:
        before = self.assignments.get(one.key)
        if before is not None and before.node != one.node:
            del self._by_node[before.node][one.key]
        self.assignments[one.key] = one
        self.moved[one.key] = None
        self._by_node.setdefault(one.node, {})[one.key] = one
        self._by_workload.setdefault(one.workload, {})[one.pod] = one

    # -- sessions ---------------------------------------------------------------------------------

    def connect(self, hello: Hello, now_ns: int) -> tuple[Node, bool]:
        """A new session. True: the node remembers what the database does not, so that work it
        holds and we do not know is ours. Raises Superseded."""
        journal = self._journal
        node = self.nodes.get(hello.node)
        foreign = bool(hello.cluster_id) and hello.cluster_id != journal.cluster_id
        known = node is not None and node.connected
        behind = not foreign and (
            hello.seen_revision > journal.revision
            # A term begins with its process: before the first contact nobody can have seen it.
            or (hello.seen_term > journal.term if known else hello.seen_term >= journal.term)
        )
        if behind and known:
            raise Superseded(
                f"node {hello.node} has obeyed term {hello.seen_term}, this controller has"
                f" {journal.term}: another one took over"
            )
        if behind:
            self.regressions_total += 1
            journal.term = max(journal.term, hello.seen_term) + 1
            journal.revision = max(journal.revision, hello.seen_revision) + REVISION_GAP
            journal.note(
                "Restored",
                f"Node/{hello.node}",
                f"the node remembers term {hello.seen_term} and revision {hello.seen_revision}:"
                " the database is an old copy; its work is taken over",
                now_ns,
            )
        record = node.record if node is not None else NodeRecord(hello.node, 0)
        record = replace(
            record,
            epoch=max(record.epoch, hello.epoch) + 1,
            boot_id=hello.boot_id,
            seen_ns=now_ns,
            lost=False,
        )
        usage = node.usage if node is not None else {}
        node = Node(record, hello.capacity, True, hello.version, 0, usage=usage)
        node.lease_until_ns = now_ns + self._lease_ns
        self.nodes[hello.node] = node
        self.version += 1
        journal.put_node(record)
        return node, behind or foreign

    def session(self, name: str, epoch: int) -> Node:
        """The node, if this is its session. Raises StaleEpoch."""
        node = self.nodes.get(name)
        if node is None or not node.connected or node.record.epoch != epoch:
            self.stale_total += 1
            have = node.record.epoch if node is not None and node.connected else "none"
            raise StaleEpoch(f"node {name}: epoch {epoch} is not current ({have}): connect again")
        return node

    def report(
        self, name: str, epoch: int, sequence: int, capacity: NodeCapacity, now_ns: int
    ) -> tuple[Node, bool]:
        """Renews the lease; True when more or less can be placed. Raises StaleEpoch."""
        node = self.session(name, epoch)
        if sequence <= node.sequence:  # late or twice: it says nothing about now
            return node, False
        self.version += 1
        was_ready = self.ready(node, now_ns)
        node.sequence = sequence
        node.lease_until_ns = now_ns + self._lease_ns
        if node.capacity == capacity:
            return node, not was_ready
        node.capacity = capacity
        self._journal.touched.add(("Node", "", name))
        return node, True

    def ready(self, node: Node, now_ns: int) -> bool:
        return node.connected and not node.record.lost and now_ns < node.lease_until_ns

    def expire(self, now_ns: int) -> list[Node]:
        """Nodes given up on just now: no report for the lease and the grace after it."""
        lost = []
        for node in self.nodes.values():
            if node.record.lost or now_ns < node.lease_until_ns + self._lost_ns:
                continue
            if not node.connected and not self._by_node.get(node.name):
                continue  # nothing to lose; it is shown as away
            node.record = replace(node.record, lost=True, epoch=node.record.epoch + 1)
            node.connected = False
            self.version += 1
            self._journal.put_node(node.record)
            self._journal.note(
                "Lost", f"Node/{node.name}", "no report for the lease and its grace", now_ns
            )
            lost.append(node)
        return lost

    def each_ready(self, now_ns: int) -> list[Node]:
        return [node for node in self.nodes.values() if self.ready(node, now_ns)]

    def drop(self, name: str, blocked: Callable[[int], str]) -> None:
        """Forgets a node that is gone for good. Raises ValueError while it has work."""
        if self._by_node.get(name):
            raise ValueError(blocked(len(self._by_node[name])))
        del self.nodes[name]
        self.version += 1
        self._journal.drop_node(name)
