"""Exchange of a pod's reserved place for another one, when the scheduler rejects the reserved
node for a reason of its own. No clock and no I/O; the caller has checked that the other node has
room."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from queuecontroller.gpushares.extender.pods import PodPlace
from queuecontroller.scheduler.model.objects import (
    PlacedPods,
    PodSetAssignment,
    TopologyAssignment,
    WorkloadKey,
)
from queuecontroller.scheduler.model.reasons import EVICTED, FINISHED
from queuecontroller.scheduler.placement.topology.ground import HOSTNAME
from queuecontroller.state.book import Book


def may_move(book: Book, key: WorkloadKey, pod_set: str, here: str, there: str) -> bool:
    """True if a pod may move between two nodes: within its topology domain if one was chosen."""
    given = _given(book, key, pod_set)
    if given is None or here == there:
        return False
    if given.topology is None:
        return True
    return _same_domain(book, given.topology, here, there)


def exchange(
    book: Book, key: WorkloadKey, pod_set: str, uid: str, place: PodPlace, now_ns: int
) -> bool:
    """Replace the pod's place; False if the workload's admission has changed meanwhile."""
    reserved = book.nodes_room.pods.reserved
    before = reserved.offered(uid)
    given = _given(book, key, pod_set)
    if before is None or given is None:
        return False
    counts = Counter({one.place: one.count for one in given.places})
    if not counts[_text(before)]:
        return False
    counts[_text(before)] -= 1
    counts[_text(place)] += 1
    places = tuple(PlacedPods(text, count) for text, count in counts.items() if count)
    record = book.workloads.records[key]
    admission = record.workload.admission
    assert admission is not None
    sets = tuple(replace(one, places=places) if one is given else one for one in admission.pod_sets)
    # Before the change, which reads the reservation.
    reserved.move(uid, replace(place, workload=key))
    text = f"{before.node} was not taken by the scheduler: {place.node}"
    book.journal.note("PlaceExchanged", f"Workload/{key}", text, now_ns)
    workload = replace(record.workload, admission=replace(admission, pod_sets=sets))
    book.workloads.change(key, workload, now_ns)
    return True


def _given(book: Book, key: WorkloadKey, pod_set: str) -> PodSetAssignment | None:
    record = book.workloads.records.get(key)
    if record is None or record.workload.admission is None:
        return None
    if record.workload.is_true(EVICTED) or record.workload.is_true(FINISHED):
        return None
    every = record.workload.admission.pod_sets
    return next((one for one in every if one.name == pod_set), None)


def _same_domain(book: Book, topology: TopologyAssignment, here: str, there: str) -> bool:
    if book.topology is None or topology.levels[-1] == HOSTNAME:
        return False
    nodes = book.topology.ground.nodes
    if here not in nodes or there not in nodes:
        return False
    mine, other = nodes[here].labels, nodes[there].labels
    return all(mine.get(level) == other.get(level) for level in topology.levels)


def _text(place: PodPlace) -> str:
    """The place as the Workload's admission has it."""
    return replace(place, workload="").text()
