"""The extender: what one question costs over a thousand nodes, and what kube-scheduler loses by asking.

The first is bytes in, bytes out, in this process, in processor time: on a busy machine the clock tells of the others. The second
is a real kube-scheduler on a real API server, with the nodes' objects and sessions alone: the same pods by the same scheduler on
the same nodes, once with the extender over the loopback of its pod, once over TLS, once without, in turns. Without it the sums that
nodes advertise decide, which is what a scheduler does that knows nothing of cards. Third, pods that ask for no GPU by the scheduler that
has the extender.

API server, etcd, scheduler, controller and the sessions of all nodes share this machine's processors. Two ratios of pods a second, since
they say different things: of a kube-scheduler with its own limit on writes, which is how one runs, and of one without any
(`unlimited`), which tells what two questions for each pod cost a scheduler that asks them one after the other. Processor time of all
sides for a pod depends on the pace: at 400 a second API server and etcd do several writes at each waking, at 100 one. So that of the
extender stands beside that of the same scheduler without it, held to the pace that the extender had (`paced`).

All of it changes with what else runs on this machine: a ratio is of two runs that follow each other, and the median and the extremes of all turns
are told.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from queuecontroller.gpushares.extender import wire
from queuecontroller.gpushares.extender.answers import Defaults, Extender
from queuecontroller.gpushares.extender.ledger import PodLedger
from queuecontroller.gpushares.extender.pods import PodPlace
from queuecontroller.scheduler.placement.capacity import GpuCapacity, NodeCapacity
from queuecontroller.scheduler.placement.stock import Share, Stock
from queuecontroller.server.collector import Collector
from tests.bench.cluster.sides import cpu_s
from tests.bench.entries import Entry, entry, quantile
from tests.cluster.control_plane import ControlPlane
from tests.cluster.programs.build import Unbuildable
from tests.cluster.queueing import Replica, define
from tests.cluster.scheduling import (
    FAST,
    Accountant,
    Fleet,
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
PODS = 500
TURNS = 5
SETTLE_S = 1.0
"""After the last binding: who was behind catches up, and that counts."""
SIDES = ("apiserver", "etcd", "scheduler", "controller")


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


@dataclass(frozen=True)
class Rate:
    pods_per_s: float
    cpu_ms: Mapping[str, float]
    """CPU time in ms for one pod, by side."""

    @property
    def all_ms(self) -> float:
        return sum(self.cpu_ms.values())


@dataclass(frozen=True)
class Kind:
    """One kind of run: its pods, whether the scheduler calls our extender, and how fast it may
    write."""

    name: str
    asked: Mapping[str, Any]
    asks: bool = True
    near: bool = False
    """Over the loopback, without TLS."""
    pace: int | None = FAST
    """Writes a second that the scheduler may; None: its own limit."""
    paced: bool = False
    """Followed by a run without extender, held to the same pace."""


def rate(plane: ControlPlane, queue: Replica, kind: Kind, name: str, count: int) -> Rate:
    """Rate of bindings, from the scheduler's first to its last; all pods exist before it begins."""
    assert queue.process is not None
    pods = [gpu_pod(f"{name}-{n}", **kind.asked) for n in range(count)]
    port = (queue.near_port if kind.near else queue.asked_port) if kind.asks else None
    with Accountant(plane, 80 * GIB) as accountant:
        create_all(plane, pods)
        until("all are there", lambda: len(accountant.pods) == len(pods), 300)
        place, pace = queue.log.parent, kind.pace
        with scheduler(plane, place, port, writes_a_second=pace, near=kind.near) as process:
            pids = (plane.pid("kube-apiserver"), plane.pid("etcd"), process.pid, queue.process.pid)

            def begun() -> bool:
                assert process.poll() is None, (place / "scheduler.log").read_text()[-2000:]
                return accountant.bound_total > 0

            until("it has begun", begun, 120)
            began, first, before = time.monotonic(), accountant.bound_total, [*map(cpu_s, pids)]
            until("all are bound", lambda: accountant.bound_total == len(pods), 900)
            seconds = time.monotonic() - began
            time.sleep(SETTLE_S)
            used = [after - one for after, one in zip(map(cpu_s, pids), before, strict=True)]
        assert accountant.wrong == [], accountant.wrong[:3]
    clear(plane)
    bound = len(pods) - first
    by_side = {side: 1000 * one / bound for side, one in zip(SIDES, used, strict=True)}
    said = ", ".join(f"{side} {ms:.1f}" for side, ms in by_side.items())
    print(f"extender: {name}: {bound / seconds:.0f} pods/s, ms each: {said}")
    return Rate(bound / seconds, by_side)


def beside(pods: int) -> dict[str, list[Rate]]:
    """Rates with the extender and without, in turns, the one or the other first; then again with a
    controller that names the best node alone."""
    shares: dict[str, Any] = {"gpumem": 8000, "gpucores": 10}
    plain: dict[str, Any] = {"count": 0}
    kinds = {
        "all": [
            Kind("limited", shares, pace=None),
            Kind("limited-bare", shares, asks=False, pace=None),
            Kind("bare", shares, asks=False),
            Kind("near", shares, near=True, paced=True),
            Kind("tls", shares),
            Kind("plain-bare", plain, asks=False),
            Kind("plain", plain),
        ],
        "best": [Kind("best", shares, near=True), Kind("best-bare", shares, asks=False)],
    }
    found: dict[str, list[Rate]] = {}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-bench-")))
        plane = stack.enter_context(ControlPlane(directory / "plane"))
        define(plane)
        for answers, every in kinds.items():
            with reporting(plane, directory / answers, answers) as replica:
                for turn in range(TURNS):
                    for kind in every if turn % 2 == 0 else reversed(every):
                        one = rate(plane, replica, kind, f"{kind.name}-{turn}", pods)
                        found.setdefault(kind.name, []).append(one)
                        if kind.paced:
                            slow = Kind("paced", shares, False, pace=max(1, round(one.pods_per_s)))
                            again = rate(plane, replica, slow, f"paced-{turn}", pods)
                            found.setdefault("paced", []).append(again)
    return found


@contextmanager
def reporting(plane: ControlPlane, place: Path, answers: str) -> Iterator[Replica]:
    """A controller to which every node of the fleet reports."""
    place.mkdir()
    with replicas(plane, place, 1, f"extender.answers={answers}") as (replica,):
        fleet = Fleet(plane, {place / "0.sock": replica}, gpus=GPUS)
        for n in range(FLEET):
            fleet.add(f"gpu-{answers}-{n}", sums=True)
        with fleet:
            until("all report", lambda: fleet.sessions_total >= FLEET, 300)
            yield replica
        for n in range(FLEET):
            plane.api.delete(f"/api/v1/nodes/gpu-{answers}-{n}")


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
        found = beside(PODS // 4 if quick else PODS)
    except Unbuildable as error:
        print(f"extender: {error}", file=sys.stderr)
        return entries
    for name, asks, bare, target in (
        ("extender", "limited", "limited-bare", "ratio >= 0.8"),
        ("extender_unlimited", "near", "bare", "ratio >= 0.8"),
        ("extender_unlimited_tls", "tls", "bare", ""),
        ("extender_unlimited_best", "best", "best-bare", ""),
        ("extender_plain", "plain", "plain-bare", ""),
    ):
        entries += compared(name, found[asks], found[bare], target)
    for name in ("near", "tls"):
        every = {one: [each.cpu_ms[one] for each in found[name]] for one in SIDES}
        paced = {one: [each.cpu_ms[one] for each in found["paced"]] for one in SIDES}
        every["all"] = [each.all_ms for each in found[name]]
        paced["all"] = [each.all_ms for each in found["paced"]]
        for side, used in every.items():
            without = statistics.median(paced[side])
            ratio = without / (statistics.median(used) or 1)
            figure = f"extender_paced_{name}_ms_{side}"
            entries.append(entry(figure, "ms", used, baseline=without, ratio=ratio))
    return entries


def compared(
    name: str, ours: Sequence[Rate], without: Sequence[Rate], target: str
) -> Iterator[Entry]:
    """Turn by turn."""
    rates = [one.pods_per_s for one in ours]
    bare = statistics.median(one.pods_per_s for one in without)
    pairs = list(zip(ours, without, strict=True))
    ratios = [one.pods_per_s / other.pods_per_s for one, other in pairs]
    ratio = statistics.median(ratios)
    yield entry(f"{name}_pods_per_s", "pods/s", rates, baseline=bare, ratio=ratio, target=target)
    yield entry(f"{name}_ratio_least", "", ratios, value=min(ratios))
    yield entry(f"{name}_ratio_most", "", ratios, value=max(ratios))
    cpu = [one.all_ms for one in ours]
    bare = statistics.median(one.all_ms for one in without)
    ratio = statistics.median(other.all_ms / one.all_ms for one, other in pairs)
    yield entry(f"{name}_cpu_ms_per_pod", "ms", cpu, baseline=bare, ratio=ratio)
