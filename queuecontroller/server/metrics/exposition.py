"""The text of /metrics, rendered from the state in memory: a scrape changes nothing and makes no
request.

Kueue's metrics are in `kueue`. Where there may be thousands of nodes, queues or devices, a bounded
number of them have their own series.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Final

from queuecontroller.server.metrics import catalogue as m
from queuecontroller.server.metrics.kueue import ALONE, MAX_QUEUES, Around, kueue_samples
from queuecontroller.server.metrics.samples import Samples
from queuecontroller.state.figures import DEFECTS
from queuecontroller.state.nodes.nodes_room import without_pods
from queuecontroller.state.shell import Shell
from sluicecommon.hami import metrics as hami

if TYPE_CHECKING:  # It imports the clients of an API server, which only a cluster needs.
    from queuecontroller.cluster.podwebhooks.share_pods import SharePods

MAX_NODES: Final = 1000
"""Nodes with their own series, the ready ones first; the sums by state count all nodes."""
MAX_DEVICES: Final = 8000
"""Devices of other vendors with their own series."""


class _Scrape:
    """Collects the samples of one scrape."""

    def __init__(
        self,
        shell: Shell,
        version: str,
        sharing: SharePods | None = None,
        around: Around = ALONE,
    ) -> None:
        self._shell = shell
        self._version = version
        self._sharing = sharing
        self._around = around

    def text(self) -> bytes:
        samples = Samples()
        kueue_samples(samples, self._shell, self._version, self._around)
        self._add_service(samples)
        self._add_sharing(samples)
        return samples.text()

    def _add_service(self, samples: Samples) -> None:
        shell = self._shell
        book, now_ns = shell.book, shell.now_ns()
        samples.add(m.UP, (), int(not shell.why_not_ready))
        samples.add(m.TERM, (), book.journal.term)
        samples.add(m.REVISION, (), book.journal.revision)
        samples.histogram(m.COMMITS, (), shell.writer.commit_s)
        states: Counter[str] = Counter({"ready": 0, "away": 0, "lost": 0})
        nodes = list(book.nodes.nodes.values())
        for node in nodes:
            ready = book.nodes.ready(node, now_ns)
            states["ready" if ready else "lost" if node.record.lost else "away"] += 1
        if len(nodes) > MAX_NODES:
            nodes.sort(key=lambda one: not book.nodes.ready(one, now_ns))
        for node in nodes[:MAX_NODES]:
            gpus = without_pods(node.capacity).gpus
            held = book.nodes_room.given_on(node.name)
            given = sum(share.memory_bytes for shares in held for share in shares)
            outside = sum(gpu.outside_memory_bytes for gpu in gpus)
            samples.add(
                m.GPU_MEMORY, (node.name, "capacity"), sum(gpu.memory_bytes for gpu in gpus)
            )
            samples.add(m.GPU_MEMORY, (node.name, "given"), given)
            samples.add(m.GPU_MEMORY, (node.name, "outside"), outside)
        for state, count in states.items():
            samples.add(m.NODES, (state,), count)
        pods = Counter({"decided": 0, "running": 0, "paused": 0})
        pods.update(str(one.state) for one in book.nodes.assignments.values())
        for node in nodes:
            pods.update(one.state for one in book.nodes_room.pods.holders(node.name))
        for state, count in pods.items():
            samples.add(m.PODS, (state,), count)
        samples.add(m.UNPLACED, (), book.workloads.unplaced)
        measured = book.room.fragmentation() if book.room is not None else {}
        for request, found in measured.items():
            mig = request.startswith("mig-")
            samples.add(m.FRAGMENTATION, (request, "memory"), found.ppm / 1e6)
            if not mig:  # A MIG instance shares its time with no other.
                samples.add(m.FRAGMENTATION, (request, "time"), found.time_ppm / 1e6)
            samples.add(m.GPU_FITS, (request,), found.fits)
        samples.add(m.STEPS, (), shell.writer.steps)
        turns = book.workloads.figures.preemption_turns
        for queue, count in islice(turns.items(), MAX_QUEUES):
            samples.add(m.PREEMPTION_TURNS, (queue,), count)
        samples.add(m.REGRESSIONS, (), book.nodes.regressions_total)
        samples.add(m.STALE, (), book.nodes.stale_total)
        samples.add(m.UNPROVEN, (), book.nodes.unproven_total)
        samples.add(m.DUPLICATES, (), book.nodes.duplicates_total)
        for labels, count in DEFECTS.items():
            samples.add(m.DEFECTS, labels, count)
        connections = dict(shell.connection_counts())
        samples.add(m.CONNECTIONS, (), connections.pop("open", 0))
        for what, count in connections.items():
            samples.add(m.TURNED_AWAY, (what,), count)
        for loop, at_ns in shell.last_ok_ns.items():
            samples.add(m.LOOP_LAST_OK, (loop,), at_ns / 1e9)

    def _add_sharing(self, samples: Samples) -> None:
        samples.add(hami.BUILD_INFO, (self._version,), 1)
        if self._sharing is None:
            return
        samples.add(m.DISPLACED, (), self._sharing.displaced_total)
        quotas = self._sharing.quotas
        limits = quotas.limits()
        for key, amount in islice(quotas.used().items(), MAX_QUEUES):
            samples.add(hami.QUOTA_USED, (*key, str(limits.get(key, ""))), amount)
        for key, amount in islice(limits.items(), MAX_QUEUES):
            samples.add(hami.QUOTA_LIMIT, key, amount)
        for node, _, card in islice(self._sharing.foreign.figures(), MAX_DEVICES):
            device = card.device
            labels = (node, device.id, str(device.index), device.type)
            samples.add(hami.DEVICE_MEMORY, labels, device.memory_mib << 20)
            samples.add(hami.DEVICE_MEMORY_GIVEN, labels, card.memory_mib << 20)
            samples.add(hami.DEVICE_CORES, labels, device.cores)
            samples.add(hami.DEVICE_CORES_GIVEN, labels, card.cores)
            samples.add(hami.DEVICE_SHARED, labels, len(card.holders))
            wider = (*labels, str(device.cores), str(device.memory_mib))
            samples.add(hami.DEVICE_OVERVIEW, wider, card.memory_mib << 20)
            if device.memory_mib:
                ratio = card.memory_mib / device.memory_mib
                samples.add(hami.DEVICE_MEMORY_RATIO, labels[:3], ratio)


def render(
    shell: Shell, version: str, sharing: SharePods | None = None, around: Around = ALONE
) -> bytes:
    """The whole text; `sharing` adds the GPU shares of pods, in a cluster."""
    return _Scrape(shell, version, sharing, around).text()
