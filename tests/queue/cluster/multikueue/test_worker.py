"""Writes to one worker, in order, and effects of a refusal or a hang."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, cast

import pytest

from queuecontroller.cluster.cache.job_context import JOBS
from queuecontroller.cluster.cache.kinds import WORKLOADS
from queuecontroller.cluster.cache.objects import Document
from queuecontroller.cluster.multikueue.copies import gate_opened_at, read_copy
from queuecontroller.cluster.multikueue.decide import Want
from queuecontroller.cluster.multikueue.worker import (
    LARGEST_EVENT_BYTES,
    WorkerLink,
    _Bounded,
)
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.decoding import BadAnswer, Item
from sluicecommon.kubernetes.errors import ApiRefused
from sluicecommon.kubernetes.reflector import Changed, Removed
from sluicecommon.kubernetes.resources import Resource
from tests.queue.cluster.multikueue.documents import copy, job, job_there, workload

NOW_NS = 1_800_000_000 * 10**9
Wanted = tuple[Want | None, Document | None, Document | None]


class Server:
    """API server of a worker: stores what is created."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, str]] = []
        self.refuses: ApiRefused | None = None
        self.version = 10

    def _note(self, verb: str, kind: Resource, name: str) -> None:
        self.calls.append((verb, kind.kind, name))
        if self.refuses is not None:
            raise self.refuses

    def _stored(self, document: Mapping[str, Any]) -> dict[str, Any]:
        self.version += 1
        made = deepcopy(dict(document))
        made["metadata"] |= {"uid": f"u{self.version}", "resourceVersion": str(self.version)}
        return made

    async def create(self, kind: Resource, made: Any, namespace: str) -> dict[str, Any]:
        self._note("create", kind, made["metadata"]["name"])
        return self._stored(made)

    async def merge_patch(self, kind: Resource, name: str, patch: Any, *_: Any, **__: Any) -> Any:
        self._note("patch", kind, name)
        found = copy()
        found["spec"] |= patch.get("spec", {})
        found["status"] |= patch.get("status", {})
        return self._stored(found)

    async def delete(self, kind: Resource, name: str, *_: Any) -> dict[str, Any]:
        self._note("delete", kind, name)
        return {}


class Bench:
    """A connected worker, and what the manager wants of it."""

    def __init__(self, want: Want | None, mine: Document | None = None) -> None:
        self.server = Server()
        self.want = want
        self.mine = workload() if mine is None else mine
        self.may_write = True
        self.changes: list[str] = []
        self.dispatched: list[str] = []
        self.link = WorkerLink(
            "a",
            cast(ApiClient, self.server),
            "fleet",
            True,
            lambda: NOW_NS,
            self._wanted,
            lambda name, key: self.changes.append(key),
            lambda: self.may_write,
            lambda name, document: self.dispatched.append(name),
        )
        self.link.lost_at_s = None

    def _wanted(self, key: str) -> Wanted:
        return self.want, self.mine, job()

    def has(self, kind: Resource, document: dict[str, Any]) -> None:
        head = document["metadata"]
        item: Item[Document] = Item(
            f"{head['namespace']}/{head['name']}", head["resourceVersion"], document
        )
        self.link._received(kind, Changed(item))

    def sync(self) -> list[tuple[str, str, str]]:
        """The calls of one pass."""
        self.server.calls.clear()
        asyncio.run(self.link._sync("n/w"))
        return self.server.calls


@pytest.fixture
def serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WorkerLink, "serves", lambda self, kind: True)


def test_a_copy_is_created_once() -> None:
    bench = Bench(Want.COPY)
    assert bench.sync() == [("create", "Workload", "w")]
    assert bench.dispatched == ["a"]
    assert bench.sync() == []
    assert bench.dispatched == ["a"]


def test_the_job_follows_its_copy_and_is_created_once(serves: None) -> None:
    bench = Bench(Want.JOB)
    assert bench.sync() == [("create", "Workload", "w"), ("create", "Job", "j")]
    assert bench.link.job("n/w") is not None
    assert bench.sync() == []


def test_a_kind_that_is_not_served_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WorkerLink, "lacks", lambda self, kind: True)
    bench = Bench(Want.COPY)
    assert bench.sync() == []
    assert bench.link.refusals == {"n/w": "it does not serve jobs of batch/v1"}


def test_the_job_is_deleted_before_its_copy() -> None:
    bench = Bench(Want.NOTHING)
    bench.has(WORKLOADS, copy(finalizers=["kueue.x-k8s.io/resource-in-use"]))
    bench.has(JOBS, job_there())
    assert bench.sync() == [
        ("delete", "Job", "j"),
        ("patch", "Workload", "w"),
        ("delete", "Workload", "w"),
    ]


def test_an_orphaned_job_without_a_copy_is_found_and_deleted() -> None:
    bench = Bench(Want.NOTHING)
    bench.has(JOBS, job_there())
    assert bench.link.workload_keys() == {"n/w"}
    assert bench.sync() == [("delete", "Job", "j")]
    bench.link._received(JOBS, Removed("n/j"))
    assert bench.link.workload_keys() == set()


def test_a_copy_with_other_pods_is_deleted_and_made_again() -> None:
    bench = Bench(Want.COPY)
    other = copy()
    other["spec"] = {**other["spec"], "podSets": [{"name": "main", "count": 9}]}
    bench.has(WORKLOADS, other)
    assert bench.sync() == [("delete", "Workload", "w")]


def test_a_changed_priority_is_sent() -> None:
    mine = workload()
    mine["spec"] |= {"priority": 3}
    bench = Bench(Want.COPY, mine)
    bench.has(WORKLOADS, copy())
    assert bench.sync() == [("patch", "Workload", "w")]
    assert bench.sync() == []


def test_the_gate_of_a_copy_is_opened_once() -> None:
    bench = Bench(Want.UNGATED_COPY)
    bench.has(WORKLOADS, copy())
    bench.changes.clear()
    assert bench.sync() == [("patch", "Workload", "w")]
    there = bench.link.copy("n/w")
    assert there is not None
    assert gate_opened_at(there) == "2027-01-15T08:00:00Z"
    assert bench.changes == ["n/w"], "the others wait from now on"
    assert bench.sync() == []


@pytest.mark.parametrize(
    ("lost_at_s", "may_write", "want"),
    [(1.0, True, Want.COPY), (None, False, Want.COPY), (None, True, None)],
    ids=["it is unreachable", "the lease is lost", "nothing is wanted"],
)
def test_nothing_is_written(lost_at_s: float | None, may_write: bool, want: Want | None) -> None:
    bench = Bench(want)
    bench.link.lost_at_s, bench.may_write = lost_at_s, may_write
    assert bench.sync() == []


@pytest.mark.parametrize(
    ("refusal", "text"),
    [
        (ApiRefused(403, "Forbidden", "no right"), "403 Forbidden: no right"),
        (ApiRefused(404, "NotFound", "no namespace n"), "404 NotFound: no namespace n"),
        (ApiRefused(409, "AlreadyExists", "w"), "workloads w: another object has its name"),
    ],
)
def test_what_a_worker_refuses_is_kept_until_it_does_not(refusal: ApiRefused, text: str) -> None:
    bench = Bench(Want.COPY)
    bench.server.refuses = refusal
    with pytest.raises(ApiRefused):
        bench.sync()
    assert bench.link.refusals == {"n/w": text}
    assert bench.changes == ["n/w"]
    with pytest.raises(ApiRefused):
        bench.sync()
    assert bench.changes == ["n/w"], "the same refusal is no news"
    bench.server.refuses = None
    bench.sync()
    assert bench.link.refusals == {}


def test_a_large_event_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(BadAnswer, match="an event of more than"):
        _Bounded(read_copy).line(b"{" * (LARGEST_EVENT_BYTES + 1))


class Silent:
    """API server that accepts each call and never answers."""

    def __init__(self) -> None:
        self.pending = 0

    async def _wait(self) -> Any:
        self.pending += 1
        await asyncio.Event().wait()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def call(*_: Any, **__: Any) -> Any:
            return await self._wait()

        if name != "watch":
            return call

        async def watch(*_: Any, **__: Any) -> Any:
            await self._wait()
            yield b""

        return watch


def test_a_worker_that_hangs_holds_up_no_other() -> None:
    """Its calls never return; the other one gets all its copies."""
    silent = Silent()
    quick = Server()

    def made(server: object) -> WorkerLink:
        return WorkerLink(
            "a",
            cast(ApiClient, server),
            "fleet",
            True,
            lambda: NOW_NS,
            lambda key: (Want.COPY, workload(), job()),
            lambda name, key: None,
            lambda: True,
            lambda name, document: None,
        )

    async def work() -> None:
        hung, other = made(silent), made(quick)
        hung.lost_at_s = other.lost_at_s = None
        running = [asyncio.create_task(one.work_queue.run()) for one in (hung, other)]
        for i in range(20):
            hung.work_queue.add(f"n/{i}")
        other.work_queue.add("n/w")
        while not quick.calls:
            await asyncio.sleep(0)
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    asyncio.run(asyncio.wait_for(work(), 60))
    assert quick.calls == [("create", "Workload", "w")]
    assert silent.pending == 4, "no more calls in flight than its own queue has"


def test_a_worker_that_hangs_is_never_reachable_and_its_connection_can_be_ended() -> None:
    silent = Silent()

    async def work() -> WorkerLink:
        link = WorkerLink(
            "a",
            cast(ApiClient, silent),
            "fleet",
            True,
            lambda: NOW_NS,
            lambda key: (None, None, None),
            lambda name, key: None,
            lambda: True,
            lambda name, document: None,
        )
        running = asyncio.create_task(link.run())
        while silent.pending < 3:
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return link

    link = asyncio.run(asyncio.wait_for(work(), 60))
    assert link.lost_s is not None
    assert link.trouble
