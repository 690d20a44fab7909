"""Whatever order the API server, the nodes and we ourselves say it in, a pod's GPUs are held once and given back whole."""

from __future__ import annotations

import random
from typing import Any

import pytest

from queuecontroller.gpushares.extender.ledger import PlainPod, PodLedger, Running
from queuecontroller.gpushares.extender.pods import PodPlace
from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.placement.stock import Stock
from sluicecommon.pod_annotations import PLACEMENT
from tests.queue.gpushares.extender.rooms import GIB, free, node, pod, share

NODES = {f"n{n}": node(f"n{n}") for n in range(3)}


def stocked() -> Stock:
    stock = Stock()
    for name, capacity in NODES.items():
        stock.report(name, capacity)
    return stock


def place(name: str, index: int, memory: int = GIB) -> PodPlace:
    return PodPlace(name, {"main": (share(f"GPU-{name}-{index}", memory, 1000),)})


@pytest.mark.parametrize("seed", range(30))
def test_the_stock_is_what_is_held(seed: int) -> None:
    rng = random.Random(seed)
    stock = stocked()
    ledger = PodLedger(stock)
    assumed: dict[str, PodPlace] = {}
    api: dict[str, tuple[dict[str, Any], PodPlace]] = {}
    running: dict[str, dict[str, Running]] = {name: {} for name in NODES}
    for number in range(300):
        uid = f"u-p{rng.randrange(12)}"
        where = place(rng.choice(list(NODES)), rng.randrange(4), rng.randrange(1, 5) * GIB)
        match rng.randrange(6):
            case 0 if uid not in assumed and uid not in api:
                ledger.assume(uid, where)
                assumed[uid] = where
            case 1:
                ledger.forget(uid)
                assumed.pop(uid, None)
            case 2 if uid not in api:
                bound = assumed.pop(uid, where)
                document = pod(uid.removeprefix("u-"), gpumem=1, bound=bound)
                ledger.take(document)
                api[uid] = document, bound
            case 3 if uid in api:
                document, _ = api.pop(uid)
                if rng.random() < 0.5:
                    ledger.drop(uid)
                else:  # it ended by itself
                    ledger.take({**document, "status": {"phase": "Succeeded"}})
                assumed.pop(uid, None)
            case 4:
                table = running[where.node]
                others = [one for one in NODES if uid in running[one] and one != where.node]
                if not others:
                    table[uid] = Running(uid, "t", uid, where.held)
                    ledger.report(where.node, dict(table))
            case 5:
                name = rng.choice(list(NODES))
                running[name] = {}
                ledger.forget_node(name)
        wanted = stocked()
        every = {*assumed, *api, *(one for table in running.values() for one in table)}
        for one in every:
            if one in api:
                wanted.hold(one, api[one][1].node, api[one][1].held)
            elif one in assumed:
                wanted.hold(one, assumed[one].node, assumed[one].held)
            else:
                (name,) = [name for name in NODES if one in running[name]]
                wanted.hold(one, name, running[name][one].shares)
        assert free(stock) == free(wanted), number
        assert len(ledger) == len(every)


def test_a_pod_that_is_deleted_by_force_keeps_its_gpus_until_its_node_says_that_it_is_gone() -> (
    None
):
    stock = stocked()
    ledger = PodLedger(stock)
    there = place("n0", 0)
    ledger.take(pod("a", gpumem=1, bound=there))
    ledger.report("n0", {"u-a": Running("u-a", "t", "a", there.held)})
    ledger.drop("u-a")
    assert ledger.holding("u-a") == ("n0", there.held)
    ledger.report("n0", {})
    assert ledger.holding("u-a") is None
    assert free(stock) == free(stocked())


def test_what_the_queue_holds_is_not_held_again() -> None:
    stock = stocked()
    ledger = PodLedger(stock)
    queued = PodPlace("n0", place("n0", 0).containers, workload="t/w")
    ledger.reserve(WorkloadKey("t/w"), {"main": [queued]})
    held = free(stock)
    ledger.take(pod("a", gpumem=1, bound=queued))
    ledger.report("n0", {"u-a": Running("u-a", "t", "a", queued.held)})
    assert free(stock) == held
    ledger.reserved.release(WorkloadKey("t/w"))
    assert free(stock) == held, "it still runs"
    ledger.drop("u-a")
    ledger.report("n0", {})
    assert free(stock) == free(stocked())


def test_a_placement_that_is_not_where_the_pod_is_counts_for_nothing() -> None:
    stock = stocked()
    ledger = PodLedger(stock)
    for document in (
        pod("a", gpumem=1, annotations={PLACEMENT: place("n0", 0).text()}),
        {**pod("b", gpumem=1, bound=place("n0", 0)), "spec": {"nodeName": "n1"}},
        pod("c", gpumem=1, annotations={PLACEMENT: "{"}, bound=None),
    ):
        ledger.take(document)
    assert free(stock) == free(stocked())


def test_nobody_is_assumed_twice() -> None:
    ledger = PodLedger(stocked())
    ledger.assume("u", place("n0", 0))
    with pytest.raises(ValueError, match="has a place already"):
        ledger.assume("u", place("n1", 0))
    assert PlainPod("u") != "u"


@pytest.mark.parametrize("seed", range(20))
def test_what_is_kept_for_pods_is_held_once_and_given_back_whole(seed: int) -> None:
    rng = random.Random(seed)
    stock = stocked()
    ledger = PodLedger(stock)
    before = free(stock)
    for _ in range(200):
        uid = f"u-p{rng.randrange(6)}"
        where = place(rng.choice(list(NODES)), rng.randrange(4), rng.randrange(1, 5) * GIB)
        freed = stock.freed
        match rng.randrange(5):
            case 0:
                if ledger.place(uid) is None:
                    ledger.keep(uid, where, rng.randrange(5))
                    assert stock.freed == freed
            case 1 if ledger.place(uid) is None:
                ledger.assume(uid, where)
                assert uid not in ledger.kept
                assert stock.freed == freed, "it is the pod's own"
            case 2:
                ledger.unkeep(uid)
            case 3:
                ledger.drop(uid)
            case _:
                document = pod(uid.removeprefix("u-"), priority=rng.randrange(5), bound=where)
                known = ledger.place(uid)
                if known is None or ledger.assumed_place(uid) is not None:
                    ledger.take(document)
        undo = ledger.without_kept(uid, rng.choice([None, 3]))
        undo()
        undo = ledger.without_all_kept()
        held = [ledger.holding(one) for one in [*ledger.pods, *ledger._assumed]]
        trial = stocked()
        for number, one in enumerate(held):
            assert one is not None
            trial.hold(("held", number), *one)
        assert free(stock) == free(trial)
        undo()
        assert ledger.least_priority == min(
            (one.priority for one in ledger.pods.values()), default=None
        )
    for number in range(6):
        ledger.drop(f"u-p{number}")
    assert free(stock) == before
