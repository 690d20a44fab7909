"""HAMi's register of our nodes is written where it differs, by who may write, and no more often than that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from queuecontroller.cluster.podwebhooks.node_annotations import NodeFacts
from queuecontroller.cluster.podwebhooks.share_pods import SharePods
from queuecontroller.cluster.session import NullStore
from queuecontroller.gpushares.admission import Rules
from queuecontroller.state.book import Book, BookSettings
from queuecontroller.state.nodes.sessions import Hello
from queuecontroller.state.shell import Shell
from sluicecommon.hami.devices import read_register
from sluicecommon.hami.names import HANDSHAKE, REGISTER, SCORE
from sluicecommon.kubernetes.decoding import Item
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused
from sluicecommon.kubernetes.reflector import Changed
from sluicecommon.kubernetes.resources import NODES, Resource
from tests.queue.gpushares.extender.rooms import node

SECOND_NS = 10**9


class Clock:
    at_ns = SECOND_NS

    def now_ns(self) -> int:
        return self.at_ns


class ObjectCache:
    """The API server's nodes, the leader's book, and the writer between."""

    def __init__(self, *names: str) -> None:
        self.clock = Clock()
        self.sharing = SharePods(Rules(), self.clock.now_ns)
        book = Book(BookSettings(), False, lambda: "uid")
        self.shell = Shell(book, NullStore(0, "lease"), self.clock)
        self.shell.start()
        self.nodes: dict[str, dict[str, str]] = {}
        self.patches: list[tuple[str, dict[str, Any]]] = []
        self.may_write = True
        self.fate: Callable[[], None] = lambda: None
        for name in names:
            self.api_node(name)
            book.desk.connect(Hello(name, capacity=node(name, 2)), self.clock.at_ns)
        self.facts = NodeFacts(self.shell, self, self.sharing, lambda: self.may_write)  # type: ignore[arg-type]  # as much of a client as it uses

    def api_node(self, name: str, **annotations: str) -> None:
        self.nodes.setdefault(name, {}).update(annotations)
        document = {"metadata": {"name": name, "annotations": self.nodes[name]}}
        self.sharing.node_changed(Changed(Item(name, "1", self.sharing.seen_node(document))))

    async def merge_patch(
        self, resource: Resource, name: str, patch: dict[str, Any]
    ) -> dict[str, Any]:
        assert resource is NODES
        assert set(patch) == {"metadata"}
        assert set(patch["metadata"]) == {"annotations"}
        self.fate()
        given = patch["metadata"]["annotations"]
        self.patches.append((name, given))
        for key, value in given.items():
            if value is None:
                self.nodes[name].pop(key, None)
        self.api_node(name, **{k: v for k, v in given.items() if v is not None})
        return {}

    async def settle(self, now_s: float) -> None:
        self.facts.look(now_s)
        for _ in range(20):
            await asyncio.sleep(0)


def run(test: Callable[[ObjectCache], Any], *names: str) -> None:
    async def main() -> None:
        world = ObjectCache(*names)
        working = asyncio.create_task(world.facts._work_queue.run())
        await asyncio.sleep(0)
        await test(world)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)

    asyncio.run(main())


def test_a_node_is_registered_once_and_looked_at_every_half_minute() -> None:
    async def test(world: ObjectCache) -> None:
        await world.settle(0)
        ((name, given),) = world.patches
        assert name == "a"
        assert set(given) == {REGISTER, SCORE, HANDSHAKE}
        assert [one.id for one in read_register(given[REGISTER])] == ["GPU-a-0", "GPU-a-1"]
        for second in range(1, 90):
            await world.settle(second)
        assert len(world.patches) == 1, "nothing has changed"
        world.api_node("a", **{REGISTER: "[]"})
        await world.settle(91)
        assert len(world.patches) == 2
        world.api_node("a", **{REGISTER: "[]"})
        await world.settle(92)
        assert len(world.patches) == 2, "not sooner than at the next look"
        await world.settle(121)
        assert len(world.patches) == 3
        assert world.nodes["a"][REGISTER] == given[REGISTER]

    run(test, "a")


def test_who_does_not_lead_any_more_writes_nothing() -> None:
    async def test(world: ObjectCache) -> None:
        world.may_write = False
        await world.settle(0)
        assert world.patches == []

    run(test, "a")


def test_a_node_whose_agent_is_away_is_told_of_and_comes_back_at_once() -> None:
    async def test(world: ObjectCache) -> None:
        await world.settle(0)
        world.clock.at_ns += 100 * SECOND_NS
        await world.settle(31)
        assert world.nodes["a"][HANDSHAKE].startswith("Deleted_")
        await world.settle(62)
        assert len(world.patches) == 2
        world.shell.book.desk.connect(Hello("a", capacity=node("a", 2)), world.clock.at_ns)
        await world.settle(63)
        assert world.nodes["a"][HANDSHAKE].startswith("Reported ")

    run(test, "a")


def test_a_write_that_fails_is_made_again_and_one_for_no_node_is_not() -> None:
    async def test(world: ObjectCache) -> None:
        fates = iter([ApiAway("no answer"), ApiRefused(404, "NotFound", "no node")])

        def fate() -> None:
            for error in fates:
                raise error

        world.fate = fate
        await world.settle(0)
        assert world.patches == []
        await asyncio.sleep(0.15)  # the errand's own pause
        assert world.patches == [], "there is no such node"
        assert len(world.facts._work_queue) == 0
        await world.settle(31)
        assert len(world.patches) == 1

    run(test, "a")


def test_an_agent_of_a_node_that_the_api_server_does_not_have_is_left_alone() -> None:
    async def test(world: ObjectCache) -> None:
        world.shell.book.desk.connect(Hello("ghost", capacity=node("ghost", 1)), world.clock.at_ns)
        await world.settle(0)
        assert {name for name, _ in world.patches} == {"a"}

    run(test, "a")
