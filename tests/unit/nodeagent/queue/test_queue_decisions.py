"""The node's reducer over the queue's decisions: terms, revisions, leases, and every order of messages.

Long, for every message has its cases here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.core.queue import events as qd
from nodeagent.core.queue.book import EVICTION_GRACE_S, QueueBook
from nodeagent.ports.queue import (
    OVER,
    Decision,
    Desired,
    Done,
    Fence,
    Welcome,
    Work,
    WorkKey,
    WorkState,
)
from nodeagent.units import GrantId

SECOND = 1_000_000_000
KEY = WorkKey("ns/w")
G = GrantId("grant-1")


def decision(
    revision: int = 5, desired: Desired = Desired.RUN, attempt: int = 1, **more: Any
) -> Decision:
    return Decision("ns/w", "", more.pop("uid", "u"), attempt, revision, desired, **more)


def welcome(*decisions: Decision, term: int = 3, revision: int = 5, epoch: int = 1) -> Welcome:
    return Welcome("c", term, epoch, revision, 10.0, 1.0, decisions)


class Desk:
    """Carries instructions out the way the shell does, as far as the reducer can tell."""

    def __init__(self, book: QueueBook | None = None) -> None:
        self.book = book or QueueBook(Fence(), [], [])
        self.now_ns = 100 * SECOND
        self.out: list[qd.Instruction] = []

    def __call__(self, event: qd.Event) -> list[qd.Instruction]:
        done = self.book.handle(event, self.now_ns)
        self.out += done
        return done

    def connect(self, *decisions: Decision, **more: Any) -> list[qd.Instruction]:
        told = tuple(self.book.works.values())
        return self(qd.Welcomed(welcome(*decisions, **more), self.now_ns, told))

    def kinds(self) -> list[str]:
        return [type(one).__name__ for one in self.out]

    @property
    def state(self) -> WorkState | None:
        work = self.book.works.get(KEY)
        return work.state if work is not None else None


def running() -> Desk:
    manager = Desk()
    manager.connect(decision())
    manager(qd.WaiterCame("ns/w"))
    manager(qd.GrantMade(KEY, G))
    manager.out.clear()
    return manager


def test_a_decision_starts_once_somebody_waits_for_it() -> None:
    manager = Desk()
    manager.connect(decision())
    assert "Start" not in manager.kinds()
    assert [type(one) for one in manager(qd.WaiterCame("ns/w"))] == [qd.Start]
    assert manager(qd.WaiterCame("ns/w")) == [], "it is being started already"
    out = manager(qd.GrantMade(KEY, G))
    assert [type(one) for one in out] == [qd.StoreWork, qd.Tell]
    assert manager.state is WorkState.RUNNING


def test_nothing_starts_without_a_lease() -> None:
    manager = Desk()
    manager.connect(decision())
    manager.now_ns += 11 * SECOND
    assert manager(qd.WaiterCame("ns/w")) == []
    assert manager(qd.Ticked()) == []
    assert [type(o) for o in manager(qd.Renewed(3, 1, 10.0, manager.now_ns))] == [qd.Start]


def test_the_lease_counts_from_when_it_was_asked_for() -> None:
    manager = Desk()
    manager.connect()
    asked_ns = manager.now_ns
    manager.now_ns += 9 * SECOND
    manager(qd.Renewed(3, 1, 10.0, asked_ns))  # an answer that was 9 s under way
    manager.now_ns += 2 * SECOND
    assert not manager.book.may_start(manager.now_ns)


@pytest.mark.parametrize("event", [qd.Renewed(3, 0, 10.0, 0), qd.Renewed(2, 1, 10.0, 0)])
def test_a_renewal_of_another_session_renews_nothing(event: qd.Renewed) -> None:
    manager = Desk()
    manager.connect()
    before = manager.book.lease_until_ns
    manager.now_ns += 5 * SECOND
    manager(replace(event, sent_ns=manager.now_ns))
    assert manager.book.lease_until_ns == before


@pytest.mark.parametrize("what", [{"term": 2}, {"revision": 4}])
def test_an_older_controller_is_not_obeyed(what: dict[str, int]) -> None:
    manager = running()
    out = manager.connect(decision(9, Desired.STOP), **what)
    assert [type(one) for one in out] == [qd.Reconnect]
    assert not manager.book.connected
    assert manager.state is WorkState.RUNNING


def test_a_decision_of_an_older_term_is_not_obeyed() -> None:
    manager = running()
    out = manager(qd.Decided(2, 9, decision(9, Desired.STOP)))
    assert [type(one) for one in out] == [qd.Reconnect]
    assert manager.state is WorkState.RUNNING


def test_an_overtaken_decision_changes_nothing() -> None:
    manager = running()
    manager(qd.Decided(3, 7, decision(7, Desired.PAUSE)))
    assert manager.state is WorkState.PAUSED
    assert manager(qd.Decided(3, 6, decision(6, Desired.STOP))) == []
    assert manager.state is WorkState.PAUSED


def test_pause_and_go_on() -> None:
    manager = running()
    manager(qd.Decided(3, 6, decision(6, Desired.PAUSE)))
    assert qd.SetPaused(G, True, lends=True) in manager.out
    manager(qd.Decided(3, 7, decision(7, Desired.RUN, attempt=2)))
    assert qd.SetPaused(G, False) in manager.out
    assert manager.state is WorkState.RUNNING
    told = [one.work for one in manager.out if isinstance(one, qd.Tell)]
    assert [(one.state, one.decision.attempt) for one in told] == [
        (WorkState.PAUSED, 1),
        (WorkState.RUNNING, 2),
    ]


def test_going_on_is_a_start_and_needs_a_lease() -> None:
    manager = running()
    manager(qd.Decided(3, 6, decision(6, Desired.PAUSE)))
    manager.now_ns += 20 * SECOND
    manager(qd.Decided(3, 7, decision(7, Desired.RUN, attempt=2)))
    assert manager.state is WorkState.PAUSED
    manager(qd.Renewed(3, 1, 10.0, manager.now_ns))
    assert manager.state is WorkState.RUNNING


def test_who_cannot_go_on_stays_paused_and_says_so() -> None:
    manager = running()
    manager(qd.Decided(3, 6, decision(6, Desired.PAUSE)))
    manager(qd.Decided(3, 7, decision(7, Desired.RUN, attempt=2)))
    out = manager(qd.ResumeRefused(G, "taken"))
    assert manager.state is WorkState.PAUSED
    assert isinstance(out[-1], qd.Tell)
    assert out[-1].work.reason == "taken"


def spilling() -> Desk:
    manager = running()
    manager(qd.Decided(3, 6, decision(6, Desired.CHECKPOINT)))
    return manager


def told(manager: Desk) -> list[tuple[WorkState, str]]:
    return [(one.work.state, one.work.reason) for one in manager.out if isinstance(one, qd.Tell)]


def test_who_makes_way_by_a_checkpoint_is_told_when_its_memory_has_left() -> None:
    manager = spilling()
    assert manager.out[-1] == qd.SpillGrant(G)
    assert told(manager) == []
    assert manager.book.is_paused_by_queue(G)
    manager(qd.Spilled(G))
    assert told(manager) == [(WorkState.SPILLED, "")]
    manager(qd.Decided(3, 7, decision(7, Desired.RUN, attempt=2)))
    assert manager.out[-1] == qd.ReturnGrant(G)
    assert manager.state is WorkState.RETURNING
    manager(qd.Returned(G))
    assert told(manager)[-1] == (WorkState.RUNNING, "")


def test_who_cannot_be_checkpointed_is_stopped_with_the_reason() -> None:
    manager = spilling()
    manager(qd.SpillRefused(G, "managed memory"))
    (stop,) = [one for one in manager.out if isinstance(one, qd.Stop)]
    assert stop.reason == "checkpoint failed, the work is stopped: managed memory"


def test_one_whose_memory_is_lost_is_stopped_and_one_without_room_waits() -> None:
    manager = spilling()
    manager(qd.Spilled(G))
    manager(qd.Decided(3, 7, decision(7, Desired.RUN, attempt=2)))
    manager(qd.ReturnRefused(G, "taken", True))
    assert told(manager)[-1] == (WorkState.SPILLED, "taken")
    manager(qd.Decided(3, 8, decision(8, Desired.RUN, attempt=3)))
    manager(qd.ReturnRefused(G, "process 7 has failed", False))
    assert manager.state is WorkState.STOPPING


def test_what_is_decided_while_memory_is_on_its_way_counts_when_it_is_there() -> None:
    manager = spilling()
    manager(qd.Decided(3, 7, decision(7, Desired.RUN, attempt=2)))
    assert manager.state is WorkState.SPILLING
    manager(qd.Spilled(G))
    assert manager.state is WorkState.RETURNING
    manager(qd.Decided(3, 8, decision(8, Desired.CHECKPOINT, attempt=2)))
    assert manager.state is WorkState.RETURNING
    manager(qd.Returned(G))
    assert manager.state is WorkState.SPILLING
    manager(qd.Decided(3, 9, decision(9, Desired.RUN, attempt=3)))
    manager(qd.SpillRefused(G, "no room"))
    assert manager.state is WorkState.RUNNING, "it may stay where it is"
    manager(qd.Decided(3, 10, decision(10, Desired.CHECKPOINT, attempt=3)))
    manager(qd.Decided(3, 11, decision(11, Desired.STOP)))
    assert manager.state is WorkState.STOPPING
    manager(qd.Spilled(G))
    assert manager.state is WorkState.STOPPING


def test_coming_back_is_a_start_and_needs_a_lease() -> None:
    manager = spilling()
    manager(qd.Spilled(G))
    manager.now_ns += 20 * SECOND
    manager(qd.Decided(3, 7, decision(7, Desired.RUN, attempt=2)))
    assert manager.state is WorkState.SPILLED
    manager(qd.Renewed(3, 1, 10.0, manager.now_ns))
    assert manager.state is WorkState.RETURNING


def test_stop_needs_no_lease_and_ends_with_the_grant() -> None:
    manager = running()
    manager.now_ns += 100 * SECOND
    manager(qd.Decided(3, 6, decision(6, Desired.STOP, grace_s=4)))
    (stop,) = [one for one in manager.out if isinstance(one, qd.Stop)]
    assert (stop.grant, stop.grace_s) == (G, 4)
    assert manager.state is WorkState.STOPPING
    manager(qd.GrantEnded(G))
    assert manager.state is WorkState.STOPPED
    manager(qd.Acknowledged(KEY, "u", 1, WorkState.STOPPED, True))
    assert manager.state is None


def test_what_the_node_ends_itself_is_told_as_stopped_with_the_reason() -> None:
    manager = running()
    (store, stop) = manager(qd.Evicted(G, "tampered_region"))
    assert isinstance(store, qd.StoreWork)
    assert isinstance(stop, qd.Stop)
    assert (stop.grant, stop.reason) == (G, "tampered_region")
    manager(qd.Decided(3, 6, decision(6)))
    assert manager.state is WorkState.STOPPING, "a later decision to run does not save it"
    (_, tell) = manager(qd.GrantEnded(G))
    assert isinstance(tell, qd.Tell)
    assert (tell.work.state, tell.work.reason) == (WorkState.STOPPED, "tampered_region")
    assert manager(qd.Evicted(G, "again")) == []


def test_eviction_does_not_wait_for_the_time_it_had_to_stop() -> None:
    manager = running()
    manager(qd.Decided(3, 6, decision(6, Desired.STOP, grace_s=3600)))
    manager.out.clear()
    manager(qd.Evicted(G, "tampered_region"))
    (stop,) = [one for one in manager.out if isinstance(one, qd.Stop)]
    assert stop.grace_s == EVICTION_GRACE_S


def given_up_while_away() -> Desk:
    """Attempt 1 was given up while the node was away, and is being stopped."""
    manager = running()
    manager(qd.Disconnected())
    manager.connect(revision=9, epoch=2)
    assert manager.state is WorkState.STOPPING
    return manager


def test_a_new_attempt_on_the_same_node_begins_when_the_one_that_was_given_up_has_ended() -> None:
    manager = given_up_while_away()
    assert manager(qd.Decided(3, 10, decision(10, attempt=2)))[1:] == []
    (_, tell) = manager(qd.GrantEnded(G))
    assert isinstance(tell, qd.Tell)
    assert (tell.work.decision.attempt, tell.work.state) == (1, WorkState.STOPPED)
    manager.out.clear()
    manager(qd.Acknowledged(KEY, "u", 1, WorkState.STOPPED, False))
    (start,) = [one for one in manager.out if isinstance(one, qd.Start)]
    assert start.work.decision.attempt == 2


def test_a_decision_that_was_put_off_and_withdrawn_meanwhile_is_not_obeyed() -> None:
    manager = given_up_while_away()
    manager(qd.Decided(3, 10, decision(10, attempt=2)))
    manager(qd.Disconnected())
    manager.connect(revision=12, epoch=3)
    manager(qd.GrantEnded(G))
    manager.out.clear()
    manager(qd.Acknowledged(KEY, "u", 1, WorkState.STOPPED, False))
    assert "Start" not in manager.kinds()
    assert manager.state is None


def test_of_two_decisions_that_were_put_off_the_newer_is_obeyed() -> None:
    manager = given_up_while_away()
    manager(qd.Decided(3, 11, decision(11, Desired.STOP, attempt=2)))
    manager(qd.Decided(3, 10, decision(10, attempt=2)))
    manager(qd.GrantEnded(G))
    manager(qd.Acknowledged(KEY, "u", 1, WorkState.STOPPED, False))
    assert "Start" not in manager.kinds()
    assert manager.state is WorkState.STOPPED


def test_a_job_that_ends_by_itself_is_finished() -> None:
    manager = running()
    manager(qd.Disconnected())
    manager(qd.GrantEnded(G))
    assert manager.state is WorkState.FINISHED


def test_a_repeated_decision_about_ended_work_starts_nothing() -> None:
    manager = running()
    manager(qd.GrantEnded(G))
    manager(qd.Acknowledged(KEY, "u", 1, WorkState.FINISHED, True))
    manager.out.clear()
    out = manager(qd.Decided(3, 5, decision(5)))
    assert [type(one) for one in out] == [qd.Tell]
    assert manager.state is None
    again = Desk(QueueBook(Fence("c", 3, 5, 1), [], [Done("u", 1, WorkState.FINISHED)]))
    again.connect(decision(5))
    again(qd.WaiterCame("ns/w"))
    assert "Start" not in again.kinds()


def test_what_ended_while_connecting_is_told_after() -> None:
    manager = running()
    told = tuple(manager.book.works.values())
    manager(qd.GrantEnded(G))
    out = manager(qd.Welcomed(welcome(decision()), manager.now_ns, told))
    assert any(isinstance(one, qd.Tell) and one.work.state is WorkState.FINISHED for one in out)
    assert manager.state is WorkState.FINISHED


def test_what_the_controller_does_not_have_is_stopped() -> None:
    manager = running()
    manager.connect()
    assert manager.state is WorkState.STOPPING


def test_a_namesake_waits_until_the_old_one_is_gone() -> None:
    manager = running()
    manager(qd.Decided(3, 8, decision(8, uid="other")))
    assert manager.state is WorkState.STOPPING
    manager(qd.GrantEnded(G))
    manager(qd.Acknowledged(KEY, "u", 1, WorkState.STOPPED, False))
    assert manager.book.works[KEY].decision.uid == "other"
    assert manager.kinds()[-1] == "Start"


def test_a_refused_start_is_told_and_may_be_tried_again() -> None:
    manager = Desk()
    manager.connect(decision())
    manager(qd.WaiterCame("ns/w"))
    manager(qd.GrantRefused(KEY, "no room"))
    assert manager.state is WorkState.REFUSED
    manager(qd.Acknowledged(KEY, "u", 1, WorkState.REFUSED, True))
    out = manager(qd.Decided(3, 9, decision(9, attempt=2)))
    assert [type(one) for one in out] == [qd.StoreFence, qd.StoreWork, qd.Start]


def test_stopped_before_it_was_started() -> None:
    manager = Desk()
    manager.connect(decision())
    manager(qd.Decided(3, 6, decision(6, Desired.STOP)))
    assert manager.state is WorkState.STOPPED
    assert not manager.book.works[KEY].started


def test_stopped_while_it_was_being_started() -> None:
    manager = Desk()
    manager.connect(decision())
    manager(qd.WaiterCame("ns/w"))
    manager(qd.Decided(3, 6, decision(6, Desired.STOP)))
    out = manager(qd.GrantMade(KEY, G))
    assert any(isinstance(one, qd.Stop) for one in out)


def test_a_job_that_may_start_elsewhere_pauses_itself_at_the_end_of_the_lease() -> None:
    manager = Desk()
    manager.connect(decision(pause_when_lost=True))
    manager(qd.WaiterCame("ns/w"))
    manager(qd.GrantMade(KEY, G))
    manager.now_ns += 11 * SECOND
    assert manager(qd.Ticked()) == [qd.SetPaused(G, True)]
    assert manager(qd.Ticked()) == []
    assert manager.book.is_paused_by_queue(G)
    out = manager.connect(decision(pause_when_lost=True), epoch=2)
    assert qd.SetPaused(G, False) in out


def test_running_work_that_is_unknown_makes_the_node_connect_again() -> None:
    manager = running()
    out = manager(qd.Acknowledged(KEY, "u", 1, WorkState.RUNNING, False))
    assert [type(one) for one in out] == [qd.Reconnect]


_DECISIONS = st.builds(
    decision,
    revision=st.integers(1, 12),
    desired=st.sampled_from(list(Desired)),
    attempt=st.integers(1, 3),
    uid=st.sampled_from(["u", "v"]),
    pause_when_lost=st.booleans(),
)
_EVENTS = st.one_of(
    st.builds(qd.Decided, st.integers(1, 4), st.integers(1, 12), _DECISIONS),
    st.builds(
        lambda d, t, e: ("connect", d, t, e),
        st.lists(_DECISIONS, max_size=1),
        st.integers(1, 4),
        st.integers(1, 3),
    ),
    st.builds(
        qd.Renewed,
        st.integers(1, 4),
        st.integers(1, 3),
        st.just(10.0),
        st.integers(0, 200).map(lambda s: s * SECOND),
    ),
    st.sampled_from(
        [
            qd.Ticked(),
            qd.Disconnected(),
            qd.WaiterCame("ns/w"),
            qd.WaiterLeft("ns/w"),
            "end",
            "refuse",
            "resume refused",
            "spilled",
            "spill refused",
            "returned",
            "room taken",
            "lost",
            "evict",
            "ack",
            "later",
        ]
    ),
)


_OF_MEMORY = {
    "spilled": qd.Spilled,
    "spill refused": lambda grant: qd.SpillRefused(grant, "managed memory"),
    "returned": qd.Returned,
    "room taken": lambda grant: qd.ReturnRefused(grant, "taken", True),
    "lost": lambda grant: qd.ReturnRefused(grant, "lost", False),
}


@settings(max_examples=300, deadline=None)
@given(st.lists(_EVENTS, max_size=40))
def test_whatever_comes_in_whatever_order(events: list[Any]) -> None:
    """At most one grant per pod; nothing starts or goes on without a lease; the term never falls; what is told is
    what is; rows of the ledger are what is in memory."""
    manager = Desk()
    live: set[GrantId] = set()
    rows: dict[WorkKey, Work] = {}
    made = 0
    for event in events:
        queue: list[qd.Event] = []
        if event == "end":
            queue += [qd.GrantEnded(one) for one in live]
            live.clear()
        elif event == "resume refused":
            queue += [qd.ResumeRefused(one, "taken") for one in live]
        elif isinstance(event, str) and event in _OF_MEMORY:
            queue += [_OF_MEMORY[event](one) for one in live]
        elif event == "evict":
            queue += [qd.Evicted(one, "tampered_region") for one in live]
        elif event == "ack":
            queue += [
                qd.Acknowledged(w.key, w.decision.uid, w.decision.attempt, w.state, True)
                for w in list(manager.book.works.values())
            ]
        elif event == "later":
            manager.now_ns += 7 * SECOND
        elif isinstance(event, tuple):
            told = tuple(manager.book.works.values())
            queue.append(
                qd.Welcomed(
                    welcome(*event[1], term=event[2], revision=12, epoch=event[3]),
                    manager.now_ns,
                    told,
                )
            )
        elif event != "refuse":
            queue.append(event)
        while queue:
            before = manager.book.fence
            for do in manager(queue.pop(0)):
                if isinstance(do, qd.Start):
                    assert manager.book.may_start(manager.now_ns)
                    assert not live, "one grant per pod"
                    made += 1
                    grant = GrantId(f"g{made}")
                    if made % 4 == 0:
                        queue.append(qd.GrantRefused(do.work.key, "no"))
                    else:
                        live.add(grant)
                        queue.append(qd.GrantMade(do.work.key, grant))
                elif isinstance(do, qd.ReturnGrant) or (
                    isinstance(do, qd.SetPaused) and not do.paused
                ):
                    assert manager.book.may_start(manager.now_ns)
                elif isinstance(do, qd.StoreWork):
                    rows[do.work.key] = do.work
                elif isinstance(do, qd.DropWork):
                    rows.pop(do.key, None)
            assert manager.book.fence.term >= before.term
    assert rows == manager.book.works
    for work in manager.book.works.values():
        assert (work.grant is not None) == (
            work.state not in OVER and work.state is not WorkState.OFFERED
        )
        assert work.grant is None or work.grant in live
        assert work.state not in OVER or work.grant is None
    held = {work.grant for work in manager.book.works.values() if work.grant}
    stopped = {one.grant for one in manager.out if isinstance(one, qd.Stop)}
    assert live <= held | stopped, "a grant without a record is at least being stopped"
