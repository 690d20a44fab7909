"""The watch over fakes: what eBPF adds, who is touched and who is not, and that nothing happens
without its audit row."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from nodeagent.ports.gpus import NodeReading
from nodeagent.ports.processes import LibraryIdentity
from nodeagent.ports.telemetry import (
    Actor,
    AuditWindow,
    DeviceOpened,
    FileId,
    ForeignLibrary,
    ProcessLaunches,
)
from nodeagent.ports.watch import MappedLibrary, NotPossible
from nodeagent.units import GrantId, Nanoseconds
from tests.unit.nodeagent.watch.bench import CGROUP, POD, Bench, World, daemon, held, on_gpu
from tests.unit.nodeagent.watch.scenes import evader, play

OTHER_POD = "1b4e28ba-2fa1-11d2-883f-000000000002"
OTHER_CGROUP = f"/kubepods/pod{OTHER_POD}/c2"


def bench(act: Callable[[Bench], Any], **settings: Any) -> None:
    async def run() -> None:
        it = daemon(World(), **settings)
        await it.kernel.start()
        try:
            await act(it)
        finally:
            it.watch.close()

    asyncio.run(run())


def actor(pid: int, cgroup: str = "", pod: str = "") -> Actor:
    return Actor(pid, 1000, "x", 5, pid * 10, cgroup, pod)


def test_an_open_in_a_pod_without_an_allocation_is_told_and_contained_at_once() -> None:
    async def act(it: Bench) -> None:
        it.world.add(7, CGROUP, POD)
        it.world.add(8, OTHER_CGROUP, OTHER_POD)
        it.kernel.tell(DeviceOpened(Nanoseconds(1), actor(7, CGROUP, POD), 195, 0, "rw"))
        assert it.kinds() == ["unallocated_opener", "act"]
        await asyncio.sleep(0)
        assert it.kernel.denied() == {CGROUP}
        it.world.now_s += 1
        it.watch._act()
        assert it.world.done == [("freeze", CGROUP, True)]
        assert [row.step for row in it.world.rows] == ["deny_opens", "freeze"]

    bench(act)


def test_it_is_let_go_again_when_it_is_over() -> None:
    async def act(it: Bench) -> None:
        it.world.add(7, CGROUP, POD)
        it.kernel.tell(DeviceOpened(Nanoseconds(1), actor(7, CGROUP, POD), 195, 0, "rw"))
        await it.looks(on_gpu(), 15)
        await asyncio.sleep(0)
        assert it.world.done == [("freeze", CGROUP, True), ("freeze", CGROUP, False)]
        assert it.kernel.denied() == frozenset()
        assert [row.undo for row in it.world.rows] == [False, False, True, True]

    bench(act)


def test_who_has_a_grant_may_open() -> None:
    async def act(it: Bench) -> None:
        it.world.add(7, CGROUP, POD)
        grant, one = held("g1", POD)
        it.world.grants[grant] = one
        it.kernel.tell(DeviceOpened(Nanoseconds(1), actor(7, CGROUP, POD), 195, 0, "rw"))
        assert it.kinds() == []

    bench(act)


def test_a_denied_open_and_an_exempt_program_are_no_news() -> None:
    async def act(it: Bench) -> None:
        it.world.add(7, CGROUP, POD)
        it.world.add(8, program="/usr/bin/nvidia-smi")
        opened = DeviceOpened(Nanoseconds(1), actor(7, CGROUP, POD), 195, 0, "rw", denied=True)
        it.kernel.tell(opened)
        it.kernel.tell(DeviceOpened(Nanoseconds(1), actor(8), 195, 0, "rw"))
        assert it.kinds() == []

    bench(act)


def test_an_exempt_name_helps_nobody_but_root_and_nobody_in_a_pod() -> None:
    async def act(it: Bench) -> None:
        it.world.add(7, program="/usr/bin/nv-hostengine", uid=0)
        it.world.add(8, program="/usr/bin/nv-hostengine", uid=1000)
        it.world.add(9, CGROUP, POD, uid=0, program="/usr/bin/nv-hostengine")
        await it.looks(on_gpu(7, 8, 9), 3)
        told = [event.pid for event in it.journal.after(0) if event.kind == "unregistered_gpu_user"]
        assert told == [8, 9]

    bench(act, grants="observe")


def test_the_process_of_a_grant_is_held_and_its_neighbour_is_not() -> None:
    async def act(it: Bench) -> None:
        it.world.add(7, CGROUP, POD)
        it.world.add(8, OTHER_CGROUP, OTHER_POD)
        for grant, one in (held("g1", POD), held("g2", OTHER_POD)):
            it.world.grants[grant] = one
        await it.looks(on_gpu(7), 4)
        assert it.world.done == [("PauseSet", "g1", True), ("freeze", CGROUP, True)]
        assert not any("g2" in map(str, what) or OTHER_CGROUP in what for what in it.world.done)

    bench(act)


def test_a_container_stays_held_while_another_of_its_processes_is_suspected() -> None:
    async def act(it: Bench) -> None:
        it.world.add(7, CGROUP, POD)
        it.world.add(8, CGROUP, POD)
        await it.looks(on_gpu(7, 8), 4)
        held = [("freeze", CGROUP, True), ("freeze", CGROUP, True)]
        assert it.world.done == held
        await it.looks(on_gpu(8), 15)
        assert it.world.done == held
        assert it.kernel.denied() == {CGROUP}
        await it.looks(on_gpu(), 15)
        assert it.world.done == [*held, ("freeze", CGROUP, False)]
        assert it.kernel.denied() == frozenset()

    bench(act)


def test_when_the_process_has_ended_what_else_was_held_with_it_goes_on() -> None:
    async def act(it: Bench) -> None:
        it.world.add(7, CGROUP, POD)
        grant, one = held("g1", POD)
        it.world.grants[grant] = one
        await it.looks(on_gpu(7), 4)
        del it.world.facts[7]
        await it.looks(on_gpu(), 1)
        assert it.world.done == [
            ("PauseSet", "g1", True),
            ("freeze", CGROUP, True),
            ("freeze", CGROUP, False),
            ("PauseSet", "g1", False),
        ]
        assert it.kernel.denied() == frozenset()

    bench(act)


def test_of_a_process_alone_nothing_is_taken_back_after_its_end() -> None:
    async def act(it: Bench) -> None:
        it.world.add(7)
        await it.looks(on_gpu(7), 4)
        assert it.world.done == [("signal", 7, signal.SIGSTOP)]
        del it.world.facts[7]
        await it.looks(on_gpu(), 15)
        assert it.world.done == [("signal", 7, signal.SIGSTOP)]
        assert not any(row.undo for row in it.world.rows)

    bench(act, bare_metal="contain")


def test_opens_that_nobody_can_deny_are_not_told_as_denied() -> None:
    async def act(it: Bench) -> None:
        it.world.add(7, CGROUP, POD)
        it.kernel.die("killed")
        await it.looks(on_gpu(7), 4)
        told = [
            event.text.partition(":")[0] for event in it.journal.after(0) if event.kind == "act"
        ]
        assert told == ["freeze"]
        assert it.kernel.denied() == frozenset()

    bench(act)


@pytest.mark.parametrize(
    ("who", "told"),
    [
        ("the queue controller, ns/w", "reported to: the queue controller, ns/w"),
        ("", "delete pod team/p"),
    ],
    ids=["through the queue", "by the kubelet"],
)
def test_right_after_the_kill_whoever_placed_it_is_told(who: str, told: str) -> None:
    async def act(it: Bench) -> None:
        calls: list[tuple[GrantId, str]] = []

        def placer(grant: GrantId, why: str) -> str:
            calls.append((grant, why))
            return who

        it.placers.append(placer)
        it.world.add(7, CGROUP, POD)
        grant, one = held("g1", POD)
        it.world.grants[grant] = one
        await it.looks(on_gpu(7), 40)
        assert ("kill", CGROUP) in it.world.done
        assert calls == [(grant, "unregistered_gpu_user")]
        assert [row.step for row in it.world.rows][-2:] == ["kill", "report_for_eviction"]
        assert it.watch._containment.acts["report_for_eviction"] == 1
        (event,) = [one for one in it.journal.after(0) if "report_for_eviction" in one.text]
        assert told in event.text

    bench(act, grants="kill")


def test_nobody_placed_what_is_in_no_grant() -> None:
    async def act(it: Bench) -> None:
        it.world.add(7)
        await it.looks(on_gpu(7), 40)
        assert it.world.done[-1] == ("signal", 7, signal.SIGKILL)
        assert it.watch._containment.acts["report_for_eviction"] == 0

    bench(act, bare_metal="kill")


def test_without_an_audit_row_nothing_is_done() -> None:
    async def act(it: Bench) -> None:
        it.world.full = True
        it.world.add(7, CGROUP, POD)
        await it.looks(on_gpu(7), 60)
        assert it.world.done == []
        assert it.kinds() == ["unregistered_gpu_user"]

    bench(act, grants="kill")


def test_a_pid_that_is_somebody_elses_by_now_is_not_touched() -> None:
    async def act(it: Bench) -> None:
        it.world.add(7)
        await it.looks(on_gpu(7), 2)
        it.world.facts[7] = replace(it.world.facts[7], starttime_ticks=999)
        it.world.now_s += 10
        it.watch._act()
        assert [what for what in it.world.done if what[0] == "signal"] == []

    bench(act, bare_metal="contain")


def test_a_failed_reading_clears_nobody_and_accuses_nobody() -> None:
    async def act(it: Bench) -> None:
        it.world.add(7)
        await it.looks(on_gpu(7), 3)
        assert it.watch.suspicions()["unregistered_gpu_user"] == 1
        await it.looks(NodeReading(error="hung"), 60)
        assert it.watch.suspicions()["unregistered_gpu_user"] == 1
        del it.world.facts[7]
        await it.looks(on_gpu(), 1)
        assert it.watch.suspicions()["unregistered_gpu_user"] == 0

    bench(act)


def test_a_flood_of_processes_is_told_once_and_each_is_held() -> None:
    async def act(it: Bench) -> None:
        for pid in range(100, 150):
            it.world.add(pid)
        await it.looks(on_gpu(*range(100, 150)), 4)
        assert it.kinds().count("unregistered_gpu_user") == 1
        assert it.watch.detections["unregistered_gpu_user"] == 50
        assert {what[1] for what in it.world.done} == set(range(100, 150))

    bench(act, bare_metal="contain")


def test_a_foreign_library_comes_from_proc_or_from_the_kernel_watch() -> None:
    async def act(it: Bench) -> None:
        it.world.add(7)
        it.world.add(8)
        it.world.libraries[7] = (
            MappedLibrary(1, 1, "/real/libcuda.so.1"),
            MappedLibrary(1, 2, "/tmp/libcuda.so.1"),
        )
        await it.looks(on_gpu(7), 1)
        it.kernel.tell(
            ForeignLibrary(Nanoseconds(1), actor(8), FileId(1, 9), "/tmp/renamed.so", "driver")
        )
        await it.looks(on_gpu(7), 1)
        told = [event for event in it.journal.after(0) if event.kind == "foreign_libcuda"]
        assert [(event.pid, "renamed" in event.evidence) for event in told] == [(7, False)]
        assert it.watch.detections["foreign_libcuda"] == 2, "one program, told once, counted twice"

    bench(act)


OLD = LibraryIdentity(1, 2, 3, 1 << 20, 10**18, 0)


@pytest.mark.parametrize(
    ("changes", "told"),
    [({}, False)]
    + [
        ({name: getattr(OLD, name) + 1}, True)
        for name in ("device", "inode", "generation", "size_bytes", "modified_ns", "uid")
    ],
)
def test_the_nodes_own_driver_from_before_an_update_is_no_foreign_one(
    changes: dict[str, int], told: bool
) -> None:
    async def act(it: Bench) -> None:
        it.world.add(7)
        library = MappedLibrary(1, 2, "/real/libcuda.so.1 (deleted)", "/proc/7/map_files/1-2")
        it.world.libraries[7] = (library,)
        it.world.identities["/proc/7/map_files/1-2"] = replace(OLD, **changes)
        it.former.add(OLD)
        await it.looks(on_gpu(7), 1)
        assert ("foreign_libcuda" in it.kinds()) is told

    bench(act)


def test_launches_that_pass_us_by_are_told_after_three_windows() -> None:
    async def act(it: Bench) -> None:
        it.world.add(7)
        launches = (ProcessLaunches(7, 70, driver=200, shim=100),)
        window = AuditWindow(
            Nanoseconds(1), Nanoseconds(100_000_000), FileId(1, 1), "/real", launches, 0.001
        )
        for number in range(3):
            assert it.watch.detections["launches_unaccounted"] == 0, number
            it.kernel.tell(window)
            await it.looks(on_gpu(), 1)
        assert it.watch.detections["launches_unaccounted"] == 1

    bench(act)


def test_a_cgroup_that_cannot_be_held_stops_nothing_else() -> None:
    async def act(it: Bench) -> None:
        def broken(cgroup: str, freezer: str, frozen: bool) -> None:
            raise NotPossible("no such cgroup")

        it.world.freeze = broken  # type: ignore[method-assign]
        it.world.add(7, CGROUP, POD)
        await it.looks(on_gpu(7), 40)
        assert ("kill", CGROUP) in it.world.done

    bench(act, grants="kill")


@pytest.mark.parametrize("follow", [False, True])
def test_events_are_numbered_and_followed(follow: bool) -> None:
    async def act(it: Bench) -> None:
        it.journal.record("gpu", "info", "one")
        stream = it.journal.follow(0, follow)
        assert (await anext(stream)).text == "one"
        if follow:
            waiting = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
            it.journal.record("gpu", "info", "two")
            assert (await asyncio.wait_for(waiting, 60)).number == 2
        else:
            with pytest.raises(StopAsyncIteration):
                await anext(stream)
        await stream.aclose()

    bench(act)


def test_a_pods_owner_finds_in_its_events_that_it_is_held_and_that_it_goes_on() -> None:
    told: list[tuple[str, str, str, bool]] = []

    async def tell(uid: str, reason: str, text: str, warns: bool) -> None:
        told.append((uid, reason, text, warns))

    async def act(it: Bench) -> None:
        it.watch.on_pod.append(tell)
        await evader(it)
        ((uid, reason, text, warns),) = told
        assert (uid, reason, warns) == (POD, "SluiceHeld", True)
        assert "because of unregistered_gpu_user" in text
        (freeze,) = [one.number for one in it.watch.contained() if one.step == "freeze"]
        assert f"`sluice uncontain {freeze}`" in text
        it.watch.let_go([freeze], "by hand")
        await asyncio.sleep(0)
        assert told[1][:2] == (POD, "SluiceReleased")
        assert told[1][3] is False

    play(act)


def test_a_process_outside_of_pods_has_no_pod_event() -> None:
    told: list[str] = []

    async def tell(uid: str, reason: str, text: str, warns: bool) -> None:
        told.append(uid)

    async def act(it: Bench) -> None:
        it.watch.on_pod.append(tell)
        it.world.add(7)
        await it.looks(on_gpu(7), 4)
        assert "freeze" in [one.step for one in it.watch.contained()]
        assert told == []

    play(act, bare_metal="contain")
