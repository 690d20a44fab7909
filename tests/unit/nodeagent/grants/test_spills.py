"""A grant's memory on its way to the host and back: whatever fails, and wherever the daemon is killed."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest

from nodeagent.core.grants import events as ev
from nodeagent.ports.clients import RefusalKind, Refused
from nodeagent.ports.driver.checkpoint import CheckpointFailed, CheckpointState, CheckpointStep
from nodeagent.ports.ledger import Spill
from nodeagent.shell.grants import spills
from nodeagent.units import GrantId
from tests.unit.nodeagent.grants.spills_world import GIB, G, Killed, World, paused

RUNNING, CHECKPOINTED = CheckpointState.RUNNING, CheckpointState.CHECKPOINTED
LOCKED = CheckpointState.LOCKED


def run(act: Coroutine[Any, Any, None]) -> None:
    """Raises what the act raises, Killed too."""
    asyncio.run(act)


def spilled(**facts: Any) -> World:
    world = World(**facts)
    run(world.manager.spill(G))
    return world


def test_there_and_back() -> None:
    world = spilled()
    assert set(world.states.values()) == {CHECKPOINTED}
    assert (world.record.spill, world.record.paused) == (Spill.SPILLED, True)
    assert world.record.spilled_bytes == (30 * GIB,)
    assert not world.book.loads(), "nothing of it is promised"
    run(world.manager.resume(G))
    assert set(world.states.values()) == {RUNNING}
    assert (world.record.spill, world.record.paused) == (Spill.RESIDENT, False)
    assert world.manager.results == {"spilled": 1, "returned": 1}


@pytest.mark.parametrize("step", [CheckpointStep.LOCK, CheckpointStep.CHECKPOINT])
@pytest.mark.parametrize("pid", [1, 2])
@pytest.mark.parametrize("before", [False, True])
def test_one_that_cannot_go_stays_as_it_was(step: CheckpointStep, pid: int, before: bool) -> None:
    world = World(fails={(step, pid): CheckpointFailed(f"process {pid}: no")})
    if before:
        paused(world)
    with pytest.raises(Refused, match=f"process {pid}: no") as refused:
        run(world.manager.spill(G))
    assert refused.value.kind is RefusalKind.UNAVAILABLE
    assert set(world.states.values()) == {RUNNING}
    assert (world.record.spill, world.record.paused) == (Spill.RESIDENT, before)


@pytest.mark.parametrize("pid", [1, 2])
@pytest.mark.parametrize("full", [False, True])
def test_one_that_cannot_come_back_stays_where_it_is(pid: int, full: bool) -> None:
    world = spilled()
    world.fails[CheckpointStep.RESTORE, pid] = CheckpointFailed("no", full)
    with pytest.raises(Refused) as refused:
        run(world.manager.resume(G))
    assert refused.value.kind is (RefusalKind.EXHAUSTED if full else RefusalKind.UNAVAILABLE)
    assert set(world.states.values()) == {CHECKPOINTED}
    assert (world.record.spill, world.record.paused) == (Spill.SPILLED, True)
    world.fails.clear()
    run(world.manager.resume(G))
    assert set(world.states.values()) == {RUNNING}


@pytest.mark.parametrize("step", [CheckpointStep.CHECKPOINT, CheckpointStep.RESTORE])
def test_a_process_that_the_driver_loses_keeps_its_room_and_is_named(step: CheckpointStep) -> None:
    back = step is CheckpointStep.RESTORE
    world = spilled() if back else World()
    world.fails[step, 2], world.breaks = CheckpointFailed("process 2: no"), True
    with pytest.raises(Refused, match="process 2 cannot be restored"):
        run(world.manager.resume(G) if back else world.manager.spill(G))
    assert world.states[1] is RUNNING, "the other one is not lost with it"
    assert (world.record.spill, world.record.paused) == (Spill.RESIDENT, True)
    assert "process 2 cannot be restored, end it" in world.texts()[-1]


@pytest.mark.parametrize(
    ("facts", "kind", "why"),
    [
        ({"lacks": "it is of CUDA 12.4"}, RefusalKind.UNAVAILABLE, "it is of CUDA 12.4"),
        ({"still": "it was stopped"}, RefusalKind.UNAVAILABLE, "it was stopped"),
        ({"host_bytes": 59 * GIB}, RefusalKind.EXHAUSTED, "checkpoint.host_memory_percent = 50"),
        ({"cgroup_bytes": 29 * GIB}, RefusalKind.EXHAUSTED, "/sys/fs/cgroup/a"),
        ({"host_bytes": 59 * GIB, "hostile": True}, RefusalKind.EXHAUSTED, "host_memory_percent"),
        ({"processes": {}}, RefusalKind.UNAVAILABLE, "nothing to spill"),
    ],
    ids=["no driver", "stopped", "host", "cgroup", "NVML is believed over the job", "no process"],
)
def test_what_cannot_be_is_refused_by_name_before_anything_is_touched(
    facts: dict[str, Any], kind: RefusalKind, why: str
) -> None:
    world = World(**facts)
    with pytest.raises(Refused) as refused:
        run(world.manager.spill(G))
    assert why in str(refused.value)
    assert refused.value.kind is kind
    assert world.acts == 0


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"enabled": False}, "checkpoint.enabled = false"),
        ({"spare_host_memory_mib": 230 * 1024}, "checkpoint.spare_host_memory_mib"),
    ],
)
def test_settings_are_refused_by_their_names(settings: dict[str, Any], why: str) -> None:
    world = World()
    with pytest.raises(Refused, match=why):
        run(world.make(**settings).spill(G))
    assert world.acts == 0


def test_a_card_that_somebody_else_has_filled_is_not_tried() -> None:
    """A driver that finds no room may lose the process."""
    world = spilled()
    world.others_bytes = 60 * GIB
    with pytest.raises(Refused, match="a process uses more there than was granted") as refused:
        run(world.manager.resume(G))
    assert refused.value.kind is RefusalKind.EXHAUSTED
    assert world.record.spill is Spill.SPILLED
    assert set(world.states.values()) == {CHECKPOINTED}


def test_who_asked_may_go_away_and_it_is_carried_through() -> None:
    world = World()

    async def ask() -> None:
        world.held_up = asyncio.Event()
        asked = asyncio.create_task(world.manager.spill(G))
        while world.record.spill is not Spill.SPILLING:
            await asyncio.sleep(0)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        world.held_up.set()
        while world.record.spill is not Spill.SPILLED:
            await asyncio.sleep(0)

    run(ask())
    assert set(world.states.values()) == {CHECKPOINTED}
    assert world.defects == []


def test_what_a_predecessor_asked_for_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spills, "MOVING_S", 0.0)
    world = World(moving=3)
    run(world.manager.spill(G))
    assert world.moving == 0
    assert set(world.states.values()) == {CHECKPOINTED}


def test_a_process_that_ends_meanwhile_is_no_failure() -> None:
    world = spilled()
    world.die(2)
    run(world.manager.resume(G))
    assert world.states == {1: RUNNING}


def test_one_that_somebody_else_brought_back_has_its_room_again() -> None:
    world = spilled()
    world.states[1] = RUNNING
    after_restart(world)
    assert world.record.spill is Spill.RESIDENT
    assert set(world.states.values()) == {RUNNING}, "the rest of it, too"
    assert "was not brought back by this daemon" in world.texts()[-1]


@pytest.mark.parametrize("state", [RUNNING, LOCKED])
def test_one_that_somebody_else_brought_back_goes_out_again_where_its_room_is_another_grants(
    state: CheckpointState,
) -> None:
    world = spilled()
    other = GrantId("22222222-grant")
    world.ledger[other] = replace(world.record, grant=other, spill=Spill.RESIDENT, paused=False)
    world.states[1] = state
    after_restart(world)
    assert world.record.spill is Spill.SPILLED
    assert world.record.paused
    assert set(world.states.values()) == {CHECKPOINTED}
    assert world.record.spilled_bytes == (30 * GIB,)
    assert "was not brought back by this daemon" in world.texts()[-2]


def after_restart(world: World) -> None:
    """A new daemon does what its predecessor had begun."""
    world.killed_at = None
    world.start()

    async def carry_on() -> None:
        await world.manager.start()
        for _ in range(100):
            await asyncio.sleep(0)
        await world.manager.close()

    run(carry_on())
    assert world.defects == []
    world.check()


@pytest.mark.parametrize("after_act", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("back", [False, True], ids=["there", "back"])
def test_a_daemon_killed_at_any_act_carries_on(back: bool, after_act: bool) -> None:
    for act in itertools.count(1):
        world = spilled() if back else World()
        world.acts, world.killed_at, world.after_act = 0, act, after_act
        try:
            run(world.manager.resume(G) if back else world.manager.spill(G))
            break
        except Killed:
            pass
        begun = world.record.spill not in (Spill.RESIDENT, Spill.SPILLED)
        before = world.record
        after_restart(world)
        states = set(world.states.values())
        if begun and back:
            assert (world.record.spill, world.record.paused) == (Spill.RESIDENT, False)
            assert states == {RUNNING}
        elif begun:
            assert (world.record.spill, states) == (Spill.SPILLED, {CHECKPOINTED})
        else:
            assert world.record == before, "not begun, or done"
            spilled_now = before.spill is Spill.SPILLED
            assert states == {CHECKPOINTED if spilled_now else RUNNING}
    assert act > 6, "each process takes two steps, and each of the record's is one"


@pytest.mark.parametrize(
    ("facts", "settings", "text"),
    [
        ({}, {}, "the driver has them; 0 grants are spilled, with 0B of at most 128Gi"),
        ({"lacks": "it is of CUDA 12.4"}, {}, "none: it is of CUDA 12.4; `sluice pause --spill`"),
        ({}, {"enabled": False}, "off (checkpoint.enabled)"),
    ],
)
def test_what_the_doctor_says(facts: dict[str, Any], settings: dict[str, Any], text: str) -> None:
    world = World(**facts)
    finding = asyncio.run(world.make(**settings).finding())
    assert finding.what.startswith(text)


def test_a_process_that_others_or_itself_have_checkpointed_is_left_alone() -> None:
    world = World()
    world.states[1] = CHECKPOINTED
    with pytest.raises(Refused, match="process 1 is checkpointed already, by itself or another"):
        run(world.manager.spill(G))
    assert world.states == {1: CHECKPOINTED, 2: RUNNING}
    assert (world.record.spill, world.record.paused) == (Spill.RESIDENT, False)


def test_queued_work_that_is_away_for_too_long_is_ended() -> None:
    world = spilled()
    ended = []
    world.manager = world.make(longest_s=60.0)
    world.manager.overdue = lambda grant: ended.append(grant) is None
    world.clock.advance(59)
    world.manager._sweep()
    assert ended == []
    world.clock.advance(2)
    world.manager._sweep()
    assert ended == [G]
    assert "checkpoint.longest_s (60 s)" in world.texts()[-1]


def test_nothing_is_lent_to_one_that_is_away() -> None:
    world = spilled()
    world.apply(ev.Lent(G, (60 * GIB,)))  # type: ignore[arg-type]
    assert world.record.devices[0].memory_bytes == 48 * GIB
