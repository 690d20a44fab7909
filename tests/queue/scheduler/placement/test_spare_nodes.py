"""Nodes whose shares all fit elsewhere: judged card by card, together, and without a change of the stock."""

from __future__ import annotations

from copy import deepcopy

from queuecontroller.scheduler.placement.capacity import GpuCapacity, NodeCapacity
from queuecontroller.scheduler.placement.spare_nodes import spare_nodes
from queuecontroller.scheduler.placement.stock import Share, Stock

GIB = 1 << 30


def stock_of(*held: tuple[str, int, int, int]) -> Stock:
    """Three nodes of two cards of 80 GiB; `held` are node, card, GiB and percent."""
    stock = Stock()
    for node in "abc":
        cards = tuple(GpuCapacity(f"{node}{g}", g, "H100", 80 * GIB) for g in range(2))
        stock.report(node, NodeCapacity(cards))
    for number, (node, card, gib, percent) in enumerate(held):
        stock.hold(number, node, [Share(f"{node}{card}", gib * GIB, percent * 10_000)])
    return stock


def judged(stock: Stock, *others: str) -> dict[str, bool]:
    before = deepcopy(stock)
    found = spare_nodes(stock, list("abc"), frozenset(others))
    assert {name: room.gpus for name, room in stock.nodes.items()} == {
        name: room.gpus for name, room in before.nodes.items()
    }
    assert (stock.freed, stock.changes) == (before.freed, before.changes)
    return found


def test_a_node_whose_share_fits_on_a_card_elsewhere_is_spare() -> None:
    assert judged(stock_of(("a", 0, 20, 20), ("b", 0, 70, 70))) == {"a": True, "b": True}, (
        "node c is idle: it can take both, one on each card"
    )


def test_free_memory_on_two_cards_is_not_that_of_one() -> None:
    full = [(node, card, 50, 60) for node in "bc" for card in range(2)]
    assert judged(stock_of(("a", 0, 40, 30), *full)) == {"a": False}, (
        "120 GiB are free on the others, at most 30 on a card"
    )
    assert judged(stock_of(("a", 0, 30, 30), *full)) == {"a": True}


def test_two_nodes_are_not_spare_for_each_other() -> None:
    busy = [("c", card, 80, 100) for card in range(2)]
    found = judged(stock_of(("a", 0, 60, 30), ("b", 0, 70, 40), *busy))
    assert found == {"a": True, "b": False}


def test_busy_and_idle_nodes_are_not_judged() -> None:
    assert judged(stock_of(("a", 0, 80, 100), ("a", 1, 20, 20))) == {}


def test_only_nodes_of_the_same_kind_take_over() -> None:
    assert judged(stock_of(("a", 0, 20, 20)), "b", "c") == {"a": False}
    assert judged(stock_of(("a", 0, 20, 20)), "b") == {"a": True}


def test_shares_of_another_form_keep_their_node() -> None:
    stock = stock_of()
    stock.hold("two", "a", [Share("a0", 10 * GIB, 0), Share("a0", 20 * GIB, 0)])
    stock.hold("both", "b", [Share(f"b{card}", 10 * GIB, 0) for card in range(2)])
    assert judged(stock) == {"a": False, "b": True}
