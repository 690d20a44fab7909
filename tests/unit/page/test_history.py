"""An hour of figures in rings: what was measured when, gaps where nothing was."""

from __future__ import annotations

from sluicecommon.page import history
from sluicecommon.page.history import SLOTS, STEP_S, History


def test_a_slot_is_the_mean_of_what_came_in_it_and_a_gap_where_nothing_came() -> None:
    kept = History()
    kept.add("g", {"used": 0.2}, 0)
    kept.add("g", {"used": 0.4}, STEP_S - 1)
    kept.add("g", {"used": 1.0}, 3 * STEP_S)
    found = kept.read("g", 3 * STEP_S)
    assert found["series"]["used"][-4:] == [0.3, None, None, 1.0]
    assert len(found["series"]["used"]) == SLOTS
    assert (found["step"], found["end"]) == (STEP_S, 4 * STEP_S)


def test_what_is_older_than_an_hour_is_gone_also_after_silence() -> None:
    kept = History()
    kept.add("g", {"used": 0.5}, 0)
    assert kept.read("g", (SLOTS - 1) * STEP_S)["series"]["used"][0] == 0.5
    assert set(kept.read("g", SLOTS * STEP_S)["series"]["used"]) == {None}
    kept.add("g", {"used": 0.7}, 5 * SLOTS * STEP_S)
    assert kept.read("g", 5 * SLOTS * STEP_S)["series"]["used"][:-1] == [None] * (SLOTS - 1)


def test_what_is_not_known_or_absurd_does_no_harm() -> None:
    kept = History()
    kept.add("g", {"used": None, "busy": -3.0, "wild": 1e9}, 0)
    series = kept.read("g", 0)["series"]
    assert series.keys() == {"busy", "wild"}
    assert (series["busy"][-1], series["wild"][-1]) == (0.0, 60.0)
    kept.add("g", {"busy": 1.0}, -STEP_S)  # a clock that ran back
    assert kept.read("g", 0)["series"]["busy"][-1] == 0.0
    assert kept.read("nobody", 0)["series"] == {}


def test_the_number_of_series_is_bounded_and_those_gone_are_forgotten() -> None:
    kept = History()
    most = history.MAX_SERIES
    try:
        history.MAX_SERIES = 2  # type: ignore[misc]
        for name in "abc":
            kept.add(name, {"used": 1.0}, 0)
    finally:
        history.MAX_SERIES = most  # type: ignore[misc]
    assert len(kept) == 2
    kept.keep({"b"})
    assert len(kept) == 1
    assert kept.read("a", 0)["series"] == {}
