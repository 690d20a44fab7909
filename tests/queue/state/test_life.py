"""A workload's life in the queue, as nodes and users see it. Long, for it goes through every state."""

from __future__ import annotations

import pytest

from queuecontroller.scheduler.model.decisions import Preempted
from queuecontroller.scheduler.model.reasons import PreemptionReason
from queuecontroller.scheduler.model.settings import EngineSettings, PreemptionProtection
from queuecontroller.state.book import BookSettings
from queuecontroller.state.objects.submission import Refused, Submission
from queuecontroller.state.records import Desired, GpuAsk, OnPreemption
from tests.queue.state.world import GIB, SECOND, TEAMS, World, gpu


def test_a_workload_is_admitted_placed_run_and_finished() -> None:
    world = World()
    world.connect()
    one = world.submit()
    assert world.status(one).phase == "Admitted"
    assert world.told(one) is Desired.RUN
    assert world.assignment(one).gpus[0].memory_bytes == 8 * GIB
    assert world.confirm(one)
    assert world.status(one).phase == "Running"
    assert world.used("a") == 1
    assert world.release(one, finished=True)
    assert world.status(one).phase == "Finished"
    assert world.used("a") == 0
    assert world.told(one) is None


def test_nobody_is_admitted_before_a_node_has_room() -> None:
    world = World()
    one = world.submit()
    status = world.status(one)
    assert (status.phase, status.reason) == ("Pending", "WaitingForPlacement")
    assert status.message == "couldn't place: no node is connected"
    assert world.used("a") == 0, "quota is for those who can start"
    world.connect(gpus=(gpu(0, memory=4 * GIB),))
    assert "has 4096 of 8192 MiB free" in world.status(one).message
    world.report(gpus=(gpu(0),))
    assert world.status(one).phase == "Admitted"


def test_what_is_used_outside_the_queue_is_not_given() -> None:
    world = World()
    world.connect(gpus=(gpu(0, outside_share_ppm=600_000),))
    one = world.submit()
    assert "has 40 of 50 % free" in world.status(one).message
    world.report(gpus=(gpu(0),))
    assert world.told(one) is Desired.RUN


def test_a_queue_borrows_until_the_owner_wants_its_quota_back() -> None:
    world = World()
    world.connect()
    mine = [world.submit("a") for _ in range(4)]
    for one in mine:
        world.confirm(one)
    assert world.used("a") == 4
    theirs = world.submit("b")
    stopped = [one for one in mine if world.told(one) is Desired.STOP]
    assert len(stopped) == 1
    status = world.status(theirs)
    assert status.phase == "Pending"
    assert "Pending the preemption of 1 workload(s)" in status.message
    assert world.used("a") == 4, "who was preempted holds its quota until it has stopped"
    world.release(stopped[0], finished=False)
    assert world.told(theirs) is Desired.RUN
    assert (world.used("a"), world.used("b")) == (3, 1)
    assert world.status(stopped[0]).phase == "Pending"


def test_a_preempted_process_under_sluice_run_is_over() -> None:
    world = World()
    world.connect(waiting=())
    mine = [world.submit("a", node="n1") for _ in range(4)]
    for one in mine:
        world.confirm(one)
    world.submit("b")
    stopped = next(one for one in mine if world.told(one) is Desired.STOP)
    world.release(stopped, finished=False)
    assert world.status(stopped).phase == "Finished"


ROOMY = TEAMS.replace("nominalQuota: 2", "nominalQuota: 8")


def protecting(text: str = TEAMS, reclaim_ns: int = 0, within_queue_ns: int = 0) -> World:
    protection = PreemptionProtection(reclaim_ns=reclaim_ns, within_queue_ns=within_queue_ns)
    return World(text, BookSettings(engine=EngineSettings(protection=protection), lease_s=600))


@pytest.mark.parametrize("text", [TEAMS, ROOMY], ids=["for quota", "for room"])
def test_who_began_only_just_is_not_preempted_until_its_time_is_over(text: str) -> None:
    world = protecting(text, reclaim_ns=60 * SECOND, within_queue_ns=60 * SECOND)
    world.connect()
    for one in (world.submit("a") for _ in range(4)):
        world.confirm(one)
    urgent = world.submit("a", priority_class="urgent")
    assert world.status(urgent).phase == "Pending"
    began_ns = 1_001 * SECOND
    world.pass_time((began_ns + 59 * SECOND - world.now_ns) / SECOND)
    assert "Pending the preemption" not in world.status(urgent).message
    world.pass_time(1)
    assert "Pending the preemption of 1 workload(s)" in world.status(urgent).message


def test_kueues_configuration_says_how_long_and_without_it_the_settings_do() -> None:
    world = protecting(reclaim_ns=60 * SECOND, within_queue_ns=7)
    assert world.book.engine.cache.protection.reclaim_ns == 60 * SECOND
    world.apply(
        "apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\n"
        "preemptionProtection: {reclaimWithinCohort: {minAdmitDuration: 5m}}"
    )
    found = world.book.engine.cache.protection
    assert (found.reclaim_ns, found.fair_sharing_ns, found.within_queue_ns) == (300 * SECOND, 0, 7)


def test_a_preempted_workload_rests_before_it_is_queued_again() -> None:
    world = World(settings=BookSettings(lease_s=600, preempted_rests_ns=30 * SECOND))
    world.connect()
    mine = [world.submit("a") for _ in range(4)]
    for one in mine:
        world.confirm(one)
    theirs = world.submit("b")
    stopped = next(one for one in mine if world.told(one) is Desired.STOP)
    world.release(stopped, finished=False)
    world.confirm(theirs)
    world.release(theirs, finished=True)
    world.pass_time(20)
    assert world.status(stopped).phase == "Pending", "there is room, and it rests"
    world.pass_time(11)
    assert world.told(stopped) is Desired.RUN


ONE_EACH = TEAMS.replace("nominalQuota: 2", "nominalQuota: 1")


def test_the_message_of_a_preemption_names_both_paths_and_in_a_queue_of_its_own_the_preemptor() -> (
    None
):
    world = World(ONE_EACH)
    world.connect(gpus=(gpu(0),))
    first = world.submit("a")
    world.confirm(first)
    world.confirm(world.submit("b"))
    urgent = world.submit("a", priority_class="urgent")
    preempted = world.record(first).workload.condition("Preempted")
    assert preempted is not None
    assert preempted.message == (
        f"Preempted to accommodate a workload (UID: {world.record(urgent).workload.uid}, JobUID:"
        " UNKNOWN) due to prioritization in the ClusterQueue; preemptor path: /both/a; preemptee"
        f" path: /both/a; preemptor: {urgent}"
    )


def test_a_preempted_workload_may_be_paused_and_goes_on_where_it_was() -> None:
    world = World(ONE_EACH)
    world.connect(gpus=(gpu(0),))
    first = world.submit("a", on_preemption=OnPreemption.PAUSE)
    other = world.submit("b")
    for one in (first, other):
        world.confirm(one)
    urgent = world.submit("a", priority_class="urgent")
    assert world.told(first) is Desired.PAUSE
    assert world.told(other) is Desired.RUN
    assert world.told(urgent) is None
    where = world.assignment(first).gpus
    world.confirm(first, "paused")
    assert world.status(first).phase == "Paused"
    assert world.status(first).position == 1
    assert world.told(urgent) is Desired.RUN
    world.confirm(urgent)
    assert (world.used("a"), world.used("b")) == (1, 1)
    world.release(urgent, finished=True)
    assert world.told(first) is Desired.RUN
    assert world.assignment(first).gpus == where
    assert world.assignment(first).attempt == 2
    world.confirm(first)
    assert world.status(first).phase == "Running"


def test_the_queue_says_what_becomes_of_the_preempted() -> None:
    pausing = "metadata: {name: a, annotations: {sluice.dev/on-preemption: pause}}"
    world = World(ONE_EACH.replace("metadata: {name: a}", pausing))
    world.connect(gpus=(gpu(0),))
    first = world.submit("a")
    world.confirm(first)
    world.confirm(world.submit("b"))
    world.submit("a", priority_class="urgent")
    assert world.told(first) is Desired.PAUSE


def test_paused_memory_is_given_up_for_a_higher_priority_that_needs_it() -> None:
    world = World(ONE_EACH)
    world.connect(gpus=(gpu(0),))
    big = GpuAsk(1, memory_bytes=50 * GIB, share_ppm=500_000)
    first = world.submit("a", ask=big, on_preemption=OnPreemption.PAUSE)
    world.confirm(first)
    world.confirm(world.submit("b"))
    urgent = world.submit("a", ask=big, priority_class="urgent")
    assert world.told(first) is Desired.PAUSE
    world.confirm(first, "paused")
    assert world.told(urgent) is None, "the paused one's memory is in the way"
    assert world.told(first) is Desired.STOP
    world.release(first, finished=False)
    assert world.told(urgent) is Desired.RUN
    assert world.status(first).phase == "Pending"


def test_a_checkpointed_workload_gives_up_its_memory_too_and_comes_back_to_its_own_gpu() -> None:
    world = World(ONE_EACH)
    world.connect(gpus=(gpu(0), gpu(1)))
    big = GpuAsk(1, memory_bytes=50 * GIB, share_ppm=500_000)
    first = world.submit("a", ask=big, on_preemption=OnPreemption.CHECKPOINT)
    world.confirm(first)
    where = world.assignment(first).gpus
    small = GpuAsk(1, memory_bytes=70 * GIB, share_ppm=500_000)
    world.confirm(world.submit("b", ask=small))
    urgent = world.submit("a", ask=big, priority_class="urgent")
    assert world.told(first) is Desired.CHECKPOINT
    assert world.told(urgent) is None, "its memory has not left yet"
    world.confirm(first, "paused")
    assert world.status(first).phase == "Paused"
    assert world.told(urgent) is Desired.RUN
    assert world.assignment(urgent).gpus[0].uuid == where[0].uuid
    world.confirm(urgent)
    world.release(urgent, finished=True)
    assert world.told(first) is Desired.RUN
    assert world.assignment(first).gpus == where


@pytest.mark.parametrize("way", [OnPreemption.PAUSE, OnPreemption.CHECKPOINT])
def test_paused_work_that_is_being_stopped_takes_nothing_back(way: OnPreemption) -> None:
    world = World(ONE_EACH)
    world.connect(gpus=(gpu(0),))
    whole = GpuAsk(1, memory_bytes=30 * GIB, share_ppm=1_000_000)
    first = world.submit("a", ask=whole, on_preemption=way)
    world.confirm(first)
    urgent = world.submit("a", ask=whole, priority_class="urgent")
    world.confirm(first, "paused")
    world.confirm(urgent)
    stock = world.book.nodes_room.stock
    free = stock.nodes["n1"].gpus[gpu(0).uuid]
    before = (free.memory_bytes, free.share_ppm)
    said = world.held(first, "paused")
    namespace, name = first.split("/")
    world.step("delete", lambda book, now: book.delete(("Workload", namespace, name), "", now))
    world.settle()
    assert world.told(first) is Desired.STOP
    assert (free.memory_bytes, free.share_ppm) == before
    world.connect(gpus=(gpu(0),), held=(said, world.held(urgent)))
    assert (free.memory_bytes, free.share_ppm) == before, "its node repeats what it has"
    world.release(first, finished=False)
    assert free.memory_bytes == 50 * GIB


def test_one_that_cannot_come_back_yet_stays_checkpointed() -> None:
    world = World(ONE_EACH)
    world.connect(gpus=(gpu(0),))
    first = world.submit("a", on_preemption=OnPreemption.CHECKPOINT)
    world.confirm(first)
    world.confirm(world.submit("b"))
    urgent = world.submit("a", priority_class="urgent")
    world.confirm(first, "paused")
    world.confirm(urgent)
    world.release(urgent, finished=True)
    assert world.told(first) is Desired.RUN
    world.refuse_resume(first, "its room is taken")
    assert world.told(first) is Desired.CHECKPOINT
    assert world.status(first).phase == "Paused"
    world.pass_time(3)
    assert world.told(first) is Desired.RUN


def test_one_that_could_not_be_checkpointed_has_been_stopped() -> None:
    world = World(ONE_EACH)
    world.connect(gpus=(gpu(0),))
    first = world.submit("a", on_preemption=OnPreemption.CHECKPOINT)
    world.confirm(first)
    world.confirm(world.submit("b"))
    urgent = world.submit("a", priority_class="urgent")
    assert world.told(first) is Desired.CHECKPOINT
    world.release(first, finished=False)
    assert world.told(urgent) is Desired.RUN
    assert world.status(first).phase == "Pending"


def test_a_refusal_by_the_node_is_tried_again_later_elsewhere() -> None:
    world = World()
    world.connect("n1", gpus=(gpu(0),))
    world.connect("n2", gpus=(gpu(1),))
    one = world.submit()
    first = world.assignment(one).node
    world.refuse(one, "another process took the GPU")
    status = world.status(one)
    assert status.phase == "Pending"
    world.pass_time(3)
    assert world.told(one) is Desired.RUN
    assert world.assignment(one).node != first
    assert world.assignment(one).attempt == 2


def test_deleting_stops_what_runs_before_its_quota_is_free() -> None:
    world = World()
    world.connect()
    one = world.submit()
    world.confirm(one)
    key = ("Workload", "team-a", one.split("/")[1])
    world.step("delete", lambda book, now: book.delete(key, "", now))
    assert world.told(one) is Desired.STOP
    assert world.status(one).phase == "Deleting"
    assert world.used("a") == 1
    world.release(one, finished=False)
    assert world.status(one).phase == "Deleted"
    assert world.used("a") == 0


def test_hold_and_resume_of_a_workload() -> None:
    world = World()
    world.connect()
    one = world.submit()
    world.confirm(one)
    key = ("Workload", "team-a", one.split("/")[1])
    world.step("hold", lambda book, now: book.hold(key, False, now))
    assert world.told(one) is Desired.STOP
    world.release(one, finished=False)
    world.settle()
    assert world.status(one).phase == "Held"
    world.step("resume", lambda book, now: book.resume(key, now))
    world.settle()
    assert world.told(one) is Desired.RUN


def test_holding_a_queue_and_draining_it() -> None:
    world = World()
    world.connect()
    runs = world.submit()
    world.confirm(runs)
    queue = ("ClusterQueue", "", "a")
    world.step("hold", lambda book, now: book.hold(queue, False, now))
    waits = world.submit()
    assert world.told(runs) is Desired.RUN
    assert world.status(waits).message == "ClusterQueue a is inactive: it is stopped (Hold)"
    world.step("hold", lambda book, now: book.hold(queue, True, now))
    assert world.told(runs) is Desired.STOP
    world.release(runs, finished=False)
    assert world.used("a") == 0
    world.step("resume", lambda book, now: book.resume(queue, now))
    world.settle()
    assert world.told(waits) is Desired.RUN
    assert world.told(runs) is Desired.RUN


def test_a_local_queue_that_stops_is_told_to_who_waits_in_it() -> None:
    world = World()
    one = world.submit()
    two = world.submit("b")
    queue = ("LocalQueue", "team-b", "q")
    world.step("hold", lambda book, now: book.hold(queue, True, now))
    world.settle()
    assert world.status(two).message == "LocalQueue q is inactive: it is stopped (HoldAndDrain)"
    assert world.status(one).phase == "Pending"


def test_who_waits_in_a_local_queue_that_is_held_or_gone_is_not_let_in() -> None:
    for close in (
        lambda book, now: book.hold(("LocalQueue", "team-a", "q"), False, now),
        lambda book, now: book.delete(("LocalQueue", "team-a", "q"), "", now),
    ):
        world = World()
        world.connect()
        running = [world.submit("a") for _ in range(4)]
        waiting = world.submit("a")
        assert world.status(waiting).phase == "Pending"
        world.step("close", close)
        world.confirm(running[0])
        world.release(running[0], finished=True)
        assert world.status(waiting).phase == "Pending"
        assert "LocalQueue" in world.status(waiting).message
        assert world.used("a") == 3


def test_a_queue_that_holds_quota_cannot_be_deleted() -> None:
    world = World()
    world.connect()
    one = world.submit()
    with pytest.raises(Refused, match="is held by 1 workload "):
        world.step("delete", lambda book, now: book.delete(("ClusterQueue", "", "a"), "", now))
    flavor = ("ResourceFlavor", "", "gpus")
    with pytest.raises(Refused, match="drain it first"):
        world.step("delete", lambda book, now: book.delete(flavor, "", now))
    world.release(one, finished=True)
    world.step("delete", lambda book, now: book.delete(("ClusterQueue", "", "a"), "", now))
    late = world.submit()
    assert "doesn't exist" in world.status(late).message


def test_the_same_token_is_the_same_submission() -> None:
    world = World()
    one = world.submit(token="t")
    assert world.submit(token="t") == one
    assert len(world.book.workloads.records) == 1
    world.restart()
    assert world.submit(token="t") == one


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (Submission("team-a", "nowhere", GpuAsk()), "no LocalQueue team-a/nowhere .there: q"),
        (Submission("team-c", "q", GpuAsk()), "did you mean team-a/q"),
        (Submission("Team A", "q", GpuAsk()), "lower-case"),
        (Submission("team-a", "q", GpuAsk(), priority_class="x"), "known: urgent"),
    ],
)
def test_a_wrong_submission_says_what_to_change(asked: Submission, message: str) -> None:
    world = World()
    with pytest.raises(Refused, match=message):
        world.step("submit", lambda book, now: book.submit(asked, now))


def test_a_local_queue_may_be_for_some_users_only() -> None:
    world = World(
        TEAMS.replace(
            "{name: q, namespace: team-a}",
            "{name: q, namespace: team-a, annotations: {sluice.dev/users: 'ann, ben'}}",
        )
    )
    with pytest.raises(Refused, match="eve may not use LocalQueue team-a/q"):
        world.submit(user="eve")
    assert world.submit(user="ann")


def test_too_long_a_run_is_stopped() -> None:
    world = World()
    world.connect()
    one = world.submit(max_execution_s=30)
    world.confirm(one)
    world.pass_time(10)
    assert world.told(one) is Desired.RUN
    world.report()
    world.pass_time(25)
    assert world.told(one) is Desired.STOP
    world.release(one, finished=False)
    assert world.status(one).phase == "Held"


def test_finished_workloads_are_forgotten_after_a_while() -> None:
    world = World(settings=BookSettings(keep_finished_s=100))
    world.connect()
    one = world.submit()
    world.release(one, finished=True)
    world.pass_time(90)
    assert world.status(one).phase == "Finished"
    world.pass_time(20)
    assert world.status(one).phase == "Deleted"


def test_position_and_estimate() -> None:
    world = World()
    world.connect()
    for _ in range(4):
        world.submit()
    waiting = [world.submit() for _ in range(3)]
    shown = [world.status(one) for one in waiting]
    assert [one.position for one in shown] == [1, 2, 3]
    assert {one.waiting for one in shown} == {3}
    assert shown[0].estimate_s is not None
    assert shown[2].estimate_s == pytest.approx(3 * shown[0].estimate_s)
    hopeless = world.status(world.submit(ask=GpuAsk(99, memory_bytes=GIB, share_ppm=500_000)))
    assert (hopeless.reason, hopeless.estimate_s) == ("ExceedsMaxQuota", None)
    queue = ("ClusterQueue", "", "a")
    world.step("hold", lambda book, now: book.hold(queue, False, now))
    held = world.status(waiting[0])
    assert (held.message, held.estimate_s) == (
        "ClusterQueue a is inactive: it is stopped (Hold)",
        None,
    )


def test_two_that_preempt_each_other_again_and_again_are_told_of() -> None:
    world = World(ONE_EACH)
    world.connect()
    low, high = world.submit("a"), world.submit("a", priority_class="urgent")
    borrowed = world.submit("b")
    engine = world.book.engine
    for _ in range(2):  # as earlier: the ordinary rules let no two do it for long
        engine._yielding.preempted(low, high)
        engine._yielding.preempted(high, low)
    for key in (low, high, borrowed):
        assert not [one for one in world.store.events(f"Workload/{key}", 99) if "Turns" in one.kind]
    holder, waiter = (low, high) if world.used("a") and world.told(low) else (high, low)
    info = engine.holding(holder)
    pending = engine.pending["a"].get(waiter) or engine.holding(waiter)
    assert info is not None
    assert pending is not None
    decision = Preempted(info, PreemptionReason.IN_CLUSTER_QUEUE, pending)
    engine._yielding.preempted(holder, waiter)
    world.step("cycle", lambda book, now: book.workloads._preempt(decision, now))
    (event,) = [e for e in world.store.events(f"Workload/{holder}", 99) if "Turns" in e.kind]
    assert f"preempted for {waiter}: the two have preempted each other 5 times" in event.text
    assert world.book.workloads.figures.preemption_turns == {"a": 1}
