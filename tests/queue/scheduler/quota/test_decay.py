"""The power of one half in whole numbers, against decimals of sixty digits."""

from __future__ import annotations

from decimal import Decimal, localcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuecontroller.scheduler.quota.decay import ONE, approach, remaining

HOUR = 3_600_000_000_000
TIMES = st.integers(0, 10**19)
HALF_LIVES = st.integers(1, 10**17)


@pytest.mark.parametrize(
    ("elapsed", "half_life", "left"),
    [
        pytest.param(0, HOUR, ONE, id="all of it at once"),
        pytest.param(HOUR, HOUR, ONE // 2, id="half after one half-life"),
        pytest.param(3 * HOUR, HOUR, ONE // 8, id="an eighth after three"),
        pytest.param(HOUR // 2, HOUR, 13043817825332782212, id="1/sqrt(2) after half of one"),
        pytest.param(3 * HOUR // 2, HOUR, 6521908912666391106, id="half of that one later"),
        pytest.param(64 * HOUR, HOUR, 1, id="the smallest unit after 64"),
        pytest.param(65 * HOUR, HOUR, 0, id="nothing after 65"),
        pytest.param(-HOUR, HOUR, ONE, id="time before the begin counts as none"),
        pytest.param(1, 0, 0, id="without a half-life nothing is kept"),
    ],
)
def test_what_is_left(elapsed: int, half_life: int, left: int) -> None:
    assert remaining(elapsed, half_life) == left


@given(TIMES, HALF_LIVES)
def test_it_is_exact_to_one_unit(elapsed: int, half_life: int) -> None:
    with localcontext() as context:
        context.prec = 60
        exact = Decimal(ONE) * Decimal(2) ** (-Decimal(elapsed) / Decimal(half_life))
        assert exact - 1 <= remaining(elapsed, half_life) <= exact + 1


@given(TIMES, st.integers(0, 10**12), HALF_LIVES)
def test_time_never_brings_anything_back(elapsed: int, more: int, half_life: int) -> None:
    assert remaining(elapsed + more, half_life) <= remaining(elapsed, half_life)


@given(st.integers(0, 2**80), st.integers(0, 2**80), st.integers(0, ONE))
def test_a_value_stays_between_where_it_was_and_where_it_goes(
    value: int, target: int, ratio: int
) -> None:
    assert min(value, target) <= approach(value, target, ratio) <= max(value, target)
