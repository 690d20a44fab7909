"""A grant whose region was lost, or could not be read for want of descriptors, is no reason to hold
its processes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from nodeagent.units import GrantId
from tests.unit.nodeagent.watch.bench import Bench
from tests.unit.nodeagent.watch.scenes import evader, play, steps


@pytest.mark.parametrize(
    ("lost", "short", "held"),
    [
        (False, False, ["deny_opens", "freeze", "throttle"]),
        (True, False, []),
        (False, True, []),
    ],
    ids=["as ever", "its files are gone", "out of descriptors"],
)
def test_nobody_is_frozen_for_what_he_did_not_do(lost: bool, short: bool, held: list[str]) -> None:
    async def act(it: Bench) -> None:
        it.world.short = short
        it.world.open[GrantId("g1")] = SimpleNamespace(tenants={}, lost=lost)
        await evader(it)
        assert steps(it) == held
        it.world.open.clear()

    play(act)
