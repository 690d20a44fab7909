"""One-time words: once, soon, and bounded in number."""

from __future__ import annotations

import itertools

from sluicecommon.page.tickets import (
    MAX_SESSIONS,
    MAX_TICKETS,
    SESSION_S,
    TICKET_S,
    Tickets,
)


def tickets() -> Tickets[str]:
    numbers = itertools.count()
    return Tickets(lambda: f"secret-{next(numbers)}")


def test_a_ticket_opens_one_session_once() -> None:
    kept = tickets()
    ticket = kept.issue("ann", 0)
    redeemed = kept.redeem(ticket, TICKET_S - 1)
    assert redeemed is not None
    session, whom = redeemed
    assert whom == "ann"
    assert kept.redeem(ticket, TICKET_S - 1) is None
    assert kept.whose(session, TICKET_S) == "ann"
    assert kept.whose(ticket, TICKET_S) is None


def test_an_old_ticket_and_an_old_session_are_nobodys() -> None:
    kept = tickets()
    assert kept.redeem(kept.issue("ann", 0), TICKET_S) is None
    redeemed = kept.redeem(kept.issue("ann", 0), 1)
    assert redeemed is not None
    assert kept.whose(redeemed[0], SESSION_S) == "ann"
    assert kept.whose(redeemed[0], SESSION_S + 1) is None


def test_a_session_ends_when_its_viewer_leaves() -> None:
    kept = tickets()
    redeemed = kept.redeem(kept.issue("ann", 0), 1)
    assert redeemed is not None
    kept.end(redeemed[0])
    assert kept.whose(redeemed[0], 2) is None
    assert kept.whose("", 2) is None
    assert kept.whose("x" * 100_000 + "\ud800", 2) is None


def test_more_than_may_be_push_out_the_oldest() -> None:
    kept = tickets()
    issued = [kept.issue("ann", 0) for _ in range(MAX_TICKETS + 1)]
    assert kept.redeem(issued[0], 1) is None
    assert kept.redeem(issued[-1], 1) is not None
    sessions = []
    for _ in range(MAX_SESSIONS):
        redeemed = kept.redeem(kept.issue("eve", 2), 2)
        assert redeemed is not None
        sessions.append(redeemed[0])
    assert kept.whose(sessions[0], 3) == "eve"
    redeemed = kept.redeem(issued[-2], 3)
    assert redeemed is not None
    assert kept.whose(sessions[0], 3) is None
    assert kept.whose(sessions[1], 3) == "eve"
