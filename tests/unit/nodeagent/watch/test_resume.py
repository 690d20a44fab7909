"""One daemon after another over the same world: acts that were cut short, targets that changed, a full ledger, and eBPF
that comes late."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from nodeagent.ports.processes import Process
from nodeagent.ports.watch import NotPossible
from nodeagent.units import GrantId
from tests.unit.nodeagent.watch.bench import CGROUP, POD, Bench, daemon, held, on_gpu
from tests.unit.nodeagent.watch.scenes import evader, play, steps


class Killed(BaseException):
    """Our daemon, in the middle of something."""


def next_daemon(it: Bench, **settings: Any) -> Bench:
    it.watch.close()
    it.world.done.clear()
    after = daemon(it.world, **settings)
    after.watch.resume()
    return after


def why(it: Bench) -> set[str]:
    return {json.loads(row.evidence).get("why", "") for row in it.world.rows if row.undo}


def test_all_that_is_in_force_is_taken_up_and_nothing_is_done_twice() -> None:
    async def act(it: Bench) -> None:
        await evader(it)
        assert steps(it) == ["deny_opens", "freeze", "throttle"]
        after = next_daemon(it)
        assert steps(after) == ["deny_opens", "freeze", "throttle"]
        await after.looks(on_gpu(7), 30)
        assert after.world.done == []
        assert steps(after) == ["deny_opens", "freeze", "throttle"]
        await after.looks(on_gpu(), 12)
        assert after.world.done == [("freeze", CGROUP, False), ("PauseSet", "g1", False)]
        assert steps(after) == []
        assert it.world.rows_held == {}
        after.watch.close()

    play(act)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"grants": "observe"}, "the policy is observe now"),
        ({"policies": "namespace/team=observe"}, "the policy is observe now"),
        ({"enabled": False}, "detection is switched off"),
    ],
    ids=["observe", "observe for its namespace", "switched off"],
)
def test_a_milder_configuration_takes_all_of_it_back_before_the_first_look(
    settings: dict[str, Any], reason: str
) -> None:
    async def act(it: Bench) -> None:
        await evader(it)
        after = next_daemon(it, **settings)
        assert ("freeze", CGROUP, False) in after.world.done
        assert ("PauseSet", "g1", False) in after.world.done
        assert steps(after) == []
        assert why(after) == {reason}
        after.watch.close()

    play(act)


def test_with_a_grant_that_is_gone_its_container_goes_on() -> None:
    async def act(it: Bench) -> None:
        await evader(it)
        it.world.grants.clear()
        after = next_daemon(it)
        assert after.world.done == [("freeze", CGROUP, False)]
        assert steps(after) == []
        assert why(after) == {"its grant is gone"}

    play(act)


@pytest.mark.parametrize("settings", [{}, {"grants": "observe"}], ids=["same", "observe"])
def test_another_cgroup_of_the_same_name_is_not_touched(settings: dict[str, Any]) -> None:
    async def act(it: Bench) -> None:
        await evader(it)
        it.world.inodes[CGROUP] += 1
        after = next_daemon(it, **settings)
        assert [what for what in after.world.done if what[0] == "freeze"] == []
        assert "freeze" not in steps(after)

    play(act)


def test_a_daemon_killed_between_the_row_and_the_act_is_followed_by_one_that_does_it() -> None:
    async def act(it: Bench) -> None:
        real = it.world.freeze

        def killed(cgroup: str, freezer: str, frozen: bool) -> None:
            raise Killed

        it.world.freeze = killed  # type: ignore[method-assign]
        with pytest.raises(Killed):
            await evader(it)
        it.world.freeze = real  # type: ignore[method-assign]
        (row,) = [one for one in it.world.rows_held.values() if one.step == "freeze"]
        assert not row.done
        after = next_daemon(it)
        assert after.world.done == [("freeze", CGROUP, True)]
        (row,) = [one for one in it.world.rows_held.values() if one.step == "freeze"]
        assert row.done

    play(act)


def test_a_daemon_killed_between_the_undoing_and_the_end_of_the_row_has_nothing_left_to_do() -> (
    None
):
    async def act(it: Bench) -> None:
        await evader(it)
        it.world.frozen.clear()
        after = next_daemon(it, grants="observe")
        assert ("freeze", CGROUP, False) not in after.world.done
        assert steps(after) == []

    play(act)


def test_what_a_person_paused_is_never_ours_to_resume() -> None:
    async def act(it: Bench) -> None:
        it.world.grants.update([held("g1", POD)])
        grant = it.world.grants[GrantId("g1")]
        grant.record = replace(grant.record, paused=True)
        await evader_of(it)
        assert "throttle" not in steps(it)
        after = next_daemon(it, grants="observe")
        assert grant.record.paused
        after.watch.close()

    async def evader_of(it: Bench) -> None:
        it.world.add(7, CGROUP, POD)
        await it.looks(on_gpu(7), 4)

    play(act)


def test_every_process_of_a_grant_that_was_stopped_goes_on_and_no_other() -> None:
    """Also those of a grant that is not there any more."""

    async def act(it: Bench) -> None:
        _, one = held("g1")
        it.world.grants[GrantId("g1")] = one
        tenants = {}
        for pid in (11, 12):
            it.world.add(pid)
            process = Process(pid, pid * 10, 1000, 1000)
            tenants[pid] = SimpleNamespace(handle=SimpleNamespace(process=process), process=process)
        account = SimpleNamespace(tampers={"x": 0}, total=total, activity=total)
        opened = SimpleNamespace(tenants=tenants, account=account, image=None, lost=False)
        it.world.open[GrantId("g1")] = opened
        one.record = replace(one.record, devices=(SimpleNamespace(gpu="GPU-0"),))  # type: ignore[arg-type]
        await it.looks(on_gpu(), 1)
        account.tampers = {"x": 5}
        await it.looks(on_gpu(), 2)
        assert ("signal all", "g1", int(signal.SIGSTOP)) in it.world.done
        it.world.stopped |= {11, 12}
        (row,) = it.world.rows_held.values()
        assert row.stopped == ((11, 110), (12, 120))
        it.world.open.clear()
        it.world.grants.clear()
        it.world.add(13)
        after = next_daemon(it)
        assert after.world.done == [
            ("signal", pid, int(signal.SIGCONT)) for pid in (11, 12)
        ]  # fmt: skip
        assert steps(after) == []

    play(act)


def total(index: int) -> Any:
    return SimpleNamespace(charged_bytes=0, consumed_ns=0, completed_ns=0, outstanding_ns=0)


def test_a_full_ledger_delays_the_undoing_and_does_not_forget_it() -> None:
    async def act(it: Bench) -> None:
        await evader(it)
        it.world.full = True
        await it.looks(on_gpu(), 15)
        assert it.world.frozen == {CGROUP}
        assert steps(it) == ["deny_opens", "freeze", "throttle"]
        it.world.full = False
        await it.looks(on_gpu(), 1)
        assert it.world.frozen == set()
        assert steps(it) == []

    play(act)


def test_who_is_suspected_again_before_the_ledger_has_room_stays_held() -> None:
    async def act(it: Bench) -> None:
        await evader(it)
        it.world.full = True
        await it.looks(on_gpu(), 15)
        it.world.full = False
        it.world.rows.clear()
        await it.looks(on_gpu(7), 5)
        assert steps(it) == ["deny_opens", "freeze", "throttle"]
        assert it.world.frozen == {CGROUP}

    play(act)


def test_with_detection_off_a_full_ledger_is_no_reason_to_hold_for_ever() -> None:
    async def act(it: Bench) -> None:
        await evader(it)
        it.world.full = True
        after = next_daemon(it, enabled=False)
        assert it.world.frozen == {CGROUP}
        it.world.full = False
        await after.looks(on_gpu(7), 1)
        assert it.world.frozen == set()
        assert steps(after) == []

    play(act)


def test_what_cannot_be_done_again_is_not_taken_up() -> None:
    async def act(it: Bench) -> None:
        await evader(it)
        for number, row in it.world.rows_held.items():
            it.world.rows_held[number] = replace(row, done=row.step != "freeze")
        it.world.frozen.clear()
        real = it.world.freeze

        def broken(cgroup: str, freezer: str, frozen: bool) -> None:
            raise NotPossible("read-only file system")

        it.world.freeze = broken  # type: ignore[method-assign]
        after = next_daemon(it)
        assert steps(after) == ["deny_opens", "throttle"]
        it.world.freeze = real  # type: ignore[method-assign]
        await after.looks(on_gpu(7), 3)
        assert steps(after) == ["deny_opens", "freeze", "throttle"]

    play(act)


def test_without_room_for_its_row_nothing_is_held() -> None:
    async def act(it: Bench) -> None:
        it.world.full = True
        await evader(it)
        assert it.world.done == []
        assert it.world.rows_held == {}

    play(act)


def test_the_end_of_who_was_held_is_the_end_of_its_row() -> None:
    async def act(it: Bench) -> None:
        it.world.add(7)
        await it.looks(on_gpu(7), 4)
        assert steps(it) == ["freeze"]
        del it.world.facts[7]
        await it.looks(on_gpu(), 1)
        assert steps(it) == []
        assert [row for row in it.world.rows if row.undo] == []

    play(act, bare_metal="contain")


# --- refusals -----------------------------------------------------------------------------------


def test_a_refusal_is_done_again_once_by_an_ebpf_child_that_did_not_find_it() -> None:
    async def act(it: Bench) -> None:
        await evader(it)
        after = next_daemon(it)
        await after.looks(on_gpu(7), 3)
        assert after.kernel.denied() == frozenset()
        await after.kernel.start()
        await after.looks(on_gpu(7), 3)
        assert after.kernel.denied() == {CGROUP}
        after.watch.close()

    play(act)


def test_a_refusal_ends_without_ebpf() -> None:
    async def act(it: Bench) -> None:
        await evader(it)
        number = it.world.inodes[CGROUP]
        it.world.pins.add(number)
        after = next_daemon(it, ebpf=False)
        assert it.world.pins == set()
        assert steps(after) == ["freeze", "throttle"]
        assert why(after) == {"eBPF is switched off"}

    play(act)


def test_a_refusal_that_no_row_stands_for_is_ended_with_an_audit_row() -> None:
    async def act(it: Bench) -> None:
        it.world.pins.add(4711)
        after = next_daemon(it)
        assert it.world.pins == set()
        assert [(row.subject, row.undo) for row in it.world.rows] == [("cgroup 4711", True)]
        assert after.kinds() == ["act"]

    play(act)


# --- by hand ------------------------------------------------------------------------------------


def test_what_a_person_lets_go_stays_so_while_the_suspicion_stands_and_not_for_a_new_one() -> None:
    async def act(it: Bench) -> None:
        await evader(it)
        numbers = [one.number for one in it.watch.contained()]
        assert it.watch.let_go(numbers, "by hand") == numbers
        assert it.world.frozen == set()
        assert why(it) == {"by hand"}
        await it.looks(on_gpu(7), 60)
        assert steps(it) == []
        it.world.add(8, CGROUP, POD)  # another process in that container
        await it.looks(on_gpu(7, 8), 5)
        assert steps(it) == ["deny_opens", "freeze", "throttle"]

    play(act)


def test_a_row_of_a_later_version_can_be_let_go() -> None:
    async def act(it: Bench) -> None:
        await evader(it)
        for number, row in it.world.rows_held.items():
            it.world.rows_held[number] = replace(row, rule="of_2030", level="of_2031")
        after = next_daemon(it)
        assert ("freeze", CGROUP, False) in after.world.done
        assert steps(after) == []

    play(act)


def test_what_cannot_be_let_go_keeps_its_row() -> None:
    async def act(it: Bench) -> None:
        await evader(it)

        def broken(cgroup: str, freezer: str, frozen: bool) -> None:
            raise NotPossible("read-only file system")

        it.world.freeze = broken  # type: ignore[method-assign]
        (number,) = [one.number for one in it.watch.contained() if one.step == "freeze"]
        assert it.watch.let_go([number], "by hand") == []
        assert steps(it) == ["deny_opens", "freeze", "throttle"]

    play(act)
