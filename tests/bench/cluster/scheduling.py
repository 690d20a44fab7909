"""The extender: what one question costs over a thousand nodes, and what kube-scheduler loses by asking.

The first is bytes in, bytes out, in this process, in processor time: on a busy machine the clock tells of the others. The second is a real kube-scheduler on a real API server, with the nodes' objects and
sessions alone; the same pods without GPUs, by the same scheduler without an extender, beside it.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from queuecontroller.collector import Collector
from queuecontroller.extender import wire
from queuecontroller.extender.answers import Defaults, Extender
from queuecontroller.extender.ledger import PodLedger
from queuecontroller.extender.pods import PodPlace
from queuecontroller.placement.capacity import GpuCapacity, NodeCapacity
from queuecontroller.placement.stock import Share, Stock
from tests.bench.entries import Entry, entry, quantile
from tests.cluster.control_plane import ControlPlane
from tests.cluster.programs.build import Unbuildable
from tests.cluster.queueing import define
from tests.cluster.scheduling import (
    Accountant,
    Fleet,
    bound,
    clear,
    create_all,
    gpu_pod,
    replicas,
    scheduler,
)
from tests.kit.node import until

GIB = 1 << 30
NODES, GPUS, SHARES = 1000, 8, 10
ASKED = 2000
SIZES_MIB = (1000, 8000, 12_000, 20_000, 30_000, 40_000)
CORES = (0, 5, 10, 20, 30, 50)
FLEET = 100
PODS = 1000
TURNS = 3


def full_cluster(rng: random.Random) -> Extender:
    """Every GPU with five to ten shares of memory and time."""
    stock = Stock()
    for n in range(NODES):
        name = f"node-{n:04d}"
        gpus = tuple(
            GpuCapacity(
                f"GPU-{name}-{index}",
                index,
                "NVIDIA H100 80GB HBM3",
                80 * GIB,
                slots=SHARES,
                numa_node=index // 4,
            )
            for index in range(GPUS)
        )
        stock.report(name, NodeCapacity(gpus))
    ledger = PodLedger(stock)
    number = 0
    for name in list(stock.nodes):
        for index in range(GPUS):
            for _ in range(rng.randrange(SHARES // 2, SHARES + 1)):
                memory, time_ = rng.choice((2, 4, 6, 8)) * GIB, rng.choice((0, 50_000, 100_000))
                share = Share(f"GPU-{name}-{index}", memory, time_)
                ledger.assume(f"u{number}", PodPlace(name, {"main": (share,)}))
                number += 1
    return Extender(stock, ledger, Defaults())


def questions(asked_pods: int) -> tuple[list[float], list[float]]:
    """Milliseconds of each filter, and of each prioritize: each pod is filtered, the nodes that pass are ranked, and it is placed
    on one of the best."""
    rng = random.Random(7)
    one = full_cluster(rng)
    names = list(one.stock.nodes)
    filters, ranks = [], []
    collector = Collector()  # as in the service
    collector.start()
    for n in range(asked_pods):
        collector.step(time.monotonic())
        document = gpu_pod(
            f"p{n}",
            count=rng.choice((1, 1, 1, 1, 2, 4)),
            gpumem=rng.choice(SIZES_MIB),
            gpucores=rng.choice(CORES),
        )
        document["metadata"]["uid"] = f"p{n}"
        body = json.dumps({"Pod": document, "NodeNames": names}).encode()
        began = time.thread_time()
        asked = wire.read_question(body)
        answer = one.filter(asked.pod, asked.names)
        wire.write_filter(asked, answer)
        filters.append(1000 * (time.thread_time() - began))
        if not answer.names:
            continue
        began = time.thread_time()
        points = one.prioritize(asked.pod, answer.names)
        wire.write_points(points)
        ranks.append(1000 * (time.thread_time() - began))
        place = one.place(document, max(points, key=lambda point: point[1])[0])
        assert isinstance(place, PodPlace)
        one.ledger.assume(f"p{n}", place)
    collector.stop()
    assert len(ranks) > asked_pods / 2, "there was room for most"
    return filters, ranks


def rate(plane: ControlPlane, place: Path, port: int | None, pods: list[dict[str, Any]]) -> float:
    """Pods bound a second, from the scheduler's first binding to its last; all are there before it begins."""
    with Accountant(plane, 80 * GIB) as accountant:
        create_all(plane, pods)
        until("all are there", lambda: len(accountant.pods) == len(pods), 300)
        with scheduler(plane, place, port):
            until("it has begun", lambda: any_bound(accountant), 120)
            began, first = time.monotonic(), count(accountant)
            until("all are bound", lambda: count(accountant) == len(pods), 900)
            seconds = time.monotonic() - began
        assert accountant.wrong == [], accountant.wrong[:3]
    clear(plane)
    return (len(pods) - first) / seconds


def count(accountant: Accountant) -> int:
    return sum(bool(bound(one)) for one in list(accountant.pods.values()))


def any_bound(accountant: Accountant) -> bool:
    return count(accountant) > 0


def beside(pods: int) -> tuple[list[float], list[float]]:
    """With the extender, and without, in turns."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-bench-")))
        place = directory / "queue"
        place.mkdir()
        plane = stack.enter_context(ControlPlane(directory / "plane"))
        define(plane)
        (replica,) = stack.enter_context(replicas(plane, place))
        fleet = Fleet(plane, {place / "0.sock": replica}, gpus=GPUS)
        for n in range(FLEET):
            fleet.add(f"gpu-{n}")
        stack.enter_context(fleet)
        until("all report", lambda: fleet.sessions_total >= FLEET, 300)
        asking, bare = [], []
        for turn in range(TURNS):
            wanted = [gpu_pod(f"a{turn}-{n}", gpumem=8000, gpucores=10) for n in range(pods)]
            asking.append(rate(plane, place, replica.asked_port, wanted))
            plain = [gpu_pod(f"b{turn}-{n}", count=0) for n in range(pods)]
            bare.append(rate(plane, place, None, plain))
        return asking, bare


def run(quick: bool) -> list[Entry]:
    filters, ranks = questions(ASKED // 4 if quick else ASKED)
    entries = [
        entry(
            "extender_filter_p99_ms",
            "ms",
            filters,
            value=quantile(filters, 0.99),
            baseline=10.0,
            target="<= 10 ms",
        ),
        entry("extender_prioritize_p99_ms", "ms", ranks, value=quantile(ranks, 0.99)),
    ]
    try:
        asking, bare = beside(PODS // 4 if quick else PODS)
    except Unbuildable as error:
        print(f"extender: {error}", file=sys.stderr)
        return entries
    without = statistics.median(bare)
    made = entry(
        "extender_pods_per_s",
        "pods/s",
        asking,
        baseline=without,
        ratio=statistics.median(asking) / without,
        target="ratio >= 0.8",
    )
    return [*entries, made]
