"""Gains by consolidation: three mixes of requests over a day of virtual time, with moves and without, and how many of
the requests that fit nowhere it finds room for, beside an exact solver that may repack everything.

The mixes are made from the seeds below. Time is virtual: the figures are the same on every machine.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterator
from typing import NamedTuple

from queuecontroller.cli.simulate.run import Player
from queuecontroller.cli.simulate.trace import NS_PER_S, Arrival
from queuecontroller.kueueapi.manifests.documents import load
from queuecontroller.scheduler.placement.capacity import GpuCapacity, NodeCapacity
from queuecontroller.scheduler.placement.choose import NoPlace, PodToPlace, place
from queuecontroller.scheduler.placement.consolidation import Movable, consolidate
from queuecontroller.scheduler.placement.request import GpuRequest
from queuecontroller.scheduler.placement.stock import Share, Stock
from tests.bench.entries import Entry, entry
from tests.kit.queue import queues

GIB = 1 << 30
DAY_S = 86_400
NODES, GPUS, MEMORY_GIB = 4, 4, 80
COOLDOWN_S = 3600


class Mix(NamedTuple):
    name: str
    seed: int
    small_gib: tuple[int, int]
    small_percent: tuple[int, int]
    small_runs_s: tuple[int, int]
    small_every_s: float
    """Mean time between two requests for a share."""
    whole_every_s: float
    """Mean time between two requests for whole GPUs."""
    whole_runs_s: tuple[int, int]


MIXES = (
    Mix("inference", 11, (10, 30), (20, 30), (3600, 8 * 3600), 420, 3600, (1800, 7200)),
    Mix("notebook", 12, (5, 20), (10, 20), (1800, 4 * 3600), 95, 3600, (1800, 7200)),
    Mix("mixed", 13, (5, 40), (10, 50), (600, 4 * 3600), 260, 3000, (600, 3 * 3600)),
)


def arrivals(mix: Mix) -> list[Arrival]:
    chance = random.Random(mix.seed)
    found = []
    for queue, every_s in (("small", mix.small_every_s), ("whole", mix.whole_every_s)):
        at_s, number = 0.0, 0
        while (at_s := at_s + chance.expovariate(1 / every_s)) < DAY_S:
            number += 1
            if queue == "small":
                requests = {
                    "nvidia.com/gpu": 1,
                    "nvidia.com/gpumem": chance.randint(*mix.small_gib) * 1024,
                    "nvidia.com/gpucores": chance.randint(*mix.small_percent),
                }
                runs_s = chance.randint(*mix.small_runs_s)
            else:
                requests = {"nvidia.com/gpu": 1}
                runs_s = chance.randint(*mix.whole_runs_s)
            # Forty users: at most one workload of each is moved at a time.
            namespace = f"team-{chance.randrange(40)}"
            found.append(
                Arrival(
                    int(at_s * NS_PER_S),
                    namespace,
                    queue,
                    f"{queue}-{number}",
                    requests,
                    runs_ns=runs_s * NS_PER_S,
                )
            )
    return sorted(found, key=lambda one: one.at_ns)


def manifests() -> str:
    quota = {queues.GPU: 10_000, "nvidia.com/gpumem": 100_000_000, "nvidia.com/gpucores": 1_000_000}
    return queues.manifests(
        queues.flavor("gpus"),
        *(queues.cluster_queue(name, "gpus", quota, "") for name in ("small", "whole")),
        *(
            queues.local_queue(name, f"team-{team}", name)
            for name in ("small", "whole")
            for team in range(40)
        ),
    )


def play(mix: Mix, cooldown_s: int | None) -> Player:
    documents = load({"mix.yaml": manifests()})
    assert not documents.problems, documents.problems
    for node in range(NODES):
        cards = tuple(
            GpuCapacity(f"GPU-{node}-{i}", i, "H100", MEMORY_GIB * GIB) for i in range(GPUS)
        )
        documents.nodes[f"n{node}"] = NodeCapacity(cards)
    player = Player(documents, arrivals(mix), cooldown_s=cooldown_s)
    player.run()
    return player


def stock_by_chance(chance: random.Random) -> tuple[Stock, dict[Hashable, Movable]]:
    """Four GPUs of one node with shares on them that were placed without a plan."""
    stock = Stock()
    cards = tuple(GpuCapacity(f"GPU-{i}", i, "H100", MEMORY_GIB * GIB) for i in range(GPUS))
    stock.report("n0", NodeCapacity(cards))
    movables: dict[Hashable, Movable] = {}
    for number in range(chance.randint(3, 7)):
        gib, percent = chance.choice((10, 20, 30, 40)), chance.choice((10, 20, 30))
        request = GpuRequest(1, gib * GIB, share_ppm=percent * 10_000)
        fits = [
            uuid
            for uuid, room in stock.nodes["n0"].gpus.items()
            if room.memory_bytes >= gib * GIB and room.share_ppm >= percent * 10_000
        ]
        if fits:
            owner = f"w{number}"
            stock.hold(owner, "n0", [Share(chance.choice(fits), gib * GIB, percent * 10_000)])
            movables[owner] = Movable(owner, PodToPlace("", request), 1024 + gib * 1024)
    return stock, movables


def repacked(sizes: list[tuple[int, int]], bins: list[tuple[int, int]]) -> bool:
    """True if any packing has them all; exact, by trying all."""
    if not sizes:
        return True
    (gib, percent), rest = sizes[0], sizes[1:]
    for at, (free_gib, free_percent) in enumerate(bins):
        if bins.index((free_gib, free_percent)) < at:
            continue  # an equal GPU was tried
        if gib <= free_gib and percent <= free_percent:
            after = [*bins]
            after[at] = (free_gib - gib, free_percent - percent)
            if repacked(rest, after):
                return True
    return False


def found_beside_exact(samples: int) -> tuple[int, int]:
    """Requests for a whole GPU that fit nowhere: how many of them moves make room for, and how many
    some packing of everything has room for."""
    chance = random.Random(21)
    whole = [PodToPlace("new", GpuRequest(1, MEMORY_GIB * GIB, exclusive=True))]
    found = exact = tried = 0
    while tried < samples:
        stock, movables = stock_by_chance(chance)
        if not isinstance(place(stock, whole), NoPlace):
            continue
        tried += 1
        sizes = [
            (share.memory_bytes // GIB, share.share_ppm // 10_000)
            for owner in movables
            for one in stock.holdings(owner)
            for share in one.shares
        ]
        empty = [(MEMORY_GIB, 100)] * (GPUS - 1)
        exact += repacked(sorted(sizes, reverse=True), empty)
        found += consolidate(stock, whole, movables.get) is not None
    return found, exact


def entries(mix: Mix) -> Iterator[Entry]:
    without, with_moves = (play(mix, one).report() for one in (None, COOLDOWN_S))
    for queue in ("whole", "small"):
        before, after = (one["waits_s"][queue]["p95"] for one in (without, with_moves))
        yield entry(
            f"consolidation_{mix.name}_{queue}_wait_p95_s",
            "s",
            [after],
            baseline=before,
            ratio=after / before if before else None,
            target="less than without moves" if queue == "whole" else "",
        )
    yield entry(f"consolidation_{mix.name}_moves", "1/day", [with_moves["moves"]])
    yield entry(f"consolidation_{mix.name}_again_s", "s/day", [with_moves["moved_s"]])


def run(quick: bool = False) -> list[Entry]:
    found, exact = found_beside_exact(50 if quick else 200)
    made = [
        entry(
            "consolidation_of_exact_ratio",
            "ratio",
            [found / exact],
            baseline=1.0,
            target=">= 0.9: of what an exact repacking has room for; without moves 0",
        )
    ]
    for mix in MIXES[:1] if quick else MIXES:
        made += entries(mix)
    return made
