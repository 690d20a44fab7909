"""Dominant resource shares, as numbers and in comparison."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuecontroller.scheduler.model.flavor_resources import FlavorResources
from queuecontroller.scheduler.quota.shares import Share, dominant_share
from queuecontroller.scheduler.quota.tree import QuotaNode, attach, settle

NUMBERS = FlavorResources()
GPU, MEM = NUMBERS.number("default", "gpu"), NUMBERS.number("default", "mem")
SPOT = NUMBERS.number("spot", "gpu")


def share(usage: dict[str, int], weight_milli: int = 1000) -> Share:
    """Share of a queue with 2 GPUs and 10 of memory in a cohort with 8 and 40, 4 of them spot."""
    root = QuotaNode("root", is_cohort=True)
    root.set_quota(GPU, 2, None, None)
    root.set_quota(SPOT, 4, None, None)
    root.set_quota(MEM, 30, None, None)
    queue = QuotaNode("q", is_cohort=False, fair_weight_milli=weight_milli)
    queue.set_quota(GPU, 2, None, None)
    queue.set_quota(SPOT, 0, None, None)
    queue.set_quota(MEM, 10, None, None)
    attach(queue, root)
    by_name = {"gpu": GPU, "spot": SPOT, "mem": MEM}
    settle(root, {"q": {by_name[name]: amount for name, amount in usage.items()}})
    return dominant_share(queue, NUMBERS)


@pytest.mark.parametrize(
    ("usage", "per_mille"),
    [
        ({}, 0),
        ({"gpu": 2, "mem": 10}, 0),
        ({"gpu": 4}, 250),
        ({"gpu": 3, "spot": 1}, 250),
        ({"gpu": 3, "mem": 30}, 500),
        ({"spot": 4, "mem": 12}, 500),
    ],
)
def test_the_largest_of_what_is_borrowed_counts(usage: dict[str, int], per_mille: int) -> None:
    assert share(usage).per_mille() == per_mille
    assert share(usage, 2000).per_mille() == -(-per_mille // 2)


def test_a_share_is_rounded_up_as_in_kueue() -> None:
    assert Share(1, 9, 1000).per_mille() == 112
    assert Share(0, 9, 1000).per_mille() == 0


def test_a_queue_alone_has_no_share() -> None:
    alone = QuotaNode("q", is_cohort=False)
    alone.set_quota(GPU, 1, None, None)
    settle(alone, {"q": {GPU: 5}})
    assert dominant_share(alone, NUMBERS).is_zero


SHARES = st.builds(
    Share, st.integers(0, 50), st.integers(1, 50), st.sampled_from([0, 1, 990, 1000, 2000])
)


def as_number(one: Share) -> tuple[int, Fraction]:
    ratio = Fraction(one.borrowed, one.lendable)
    if one.weight_milli == 0:
        return (1 if ratio else 0, ratio)
    return (0, ratio * 1000 / one.weight_milli)


@given(SHARES, SHARES)
def test_shares_compare_as_exact_fractions_with_weight_zero_last(one: Share, other: Share) -> None:
    left, right = as_number(one), as_number(other)
    assert one.compare(other) == (left > right) - (left < right)
    assert (one < other, one <= other) == (left < right, left <= right)
