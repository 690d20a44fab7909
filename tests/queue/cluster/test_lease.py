"""Who leads: never two by their own clocks, whatever is late; and somebody in the end."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from queuecontroller.cluster.lease import MARGIN, Elector, Write

LEASE_S = 15.0


class Server:
    """The Lease as the API server keeps it: a write over another version is refused."""

    def __init__(self) -> None:
        self.version = 0
        self.spec: dict[str, Any] = {}

    @property
    def lease(self) -> dict[str, Any] | None:
        head = {"resourceVersion": str(self.version)}
        return {"metadata": head, "spec": dict(self.spec)} if self.version else None

    def put(self, write: Write) -> bool:
        if write.resource_version != (str(self.version) if self.version else ""):
            return False
        self.version += 1
        self.spec = dict(write.spec)
        return True


def ask(elector: Elector, server: Server, now_s: float, stored: bool = True) -> bool:
    """`stored`: false if the answer never comes."""
    write = elector.look(server.lease, now_s, f"t{now_s}")
    if write is None or not server.put(write) or not stored:
        return False
    elector.written(write, now_s)
    return True


def test_the_first_leads_and_the_second_waits() -> None:
    server, one, two = Server(), Elector("one", LEASE_S), Elector("two", LEASE_S)
    assert ask(one, server, 0.0)
    assert not ask(two, server, 1.0)
    assert (one.leads(1.0), two.leads(1.0)) == (True, False)
    assert one.term == 0


def test_a_holder_that_cannot_renew_stops_before_another_may_begin() -> None:
    server, one, two = Server(), Elector("one", LEASE_S), Elector("two", LEASE_S)
    ask(one, server, 0.0)
    assert not ask(two, server, 0.1)
    assert not one.leads(LEASE_S * MARGIN)
    assert not ask(two, server, LEASE_S)
    assert ask(two, server, LEASE_S + 0.2)
    assert two.term == 1


def test_who_comes_back_to_its_own_lease_begins_a_new_term() -> None:
    server, one = Server(), Elector("one", LEASE_S)
    ask(one, server, 0.0)
    one.lost()
    assert ask(one, server, 20.0)
    assert one.term == 1


def test_a_lease_that_was_given_back_is_free_at_once() -> None:
    server, one, two = Server(), Elector("one", LEASE_S), Elector("two", LEASE_S)
    ask(one, server, 0.0)
    server.put(Write(one.released(), str(server.version)))
    assert ask(two, server, 0.5)


def test_who_reads_an_old_lease_cannot_take_it() -> None:
    server, one, two = Server(), Elector("one", LEASE_S), Elector("two", LEASE_S)
    ask(one, server, 0.0)
    two.look(server.lease, 0.0, "")
    late = two.look(server.lease, LEASE_S + 1, "")
    ask(one, server, LEASE_S + 2)
    assert late is not None
    assert not server.put(late)


Moves = st.lists(
    st.tuples(st.sampled_from(("a", "b", "c")), st.floats(0.01, 9.0), st.booleans()), max_size=80
)


@given(moves=Moves)
def test_two_never_lead_at_once_and_terms_grow(moves: list[tuple[str, float, bool]]) -> None:
    server = Server()
    every = {name: Elector(name, LEASE_S) for name in "abc"}
    now_s, terms = 0.0, []
    for name, after_s, stored in moves:
        now_s += after_s
        if ask(every[name], server, now_s, stored):
            terms.append((every[name].term, name))
        leading = [one for one in every.values() if one.leads(now_s)]
        assert len(leading) <= 1
    assert terms == sorted(terms, key=lambda one: one[0])
    owners: dict[int, str] = {}
    for term, name in terms:
        assert owners.setdefault(term, name) == name, "a term is one leader's"


@given(moves=Moves)
def test_somebody_leads_once_all_is_quiet(moves: list[tuple[str, float, bool]]) -> None:
    server = Server()
    every = {name: Elector(name, LEASE_S) for name in "abc"}
    now_s = 0.0
    for name, after_s, stored in moves:
        now_s += after_s
        ask(every[name], server, now_s, stored)
    for _ in range(10):
        now_s += 3.0
        for one in every.values():
            ask(one, server, now_s)
    assert [one for one in every.values() if one.leads(now_s)]


def test_a_lease_that_names_nobody_is_free() -> None:
    found = Elector("one", LEASE_S).look({"metadata": {}, "spec": {}}, 0.0, "t")
    assert found is not None
    assert found.spec["holderIdentity"] == "one"
