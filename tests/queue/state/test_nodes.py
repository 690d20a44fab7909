"""Nodes that are slow, confused, restarted, lost, or wiser than the database."""

from __future__ import annotations

from dataclasses import replace

import pytest

from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.state.book import BookSettings
from queuecontroller.state.node_service import WorkReport
from queuecontroller.state.nodes.seals import Fence
from queuecontroller.state.nodes.sessions import Held, StaleEpoch, Superseded
from queuecontroller.state.records import Desired, GpuAsk, PodState
from queuecontroller.state.status import Status, Views
from queuecontroller.state.waiting_room import PLACES, WaitingRoom
from tests.queue.state.world import GIB, SECOND, TEAMS, World, gpu


def test_a_confirmation_twice_changes_nothing() -> None:
    world = World()
    world.connect()
    one = world.submit()
    world.confirm(one)
    before = world.store.load()
    assert world.confirm(one)
    assert world.store.load() == before


def test_a_release_twice_is_answered_as_unknown() -> None:
    world = World()
    world.connect()
    one = world.submit()
    said = world.said(one)
    world.release(one, finished=True)
    used = world.used("a")
    assert not world.step("release", lambda book, now: book.desk.release(said, True, now))
    assert world.used("a") == used == 0


def test_a_late_confirmation_of_an_earlier_attempt_does_not_start_the_later() -> None:
    world = World()
    world.connect()
    one = world.submit()
    late = world.said(one)
    world.refuse(one)
    world.pass_time(40)
    world.report()
    assert world.assignment(one).attempt == 2
    world.step("confirm", lambda book, now: book.desk.confirm(late, PodState.RUNNING, (), now))
    assert world.assignment(one).state is PodState.DECIDED
    world.step("refuse", lambda book, now: book.desk.refuse(late, now))
    assert world.told(one) is Desired.RUN
    world.step("release", lambda book, now: book.desk.release(late, True, now))
    assert world.told(one) is Desired.RUN


def test_another_workload_by_the_same_name_is_not_confirmed() -> None:
    world = World()
    world.connect()
    one = world.submit(name="w")
    old = world.said(one)
    world.release(one, finished=True)
    key = ("Workload", "team-a", "w")
    world.step("delete", lambda book, now: book.delete(key, "", now))
    assert world.submit(name="w") == one
    known = world.step("release", lambda book, now: book.desk.release(old, True, now))
    assert not known
    assert world.told(one) is Desired.RUN


def test_a_stale_epoch_may_say_nothing() -> None:
    world = World()
    world.connect()
    one = world.submit()
    stale = world.said(one)
    world.connect()
    before = world.store.load()
    for call in (
        lambda book, now: book.desk.confirm(stale, PodState.RUNNING, (), now),
        lambda book, now: book.desk.release(stale, True, now),
        lambda book, now: book.desk.refuse(stale, now),
    ):
        with pytest.raises(StaleEpoch, match="connect again"):
            world.step("stale", call)
    assert world.store.load() == before
    assert world.book.nodes.stale_total == 3


def test_reports_out_of_order_are_ignored() -> None:
    world = World()
    world.connect(gpus=())
    epoch = world.epochs["n1"]
    from queuecontroller.scheduler.placement.capacity import NodeCapacity

    new, old = NodeCapacity((gpu(0), gpu(1))), NodeCapacity(())
    for number, capacity in ((5, new), (3, old), (5, old)):
        world.step(
            "report", lambda b, now, n=number, c=capacity: b.desk.report("n1", epoch, n, c, now)
        )
    assert world.book.nodes.nodes["n1"].capacity == new


def test_a_node_whose_daemon_ends_is_stopping_until_it_connects_again() -> None:
    world = World()
    world.connect()
    runs = world.submit()
    world.confirm(runs)
    epoch, capacity = world.epochs["n1"], world.book.nodes.nodes["n1"].capacity
    for number, stopping in ((1, True), (2, False)):
        world.step(
            "report",
            lambda b, now, n=number, s=stopping: b.desk.report(
                "n1", epoch, n, capacity, now, stopping=s
            ),
        )
    assert world.book.nodes.nodes["n1"].stopping, "an earlier report may come later"
    assert world.status(runs).phase == "Running", "what is there stays"
    decided = world.submit()
    assert world.status(decided).phase == "Admitted", "what the queue decides waits for the daemon"
    world.connect(held=(world.held(runs),))
    assert not world.book.nodes.nodes["n1"].stopping


def test_a_node_that_comes_back_gets_its_decisions_again() -> None:
    world = World()
    world.connect()
    one = world.submit()
    assert [d.workload for d in world.connect()] == [one]
    world.confirm(one)
    decisions = world.connect(held=(world.held(one),))
    assert [(d.workload, d.desired) for d in decisions] == [(one, Desired.RUN)]
    assert world.status(one).phase == "Running"


def test_what_a_node_says_when_it_connects_counts_as_said() -> None:
    world = World()
    world.connect()
    one, two = world.submit(), world.submit()
    held = (world.held(one, "finished"), world.held(two, "refused"))
    assert world.connect(held=held) == []
    assert world.status(one).phase == "Finished"
    assert world.status(two).phase == "Pending"


def test_a_node_that_was_reset_lost_its_work() -> None:
    world = World()
    world.connect()
    one = world.submit()
    world.confirm(one)
    world.connect(held=())
    assert world.told(one) is Desired.RUN, "queued again, and admitted again"
    assert world.assignment(one).attempt == 2
    assert world.record(one).workload.condition("Evicted").status is False  # type: ignore[union-attr]


def test_a_process_that_waits_no_longer_leaves_the_line() -> None:
    world = World()
    world.connect("n2", gpus=())
    one = world.submit(node="n2")
    world.connect("n2", gpus=(), waiting=(one,))
    assert world.status(one).phase == "Pending"
    world.connect("n2", gpus=())
    assert world.status(one).phase == "Deleted"


def offered(world: World, key: WorkloadKey) -> Held:
    one = world.assignment(key)
    return Held(key, "", one.uid, one.attempt, "offered")


@pytest.mark.parametrize("kept", [True, False], ids=["in the node's ledger", "never received"])
@pytest.mark.parametrize("restarted", [True, False], ids=["both died", "the daemon died"])
def test_decided_work_whose_process_died_gives_its_quota_back(kept: bool, restarted: bool) -> None:
    """It stayed Admitted for ever: its node had nothing left to start, and said nothing."""
    world = World()
    world.connect()
    one = world.submit(node="n1")
    assert world.told(one) is Desired.RUN
    assert world.used("a") == 1
    held = (offered(world, one),) if kept else ()
    if restarted:
        world.restart()
    world.connect(held=held)
    world.pass_time(14)
    assert world.told(one) is Desired.RUN, "it may start within a lease"
    world.pass_time(2)
    assert world.told(one) is Desired.STOP
    said = replace(world.said(one), started=False)
    world.step("release", lambda book, now: book.desk.release(said, False, now))
    world.settle()
    assert world.status(one).phase == "Deleted"
    assert world.used("a") == 0


def test_decided_work_that_starts_or_whose_process_waits_is_kept() -> None:
    world = World()
    world.connect()
    starts, waits, pods = world.submit(node="n1"), world.submit(node="n1"), world.submit()
    held = tuple(offered(world, one) for one in (starts, waits, pods))
    world.connect(held=held, waiting=(waits,))
    world.confirm(starts)
    world.pass_time(10)
    world.report()
    world.pass_time(10)
    assert [world.told(one) for one in (starts, waits, pods)] == [Desired.RUN] * 3
    world.connect(held=(replace(held[0], state="running"), *held[1:]))
    world.pass_time(10)
    world.connect(held=(replace(held[0], state="running"), *held[1:]), waiting=(waits,))
    world.pass_time(10)
    assert world.told(waits) is Desired.RUN, "its process came back"


def test_work_nobody_knows_is_left_out_of_the_answer() -> None:
    world = World()
    held = Held("team-a/ghost", "", "uid-x", 1, "running", record="{}")  # type: ignore[arg-type]
    assert world.connect(held=(held,)) == []
    assert world.book.nodes.assignments == {}


def test_a_restart_forgets_nothing() -> None:
    world = World()
    world.connect()
    runs, paused_out = world.submit(), world.submit("b")
    world.confirm(runs)
    waits = [world.submit() for _ in range(4)]
    before = {key: world.status(key) for key in world.book.workloads.records}
    used = world.used("a"), world.used("b")
    world.restart()
    world.settle()
    assert (world.used("a"), world.used("b")) == used
    for key, status in before.items():
        after = world.status(key)
        assert (after.phase, after.position, after.attempt) == (
            status.phase,
            status.position,
            status.attempt,
        )
    held = tuple(world.held(one, "running") for one in (runs, paused_out))
    told = world.connect(held=held, seen=(1, world.book.journal.revision))
    assert {one.workload for one in told} >= {runs, paused_out}
    assert len(waits) == 4


def test_a_node_is_lost_and_its_work_keeps_its_quota() -> None:
    world = World()
    world.connect()
    one = world.submit()
    world.confirm(one)
    world.pass_time(16)
    late = world.submit()
    assert "no node is connected" in world.status(late).message
    world.pass_time(100)
    assert world.book.nodes.nodes["n1"].record.lost
    assert world.told(one) is Desired.RUN
    assert world.used("a") == 1
    world.connect(held=(world.held(one),))
    assert world.status(one).phase == "Running"
    assert world.told(late) is Desired.RUN


@pytest.mark.parametrize("end", ["lost", "deleted"])
def test_a_node_that_is_back_knows_the_term_that_it_has_followed(end: str) -> None:
    """Its controller has not restarted: this is no later term, and there is nothing to prove."""
    world = World()
    world.connect("n1")
    seen = world.book.journal.term, world.book.journal.revision
    if end == "lost":
        world.pass_time(100)
        assert world.book.nodes.nodes["n1"].record.lost
    else:
        world.step("delete", lambda book, now: book.delete(("Node", "", "n1"), "", now))
        assert "n1" not in world.book.nodes.nodes
    assert world.connect("n1", seen=seen) == []
    assert world.book.nodes.ready(world.book.nodes.nodes["n1"], world.now_ns)
    assert world.book.journal.term == seen[0]
    assert (world.book.nodes.unproven_total, world.book.nodes.regressions_total) == (0, 0)


def test_a_lost_node_may_lose_its_work_to_others() -> None:
    world = World(settings=BookSettings(lease_s=15, lost_after_s=60, requeue_lost=True))
    world.connect("n1")
    one = world.submit()
    world.confirm(one)
    old = world.held(one)
    world.now_ns += 20 * SECOND
    world.connect("n2")
    world.pass_time(30)
    assert world.assignment(one).node == "n1", "not before lease and grace are over"
    world.pass_time(30)
    assert world.book.nodes.nodes["n1"].record.lost
    world.connect("n2")
    assert world.assignment(one).node == "n2"
    decisions = world.connect("n1", held=(old,))
    assert decisions == [], "so the node stops what it still has"
    assert world.assignment(one).node == "n2"


def test_work_that_was_given_up_keeps_its_gpus_until_its_node_has_stopped_it() -> None:
    world = World(settings=BookSettings(lease_s=15, lost_after_s=60, requeue_lost=True))
    world.connect("n1", gpus=(gpu(0),))
    one = world.submit(ask=GpuAsk(1, memory_bytes=60 * GIB, share_ppm=100_000))
    world.confirm(one)
    old = world.held(one)
    there = WorkReport("n1", 0, one, "", old.uid, old.attempt)
    world.pass_time(80)
    assert world.told(one) is None, "its node is lost"
    for _ in range(2):  # It connects again while it stops the work.
        assert world.connect("n1", gpus=(gpu(0),), held=(old,)) == []
        assert world.told(one) is None, "its GPU is still in use"
    stopped = replace(there, epoch=world.epochs["n1"])
    assert not world.step("release", lambda book, now: book.desk.release(stopped, False, now))
    world.settle()
    assert world.told(one) is Desired.RUN
    assert world.assignment(one).attempt == 2


def test_work_that_was_given_up_and_is_gone_when_its_node_comes_back_holds_nothing() -> None:
    world = World(settings=BookSettings(lease_s=15, lost_after_s=60, requeue_lost=True))
    world.connect("n1", gpus=(gpu(0),))
    one = world.submit(ask=GpuAsk(1, memory_bytes=60 * GIB, share_ppm=100_000))
    world.confirm(one)
    old = world.held(one)
    world.pass_time(80)
    world.connect("n1", gpus=(gpu(0),), held=(old,))
    assert world.told(one) is None
    world.connect("n1", gpus=(gpu(0),))
    assert world.told(one) is Desired.RUN
    world.pass_time(80)
    assert world.book.nodes_room.stock.held_at("n1") == [], "lost again"


def test_a_database_restored_from_an_old_copy_takes_over_what_runs() -> None:
    world = World()
    world.connect()
    kept = world.submit(name="kept")
    world.confirm(kept)
    backup = world.store.load()
    forgotten = world.submit(name="forgotten")
    world.confirm(forgotten)
    ended = world.held(kept)
    world.release(kept, finished=True)
    seen = (world.book.journal.term, world.book.journal.revision)
    held = world.held(forgotten)

    world.store.held = backup
    world.restart()
    assert world.status(forgotten).phase == "Deleted"
    assert world.status(kept).phase == "Running", "that is what the old copy says"
    assert ended.uid
    told = world.connect(held=(held,), seen=seen)
    assert world.book.nodes.regressions_total == 1
    assert world.book.journal.term > seen[0]
    assert all(one.revision > seen[1] for one in told if one.workload == forgotten)
    assert world.status(forgotten).phase == "Running"
    assert world.used("a") >= 1
    assert world.told(forgotten) is Desired.RUN, "no job is killed"
    assert any(one.kind == "Restored" for one in world.store.lines)


def test_an_empty_database_takes_over_what_runs_under_another_name() -> None:
    world = World()
    world.connect()
    one = world.submit()
    world.confirm(one)
    held = world.held(one)
    fresh = World()
    fresh.store.held.cluster_id = "another"
    fresh.restart()
    fresh.connect(held=(held,), seen=(9, 900), cluster="cluster")
    assert fresh.status(one).phase == "Running"
    assert fresh.used("a") == 1


def test_a_controller_that_slept_through_its_successor_stops() -> None:
    world = World()
    world.connect()
    later = Fence("cluster", "n1", world.book.journal.term + 1, world.book.journal.revision)
    proof = world.book.nodes.seals.fence(later)
    with pytest.raises(Superseded, match="another controller took over"):
        world.connect(seen=(later.term, later.revision), proof=proof)


def test_a_sealed_row_that_cannot_be_read_is_not_adopted() -> None:
    """A row sealed by another version of ours is an example."""
    world = World()
    row = world.book.nodes.seals.row(Fence("lost", "n1", 50, 5), {"workload": {"nonsense": 1}})
    held = Held("team-a/x", "", "u", 1, "running", record=row)  # type: ignore[arg-type]
    assert world.connect(held=(held,), seen=(50, 5), cluster="lost") == []
    assert any(one.kind == "NotAdopted" for one in world.store.lines)


def test_nobody_speaks_before_connecting() -> None:
    world = World()
    said = WorkReport("n9", 1, "team-a/x", "", "u", 1)  # type: ignore[arg-type]
    with pytest.raises(StaleEpoch):
        world.step("confirm", lambda book, now: book.desk.release(said, True, now))


def test_a_node_hears_of_its_own_that_wait_and_of_others_no_more_than_of_what_is_gone() -> None:
    world = World(TEAMS.replace("nominalQuota: 2", "nominalQuota: 0"))
    world.connect("n1")
    mine, other = world.submit(node="n1"), world.submit(node="n2")
    room = WaitingRoom(Views(world.book), world.book.workloads, "n1")
    for key in (mine, other):
        room.add(key)
    found = {one.workload: one for one in room.news(world.now_ns)}
    assert (found[mine].phase, found[mine].position) == ("Pending", 1)
    assert found[other] == Status(other), "not even that it is there"
    assert room.news(world.now_ns) == [], "nothing is new"
    world.step("delete", lambda book, now: book.delete(("Workload", *mine.split("/")), "", now))
    room.add_gone(mine)
    assert [(one.workload, one.phase) for one in room.news(world.now_ns)] == [(mine, "Deleted")]
    room.add_gone(mine)
    assert room.news(world.now_ns) == []


def test_places_of_many_who_wait_are_renewed_in_turn() -> None:
    world = World(TEAMS.replace("nominalQuota: 2", "nominalQuota: 0"))
    keys = [world.submit(node="n1") for _ in range(2 * PLACES + 1)]
    room = WaitingRoom(Views(world.book), world.book.workloads, "n1")
    for key in keys:
        room.add(key)
    assert len(room.news(world.now_ns)) == len(keys)
    world.book.delete(("Workload", *keys[0].split("/")), "", world.now_ns)
    room.add_gone(keys[0])
    told: list[int] = []
    for looks in range(3):
        told.append(len(room.news(world.now_ns)))
        assert told[looks] <= PLACES + 1
    assert sum(told) == len(keys), "each was sent its new place once"


def test_a_place_that_was_kept_becomes_the_pods_own_without_being_free_or_taken_twice() -> None:
    world = World()
    world.connect()

    def stock() -> tuple[object, ...]:
        room = world.book.room
        assert room is not None
        room.follow(world.now_ns)
        nodes = room.stock.nodes.values()
        kept = [key for key in keys if room.kept(key)]
        held = {key: room.stock.holdings(key) for key in keys}
        return kept, held, [(one.keys, one.best_share_ppm, one.free_bytes) for one in nodes]

    keys = [world.submit() for _ in range(3)]
    running = [key for key in keys if world.told(key) is Desired.RUN]
    assert running
    before = stock()
    assert before[0] == []
    assert [len(found) for found in before[1].values()] == [key in running for key in keys]  # type: ignore[attr-defined]
    held = tuple(world.held(key) for key in running)
    world.restart()
    world.connect(held=held, waiting=tuple(keys))
    assert stock() == before, "what a restart reads from the rows"
    for key in running:
        world.release(key, finished=True)
    rest = stock()
    assert rest[0] == []
    assert sum(len(found) for found in rest[1].values()) == len(keys) - len(running)  # type: ignore[attr-defined]
