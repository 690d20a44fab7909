"""The cycle collector sees little at a time, and garbage still goes."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from queuecontroller.collector import FULL_EVERY, Collector


class Knot:
    """Garbage that only the collector can free."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def collector() -> Iterator[Collector]:
    before = gc.get_threshold()
    made = Collector()
    made.start()
    yield made
    gc.unfreeze()
    gc.set_threshold(*before)
    gc.collect()


def test_what_came_and_went_since_the_last_look_is_freed(collector: Collector) -> None:
    gone = weakref.ref(Knot())
    collector.look()
    assert gone() is None


def test_what_lives_is_out_of_sight(collector: Collector) -> None:
    kept = [Knot() for _ in range(1000)]
    collector.look()
    seen = {id(one) for one in gc.get_objects()}
    assert not any(id(one) in seen for one in kept)


def test_what_became_garbage_out_of_sight_is_freed_within_the_hour(collector: Collector) -> None:
    kept = Knot()
    gone = weakref.ref(kept)
    collector.look()
    del kept
    looks = 0
    while gone() is not None and looks <= FULL_EVERY:
        collector.look()
        looks += 1
    assert 1 < looks < FULL_EVERY


def test_full_runs_are_not_left_to_chance(collector: Collector) -> None:
    assert gc.get_threshold()[2] > 1_000_000
