"""Places in a line are what sorting it would give, after any coming and going."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuecontroller.scheduler.pending import places
from queuecontroller.scheduler.pending.places import Places

MOVES = st.lists(st.tuples(st.booleans(), st.integers(0, 60)), max_size=300)


@given(MOVES)
def test_a_place_is_the_one_in_the_sorted_line(moves: list[tuple[bool, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(places, "LONGEST", 4)
        line = Places([])
        there: dict[int, tuple[int, int]] = {}
        for comes, key in moves:
            if comes and key not in there:
                there[key] = (key % 5, key)
                line.add(key, there[key])
            elif not comes:
                there.pop(key, None)
                line.discard(key)
            ordered = sorted(there, key=there.__getitem__)
            assert len(line) == len(there)
            assert [line.of(one) for one in ordered] == list(range(1, len(there) + 1))
            assert line.of(key) == (ordered.index(key) + 1 if key in there else 0)


def test_a_line_that_stood_before_anybody_asked_is_taken_in() -> None:
    orders = [((7 * i) % 5003, i) for i in range(5003)]
    line = Places(enumerate(orders))
    ranks = sorted(range(5003), key=orders.__getitem__)
    assert [line.of(key) for key in ranks] == list(range(1, 5004))
