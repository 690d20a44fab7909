"""Nodes: connections, capacities, and the decisions sent to each of them.

Safety rests on three numbers and no clock of the controller: the term (which controller), the epoch
(which session of the node), the revision (which decision about a pod). A node that is away keeps
its work, and its shares stay allocated; only `lost_policy = requeue` gives its work to other nodes,
and then the node itself pauses that work when its lease ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.placement.capacity import NOTHING, NodeCapacity
from queuecontroller.state.journal import Journal
from queuecontroller.state.nodes.gpu_owners import GpuOwners
from queuecontroller.state.nodes.seals import Fence, Row, Seals
from queuecontroller.state.records import (
    Assignment,
    Desired,
    GpuShare,
    NodeRecord,
    PodKey,
    PodState,
)
from sluicecommon.newest import Newest

REVISION_GAP: Final = 1_000_000
"""Revisions that a restored database skips past the largest that a node reports, as other nodes may
have seen more."""
EPOCH_GAP: Final = 1_000_000
"""Limit for a node's raise of its own epoch: a lost database begins at 0."""
SECOND_NS: Final = 1_000_000_000


class StaleEpoch(Exception):
    """Raised for a message of an earlier session of the node, which has to reconnect."""


class Superseded(Exception):
    """Raised if another controller has taken over: this one must decide nothing more."""


class Unproven(Exception):
    """Raised if a node claims a later controller or more decisions without proof."""


@dataclass(frozen=True, slots=True)
class Held:
    """A piece of work as a node reports it."""

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
    """The controller's sealed row of the workload, as sent with the decision."""
    started: bool = True
    """True if the work ran there at some time."""

    @property
    def key(self) -> PodKey:
        return PodKey(self.workload, self.pod)


@dataclass(frozen=True, slots=True)
class Hello:
    """First message of a node's session."""

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
    proof: str = ""
    """The newest sealed fence that it received."""


MAX_DETECTIONS: Final = 32
"""Detections kept per node in memory; the node's own journal has all of them."""


@dataclass(frozen=True, slots=True)
class Detection:
    """Use of a GPU outside of grants that a node detected, or its reaction, in the node's words."""

    number: int
    at_s: int
    kind: str
    level: str
    text: str
    workload: WorkloadKey | None
    evidence: str
    """A JSON object."""


@dataclass(slots=True)
class Node:
    record: NodeRecord
    capacity: NodeCapacity = NOTHING
    connected: bool = False
    """True once it has connected since this controller started, until it is lost."""
    version: str = ""
    sequence: int = 0
    lease_until_ns: int = 0
    stopping: bool = False
    """True from the last report of a daemon that ends until the next one connects: no pod may be
    bound there, and its resources count as before."""
    usage: dict[tuple[WorkloadKey, int], tuple[int, float | None]] = field(default_factory=dict)
    """Measured memory and GPU time ratio, by workload and attempt."""
    pod_usage: dict[str, tuple[int, float | None]] = field(default_factory=dict)
    """Measured memory and GPU time ratio of pods that the kubelet started, by UID."""
    detections: Newest[int, Detection] = field(default_factory=lambda: Newest(MAX_DETECTIONS))
    """Detections by number, the newest last."""

    def record_detections(self, found: Iterable[Detection]) -> None:
        """Store detections; duplicates are ignored, since a new session repeats those of the last
        one."""
        for one in found:
            if one.number not in self.detections:
                self.detections[one.number] = one

    @property
    def name(self) -> str:
        return self.record.name


def rests(one: Assignment) -> bool:
    """True if the work is paused by decision."""
    return one.state is PodState.PAUSED and one.desired in (Desired.PAUSE, Desired.CHECKPOINT)


def computes(one: Assignment) -> bool:
    """False if the work is paused and will not run again before a new decision: it takes no GPU
    time, also while it is being stopped."""
    return one.state is not PodState.PAUSED or one.desired is Desired.RUN


def is_away(one: Assignment) -> bool:
    """True if the work is paused with its memory on the node's host: it occupies no GPU."""
    return one.state is PodState.PAUSED and one.desired is Desired.CHECKPOINT


class Nodes:
    def __init__(self, journal: Journal, lease_s: float, lost_after_s: float) -> None:
        self._journal = journal
        self.lease_ns = int(lease_s * SECOND_NS)
        self._lost_ns = int(lost_after_s * SECOND_NS)
        self.nodes: dict[str, Node] = {}
        self._served: set[str] = set()
        """Names of the nodes that have connected since this controller started, also of those that
        were lost or deleted since: they know its term."""
        self.assignments: dict[PodKey, Assignment] = {}
        self._by_node: dict[str, dict[PodKey, Assignment]] = {}
        self._by_workload: dict[WorkloadKey, dict[str, Assignment]] = {}
        self.moved: dict[PodKey, None] = {}
        """Pods with changed assignments, in order, until a consumer takes them."""
        self.leaving: dict[str, dict[PodKey, tuple[str, tuple[GpuShare, ...]]]] = {}
        """Work that a node still has although its assignment is deleted, by node: UID and shares.
        It holds its GPUs until the node reports its end."""
        self.left: set[str] = set()
        """Nodes with changes in `leaving`, until a consumer takes them."""
        self.version = 0
        """Counter that grows with every change of a node's report."""
        self.regressions_total = 0
        """Number of times a node remembered more than the database."""
        self.stale_total = 0
        """Number of refused messages of earlier sessions."""
        self.unproven_total = 0
        """Number of times a node claimed to have seen more than the controller, without proof: one
        of the two is broken or lies."""
        self.duplicates_total = 0
        """Number of GPUs reported by a node although another node owns them."""
        self.seals = Seals()
        self._owners = GpuOwners()

    def restore(
        self, nodes: Iterable[NodeRecord], assignments: Iterable[Assignment], now_ns: int
    ) -> None:
        """Load nodes and assignments. Each node gets a whole lease to reconnect, since the
        controller was away."""
        for record in nodes:
            self.nodes[record.name] = Node(record, lease_until_ns=now_ns + self.lease_ns)
        for one in assignments:
            self._index(one)

    # -- assignments ------------------------------------------------------------------------------

    def of_node(self, node: str) -> Iterable[Assignment]:
        return self._by_node.get(node, {}).values()

    def of_workload(self, key: WorkloadKey) -> dict[str, Assignment]:
        """Assignments of a workload by pod."""
        return self._by_workload.get(key, {})

    def nodes_of(self, key: WorkloadKey) -> int:
        """Number of nodes on which the workload's pods run or will run."""
        pods = self.of_workload(key).values()
        return len({one.node for one in pods if one.desired is not Desired.STOP})

    def decisions_after(self, node: str, revision: int) -> list[Assignment]:
        found = [one for one in self.of_node(node) if one.revision > revision]
        return sorted(found, key=lambda one: one.revision)

    def decide(self, one: Assignment, now_ns: int) -> Assignment:
        """Replace the pod's assignment by a new decision for its node."""
        one = replace(one, revision=self._journal.next_revision(), changed_ns=now_ns)
        self._put(one, tell=True)
        return one

    def tell(self, one: Assignment, desired: Desired, reason: str, now_ns: int) -> Assignment:
        if one.desired is desired or one.desired is Desired.STOP:
            return one  # A stop is final: the processes are being killed.
        if desired is Desired.STOP and is_away(one):
            one = replace(one, gpus=())  # It has nothing on its GPUs, which others may hold.
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
        left = one.state is PodState.PAUSED and one.desired is Desired.STOP and not one.gpus
        found = () if left else tuple(gpus) or one.gpus
        if one.state is state and one.gpus == found:
            return one
        one = replace(one, state=state, gpus=found, changed_ns=now_ns)
        self._put(one, tell=False)
        return one

    def adopt(self, one: Assignment) -> None:
        """Take over work that a node has and the database had lost."""
        self._put(replace(one, revision=self._journal.next_revision()), tell=True)

    def note_leaving(
        self, node: str, works: Mapping[PodKey, tuple[str, tuple[GpuShare, ...]]]
    ) -> None:
        """Record all work that the node still has without an assignment: it is stopping that."""
        if works or node in self.leaving:
            self.leaving[node] = dict(works)
            self.left.add(node)

    def note_left(self, node: str, key: PodKey, uid: str) -> None:
        """Record that the node has stopped such work; ignored if there is none."""
        works = self.leaving.get(node, {})
        if key in works and works[key][0] == uid:
            del works[key]
            self.left.add(node)

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

    def connect(self, hello: Hello, now_ns: int) -> Node:
        """Open a session. Raises Superseded, Unproven."""
        journal = self._journal
        node = self.nodes.get(hello.node)
        known = hello.node in self._served
        if not self.is_foreign(hello) and self._is_ahead(
            hello.seen_term, hello.seen_revision, known
        ):
            seen = self._proven(hello)
            if seen is None or not self._is_ahead(seen.term, seen.revision, known):
                self.unproven_total += 1
                raise Unproven(
                    f"node {hello.node} claims to have followed term {hello.seen_term} and revision"
                    f" {hello.seen_revision}, this controller has {journal.term} and"
                    f" {journal.revision}, and the node has no valid seal as proof. If the"
                    " database is an old copy, start once with `sluice-queue serve --restored`"
                )
            if known:
                raise Superseded(
                    f"node {hello.node} has followed term {seen.term}, this controller has"
                    f" {journal.term}: another controller took over"
                )
            why = f"the node remembers term {seen.term} and revision {seen.revision}"
            self.note_restored(f"Node/{hello.node}", why, seen.term, seen.revision, now_ns)
        record = node.record if node is not None else NodeRecord(hello.node, 0)
        record = replace(
            record,
            epoch=max(record.epoch, min(hello.epoch, record.epoch + EPOCH_GAP)) + 1,
            boot_id=hello.boot_id,
            seen_ns=now_ns,
            lost=False,
        )
        usage = node.usage if node is not None else {}
        capacity = self._own_gpus(hello.node, hello.capacity, now_ns)
        node = Node(record, capacity, True, hello.version, 0, usage=usage)
        node.lease_until_ns = now_ns + self.lease_ns
        self.nodes[hello.node] = node
        self._served.add(hello.node)
        self.version += 1
        journal.put_node(record)
        return node

    def is_foreign(self, hello: Hello) -> bool:
        """True if the node last followed a controller with another database."""
        return bool(hello.cluster_id) and hello.cluster_id != self._journal.cluster_id

    def _is_ahead(self, term: int, revision: int, known: bool) -> bool:
        """True if a node that has seen these has seen more than this database."""
        journal = self._journal
        # A term begins with its process, so no node knows it before the first contact.
        return revision > journal.revision or (
            term > journal.term if known else term >= journal.term
        )

    def _proven(self, hello: Hello) -> Fence | None:
        """The highest fence that the node proves by seals. Nodes of the previous release have no
        proof of their own, but the rows of their work."""
        sealed = [self.seals.open_fence(hello.proof)]
        sealed += [row.fence for one in hello.held if (row := self.seals.open_row(one.record))]
        mine = [
            one
            for one in sealed
            if one is not None
            and one.node == hello.node
            and one.cluster_id == self._journal.cluster_id
        ]
        if not mine:
            return None
        return replace(
            mine[0],
            term=max(one.term for one in mine),
            revision=max(one.revision for one in mine),
        )

    def note_restored(self, subject: str, why: str, term: int, revision: int, now_ns: int) -> None:
        """Skip past the seen term and revision: the database is an old copy."""
        journal = self._journal
        self.regressions_total += 1
        journal.term = max(journal.term, term) + 1
        journal.forget_up_to(revision, REVISION_GAP)
        journal.note(
            "Restored",
            subject,
            f"{why}: the database is an old copy; missing work is adopted from the nodes",
            now_ns,
        )

    def fence(self, node: str, revision: int) -> str:
        """Sealed fence of the decisions sent to this node."""
        journal = self._journal
        return self.seals.fence(Fence(journal.cluster_id, node, journal.term, revision))

    def seal_row(self, one: Assignment, body: Mapping[str, Any]) -> str:
        journal = self._journal
        return self.seals.row(Fence(journal.cluster_id, one.node, journal.term, one.revision), body)

    def adoptable(self, node: str, held: Held) -> Row | None:
        """The sealed row, if this controller sent it to this node and the database lost it."""
        row = self.seals.open_row(held.record)
        if row is None or row.fence.node != node:
            return None
        if row.fence.cluster_id == self._journal.cluster_id:
            return row if self._journal.has_forgotten(row.fence.revision) else None
        return row

    def _own_gpus(self, name: str, capacity: NodeCapacity, now_ns: int) -> NodeCapacity:
        before = self._owners.refused.get(name, frozenset())
        capacity = self._owners.take(name, capacity)
        for uuid in sorted(self._owners.refused.get(name, frozenset()) - before):
            self.duplicates_total += 1
            owner = self._owners.owner(uuid)
            what = f"reports GPU {uuid}, which node {owner} owns: no work is placed on it here"
            self._journal.note("DuplicateGpu", f"Node/{name}", what, now_ns)
        return capacity

    def session(self, name: str, epoch: int) -> Node:
        """The node of the current session. Raises StaleEpoch."""
        node = self.nodes.get(name)
        if node is None or not node.connected or node.record.epoch != epoch:
            self.stale_total += 1
            have = node.record.epoch if node is not None and node.connected else "none"
            raise StaleEpoch(f"node {name}: epoch {epoch} is not current ({have}): connect again")
        return node

    def report(
        self,
        name: str,
        epoch: int,
        sequence: int,
        capacity: NodeCapacity,
        now_ns: int,
        *,
        stopping: bool = False,
    ) -> tuple[Node, bool]:
        """Process a report, which renews the lease. Returns True if the node's capacity has changed
        or the node has become ready. Raises StaleEpoch."""
        node = self.session(name, epoch)
        if sequence <= node.sequence:  # A late or repeated report is outdated.
            return node, False
        self.version += 1
        was_ready = self.ready(node, now_ns)
        node.sequence = sequence
        node.stopping |= stopping
        node.lease_until_ns = now_ns + self.lease_ns
        capacity = self._own_gpus(name, capacity, now_ns)
        if node.capacity == capacity:
            return node, not was_ready
        node.capacity = capacity
        self._journal.touched.add(("Node", "", name))
        return node, True

    def ready(self, node: Node, now_ns: int) -> bool:
        return node.connected and not node.record.lost and now_ns < node.lease_until_ns

    def expire(self, now_ns: int) -> list[Node]:
        """Mark nodes without a report for the lease and its grace as lost, and return them."""
        lost = []
        for node in self.nodes.values():
            if node.record.lost or now_ns < node.lease_until_ns + self._lost_ns:
                continue
            if not node.connected and not self._by_node.get(node.name):
                continue  # It has no work, and is shown as away.
            node.record = replace(node.record, lost=True, epoch=node.record.epoch + 1)
            node.connected = False
            self._owners.release(node.name)
            self.note_leaving(node.name, {})
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
        """Delete a node. Raises ValueError while it has work."""
        if self._by_node.get(name):
            raise ValueError(blocked(len(self._by_node[name])))
        del self.nodes[name]
        self.note_leaving(name, {})
        self._owners.release(name)
        self.version += 1
        self._journal.drop_node(name)
