"""Leader election: never two leaders by their own clocks, whatever is late; and always one in the
end."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any
from uuid import uuid4

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from queuecontroller.cluster import controller as controller_module
from queuecontroller.cluster.controller import Controller
from queuecontroller.cluster.leader.lease import MARGIN, Elector, Write
from queuecontroller.cluster.plan import Plan
from queuecontroller.cluster.session import Defect
from queuecontroller.server.standalone import SystemClock
from queuecontroller.state.book import BookSettings
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.credentials import Access, Credentials
from tests.kit.apiserver import ApiServer

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
    elector.written(write, now_s, now_s)
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


def test_a_holder_whose_time_was_over_for_a_moment_begins_a_new_term() -> None:
    server, one = Server(), Elector("one", LEASE_S)
    ask(one, server, 0.0)
    assert ask(one, server, LEASE_S * MARGIN)
    assert one.leads(LEASE_S)
    assert one.term == 1


def test_a_renewal_that_is_stored_after_the_holders_time_renews_nothing() -> None:
    server, one = Server(), Elector("one", LEASE_S)
    ask(one, server, 0.0)
    asked_s, stored_s = LEASE_S * MARGIN - 1, LEASE_S * MARGIN + 1
    late = one.look(server.lease, asked_s, "t")
    assert late is not None
    assert server.put(late)
    one.written(late, asked_s, stored_s)
    assert not one.leads(stored_s)
    assert ask(one, server, stored_s)
    assert (one.leads(stored_s), one.term) == (True, 1)


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


class SlowLease(ApiServer):
    """Takes a renewal just before the holder's time is over, and answers when it has been over for
    a moment in which a Job is made."""

    def __init__(self) -> None:
        super().__init__()
        self.elector: Elector | None = None
        """Elector whose lease time decides when a renewal is answered; None: every renewal is
        answered at once."""
        self.lapses = 0

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/apis/batch/v1":
            return web.json_response({"resources": [{"name": "jobs"}]})
        if request.method == "PATCH" and "/leases/" in request.path and self.elector is not None:
            elector = self.elector
            if elector.leads(monotonic() + LATE_S):
                return web.json_response({"code": 503, "reason": "Busy"}, status=503)
            while elector.leads(monotonic()):
                await asyncio.sleep(0.005)
            self.elector = None
            self.lapses += 1
            self.put("/apis/batch/v1/jobs", HELD_JOB)
            await asyncio.sleep(LATE_S / 2)
        return await super()._handle(request)


SHORT_LEASE_S, LATE_S = 3.0, 0.6
HELD_JOB: dict[str, Any] = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {
        "name": "meanwhile",
        "namespace": "default",
        "labels": {"kueue.x-k8s.io/queue-name": "one"},
        "creationTimestamp": "2026-11-22T10:00:00Z",
        "generation": 1,
    },
    "spec": {
        "suspend": True,
        "parallelism": 1,
        "completions": 1,
        "template": {"spec": {"containers": [{"name": "main", "image": "none"}]}},
    },
}


async def led_through_a_lapse() -> tuple[SlowLease, list[int], list[str]]:
    """Also the terms that were led, and whose Workloads there are in the end."""
    api = SlowLease()
    await api.start()
    access = Credentials(Access(api.url))
    # A connection for each kind that is watched.
    each = [ApiClient(access, "test", 64, deadline_s=1.0) for _ in range(2)]
    plan = Plan(BookSettings(), "one", "sluice", SHORT_LEASE_S, lambda: str(uuid4()), SystemClock())
    controller = Controller(each[0], each[1], plan)
    running = asyncio.create_task(controller.run())
    terms, owners = [], list[str]()
    try:
        async with asyncio.timeout(30):
            while not owners:
                await asyncio.sleep(0.02)
                session = controller.session
                if session is None or not session.term:  # without a term it has not begun
                    continue
                if session.term not in terms:
                    terms.append(session.term)
                    if api.lapses == 0:
                        api.elector = controller._elector
                owners = [
                    one["metadata"]["ownerReferences"][0]["name"]
                    for (where, _), one in api.objects.items()
                    if where.endswith("/workloads")
                ]
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        for client in each:
            await client.close()
        await api.close()
    return api, terms, owners


def test_what_came_while_it_did_not_lead_for_a_moment_is_done_in_its_next_term() -> None:
    """It may not write then, and the writer does not try again."""
    api, terms, owners = asyncio.run(led_through_a_lapse())
    assert api.lapses == 1
    assert owners == ["meanwhile"]
    assert len(terms) > 1  # two, where the machine is never busy for the whole of a lease
    assert terms == sorted(terms)


class _Led:
    """Session of which only the term is read."""

    term, shell = 7, None


async def stepped_down(ends: bool) -> None:
    """The session's task ends when it is cancelled, or goes on."""
    plan = Plan(BookSettings(), "one", "sluice", SHORT_LEASE_S, lambda: "u", SystemClock())
    client = ApiClient(Credentials(Access("http://127.0.0.1:1")), "test")
    controller: Any = Controller(client, client, plan)
    over = asyncio.Event()

    async def session() -> None:
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                if ends:
                    raise

    controller._session, controller._deciding = _Led(), asyncio.create_task(session(), name="busy")
    deciding = controller._deciding
    await asyncio.sleep(0)
    try:
        await controller._step_down("the lease is lost")
    finally:
        over.set()
        await asyncio.gather(deciding, return_exceptions=True)
    assert controller._session is None


def test_a_session_that_does_not_end_ends_the_process_and_says_where_it_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would neither lead again nor end: for 22 minutes once, with an API server that answered again after a second."""
    asyncio.run(stepped_down(ends=True))
    monkeypatch.setattr(controller_module, "ENDS_S", 0.05)
    with pytest.raises(
        Defect, match=r"did not end within 0\.05 s; all tasks: .*busy at .*session:\d+"
    ):
        asyncio.run(stepped_down(ends=False))


def test_a_replica_that_lacks_lists_says_which(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plan = Plan(BookSettings(), "one", "sluice", SHORT_LEASE_S, lambda: "u", SystemClock())
    client = ApiClient(Credentials(Access("http://127.0.0.1:1")), "test")
    controller: Any = Controller(client, client, plan)
    monkeypatch.setattr(controller_module, "UNLISTED_S", 0.0)
    controller._note_unlisted()
    assert not caplog.records, "they are being listed"
    controller._note_unlisted()
    assert "cannot lead: starting; it is not known which kinds are served" in caplog.text
