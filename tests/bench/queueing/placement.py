"""One placement decision on 1,000 nodes of 8 GPUs in 10 shares each, against a look at every GPU."""

from __future__ import annotations

import random
import time

from queuecontroller.scheduler.placement.capacity import GpuCapacity, NodeCapacity
from queuecontroller.scheduler.placement.choose import NoPlace, PodToPlace, place
from queuecontroller.scheduler.placement.request import GpuRequest, Policy
from queuecontroller.scheduler.placement.stock import Stock
from tests.bench.entries import Entry, entry

NODES, GPUS, SLOTS = 1000, 8, 10
GIB = 1 << 30


def cluster() -> Stock:
    made = Stock()
    for n in range(NODES):
        gpus = tuple(
            GpuCapacity(f"GPU-{n}-{i}", i, "NVIDIA H100 80GB HBM3", 80 * GIB, slots=SLOTS)
            for i in range(GPUS)
        )
        made.report(f"node-{n:04}", NodeCapacity(gpus, {"zone": f"z{n % 4}"}))
    return made


def request(rng: random.Random) -> GpuRequest:
    return GpuRequest(
        gpus=rng.choice([1, 1, 1, 1, 2, 4, 8]),
        memory_bytes=rng.choice([4, 8, 16, 40, 80]) * GIB,
        share_ppm=rng.choice([10, 20, 25, 50, 100]) * 10_000,
        node_policy=rng.choice(list(Policy)),
    )


def full_look(stock: Stock, wanted: GpuRequest) -> str | None:
    """The plain alternative: every GPU of every node, the best of all that fit."""
    best = None
    for room in stock.nodes.values():
        fitting = [
            r.memory_bytes
            for r in room.gpus.values()
            if r.slots > 0
            and r.memory_bytes >= wanted.memory_on(r.gpu)
            and r.share_ppm >= wanted.share_ppm
        ]
        if len(fitting) >= wanted.count and (best is None or sum(fitting) < best[0]):
            best = (sum(fitting), room.name)
    return best[1] if best else None


def run(decisions: int = 4000) -> list[Entry]:
    """Filled to the brim and kept there: arrivals and departures at random."""
    rng = random.Random(1)
    stock = cluster()
    held: list[int] = []
    taken_ms: list[float] = []
    plain_ms: list[float] = []
    placed = 0
    for number in range(decisions * 4):
        wanted = request(rng)
        begin = time.process_time()
        found = place(stock, [PodToPlace("pod", wanted)])
        spent = (time.process_time() - begin) * 1e3
        if number >= decisions * 3:
            taken_ms.append(spent)
            if number % 40 == 0:
                begin = time.process_time()
                full_look(stock, wanted)
                plain_ms.append((time.process_time() - begin) * 1e3)
        if isinstance(found, NoPlace):
            for _ in range(min(3, len(held))):
                stock.release(held.pop(rng.randrange(len(held))))
        else:
            placed += 1
            stock.hold(number, found[0].node, found[0].shares)
            held.append(number)
    taken_ms.sort()
    p99 = taken_ms[len(taken_ms) * 99 // 100]
    plain = sorted(plain_ms)[len(plain_ms) // 2]
    print(f"\nplacement: {placed} of {decisions * 4} placed, {len(held)} held at the end")
    return [
        entry(
            "placement_p99_ms",
            "ms",
            taken_ms,
            value=p99,
            baseline=plain,
            ratio=p99 / plain,
            target="<= 5",
        )
    ]
