"""Handling of a failed node: each workload there gets other places for its pods on that node.

It is evicted if there are none, if it is on several failed nodes that are not to be replaced one by
one, or if GPU shares were reserved for it there. No clock and no I/O; the node watcher reports
failures.
"""

from __future__ import annotations

from dataclasses import replace

from queuecontroller.scheduler.model.objects import Workload, WorkloadKey
from queuecontroller.scheduler.model.reasons import EVICTED, FINISHED, NODE_FAILURES
from queuecontroller.state.book import Book


def node_failed(
    book: Book, host: str, failed: frozenset[str], now_ns: int, several: bool = False
) -> list[WorkloadKey]:
    """Handle the failure of `host`, one of the `failed` nodes. Returns the workloads that were
    there. `several`: the other failed nodes of a workload are replaced, too, each by a call."""
    topology = book.topology
    if topology is None:
        return []
    concerned = []
    known = topology.ground.hosts.get(host)
    on_gpus = book.nodes_room.pods.reserved.on(known.name if known is not None else host)
    for key in dict.fromkeys([*topology.ground.holders(host), *on_gpus]):
        record = book.workloads.records.get(key)
        if record is None or record.workload.admission is None:
            continue
        workload = record.workload
        if workload.is_true(EVICTED) or workload.is_true(FINISHED):
            continue
        concerned.append(key)
        others = sorted(_hosts(workload) & failed)
        if len(others) > 1 and not several:
            text = f"Workload was evicted due to failures of nodes: {', '.join(others[:10])}"
            book.workloads.evict(key, NODE_FAILURES, text, None, now_ns)
            continue
        admission = topology.replaced(workload, host)
        if admission is None:
            text = f"Workload was evicted as there was no replacement for a failed node: {host}"
            book.workloads.evict(key, NODE_FAILURES, text, None, now_ns)
        else:
            book.journal.note("NodeReplaced", f"Workload/{key}", f"{host} has failed", now_ns)
            book.workloads.change(key, replace(workload, admission=admission), now_ns)
    return concerned


def _hosts(workload: Workload) -> set[str]:
    assert workload.admission is not None
    return {
        values[-1]
        for one in workload.admission.pod_sets
        if one.topology is not None
        for values, _ in one.topology.domains
    }
