"""A workload that the same preemptor preempted too often lets it start first, and takes nothing
back from it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.preemption.yielding import TOO_OFTEN, Yielding

VICTIM, PREEMPTOR, OTHER = (WorkloadKey(f"ns/{name}") for name in ("victim", "preemptor", "other"))


def worn() -> Yielding:
    made = Yielding()
    for times in range(1, TOO_OFTEN + 1):
        assert made.preempted(VICTIM, PREEMPTOR) == times
    return made


def test_at_first_nobody_waits_and_nobody_is_spared() -> None:
    made = Yielding()
    for _ in range(TOO_OFTEN - 1):
        made.preempted(VICTIM, PREEMPTOR)
    assert made.preemptor_of(VICTIM) is None
    assert not made.spares(VICTIM, PREEMPTOR)


def test_too_often_is_waited_for_until_the_preemptor_starts() -> None:
    made = worn()
    assert made.preemptor_of(VICTIM) == PREEMPTOR
    assert made.preemptor_of(PREEMPTOR) is None
    assert made.let_pass(PREEMPTOR) == [VICTIM]
    assert made.preemptor_of(VICTIM) is None


def test_the_tables_are_not_turned_while_both_are_there() -> None:
    made = worn()
    made.let_pass(PREEMPTOR)
    assert made.spares(VICTIM, PREEMPTOR)
    assert not made.spares(VICTIM, OTHER)
    assert not made.spares(PREEMPTOR, VICTIM)
    made.gone(PREEMPTOR)
    assert not made.spares(VICTIM, PREEMPTOR)


def test_a_preemptor_that_goes_frees_its_victims_and_a_victim_that_goes_is_forgotten() -> None:
    assert worn().gone(PREEMPTOR) == [VICTIM]
    made = worn()
    assert made.gone(VICTIM) == []
    assert made.preempted(VICTIM, PREEMPTOR) == 1, "it begins anew under its name"


def test_turns_count_only_where_each_preempted_the_other() -> None:
    made = worn()
    assert made.turns(VICTIM, PREEMPTOR) == 0
    made.preempted(PREEMPTOR, VICTIM)
    assert made.turns(VICTIM, PREEMPTOR) == made.turns(PREEMPTOR, VICTIM) == TOO_OFTEN + 1


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4), st.integers(0, 4)), max_size=60))
def test_who_went_is_forgotten_as_if_it_had_been_looked_for_among_all(
    moves: list[tuple[bool, int, int]],
) -> None:
    made = Yielding()
    times: dict[tuple[WorkloadKey, WorkloadKey], int] = {}
    for preempts, first, second in moves:
        one, other = WorkloadKey(f"ns/{first}"), WorkloadKey(f"ns/{second}")
        if preempts and one != other:
            times[one, other] = times.get((one, other), 0) + 1
            assert made.preempted(one, other) == times[one, other]
        elif not preempts:
            made.gone(one)
            times = {pair: count for pair, count in times.items() if one not in pair}
    for (one, other), count in times.items():
        back = times.get((other, one), 0)
        assert made.turns(one, other) == (count + back if back else 0)
    for (one, _), _ in times.items():
        made.gone(one)
    assert not made._preemptors
    assert not any(made._times.values())
