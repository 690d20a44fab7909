"""The helpers that judge measured figures can fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.kit.measure import shares, within


def giving(*tries: Sequence[float]) -> Callable[[], Sequence[float]]:
    left = list(tries)
    return lambda: left.pop(0)


def test_one_good_try_of_three_is_enough() -> None:
    shares(giving([0.2, 0.6], [0.1, 0.7], [0.29, 0.69]), [0.3, 0.7], 0.05)


def test_shares_that_stay_too_small_fail() -> None:
    with pytest.raises(AssertionError, match="measured"):
        shares(giving([0.2], [0.2], [0.2]), [0.3], 0.05)


def test_more_than_a_cap_fails_at_once_whatever_comes_later() -> None:
    with pytest.raises(AssertionError, match="more than"):
        shares(giving([0.4], [0.3]), [0.3], 0.05)


def test_more_than_a_share_without_a_cap_is_measured_again() -> None:
    shares(giving([0.7, 0.3], [0.5, 0.5]), [0.5, 0.5], 0.05, capped=False)


def test_a_promise_is_kept_in_one_of_three_tries_or_not_at_all() -> None:
    took = [3.0, 0.5, 9.0, 9.0, 9.0]
    within(1.0, lambda: took.pop(0))
    with pytest.raises(AssertionError, match="not within 1 s"):
        within(1.0, lambda: took.pop(0))
