"""Backoff against a writer that undoes our writes: the pauses become longer and longer."""

from __future__ import annotations

from queuecontroller.cluster.reconcilers.contention import FREE, LONGEST_S, QUIET_S, Contention


def stops_in(seconds: float, contest: Contention, every_s: float = 0.1) -> int:
    """Number of stops in that time of a job that is resumed a tenth of a second after each stop."""
    made, now_s = 0, 0.0
    while now_s < seconds:
        made += contest.rest_s("job", now_s) == 0.0
        now_s += every_s
    return made


def test_a_few_stops_are_nothing_to_wonder_at() -> None:
    contest = Contention()
    assert [contest.rest_s("job", float(second)) for second in range(FREE)] == [0.0] * FREE
    assert not contest.is_contested("job", float(FREE))


def test_a_quarrel_of_ten_minutes_costs_two_dozen_writes() -> None:
    contest = Contention()
    assert stops_in(600.0, contest) <= 2 * FREE + 15
    assert contest.is_contested("job", 600.0)


def test_another_job_is_not_concerned() -> None:
    contest = Contention()
    stops_in(10.0, contest)
    assert contest.rest_s("job", 10.0) > 0
    assert contest.rest_s("other", 10.0) == 0.0


def test_it_is_over_when_nobody_undoes_anything() -> None:
    contest = Contention()
    stops_in(10.0, contest)
    later_s = 10.0 + QUIET_S + 2 * LONGEST_S
    assert [contest.rest_s("job", later_s + second) for second in range(FREE)] == [0.0] * FREE
    assert not contest.is_contested("job", later_s + FREE)


def test_what_is_gone_is_forgotten() -> None:
    contest = Contention()
    stops_in(10.0, contest)
    contest.forget("job")
    assert contest.rest_s("job", 10.0) == 0.0
