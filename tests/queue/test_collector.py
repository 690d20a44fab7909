"""The cycle collector sees little at a time, and garbage still goes."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from queuecontroller.server.collector import EVERY_S, FULL_AT, FULL_EVERY_S, MANY, Collector


class Knot:
    """Garbage that only the collector can free."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    made.start()
    yield made
    made.stop()
    assert gc.isenabled()


def test_it_never_runs_by_itself(collector: Collector) -> None:
    gone = weakref.ref(Knot())
    kept = [[number] for number in range(10 * MANY)]
    assert gone() is not None
    assert len(kept) == 10 * MANY


def test_it_runs_when_much_is_new(collector: Collector) -> None:
    collector.step()
    gone = weakref.ref(Knot())
    collector.step()
    assert gone() is not None
    kept = [[number] for number in range(MANY)]
    collector.step()
    assert gone() is None
    assert len(kept) == MANY


def test_it_runs_when_little_happens_for_long(collector: Collector) -> None:
    collector.step(0.0)
    gone = weakref.ref(Knot())
    collector.step(EVERY_S / 2)
    assert gone() is not None
    collector.step(EVERY_S)
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
    for second in range(0, int(FULL_EVERY_S), 10):
        collector.step(second)
    assert gone() is not None
    collector.step(FULL_EVERY_S)
    assert gone() is None


def test_what_became_garbage_out_of_sight_is_freed_when_as_much_again_was_frozen(
    collector: Collector,
) -> None:
    """A connection that was open at a collection is frozen; when many of them have come and gone,
    an hour is too long."""
    gone: list[weakref.ref[Knot]] = []
    in_use = gc.get_freeze_count()
    most = max(FULL_AT, in_use // 2)
    for _ in range(2 * most // MANY):
        kept = [Knot() for _ in range(MANY)]
        gone.append(weakref.ref(kept[0]))
        collector.step()
        del kept
    assert sum(one() is not None for one in gone) * MANY <= most + MANY


def test_in_the_event_loop_it_runs_between_two_steps(collector: Collector) -> None:
    async def serve() -> weakref.ref[Knot]:
        running = asyncio.create_task(collector.run())
        await asyncio.sleep(0.25)  # the first check is a run
        gone = weakref.ref(Knot())
        kept = [[number] for number in range(MANY)]
        await asyncio.sleep(0.25)
        running.cancel()
        assert len(kept) == MANY
        return gone

    assert asyncio.run(serve())() is None
