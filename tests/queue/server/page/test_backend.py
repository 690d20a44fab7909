"""Rights on the page of a service of its own: the table of rights, checked again with each
action."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from queuecontroller.server.page.backend import QueuePage
from queuecontroller.server.page.viewers import ByTicket
from queuecontroller.state.access import Caller
from sluicecommon.page.tickets import Tickets
from sluicecommon.web.page import Refusal, Viewer
from tests.queue.server.page.shells import shell_of
from tests.queue.state.world import World

ANN, EVE = Caller(user="ann", shown="ann"), Caller(user="eve", shown="eve")
ADMIN = Caller(admin=True, shown="carol")
BUDGET = Caller(checks=frozenset({"budget"}), shown="budget")
NODE = Caller(nodes=frozenset({"n1"}), shown="n1")


class Stage:
    def __init__(self) -> None:
        self.world = World()
        self.world.connect()
        self.key = self.world.submit("a", user="ann", command="train --password=x")
        self.shell = shell_of(self.world)
        self._next = 0
        self.tickets: Tickets[Caller] = Tickets(self._secret)
        self.page = QueuePage(
            ByTicket(self.tickets), lambda: self.shell, dict, lambda: "i", lambda: ""
        )

    def _secret(self) -> str:
        self._next += 1
        return f"secret-{self._next}"

    async def viewer(self, caller: Caller) -> Viewer:
        ticket = self.tickets.issue(caller, asyncio.get_running_loop().time())
        return await self.page.viewer(await self.page.enter(ticket))

    @property
    def given(self) -> dict[str, str]:
        namespace, _, name = self.key.partition("/")
        return {"kind": "Workload", "namespace": namespace, "name": name}


def play(scene: Callable[[Stage], Awaitable[None]]) -> None:
    async def played() -> None:
        stage = Stage()
        writing = asyncio.create_task(stage.shell.writer.run())
        try:
            await scene(stage)
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    asyncio.run(played())


async def refused(status: int, call: Awaitable[Any]) -> str:
    with pytest.raises(Refusal) as error:
        await call
    assert error.value.status == status, error.value
    return str(error.value)


def test_its_user_and_admins_hold_a_workload_and_others_do_not() -> None:
    async def scene(stage: Stage) -> None:
        eve = await stage.viewer(EVE)
        assert "this requires its user or its node or admin" in await refused(403, stage.page.act(eve, "hold", stage.given))  # fmt: skip
        assert (await stage.page.ask(eve, "may", stage.given))["verbs"] == []
        assert stage.world.record(stage.key).workload.active
        ann = await stage.viewer(ANN)
        assert (await stage.page.ask(ann, "may", stage.given))["verbs"] == ["hold", "resume"]
        await stage.page.act(ann, "hold", stage.given)
        assert not stage.world.record(stage.key).workload.active
        assert [one.text for one in stage.world.store.lines if one.kind == "ByPage"] == ["hold by ann over the page"]  # fmt: skip
        await stage.page.act(await stage.viewer(ADMIN), "resume", stage.given)
        assert stage.world.record(stage.key).workload.active

    play(scene)


def test_only_admins_hold_queues() -> None:
    queue = {"kind": "ClusterQueue", "name": "a"}

    async def scene(stage: Stage) -> None:
        ann, admin = await stage.viewer(ANN), await stage.viewer(ADMIN)
        await refused(403, stage.page.act(ann, "drain", queue))
        await stage.page.act(admin, "drain", queue)
        found = stage.world.book.catalogue.cluster_queue("a")
        assert found is not None
        assert found.stop_policy == "HoldAndDrain"
        await refused(422, stage.page.act(admin, "drain", stage.given))
        await refused(404, stage.page.act(admin, "delete", stage.given))

    play(scene)


def test_a_command_line_is_its_users_alone() -> None:
    async def scene(stage: Stage) -> None:
        for caller, sees in ((ANN, True), (EVE, False), (ADMIN, True), (BUDGET, False)):
            answer = await stage.page.ask(await stage.viewer(caller), "object", stage.given)
            assert ("password" in answer["yaml"]) is sees, caller

    play(scene)


def test_a_nodes_role_is_no_viewer() -> None:
    async def scene(stage: Stage) -> None:
        node = await stage.viewer(NODE)
        assert node.sight.is_blind
        await refused(404, stage.page.ask(node, "explain", stage.given))

    play(scene)


@pytest.mark.parametrize(
    "given", [{}, {"kind": 7}, {"kind": "Workload"}, {"kind": "Workload", "namespace": "team-a", "name": ["x"]}, {"kind": "Node", "name": "x" * 1000}],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(given: dict[str, Any]) -> None:
    async def scene(stage: Stage) -> None:
        admin = await stage.viewer(ADMIN)
        with pytest.raises(Refusal) as error:
            await stage.page.act(admin, "hold", given)
        assert error.value.status in (400, 404)

    play(scene)


@pytest.mark.parametrize("text", [7, "", "[", "kind: [", "- 1", "x" * (70 << 10), "a: &a [*a, *a]"])
def test_a_what_if_of_nonsense_is_refused_and_plays_nothing(text: object) -> None:
    async def scene(stage: Stage) -> None:
        await refused(422, stage.page.act(await stage.viewer(ADMIN), "whatif", {"yaml": text}))

    play(scene)
