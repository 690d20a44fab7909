"""The driver's walls: built where a grant has a cgroup of its own, moved with it, and nothing of them left, whenever the
daemon is killed and whichever side removes the cgroup first."""

from __future__ import annotations

import asyncio

import pytest

from nodeagent.core.grants.walls import rows_of, settling, still_to_lower
from nodeagent.ports.clients import Refused
from nodeagent.ports.driver.walls import WallReading, WallRow
from nodeagent.ports.processes import Process
from nodeagent.units import Bytes, GpuUuid, GrantId
from tests.unit.nodeagent.grants.walls_world import (
    GPU,
    HEADROOM,
    OTHER,
    PODS,
    Killed,
    Run,
    World,
    daemon,
    record,
)

GIB = 1 << 30
G1, G2 = GrantId("g1"), GrantId("g2")


async def nothing(run: Run) -> None:
    """Only starts."""


def test_it_stands_a_little_outside_and_guarantees_what_is_the_grants_own() -> None:
    (row,) = rows_of(record(memory=8 * GIB, request=6 * GIB), "/cg/x", HEADROOM)
    assert (row.soft_bytes, row.hard_bytes) == (6 * GIB, 8 * GIB + HEADROOM)
    (whole,) = rows_of(record(memory=100 * GIB), "/cg/x", HEADROOM)
    assert whole.soft_bytes == 80 * GIB, "no more is guaranteed than the card has"


def test_of_a_mig_instance_there_is_none() -> None:
    assert rows_of(record(gpus=(GpuUuid("MIG-0"),)), "/cg/x", HEADROOM) == ()


@pytest.mark.parametrize(
    ("now", "lower"), [(10, True), (4, False), (7, None)], ids=["not yet", "done", "another's"]
)
def test_what_was_taken_from_around_is_taken_once(now: int, lower: bool | None) -> None:
    row = WallRow(G1, GPU, "/cg/a/b", Bytes(6), Bytes(9), most_bytes=Bytes(6))
    row = settling(row, "/cg/a", WallReading(Bytes(10), None, Bytes(0)), 0)
    assert still_to_lower(row, WallReading(Bytes(now), None, Bytes(0))) is lower


def test_of_a_change_that_perhaps_was_never_made_nobody_else_pays() -> None:
    row = WallRow(G1, GPU, "/cg/a/b", Bytes(6), Bytes(9), most_bytes=Bytes(6))
    reading = WallReading(Bytes(10), None, Bytes(0))
    assert settling(row, "/cg/a", reading, inside_bytes=10).after_bytes == 10
    assert settling(row, "/cg/a", reading, inside_bytes=8).after_bytes == 8


def test_a_container_is_enclosed_and_its_wall_moves_and_goes_with_the_grant() -> None:
    world = World()
    world.give(record())
    path = world.container(7, "main")

    async def act(run: Run) -> None:
        await run.manager.enclose_container(G1, 7)
        assert world.book[GPU, path] == (8 * GIB, 8 * GIB + HEADROOM)
        assert run.manager.standing(G1) == {GPU: 8 * GIB + HEADROOM}
        world.resize("g1", 4 * GIB)
        await run.settled()
        assert world.book[GPU, path] == (4 * GIB, 4 * GIB + HEADROOM)
        assert world.book[GPU, PODS][0] == 4 * GIB
        world.end("g1")

    run = asyncio.run(daemon(world, act))
    assert (world.book, world.rows, run.fatal) == ({}, {}, [])


def test_a_container_that_is_started_again_has_a_new_wall_and_the_old_one_is_gone() -> None:
    world = World()
    world.give(record())
    first, second = world.container(7, "first"), world.container(8, "second")

    async def act(run: Run) -> None:
        await run.manager.enclose_container(G1, 7)
        world.remove(first)
        await run.manager.enclose_container(G1, 8)

    asyncio.run(daemon(world, act))
    assert world.book[GPU, second] == (8 * GIB, 8 * GIB + HEADROOM)
    assert world.book[GPU, PODS][0] == 8 * GIB


def test_a_process_of_another_pod_cannot_be_named() -> None:
    world = World()
    world.give(record())
    world.container(7, "main", pod="22222222-2222-2222-2222-222222222222")

    async def act(run: Run) -> None:
        await run.manager.enclose_container(G1, 7)
        assert run.told() == [
            "grant g1: no wall of the driver's: process 7 is not in the pod of this grant"
        ]
        with pytest.raises(Refused, match="no live grant"):
            await run.manager.enclose_container(G2, 7)

    asyncio.run(daemon(world, act))
    assert world.book == {}


def test_where_a_wall_must_stand_nothing_starts_without() -> None:
    world = World(without={GPU: "its driver has no memory limits"})
    world.give(record())
    world.container(7, "main")

    async def act(run: Run) -> None:
        with pytest.raises(Refused, match="has no memory limits"):
            await run.manager.enclose_container(G1, 7)

    asyncio.run(daemon(world, act, enabled="on"))

    async def quiet(run: Run) -> None:
        await run.manager.enclose_container(G1, 7)
        assert run.told() == []
        assert "none: its driver" in run.manager.finding(0).what or "on 1 of 2" in (
            run.manager.finding(0).what
        )

    asyncio.run(daemon(World(without={GPU: "its driver has none", OTHER: "its driver has none"},
                             grants=world.grants, of_pid=world.of_pid), quiet))  # fmt: skip


def test_a_host_without_cgroups_of_version_2_has_no_such_wall_and_that_is_no_fault() -> None:
    async def act(run: Run) -> None:
        found = run.manager.finding(0)
        assert (found.level, "none: this host is old" in found.what) == ("ok", True)

    asyncio.run(daemon(World(without_cgroups="this host is old"), act))


def test_a_driver_that_hangs_keeps_no_program_waiting_for_ever() -> None:
    world = World(hangs=True)
    world.give(record())
    world.container(7, "main")

    async def act(run: Run) -> None:
        await run.manager.enclose_container(G1, 7)
        assert "unknown: NVML did not answer" in run.manager.finding(0).what

    assert asyncio.run(daemon(world, act)).fatal == []


def test_what_sluice_run_starts_has_a_cgroup_of_its_own_only_where_that_is_asked_for() -> None:
    world = World()
    world.give(record(pod=""))
    process = Process(7, 1, 7, 0)

    async def act(run: Run) -> None:
        await run.manager.enclose_program(G1, process)

    asyncio.run(daemon(world, act))
    assert world.book == {}
    asyncio.run(daemon(world, act, run_cgroups=True))
    assert world.book[GPU, "/cg/sluice/g1"] == (8 * GIB, 8 * GIB + HEADROOM)

    async def end(run: Run) -> None:
        world.end("g1")

    asyncio.run(daemon(world, end, run_cgroups=True))
    assert world.book == {}
    assert "/cg/sluice/g1" not in world.cgroups


def test_who_stays_behind_in_a_cgroup_of_ours_stays_behind_the_wall() -> None:
    world = World()
    world.give(record(pod=""))

    async def act(run: Run) -> None:
        await run.manager.enclose_program(G1, Process(7, 1, 7, 0))
        world.busy.add("/cg/sluice/g1")
        world.end("g1")

    asyncio.run(daemon(world, act, run_cgroups=True))
    assert world.book == {(GPU, "/cg/sluice/g1"): (0, 8 * GIB + HEADROOM)}
    world.busy.clear()
    asyncio.run(daemon(world, nothing, run_cgroups=True))
    assert (world.book, world.rows) == ({}, {})


def test_somebody_elses_reservation_is_left_alone() -> None:
    """Between our writing down and the restart another has changed what is around."""
    world = World()
    world.container(7, "main")
    world.book[GPU, PODS] = (20 * GIB, None)
    most = Bytes(8 * GIB)
    row = WallRow(G1, GPU, f"{PODS}/gone/main", most, Bytes(9 * GIB), most_bytes=most)
    row = settling(row, PODS, WallReading(most, None, Bytes(0)), 0)
    world.rows[G1, GPU] = row
    run = asyncio.run(daemon(world, nothing))
    assert world.book == {(GPU, PODS): (20 * GIB, None)}
    assert world.rows == {}
    assert len(run.told()) == 1
    assert "may guarantee unused memory of GPU-0" in run.told()[0]


LIVES = ["grant ends first", "cgroup goes first", "pod goes first"]


@pytest.mark.parametrize("after_act", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kernel", [True, False], ids=["kernel's book", "flat book"])
@pytest.mark.parametrize("life", LIVES)
def test_nothing_is_left_at_whatever_act_the_daemon_is_killed(
    life: str, kernel: bool, after_act: bool
) -> None:
    """A grant on two cards, beside another pod's that lives on, with a kill at each act in turn."""
    for killed_at in range(1, 60):
        world = World(kernel=kernel)
        neighbour = "22222222-2222-2222-2222-222222222222"
        world.give(record("g2", memory=2 * GIB, pod=neighbour))
        beside = world.container(9, "side", pod=neighbour)
        world.give(record(gpus=(GPU, OTHER)))
        path = world.container(7, "main")

        async def one_life(run: Run, world: World = world, path: str = path) -> None:
            await run.manager.enclose_container(G2, 9)
            await run.manager.enclose_container(G1, 7)
            world.resize("g1", 4 * GIB)
            await run.settled()
            if life != "grant ends first":
                world.remove(path)
            if life == "pod goes first":
                world.remove(path.rpartition("/")[0])
            world.end("g1")

        world.killed_at, world.after_act = killed_at, after_act
        run = asyncio.run(daemon(world, one_life))
        over = not run.fatal
        assert all(isinstance(error, Killed) for error in run.fatal)
        world.killed_at = None
        world.grants.pop(G1, None)
        world.cgroups.discard(path)
        world.remove(path)

        async def comes_again(run: Run) -> None:
            if not run.manager.standing(G2):
                await run.manager.enclose_container(G2, 9)

        asyncio.run(daemon(world, comes_again))
        mine = {key: value for key, value in world.book.items() if value[1] is not None}
        assert mine == {(GPU, beside): (2 * GIB, 2 * GIB + HEADROOM)}, (life, killed_at)
        softs = {key[1]: value[0] for key, value in world.book.items() if value[1] is None}
        assert softs == ({PODS: 2 * GIB, beside.rpartition("/")[0]: 2 * GIB} if kernel else {}), (
            life,
            killed_at,
        )
        assert set(world.rows) == {(G2, GPU)}, (life, killed_at)
        if over:
            assert killed_at > 6, "kills were tried"
            return
    raise AssertionError("a life of more acts than were tried")


def test_the_finding_names_each_wall() -> None:
    world = World(without={OTHER: "its driver has no memory limits"})
    world.give(record())
    world.container(7, "main")

    async def act(run: Run) -> None:
        await run.manager.enclose_container(G1, 7)
        what = run.manager.finding(3).what
        assert "on 1 of 2 GPUs, around 1 grants, of containers" in what
        assert what.endswith("MIG: 3 instances")

    asyncio.run(daemon(world, act))
