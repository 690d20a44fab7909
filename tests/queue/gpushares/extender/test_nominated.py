"""Pods that a scheduler was sent on their way: at no time more on a node than it has room for."""

from __future__ import annotations

import random
from typing import Any

from queuecontroller.gpushares.extender.nominated import NominatedPods
from tests.queue.gpushares.extender.rooms import bind, extender, node, pod, random_pod


def refused(steered: bool) -> tuple[int, int]:
    """Pods that were sent, and those that were refused where they were sent, without those for whom only crowded nodes were left; up
    to eight at a time between question and binding, as a scheduler has them."""
    rng = random.Random(11)
    sent = wrong = 0
    for _ in range(20):
        nodes = {f"n{n}": node(f"n{n}", gpus=rng.choice([2, 4])) for n in range(6)}
        one = extender(nodes)
        way = NominatedPods(one.stock)
        going: list[tuple[dict[str, Any], str, bool]] = []
        for number in range(60):
            asked = random_pod(rng, number)
            ask = one.read(asked)
            passed = one.filter(asked, list(nodes)).names
            apart = way.apart(ask, passed, 0.0) if steered else passed
            assert set(apart) <= set(passed)
            assert bool(apart) == bool(passed), "never no node at all"
            if apart:
                best = max(one.prioritize(asked, apart), key=lambda point: point[1])[0]
                there = len(way)
                way.sent(ask, best, 0.0)
                crowded = steered and len(way) == there
                going.append((asked, best, crowded))
                sent += not crowded
            while going and (len(going) > 8 or rng.random() < 0.3):
                document, name, crowded = going.pop(0)
                way.arrived(str(one.read(document).uid))
                if isinstance(one.place(document, name), str):
                    wrong += not crowded
                else:
                    bind(one, document, name)
        assert len(way) <= len(going)
    return sent, wrong


def test_whoever_is_sent_apart_is_bound_where_it_was_sent() -> None:
    _, before = refused(steered=False)
    sent, wrong = refused(steered=True)
    print(f"{wrong} refused of {sent}, {before} where nominated pods do not count")
    assert sent > 400
    assert before > 20
    assert wrong * 10 < before


def test_it_lasts_for_a_second() -> None:
    one = extender({"a": node("a", 1), "b": node("b", 1)})
    way = NominatedPods(one.stock)
    first, second = (one.read(pod(name, gpumem=50_000)) for name in ("first", "second"))
    way.sent(first, "a", 0.0)
    assert way.apart(second, ("a", "b"), 0.9) == ("b",)
    assert way.apart(second, ("a", "b"), 1.0) == ("a", "b")
    assert len(way) == 0


def test_who_goes_to_an_unknown_node_or_wants_no_gpu_takes_nothing() -> None:
    one = extender({"a": node("a", 1)})
    way = NominatedPods(one.stock)
    way.sent(one.read(pod("x", gpumem=50_000)), "elsewhere", 0.0)
    way.sent(one.read(pod("y", count=0)), "a", 0.0)
    assert len(way) == 0
