"""The period of the turns follows the length of the launches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.core.planner import fitting_period

MS = 1_000_000


def held(period_ns: int, share: int, total: int, launch_ns: int) -> float:
    """Whole launches in one window, as a part of the GPU."""
    fits = period_ns * share / total / launch_ns
    return int(fits + 0.5) * launch_ns / period_ns


@pytest.mark.parametrize(
    ("shares", "launches_ns"),
    [
        ((30, 70), (MS // 10, 5 * MS)),
        ((50, 50), (10 * MS, MS)),
        ((10, 90), (MS // 10, 10 * MS)),
        ((1, 1, 1), (7 * MS, 3 * MS, MS // 20)),
        ((25, 75), (4 * MS, 9 * MS)),
    ],
)
def test_every_window_holds_whole_launches(
    shares: tuple[int, ...], launches_ns: tuple[int, ...]
) -> None:
    period = fitting_period(shares, launches_ns, 10 * MS, 100 * MS)
    for share, launch_ns in zip(shares, launches_ns, strict=True):
        want = share / sum(shares)
        assert held(period, share, sum(shares), launch_ns) == pytest.approx(want, abs=0.02)


def test_short_launches_keep_the_short_period() -> None:
    assert fitting_period((30, 70), (MS // 10, MS // 10), 10 * MS, 100 * MS) == 10 * MS
    assert fitting_period((30, 70), (0, 0), 10 * MS, 100 * MS) == 10 * MS


@given(
    st.lists(
        st.tuples(st.integers(1, 1_000_000), st.integers(0, 20_000 * MS)), min_size=1, max_size=8
    )
)
def test_the_period_stays_within_its_bounds(tenants: list[tuple[int, int]]) -> None:
    shares = [share for share, _ in tenants]
    launches_ns = [launch_ns for _, launch_ns in tenants]
    assert 10 * MS <= fitting_period(shares, launches_ns, 10 * MS, 100 * MS) <= 100 * MS
