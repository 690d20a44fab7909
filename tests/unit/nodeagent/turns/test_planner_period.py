"""The period of the turns follows the length of the launches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.core.grants.usage import Activity
from nodeagent.core.turns.planner import TurnPlanner
from nodeagent.core.turns.windows import PlanRules, Tenant, fitting_period, lost_at_the_end
from nodeagent.ports.regions import DeviceTurn
from nodeagent.units import GpuUuid, GrantId, Nanoseconds, Ppm

MS = 1_000_000
RULES = PlanRules(
    Nanoseconds(10 * MS), Nanoseconds(100 * MS), Nanoseconds(2 * MS), Nanoseconds(50 * MS), Ppm(0)
)


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


def windows_over_time(means_ns: list[int], short_ns: int) -> list[DeviceTurn]:
    """The windows a tenant with long launches is given beside one with short ones; `means_ns`:
    what each second's launches of it took on the mean."""
    gpu = GpuUuid("a")
    long = Tenant(GrantId("long"), (gpu,), Ppm(700_000), hard=True)
    short = Tenant(GrantId("short"), (gpu,), Ppm(300_000), hard=True)
    planner = TurnPlanner(RULES)
    used = {long.grant: 0, short.grant: 0}
    launches = dict.fromkeys(used, 0)
    given = []
    for step in range(len(means_ns) * 100):
        now_ns = Nanoseconds(1000 * MS + step * 10 * MS)
        means = {long.grant: means_ns[step // 100], short.grant: short_ns}
        for grant, mean in means.items():
            launches[grant] += max(1, 5 * MS // mean)
            used[grant] += mean * max(1, 5 * MS // mean)
        looks = {
            (grant, gpu): Activity(used[grant], 0, 0, launches[grant], now_ns) for grant in used
        }
        for change in planner.plan([long, short], looks, now_ns):
            if change.grant == long.grant and change.turn.lease_period_ns:
                given.append(change.turn)
    return given


@pytest.mark.parametrize("off", [0.91, 0.95, 0.98, 1.02, 1.05, 1.09])
def test_a_first_measure_that_is_a_little_off_does_not_stay(off: float) -> None:
    """11.1 ms for launches of 5 ms: the window of two, measured as 5.5."""
    given = windows_over_time([int(off * 5 * MS)] + [5 * MS] * 5, MS // 10)
    last = given[-1]
    lost = lost_at_the_end(last.lease_quantum_ns, last.lease_period_ns, 5 * MS)
    assert lost < 0.01


@pytest.mark.parametrize(("scatter", "most"), [(0.005, 10), (0.02, 30), (0.05, 120)])
def test_measures_that_scatter_move_the_windows_seldom(scatter: float, most: int) -> None:
    """In a minute, of 240 measures; each time may cost an overlap of a few milliseconds."""
    means = [int(5 * MS * (1 + scatter * side)) for side in (-1, 1, 0.5, -0.5, 0, 1) * 10]
    assert 1 <= len(windows_over_time(means, MS // 10)) <= most
