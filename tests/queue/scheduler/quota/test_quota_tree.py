"""The cohort tree's arithmetic: examples by hand, and laws for any tree."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuecontroller.scheduler.model.flavor_resources import Fr
from queuecontroller.scheduler.quota.tree import QuotaNode, attach, settle, would_cycle

GPU = Fr(0)


def node(
    name: str,
    nominal: int,
    borrow: int | None = None,
    lend: int | None = None,
    cohort: bool = False,
) -> QuotaNode:
    made = QuotaNode(name, is_cohort=cohort)
    made.set_quota(GPU, nominal, borrow, lend)
    return made


def tree(root: QuotaNode, *children: QuotaNode, **usage: int) -> None:
    for child in children:
        attach(child, root)
    settle(root, {name: {GPU: amount} for name, amount in usage.items()})


@pytest.mark.parametrize(
    ("limits", "usage", "available", "potential"),
    [
        pytest.param({}, {}, 16, 16, id="all of the cohort"),
        pytest.param({"b_lend": 0}, {}, 10, 10, id="the other lends nothing"),
        pytest.param({"b_lend": 2}, {}, 12, 12, id="the other lends a part"),
        pytest.param({"a_borrow": 3}, {}, 13, 13, id="borrowing is limited"),
        pytest.param({}, {"b": 6}, 10, 16, id="the other uses its own"),
        pytest.param({}, {"b": 9}, 7, 16, id="the other borrowed from here"),
        pytest.param({"a_lend": 4}, {"b": 9}, 7, 16, id="the other borrowed what is lent"),
        pytest.param({"a_lend": 4, "b_lend": 0}, {"b": 4}, 10, 10, id="guaranteed stays at home"),
        pytest.param({}, {"a": 12}, 4, 16, id="own borrowing counts"),
        pytest.param({"a_borrow": 3}, {"a": 12}, 1, 13, id="the limit's rest"),
        pytest.param({"a_borrow": 0}, {"a": 12}, -2, 10, id="above a limit that came later"),
    ],
)
def test_what_a_queue_may_use(
    limits: dict[str, int], usage: dict[str, int], available: int, potential: int
) -> None:
    a = node("a", 10, limits.get("a_borrow"), limits.get("a_lend"))
    b = node("b", 6, limits.get("b_borrow"), limits.get("b_lend"))
    tree(node("root", 0, cohort=True), a, b, **usage)
    assert (a.available(GPU), a.potential_available(GPU)) == (available, potential)


def test_quota_of_an_upper_cohort_reaches_down() -> None:
    root, middle = node("root", 5, cohort=True), node("middle", 3, cohort=True)
    queue = node("queue", 1)
    attach(queue, middle)
    tree(root, middle)
    assert queue.available(GPU) == 9
    assert (queue.height, middle.height, root.height) == (0, 1, 2)
    assert queue.borrow_height(GPU, 1) == (0, True)
    assert queue.borrow_height(GPU, 4) == (1, True)
    assert queue.borrow_height(GPU, 9) == (2, False)
    assert queue.borrow_height(GPU, 10) == (2, False)


def test_a_cycle_of_cohorts_is_seen() -> None:
    a, b = node("a", 0, cohort=True), node("b", 0, cohort=True)
    attach(b, a)
    assert would_cycle(a, b)
    assert not would_cycle(node("c", 0, cohort=True), b)


@dataclass(frozen=True)
class Spec:
    """A tree of two or three levels and amounts to use in its queues."""

    cohorts: tuple[tuple[int, int | None, int | None], ...]
    queues: tuple[tuple[int, int, int | None, int | None], ...]
    uses: tuple[tuple[int, int], ...]


LIMIT = st.none() | st.integers(0, 12)


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    cohorts = draw(st.lists(st.tuples(st.integers(0, 8), LIMIT, LIMIT), min_size=1, max_size=3))
    at = st.integers(0, len(cohorts) - 1)
    queues = draw(st.lists(st.tuples(at, st.integers(0, 10), LIMIT, LIMIT), min_size=1, max_size=5))
    which = st.integers(0, len(queues) - 1)
    uses = draw(st.lists(st.tuples(which, st.integers(0, 9)), max_size=12))
    return Spec(tuple(cohorts), tuple(queues), tuple(uses))


def build(spec: Spec) -> tuple[QuotaNode, list[QuotaNode]]:
    """The first cohort is the root, the others hang below it."""
    cohorts = [
        node(f"c{i}", nominal, borrow, lend, cohort=True)
        for i, (nominal, borrow, lend) in enumerate(spec.cohorts)
    ]
    for one in cohorts[1:]:
        attach(one, cohorts[0])
    queues = []
    for i, (at, nominal, borrow, lend) in enumerate(spec.queues):
        queue = node(f"q{i}", nominal, borrow, lend)
        attach(queue, cohorts[at])
        queues.append(queue)
    settle(cohorts[0], {})
    return cohorts[0], queues


def state(root: QuotaNode) -> dict[str, int]:
    return {one.name: one.usage.get(GPU, 0) for one in root.subtree()}


@given(specs())
def test_taking_back_in_any_order_restores_every_node(spec: Spec) -> None:
    root, queues = build(spec)
    before = state(root)
    for which, amount in spec.uses:
        queues[which].add(GPU, amount)
    for which, amount in sorted(spec.uses):
        queues[which].add(GPU, -amount)
    assert state(root) == before


@given(specs())
def test_usage_kept_step_by_step_is_usage_computed_at_once(spec: Spec) -> None:
    root, queues = build(spec)
    total: dict[str, int] = {}
    for which, amount in spec.uses:
        queues[which].add(GPU, amount)
        total[queues[which].name] = total.get(queues[which].name, 0) + amount
    stepwise = state(root)
    settle(root, {name: {GPU: amount} for name, amount in total.items()})
    assert state(root) == stepwise


@given(specs())
def test_using_what_is_available_breaks_no_limit(spec: Spec) -> None:
    root, queues = build(spec)
    for which, amount in spec.uses:
        queue = queues[which]
        queue.add(GPU, max(0, min(amount, queue.available(GPU))))
        assert root.usage.get(GPU, 0) <= root.subtree_quota.get(GPU, 0)
        for one in root.subtree():
            limit = one.borrowing_limit.get(GPU)
            if limit is not None and one.parent is not None:
                assert one.usage.get(GPU, 0) <= one.subtree_quota[GPU] + limit
            if one.parent is not None:
                lent = one.usage.get(GPU, 0) - one.guaranteed.get(GPU, 0)
                assert lent <= one.parent.usage.get(GPU, 0)


@given(specs())
def test_an_empty_tree_offers_all_it_could(spec: Spec) -> None:
    _, queues = build(spec)
    for queue in queues:
        assert queue.available(GPU) == queue.potential_available(GPU)
