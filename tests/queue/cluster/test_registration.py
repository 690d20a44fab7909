"""The visibility API is registered only while a leader serves it, and nothing is registered in a
namespace that is being deleted: what no server answers would block the whole cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import pytest

from queuecontroller.cluster.setup import registration
from queuecontroller.cluster.setup.registration import keep_registered
from queuecontroller.kueueapi.crds import Webhook
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused
from sluicecommon.kubernetes.resources import Resource

APIS = {f"APIService {version}.visibility.kueue.x-k8s.io" for version in ("v1beta1", "v1beta2")}
WEBHOOKS = {
    "MutatingWebhookConfiguration sluice-jobs",
    "ValidatingWebhookConfiguration sluice-kueue-api",
}


class Server:
    """Has every object that is asked for unless it is one of those that are registered."""

    def __init__(self) -> None:
        self.there: set[str] = set()
        self.is_slow = False
        """True: a webhook configuration is not answered."""
        self.kept: set[str] = set()
        """Registrations that cannot be deleted at present."""

    async def get(self, kind: Resource, name: str, namespace: str = "") -> dict[str, Any]:
        key = f"{kind.kind} {name}"
        if self.is_slow and key in WEBHOOKS:
            await asyncio.Event().wait()
        if key in APIS | WEBHOOKS and key not in self.there:
            raise ApiRefused(404, "NotFound", "there is none")
        return {"metadata": {"name": name}, "spec": {}, "webhooks": []}

    async def create(self, kind: Resource, made: Mapping[str, Any], *_: Any) -> dict[str, Any]:
        if kind.plural != "selfsubjectreviews":
            self.there.add(f"{kind.kind} {made['metadata']['name']}")
        return {"status": {"userInfo": {"username": "system:serviceaccount:sluice:queue"}}}

    async def merge_patch(self, kind: Resource, name: str, patch: Any, *_: Any) -> dict[str, Any]:
        return {}

    async def delete(self, kind: Resource, name: str) -> dict[str, Any]:
        key = f"{kind.kind} {name}"
        if key not in self.there:
            raise ApiRefused(404, "NotFound", "there is none")
        if key in self.kept:
            raise ApiAway("no answer")
        self.there.remove(key)
        return {}


class Replica:
    def __init__(self) -> None:
        self.leads = False
        self.is_leaving = False


def scene(
    monkeypatch: pytest.MonkeyPatch,
    play: Callable[[Server, Replica, asyncio.Task[None]], Awaitable[None]],
) -> Server:
    monkeypatch.setattr(registration, "SOON_S", 0.01)
    server = Server()

    async def run() -> None:
        replica = Replica()
        task = asyncio.create_task(
            keep_registered(
                cast(ApiClient, server),
                lambda: Webhook("ca", "", "sluice"),
                "sluice",
                visibility=True,
                leads=lambda: replica.leads,
                is_leaving=lambda: replica.is_leaving,
            )
        )
        async with asyncio.timeout(30):
            await play(server, replica, task)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
    return server


async def until(true: Callable[[], object]) -> None:
    while not true():
        await asyncio.sleep(0.01)


def test_only_a_leader_registers_the_visibility_api_and_takes_it_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play(server: Server, replica: Replica, task: asyncio.Task[None]) -> None:
        await until(lambda: server.there >= WEBHOOKS)
        await asyncio.sleep(0.1)
        assert not server.there & APIS, "it does not lead"
        replica.leads = True
        await until(lambda: server.there >= APIS)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    assert scene(monkeypatch, play).there == WEBHOOKS, "the webhooks stay: others answer them"


def test_a_leader_that_ends_before_it_has_registered_anything_takes_back_what_the_chart_registered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play(server: Server, replica: Replica, task: asyncio.Task[None]) -> None:
        server.there |= APIS
        server.is_slow = True
        replica.leads = True
        await asyncio.sleep(0.05)
        task.cancel()
        replica.leads = False  # its session ends at the same time
        await asyncio.gather(task, return_exceptions=True)

    assert not scene(monkeypatch, play).there & APIS


def test_one_registration_that_cannot_be_deleted_does_not_keep_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for one in sorted(APIS):

        async def play(
            server: Server, replica: Replica, task: asyncio.Task[None], one: str = one
        ) -> None:
            server.kept = {one}
            replica.leads = True
            await until(lambda: server.there >= APIS)

        assert scene(monkeypatch, play).there & APIS == {one}


def test_a_replica_that_lost_its_lease_leaves_it_to_the_next_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play(server: Server, replica: Replica, task: asyncio.Task[None]) -> None:
        replica.leads = True
        await until(lambda: server.there >= APIS)
        replica.leads = False
        await asyncio.sleep(0.2)

    assert scene(monkeypatch, play).there == APIS | WEBHOOKS


def test_in_a_namespace_that_is_deleted_nothing_stays_registered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play(server: Server, replica: Replica, task: asyncio.Task[None]) -> None:
        replica.leads = True
        await until(lambda: server.there >= APIS | WEBHOOKS)
        replica.is_leaving = True
        await task

    assert scene(monkeypatch, play).there == set()
