"""New nodes for pending requests: none for what fits or is moved, never more than whole-card packing, never fewer than fit."""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
from copy import deepcopy

import pytest

from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.model.selectors import Taint, Toleration
from queuecontroller.scheduler.placement.capacity import GpuCapacity, NodeCapacity
from queuecontroller.scheduler.placement.choose import PodToPlace, Topology
from queuecontroller.scheduler.placement.consolidation import Movable
from queuecontroller.scheduler.placement.new_nodes import (
    Moving,
    NewNodes,
    NodeTemplate,
    PendingPods,
    in_words,
    new_nodes,
)
from queuecontroller.scheduler.placement.request import GpuRequest, Policy
from queuecontroller.scheduler.placement.stock import Share, Stock
from queuecontroller.server.page.questions import explained
from queuecontroller.state.records import GpuAsk
from tests.queue.server.page.shells import shell_of
from tests.queue.state.world import World, gpu

GIB = 1 << 30
MEMORY = 80
ENOUGH = 100


def template(
    gpus: int = 4, name: str = "large", most: int = ENOUGH, **fields: object
) -> NodeTemplate:
    cards = tuple(GpuCapacity(f"T{i}", i, "H100", MEMORY * GIB) for i in range(gpus))
    return NodeTemplate(name, NodeCapacity(cards, **fields), most)  # type: ignore[arg-type]


def share(gib: int, percent: int, gpus: int = 1, policy: Policy = Policy.BINPACK) -> GpuRequest:
    return GpuRequest(gpus, gib * GIB, share_ppm=percent * 10_000, node_policy=policy)


def whole(gpus: int = 1) -> GpuRequest:
    return GpuRequest(gpus, exclusive=True)


def pending(name: str, *requests: GpuRequest, priority: int = 0, **rules: object) -> PendingPods:
    pods = tuple(
        PodToPlace(f"{name}-{number}", one, **rules)  # type: ignore[arg-type]
        for number, one in enumerate(requests)
    )
    return PendingPods(name, pods, priority=priority)


def needed(
    stock: Stock,
    waiting: Sequence[PendingPods],
    *templates: NodeTemplate,
    most: int = ENOUGH,
    moving: Moving | None = None,
) -> NewNodes:
    """`new_nodes`, which leaves the stock unchanged."""
    before = deepcopy(stock)
    found = new_nodes(stock, waiting, templates or (template(),), most, moving)
    assert stock.nodes.keys() == before.nodes.keys()
    for name, room in stock.nodes.items():
        assert room.gpus == before.nodes[name].gpus
    assert (stock.freed, stock.changes) == (before.freed, before.changes)
    for uuid in ("new/large/0/T0", "new/small/0/T0"):
        assert stock.node_of(uuid) is None
    return found


def present(nodes: int = 1, gpus: int = 2) -> Stock:
    stock = Stock()
    for n in range(nodes):
        cards = tuple(GpuCapacity(f"G{n}-{g}", g, "H100", MEMORY * GIB) for g in range(gpus))
        stock.report(f"n{n}", NodeCapacity(cards))
    return stock


def test_shares_are_packed_onto_few_nodes() -> None:
    found = needed(Stock(), [pending(f"w{n}", share(10, 10)) for n in range(32)])
    assert found.nodes == {"large": 1}, "8 on a card, 4 cards on a node"
    assert all(one == {"large": 1} for one in found.waits.values())
    found = needed(Stock(), [pending(f"w{n}", share(10, 25)) for n in range(17)])
    assert found.nodes == {"large": 2}


def test_nothing_is_needed_for_what_fits_now() -> None:
    stock = present()
    stock.hold("a", "n0", [Share("G0-0", 40 * GIB, 500_000)])
    fits = [pending("half", share(40, 50)), pending("whole", whole())]
    found = needed(stock, fits)
    assert not found.nodes
    assert found.fitting == {"half", "whole"}
    found = needed(stock, [*fits, pending("more", share(40, 50))])
    assert found.nodes == {"large": 1}
    assert set(found.waits) == {"more"}


def movables(*owners: str) -> Moving:
    def movable(owner: Hashable) -> Movable | None:
        if owner not in owners:
            return None
        return Movable(owner, PodToPlace("", share(20, 20)), 1, str(owner))

    return Moving(movable, lambda pods: MEMORY * 1024)


def test_nothing_is_needed_for_what_consolidation_makes_room_for() -> None:
    stock = present()
    for card in range(2):
        stock.hold(f"small-{card}", "n0", [Share(f"G0-{card}", 20 * GIB, 200_000)])
    waiting = [pending("whole", whole())]
    assert needed(stock, waiting).nodes == {"large": 1}
    found = needed(stock, waiting, moving=movables("small-0", "small-1"))
    assert not found.nodes
    assert found.moved == {"whole"}
    both = [*waiting, pending("second", whole())]
    found = needed(stock, both, moving=movables("small-0", "small-1"))
    assert found.nodes == {"large": 1}, "the moved share cannot make room twice"
    assert len(found.moved) == 1


def test_what_no_template_holds_gets_no_node_and_a_reason() -> None:
    too_large = pending("large", share(100, 10))
    too_many = pending("many", whole(5))
    found = needed(Stock(), [too_large, too_many, pending("ok", share(10, 10))])
    assert found.nodes == {"large": 1}
    assert set(found.unfit) == {"large", "many"}
    for reason in found.unfit.values():
        assert reason.startswith("no node template has room for it")
    assert "102400 MiB" in found.unfit["large"]
    assert needed(Stock(), [pending("any", whole())], template(gpus=0)).unfit.keys() == {"any"}


def test_labels_and_taints_of_a_template_decide() -> None:
    of_pool = template(labels={"pool": "a"}, taints=(Taint("gpu", "yes", "NoSchedule"),))
    tolerant = (Toleration("gpu", "Exists"),)
    waiting = [
        pending("other-pool", whole(), labels=(("pool", "b"),), tolerations=tolerant),
        pending("intolerant", whole(), labels=(("pool", "a"),)),
        pending("suitable", whole(), labels=(("pool", "a"),), tolerations=tolerant),
    ]
    found = needed(Stock(), waiting, of_pool)
    assert found.nodes == {"large": 1}
    assert set(found.waits) == {"suitable"}
    assert "pool=b" in found.unfit["other-pool"]
    assert "taint" in found.unfit["intolerant"]


def test_the_template_with_the_fewest_cards_is_taken() -> None:
    small, large = template(1, "small"), template(4)
    assert needed(Stock(), [pending("a", whole())], large, small).nodes == {"small": 1}
    assert needed(Stock(), [pending("a", whole(2))], small, large).nodes == {"large": 1}
    found = needed(Stock(), [pending("a", whole(2)), pending("b", whole())], small, large)
    assert found.nodes == {"large": 1}, "the rest of the large node is used"
    limited = template(1, "small", most=1)
    found = needed(Stock(), [pending(name, whole()) for name in "abc"], limited, large)
    assert found.nodes == {"small": 1, "large": 1}


def test_all_pods_of_a_workload_get_nodes_or_none() -> None:
    gang = pending("gang", *[whole(4)] * 3)
    found = needed(Stock(), [gang])
    assert found.nodes == {"large": 3}
    assert in_words(found.waits["gang"]) == "3 new nodes of template large"
    found = needed(Stock(), [gang], most=2)
    assert not found.nodes
    assert found.beyond == {"gang"}


def test_one_domain_of_new_nodes_is_one_domain() -> None:
    together = PendingPods(
        "gang", (PodToPlace("a", whole(4)), PodToPlace("b", whole(4))), Topology("rack")
    )
    assert needed(Stock(), [together]).unfit.keys() == {"gang"}, "new nodes have no such label"
    racked = template(labels={"rack": "r1"})
    assert needed(Stock(), [together], racked).nodes == {"large": 2}


def test_high_priorities_get_the_permitted_nodes() -> None:
    waiting = [pending("low", whole(4)), pending("high", whole(2), priority=5)]
    waiting.append(pending("higher", whole(3), priority=6))
    found = needed(Stock(), waiting, most=2)
    assert set(found.waits) == {"high", "higher"}
    assert found.beyond == {"low"}


def test_imaginary_gpus_keep_their_links() -> None:
    cards = tuple(
        GpuCapacity(f"T{i}", i, "H100", MEMORY * GIB, nvlinks={f"T{1 - i}": 18}) for i in range(2)
    )
    name, made = NodeTemplate("pair", NodeCapacity(cards)).node(3)
    assert name == "new/pair/3"
    assert [dict(gpu.nvlinks) for gpu in made.gpus] == [
        {"new/pair/3/T1": 18},
        {"new/pair/3/T0": 18},
    ]


def whole_card_nodes(counts: Sequence[int], gpus: int) -> int:
    """Nodes for these numbers of whole cards, the large ones first, each on the first node with room."""
    free: list[int] = []
    for count in sorted(counts, reverse=True):
        at = next((i for i, left in enumerate(free) if left >= count), None)
        if at is None:
            free.append(gpus)
            at = len(free) - 1
        free[at] -= count
    return len(free)


def stock_by_chance(chance: random.Random) -> Stock:
    stock = present(chance.randint(0, 2), chance.randint(1, 4))
    for number in range(chance.randint(0, 8)):
        fits = [
            (room.name, uuid)
            for room in stock.nodes.values()
            for uuid, gpu in room.gpus.items()
            if gpu.memory_bytes >= 30 * GIB and gpu.share_ppm >= 300_000
        ]
        if fits:
            node, uuid = chance.choice(fits)
            stock.hold(f"held-{number}", node, [Share(uuid, 30 * GIB, 300_000)])
    return stock


@pytest.mark.parametrize("seed", range(150))
def test_between_the_lower_bound_and_whole_cards(seed: int) -> None:
    chance = random.Random(seed)
    gpus = chance.choice((1, 2, 4, 8))
    policy = chance.choice(tuple(Policy))
    waiting = []
    for number in range(chance.randint(1, 20)):
        count = chance.choice((1, 1, 1, 1, 2, gpus))
        request = share(chance.randint(1, 80), chance.randint(1, 100), min(count, gpus), policy)
        waiting.append(pending(f"w{number}", request))
    found = needed(stock_by_chance(chance), waiting, template(gpus))
    served = [one for one in waiting if one.key in found.waits]
    assert {one.key for one in served} | found.fitting == {one.key for one in waiting}
    requests = [one.requests[0].request for one in served]
    assert found.total <= whole_card_nodes([one.count for one in requests], gpus)
    on_new = [one for one in served if found.waits[one.key]]
    used = [one.requests[0].request for one in on_new]
    assert found.total * gpus * MEMORY * GIB >= sum(
        one.count * (one.memory_bytes or 0) for one in used
    )
    assert found.total * gpus * 1_000_000 >= sum(one.count * one.share_ppm for one in used)
    assert found.total * gpus >= max((one.count for one in used), default=0)
    assert (found.total > 0) == bool(on_new)


def test_the_same_requests_in_any_order_need_the_same_nodes() -> None:
    chance = random.Random(7)
    waiting = [
        pending(f"w{n}", share(chance.randint(1, 80), chance.randint(1, 100))) for n in range(30)
    ]
    first = needed(Stock(), waiting)
    for _ in range(5):
        chance.shuffle(waiting)
        assert needed(Stock(), waiting).waits == first.waits


def test_the_page_says_which_nodes_were_requested() -> None:
    world = World()
    world.connect("n1", (gpu(0),))
    waiting = world.submit("a", "two", ask=GpuAsk(2, memory_ppm=1_000_000))
    shell = shell_of(world)
    before = explained(shell, *waiting.split("/"))["explanation"]["ways"]
    shell.book.new_nodes = {WorkloadKey(waiting): in_words({"large": 1})}
    ways = explained(shell, *waiting.split("/"))["explanation"]["ways"]
    wanted = "it had 1 new node of template large, requested from the autoscaler"
    assert ways == [wanted, *before]
