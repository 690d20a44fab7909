"""The node's reducer over the queue's decisions: terms, revisions, leases, and every order of messages."""

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
    desk = Desk()
    desk.connect(decision())
    desk(qd.WaiterCame("ns/w"))
    desk(qd.GrantMade(KEY, G))
    desk.out.clear()
    return desk


def test_a_decision_starts_once_somebody_waits_for_it() -> None:
    desk = Desk()
    desk.connect(decision())
    assert "Start" not in desk.kinds()
    assert [type(one) for one in desk(qd.WaiterCame("ns/w"))] == [qd.Start]
    assert desk(qd.WaiterCame("ns/w")) == [], "it is being started already"
    out = desk(qd.GrantMade(KEY, G))
    assert [type(one) for one in out] == [qd.StoreWork, qd.Tell]
    assert desk.state is WorkState.RUNNING


def test_nothing_starts_without_a_lease() -> None:
    desk = Desk()
    desk.connect(decision())
    desk.now_ns += 11 * SECOND
    assert desk(qd.WaiterCame("ns/w")) == []
    assert desk(qd.Ticked()) == []
    assert [type(o) for o in desk(qd.Renewed(3, 1, 10.0, desk.now_ns))] == [qd.Start]


def test_the_lease_counts_from_when_it_was_asked_for() -> None:
    desk = Desk()
    desk.connect()
    asked_ns = desk.now_ns
    desk.now_ns += 9 * SECOND
    desk(qd.Renewed(3, 1, 10.0, asked_ns))  # an answer that was 9 s under way
    desk.now_ns += 2 * SECOND
    assert not desk.book.may_start(desk.now_ns)


@pytest.mark.parametrize("event", [qd.Renewed(3, 0, 10.0, 0), qd.Renewed(2, 1, 10.0, 0)])
def test_a_renewal_of_another_session_renews_nothing(event: qd.Renewed) -> None:
    desk = Desk()
    desk.connect()
    before = desk.book.lease_until_ns
    desk.now_ns += 5 * SECOND
    desk(replace(event, sent_ns=desk.now_ns))
    assert desk.book.lease_until_ns == before


@pytest.mark.parametrize("what", [{"term": 2}, {"revision": 4}])
def test_an_older_controller_is_not_obeyed(what: dict[str, int]) -> None:
    desk = running()
    out = desk.connect(decision(9, Desired.STOP), **what)
    assert [type(one) for one in out] == [qd.Reconnect]
    assert not desk.book.connected
    assert desk.state is WorkState.RUNNING


def test_a_decision_of_an_older_term_is_not_obeyed() -> None:
    desk = running()
    out = desk(qd.Decided(2, 9, decision(9, Desired.STOP)))
    assert [type(one) for one in out] == [qd.Reconnect]
    assert desk.state is WorkState.RUNNING


def test_an_overtaken_decision_changes_nothing() -> None:
    desk = running()
    desk(qd.Decided(3, 7, decision(7, Desired.PAUSE)))
    assert desk.state is WorkState.PAUSED
    assert desk(qd.Decided(3, 6, decision(6, Desired.STOP))) == []
    assert desk.state is WorkState.PAUSED


def test_pause_and_go_on() -> None:
    desk = running()
    desk(qd.Decided(3, 6, decision(6, Desired.PAUSE)))
    assert qd.SetPaused(G, True, lends=True) in desk.out
    desk(qd.Decided(3, 7, decision(7, Desired.RUN, attempt=2)))
    assert qd.SetPaused(G, False) in desk.out
    assert desk.state is WorkState.RUNNING
    told = [one.work for one in desk.out if isinstance(one, qd.Tell)]
    assert [(one.state, one.decision.attempt) for one in told] == [
        (WorkState.PAUSED, 1),
        (WorkState.RUNNING, 2),
    ]


def test_going_on_is_a_start_and_needs_a_lease() -> None:
    desk = running()
    desk(qd.Decided(3, 6, decision(6, Desired.PAUSE)))
    desk.now_ns += 20 * SECOND
    desk(qd.Decided(3, 7, decision(7, Desired.RUN, attempt=2)))
    assert desk.state is WorkState.PAUSED
    desk(qd.Renewed(3, 1, 10.0, desk.now_ns))
    assert desk.state is WorkState.RUNNING


def test_who_cannot_go_on_stays_paused_and_says_so() -> None:
    desk = running()
    desk(qd.Decided(3, 6, decision(6, Desired.PAUSE)))
    desk(qd.Decided(3, 7, decision(7, Desired.RUN, attempt=2)))
    out = desk(qd.ResumeRefused(G, "taken"))
    assert desk.state is WorkState.PAUSED
    assert isinstance(out[-1], qd.Tell)
    assert out[-1].work.reason == "taken"


def spilling() -> Desk:
    desk = running()
    desk(qd.Decided(3, 6, decision(6, Desired.CHECKPOINT)))
    return desk


def told(desk: Desk) -> list[tuple[WorkState, str]]:
    return [(one.work.state, one.work.reason) for one in desk.out if isinstance(one, qd.Tell)]


def test_who_makes_way_by_a_checkpoint_is_told_when_its_memory_has_left() -> None:
    desk = spilling()
    assert desk.out[-1] == qd.SpillGrant(G)
    assert told(desk) == []
    assert desk.book.is_paused_by_queue(G)
    desk(qd.Spilled(G))
    assert told(desk) == [(WorkState.SPILLED, "")]
    desk(qd.Decided(3, 7, decision(7, Desired.RUN, attempt=2)))
    assert desk.out[-1] == qd.ReturnGrant(G)
    assert desk.state is WorkState.RETURNING
    desk(qd.Returned(G))
    assert told(desk)[-1] == (WorkState.RUNNING, "")


def test_who_cannot_be_checkpointed_is_stopped_with_the_reason() -> None:
    desk = spilling()
    desk(qd.SpillRefused(G, "managed memory"))
    (stop,) = [one for one in desk.out if isinstance(one, qd.Stop)]
    assert stop.reason == "it could not be checkpointed, and is stopped: managed memory"


def test_one_whose_memory_is_lost_is_stopped_and_one_without_room_waits() -> None:
    desk = spilling()
    desk(qd.Spilled(G))
    desk(qd.Decided(3, 7, decision(7, Desired.RUN, attempt=2)))
    desk(qd.ReturnRefused(G, "taken", True))
    assert told(desk)[-1] == (WorkState.SPILLED, "taken")
    desk(qd.Decided(3, 8, decision(8, Desired.RUN, attempt=3)))
    desk(qd.ReturnRefused(G, "process 7 has failed", False))
    assert desk.state is WorkState.STOPPING


def test_what_is_decided_while_memory_is_on_its_way_counts_when_it_is_there() -> None:
    desk = spilling()
    desk(qd.Decided(3, 7, decision(7, Desired.RUN, attempt=2)))
    assert desk.state is WorkState.SPILLING
    desk(qd.Spilled(G))
    assert desk.state is WorkState.RETURNING
    desk(qd.Decided(3, 8, decision(8, Desired.CHECKPOINT, attempt=2)))
    assert desk.state is WorkState.RETURNING
    desk(qd.Returned(G))
    assert desk.state is WorkState.SPILLING
    desk(qd.Decided(3, 9, decision(9, Desired.RUN, attempt=3)))
    desk(qd.SpillRefused(G, "no room"))
    assert desk.state is WorkState.RUNNING, "it may stay where it is"
    desk(qd.Decided(3, 10, decision(10, Desired.CHECKPOINT, attempt=3)))
    desk(qd.Decided(3, 11, decision(11, Desired.STOP)))
    assert desk.state is WorkState.STOPPING
    desk(qd.Spilled(G))
    assert desk.state is WorkState.STOPPING


def test_coming_back_is_a_start_and_needs_a_lease() -> None:
    desk = spilling()
    desk(qd.Spilled(G))
    desk.now_ns += 20 * SECOND
    desk(qd.Decided(3, 7, decision(7, Desired.RUN, attempt=2)))
    assert desk.state is WorkState.SPILLED
    desk(qd.Renewed(3, 1, 10.0, desk.now_ns))
    assert desk.state is WorkState.RETURNING


def test_stop_needs_no_lease_and_ends_with_the_grant() -> None:
    desk = running()
    desk.now_ns += 100 * SECOND
    desk(qd.Decided(3, 6, decision(6, Desired.STOP, grace_s=4)))
    (stop,) = [one for one in desk.out if isinstance(one, qd.Stop)]
    assert (stop.grant, stop.grace_s) == (G, 4)
    assert desk.state is WorkState.STOPPING
    desk(qd.GrantEnded(G))
    assert desk.state is WorkState.STOPPED
    desk(qd.Acknowledged(KEY, "u", 1, WorkState.STOPPED, True))
    assert desk.state is None


def test_what_the_node_ends_itself_is_told_as_stopped_with_the_reason() -> None:
    desk = running()
    (store, stop) = desk(qd.Evicted(G, "tampered_region"))
    assert isinstance(store, qd.StoreWork)
    assert isinstance(stop, qd.Stop)
    assert (stop.grant, stop.reason) == (G, "tampered_region")
    desk(qd.Decided(3, 6, decision(6)))
    assert desk.state is WorkState.STOPPING, "a later decision to run does not save it"
    (_, tell) = desk(qd.GrantEnded(G))
    assert isinstance(tell, qd.Tell)
    assert (tell.work.state, tell.work.reason) == (WorkState.STOPPED, "tampered_region")
    assert desk(qd.Evicted(G, "again")) == []


def test_eviction_does_not_wait_for_the_time_it_had_to_stop() -> None:
    desk = running()
    desk(qd.Decided(3, 6, decision(6, Desired.STOP, grace_s=3600)))
    desk.out.clear()
    desk(qd.Evicted(G, "tampered_region"))
    (stop,) = [one for one in desk.out if isinstance(one, qd.Stop)]
    assert stop.grace_s == EVICTION_GRACE_S


def test_a_job_that_ends_by_itself_is_finished() -> None:
    desk = running()
    desk(qd.Disconnected())
    desk(qd.GrantEnded(G))
    assert desk.state is WorkState.FINISHED


def test_a_repeated_decision_about_ended_work_starts_nothing() -> None:
    desk = running()
    desk(qd.GrantEnded(G))
    desk(qd.Acknowledged(KEY, "u", 1, WorkState.FINISHED, True))
    desk.out.clear()
    out = desk(qd.Decided(3, 5, decision(5)))
    assert [type(one) for one in out] == [qd.Tell]
    assert desk.state is None
    again = Desk(QueueBook(Fence("c", 3, 5, 1), [], [Done("u", 1, WorkState.FINISHED)]))
    again.connect(decision(5))
    again(qd.WaiterCame("ns/w"))
    assert "Start" not in again.kinds()


def test_what_ended_while_connecting_is_told_after() -> None:
    desk = running()
    told = tuple(desk.book.works.values())
    desk(qd.GrantEnded(G))
    out = desk(qd.Welcomed(welcome(decision()), desk.now_ns, told))
    assert any(isinstance(one, qd.Tell) and one.work.state is WorkState.FINISHED for one in out)
    assert desk.state is WorkState.FINISHED


def test_what_the_controller_does_not_have_is_stopped() -> None:
    desk = running()
    desk.connect()
    assert desk.state is WorkState.STOPPING


def test_a_namesake_waits_until_the_old_one_is_gone() -> None:
    desk = running()
    desk(qd.Decided(3, 8, decision(8, uid="other")))
    assert desk.state is WorkState.STOPPING
    desk(qd.GrantEnded(G))
    desk(qd.Acknowledged(KEY, "u", 1, WorkState.STOPPED, False))
    assert desk.book.works[KEY].decision.uid == "other"
    assert desk.kinds()[-1] == "Start"


def test_a_refused_start_is_told_and_may_be_tried_again() -> None:
    desk = Desk()
    desk.connect(decision())
    desk(qd.WaiterCame("ns/w"))
    desk(qd.GrantRefused(KEY, "no room"))
    assert desk.state is WorkState.REFUSED
    desk(qd.Acknowledged(KEY, "u", 1, WorkState.REFUSED, True))
    out = desk(qd.Decided(3, 9, decision(9, attempt=2)))
    assert [type(one) for one in out] == [qd.StoreFence, qd.StoreWork, qd.Start]


def test_stopped_before_it_was_started() -> None:
    desk = Desk()
    desk.connect(decision())
    desk(qd.Decided(3, 6, decision(6, Desired.STOP)))
    assert desk.state is WorkState.STOPPED
    assert not desk.book.works[KEY].started


def test_stopped_while_it_was_being_started() -> None:
    desk = Desk()
    desk.connect(decision())
    desk(qd.WaiterCame("ns/w"))
    desk(qd.Decided(3, 6, decision(6, Desired.STOP)))
    out = desk(qd.GrantMade(KEY, G))
    assert any(isinstance(one, qd.Stop) for one in out)


def test_a_job_that_may_start_elsewhere_pauses_itself_at_the_end_of_the_lease() -> None:
    desk = Desk()
    desk.connect(decision(pause_when_lost=True))
    desk(qd.WaiterCame("ns/w"))
    desk(qd.GrantMade(KEY, G))
    desk.now_ns += 11 * SECOND
    assert desk(qd.Ticked()) == [qd.SetPaused(G, True)]
    assert desk(qd.Ticked()) == []
    assert desk.book.is_paused_by_queue(G)
    out = desk.connect(decision(pause_when_lost=True), epoch=2)
    assert qd.SetPaused(G, False) in out


def test_running_work_that_is_unknown_makes_the_node_connect_again() -> None:
    desk = running()
    out = desk(qd.Acknowledged(KEY, "u", 1, WorkState.RUNNING, False))
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
    desk = Desk()
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
                for w in list(desk.book.works.values())
            ]
        elif event == "later":
            desk.now_ns += 7 * SECOND
        elif isinstance(event, tuple):
            told = tuple(desk.book.works.values())
            queue.append(
                qd.Welcomed(
                    welcome(*event[1], term=event[2], revision=12, epoch=event[3]),
                    desk.now_ns,
                    told,
                )
            )
        elif event != "refuse":
            queue.append(event)
        while queue:
            before = desk.book.fence
            for do in desk(queue.pop(0)):
                if isinstance(do, qd.Start):
                    assert desk.book.may_start(desk.now_ns)
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
                    assert desk.book.may_start(desk.now_ns)
                elif isinstance(do, qd.StoreWork):
                    rows[do.work.key] = do.work
                elif isinstance(do, qd.DropWork):
                    rows.pop(do.key, None)
            assert desk.book.fence.term >= before.term
    assert rows == desk.book.works
    for work in desk.book.works.values():
        assert (work.grant is not None) == (
            work.state not in OVER and work.state is not WorkState.OFFERED
        )
        assert work.grant is None or work.grant in live
        assert work.state not in OVER or work.grant is None
    held = {work.grant for work in desk.book.works.values() if work.grant}
    stopped = {one.grant for one in desk.out if isinstance(one, qd.Stop)}
    assert live <= held | stopped, "a grant that nobody remembers is at least being stopped"
