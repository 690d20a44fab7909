"""Growth from 100 to 5,000 nodes of 8 GPUs with 10 shares each: CPU time of a decision of the controller, of an answer of the extender
and of a change on the page, and memory.

Nine of ten shares of every GPU are held by pods that the nodes report; the tenth is there for what is decided. While the controller decides,
every node reports every 5 s, at 200 decisions a second. Each figure is of a process of its own (`python -m tests.bench.queueing.growth PART
NODES` prints it), in processor time: the clock would tell of the others. There is no API server, no network and no disk.

A growth of 1 is linear in the number of nodes: fifty times the nodes, fifty times the time.

The part `history` is the extender's on 1,000 nodes while the API server still has that many pods that have ended, which its watch reports.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count, cycle
from math import log
from os import getpid
from typing import Any, Final, TypeVar

from queuecontroller.cluster.podplacement.gpu_pods import GpuPods, seen
from queuecontroller.cluster.session import NullStore
from queuecontroller.gpushares.extender import wire
from queuecontroller.gpushares.extender.answers import Defaults, Extender
from queuecontroller.gpushares.extender.ledger import PodLedger
from queuecontroller.gpushares.extender.pods import PodPlace
from queuecontroller.scheduler.placement.capacity import (
    GpuCapacity,
    NodeCapacity,
    PodGpus,
    PodShare,
)
from queuecontroller.scheduler.placement.stock import Share
from queuecontroller.server.collector import Collector
from queuecontroller.server.page.picture import SECOND_S, Picture
from queuecontroller.state.book import Book, BookSettings
from queuecontroller.state.node_service import WorkReport
from queuecontroller.state.nodes.sessions import Hello
from queuecontroller.state.objects.submission import Submission
from queuecontroller.state.records import GpuAsk, PodState
from queuecontroller.state.shell import Shell
from sluicecommon.kubernetes.decoding import Item
from sluicecommon.kubernetes.reflector import Changed
from sluicecommon.page.board import Sight
from sluicecommon.pod_annotations import PLACEMENT
from tests.bench.cluster.sides import memory_mib
from tests.bench.entries import Entry, entry
from tests.kit.places import REPO
from tests.kit.queue import queues
from tests.queue.gpushares.extender.rooms import pod
from tests.queue.state.world import documents

T = TypeVar("T")
NODES: Final = (100, 1000, 5000)
GPUS, SHARES = 8, 10
GIB: Final = 1 << 30
SECOND_NS: Final = 1_000_000_000
DECISIONS: Final = 400
A_SECOND: Final = 200
REPORTS_EVERY_S: Final = 5
KINDS: Final = ("ClusterQueue", "Gpu", "Node", "Overview", "ResourceFlavor")
ROUNDS: Final = 20
"""Seconds for which the page is watched."""
PARTS: Final = ("controller", "extender", "page")
HISTORY: Final = "history"
ENDED: Final = (0, 10_000, 100_000)
"""Pods that have ended, and are not deleted yet."""
NODES_OF_HISTORY: Final = 1000


def capacity(number: int) -> NodeCapacity:
    """One free share on each GPU."""
    pods = tuple(
        PodGpus(
            f"u-{number}-{gpu}-{share}",
            "team-a",
            f"p-{number}-{gpu}-{share}",
            (PodShare(f"GPU-{number}-{gpu}", 8 * GIB, 100_000),),
        )
        for gpu in range(GPUS)
        for share in range(SHARES - 1)
    )
    used = SHARES - 1
    gpus = tuple(
        GpuCapacity(
            f"GPU-{number}-{gpu}",
            gpu,
            "NVIDIA H100 80GB HBM3",
            80 * GIB,
            slots=SHARES,
            outside_memory_bytes=used * 8 * GIB,
            outside_share_ppm=used * 100_000,
            outside_slots=used,
        )
        for gpu in range(GPUS)
    )
    return NodeCapacity(gpus, pods=pods)


class Clock:
    def __init__(self) -> None:
        self.at_ns = 1_000 * SECOND_NS

    def now_ns(self) -> int:
        return self.at_ns


class Fleet:
    """A controller's book, and nodes that report to it and obey."""

    def __init__(self, nodes: int) -> None:
        quota = {queues.GPU: 1_000_000, queues.GPU_MEMORY: 1_000_000_000, queues.GPU_CORES: 10**8}
        self.clock = Clock()
        numbers = count()
        book = Book(BookSettings(), True, lambda: f"uid-{next(numbers)}")
        self.shell = Shell(book, NullStore(0, "growth"), self.clock)
        self.shell.start()
        self.book = self.shell.book
        text = "\n" + queues.manifests(
            queues.flavor("gpus"),
            queues.namespace("team-a"),
            queues.cluster_queue("a", "gpus", quota),
            queues.local_queue("q", "team-a", "a"),
        )
        self.book.apply(documents(text), False, self.clock.at_ns)
        self.names = [f"node-{number:04d}" for number in range(nodes)]
        self.capacities = {name: capacity(number) for number, name in enumerate(self.names)}
        self._sequence = count(1)
        self._turn = cycle(self.names)
        self._due = 0.0
        self._number = count()
        self.collector = Collector()
        for name in self.names:
            self.book.desk.connect(Hello(name, capacity=self.capacities[name]), self.clock.at_ns)
        self.take()

    def take(self) -> None:
        """As the writer does after a step, and the service between two."""
        self.book.take("step")
        self.book.journal.take_news()
        self.collector.step()

    def report(self) -> None:
        name = next(self._turn)
        epoch = self.book.nodes.nodes[name].record.epoch
        self.book.desk.report(
            name, epoch, next(self._sequence), self.capacities[name], self.clock.at_ns
        )
        self.take()

    def wait(self, seconds: float) -> None:
        self.clock.at_ns += int(seconds * SECOND_NS)
        self._due += seconds * len(self.names) / REPORTS_EVERY_S
        while self._due >= 1:
            self._due -= 1
            self.report()

    def decide(self) -> None:
        """One workload from its submission to its end, and the reports that come meanwhile."""
        book, clock = self.book, self.clock
        self.wait(1 / A_SECOND)
        ask = GpuAsk(1, memory_bytes=8 * GIB, share_ppm=100_000)
        asked = Submission("team-a", "q", ask, name=f"w{next(self._number)}")
        record = book.submit(asked, clock.at_ns)
        book.workloads.cycle(clock.at_ns)
        self.take()
        [one] = book.nodes.of_workload(record.key).values()
        epoch = book.nodes.nodes[one.node].record.epoch
        about = WorkReport(one.node, epoch, one.workload, one.pod, one.uid, one.attempt)
        book.desk.confirm(about, PodState.RUNNING, (), clock.at_ns)
        self.take()
        book.desk.release(about, True, clock.at_ns)
        self.take()
        book.delete(("Workload", "team-a", record.workload.name), "", clock.at_ns)
        self.take()

    def tick(self) -> None:
        self.book.tick(self.clock.at_ns)
        self.take()


def timed(call: Callable[[], T]) -> tuple[T, float]:
    """Return what the call returns, and the milliseconds it took."""
    begin = time.process_time_ns()
    found = call()
    return found, (time.process_time_ns() - begin) / 1e6


def spent_ms(call: Callable[[], object]) -> float:
    return timed(call)[1]


def controller(nodes: int) -> list[float]:
    """Milliseconds of each decision, with its part of the reports and ticks."""
    fleet = Fleet(nodes)
    fleet.decide()
    fleet.collector.start()
    tick_ms = min(spent_ms(fleet.tick) for _ in range(5))
    return [spent_ms(fleet.decide) + tick_ms / A_SECOND for _ in range(DECISIONS)]


def take_history(pods: GpuPods, ledger: PodLedger, names: list[str], ended: int) -> None:
    """Report that many ended pods, each placed on a GPU, as the watch does."""

    def taken(uid: str, document: Mapping[str, Any] | None) -> None:
        assert document is not None
        ledger.take(document)

    pods.on_change = taken
    for number in range(ended):
        node = number % len(names)
        document = pod(f"h{number}", gpumem=2000)
        place = PodPlace(names[node], {"main": (Share(f"GPU-{node}-0", 2 * GIB, 0),)})
        document["metadata"]["annotations"][PLACEMENT] = place.text()
        document["metadata"]["resourceVersion"] = str(number + 1)
        document["spec"]["nodeName"] = names[node]
        document["status"]["phase"] = "Succeeded"
        pods.changed(Changed(Item(f"t/h{number}", str(number + 1), seen(document))))
    assert len(pods) == ended


def history(ended: int) -> list[float]:
    """As `extender`, beside ended pods."""
    return extender(NODES_OF_HISTORY, ended)


def extender(nodes: int, ended: int = 0) -> list[float]:
    """Milliseconds of each pod: filter over all nodes, prioritize over those that pass, and its
    place. The scheduler's own part, its requests and its choice, is not counted."""
    fleet = Fleet(nodes)
    room = fleet.book.nodes_room
    pods = GpuPods()
    take_history(pods, room.pods, fleet.names, ended)
    room.follow(fleet.clock.at_ns)
    one = Extender(room.stock, room.pods, Defaults())
    chance = random.Random(7)

    def answer(body: bytes) -> list[tuple[str, int]]:
        question = wire.read_question(body)
        passed = one.filter(question.pod, question.names)
        wire.write_filter(question, passed)
        points = one.prioritize(question.pod, passed.names)
        wire.write_points(points)
        return points

    def bind(document: dict[str, Any], node: str) -> None:
        place = one.place(document, node)
        assert isinstance(place, PodPlace), place
        one.ledger.assume(document["metadata"]["uid"], place)
        fleet.collector.step()

    def schedule(number: int) -> float:
        document = pod(f"p{number}", gpumem=chance.choice((2000, 4000, 8000)))
        body = json.dumps({"Pod": document, "NodeNames": fleet.names}).encode()
        points, answer_ms = timed(partial(answer, body))
        best = max(points, key=lambda point: point[1])[0]
        return answer_ms + spent_ms(partial(bind, document, best))

    schedule(0)
    fleet.collector.start()
    return [schedule(number) for number in range(1, DECISIONS // 4)]


def page(nodes: int) -> list[float]:
    """Milliseconds of each second in which one viewer watches it, while ten workloads come and go
    and the nodes report."""
    fleet = Fleet(nodes)
    fleet.decide()
    picture = Picture(fleet.shell, "growth", dict)
    everything = Sight(frozenset(KINDS), None)
    known: int | None = None

    def second() -> None:
        nonlocal known
        while picture.round(fleet.clock.at_ns / SECOND_NS):
            pass
        known, frames = picture.frames(known, everything)
        assert sum(map(len, frames))
        fleet.collector.step()

    second()
    fleet.collector.start()
    found = []
    for _ in range(ROUNDS):
        for _ in range(10):
            fleet.decide()
        fleet.wait(SECOND_S)
        found.append(spent_ms(second))
    return found


def one(part: str, nodes: int) -> dict[str, float]:
    began = time.process_time()
    parts = {"controller": controller, "extender": extender, "page": page, HISTORY: history}
    spent = parts[part](nodes)
    return {
        "ms": statistics.median(spent),
        "worst_ms": max(spent),
        "mib": memory_mib(getpid(), "VmHWM"),
        "whole_s": time.process_time() - began,
    }


def measured(part: str, nodes: int) -> dict[str, float]:
    words = [sys.executable, "-m", "tests.bench.queueing.growth", part, str(nodes)]
    out = subprocess.run(words, cwd=REPO, check=True, capture_output=True, text=True, timeout=1200)
    found: dict[str, float] = json.loads(out.stdout)
    return found


def run(quick: bool) -> list[Entry]:
    entries = []
    sizes = NODES[:2] if quick else NODES
    for part in PARTS:
        found = {nodes: measured(part, nodes) for nodes in sizes}
        first, last = found[sizes[0]], found[sizes[-1]]
        for nodes, figures in found.items():
            shown = ", ".join(f"{name} {value:.2f}" for name, value in figures.items())
            print(f"growth, {part}, {nodes} nodes: {shown}")
            entries += [
                entry(f"growth_{part}_{nodes}_ms", "ms", [figures["ms"]]),
                entry(f"growth_{part}_{nodes}_mib", "MiB", [figures["mib"]]),
            ]
        exponent = log(last["ms"] / first["ms"]) / log(sizes[-1] / sizes[0])
        entries.append(
            entry(f"growth_{part}_exponent", "", [exponent], baseline=1.0, target="<= 1")
        )
    for ended in ENDED[:2] if quick else ENDED:
        figures = measured(HISTORY, ended)
        shown = ", ".join(f"{name} {value:.2f}" for name, value in figures.items())
        print(f"growth, {NODES_OF_HISTORY} nodes, {ended} ended pods: {shown}")
        entries += [
            entry(f"growth_ended_{ended}_ms", "ms", [figures["ms"]]),
            entry(f"growth_ended_{ended}_mib", "MiB", [figures["mib"]]),
        ]
    return entries


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=(*PARTS, HISTORY))
    parser.add_argument("nodes", type=int, help=f"{HISTORY}: pods that have ended")
    options = parser.parse_args()
    print(json.dumps(one(options.part, options.nodes)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
