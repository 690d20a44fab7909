"""Tokens and turns: what Kubernetes says of a caller, what is made of it, and whose call is next."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from queuecontroller.server.callers import token_review
from queuecontroller.server.callers.authenticator import (
    Authenticator,
    NotVouched,
    Reviewed,
    ReviewUnavailable,
    Unauthenticated,
)
from queuecontroller.server.callers.fair_calls import MAX_WAITING, FairCalls
from queuecontroller.server.callers.listeners import Connection, Crowded
from queuecontroller.server.log_limit import BURST, LogLimit
from queuecontroller.state.access import Act, Caller, Denied, Names, RoleLists, check
from queuecontroller.state.access.lists import parse_checks
from sluicecommon.kubernetes.errors import ApiAway
from sluicecommon.kubernetes.reviews import NODE_NAME, Review

AGENT = "system:serviceaccount:sluice:sluice-agent"
LISTS = RoleLists(
    users=Names.parse("group:system:authenticated"),
    nodes=Names.parse(AGENT),
    admins=Names.parse("carol, group:gpu-admins"),
    checks=parse_checks("budget=system:serviceaccount:finance:budget"),
)
KNOWN = {
    "agent-1": Reviewed(AGENT, ("system:authenticated",), "gpu-1"),
    "agent-0": Reviewed(AGENT, ("system:authenticated",), ""),
    "ann": Reviewed("ann", ("system:authenticated",)),
    "carol": Reviewed("carol", ("system:authenticated",)),
    "dave": Reviewed("dave", ("gpu-admins",)),
    "budget": Reviewed("system:serviceaccount:finance:budget"),
    "pod": Reviewed("system:serviceaccount:team-a:default", (), "gpu-1"),
}


class Reviewer:
    async def review(self, token: str) -> Reviewed:
        if token not in KNOWN:
            raise NotVouched("it is not known")
        return KNOWN[token]


class Listeners:
    def __init__(self) -> None:
        self.connection = Connection("10.0.0.1", 0.0, True, own=Path("c1"), target=Path("grpc"))

    def of(self, peer: str) -> Connection | None:
        return self.connection

    def began(self, connection: Connection) -> None: ...

    def prove(self, connection: Connection, caller: Caller) -> None: ...


class Context:
    def __init__(self, *metadata: tuple[str, Any]) -> None:
        self._metadata = metadata

    def peer(self) -> str:
        return "unix:x"

    def invocation_metadata(self) -> Any:
        return self._metadata


def caller(header: Any, doors: Listeners | None = None) -> Caller:
    keeper = Authenticator(doors or Listeners(), None, LISTS, Reviewer())  # type: ignore[arg-type]
    return asyncio.run(keeper.caller(Context(("authorization", header))))


@pytest.mark.parametrize(
    ("token", "roles"),
    [
        ("agent-1", {"node"}),
        ("agent-0", {"user"}),
        ("ann", {"user"}),
        ("carol", {"admin", "user"}),
        ("dave", {"admin", "user"}),
        ("budget", {"check"}),
        ("pod", set()),
    ],
)
def test_a_token_gives_the_roles_of_the_lists(token: str, roles: set[str]) -> None:
    assert {str(role) for role in caller(f"Bearer {token}").roles} == roles


def test_an_agent_is_the_node_of_its_own_token_and_no_other() -> None:
    found = caller("bearer agent-1")
    assert (found.is_node("gpu-1"), found.is_node("gpu-2")) == (True, False)
    assert not caller("Bearer agent-0").is_node("gpu-1"), "a token without a node is no node"


@pytest.mark.parametrize("header", ["", "Basic YTpi", "Bearer", "Bearer nobody", b"Bearer ann"])
def test_without_a_good_token_nobody_is_anybody(header: Any) -> None:
    with pytest.raises(Unauthenticated):
        caller(header)


def test_wrong_tokens_end_the_connection() -> None:
    doors = Listeners()
    ended: list[bool] = []

    class Outer:
        def abort(self) -> None:
            ended.append(True)

    doors.connection.outer = Outer()  # type: ignore[assignment]

    async def attempts() -> None:
        keeper = Authenticator(doors, None, LISTS, Reviewer())  # type: ignore[arg-type]
        for _ in range(3):
            with pytest.raises(Unauthenticated):
                await keeper.caller(Context(("authorization", "Bearer nobody")))
        await asyncio.sleep(0.7)  # the answer goes first

    asyncio.run(attempts())
    assert ended == [True]


async def refused(reviewer: token_review.KubernetesReviewer, token: str) -> str:
    with pytest.raises(NotVouched) as raised:
        await reviewer.review(token)
    return str(raised.value)


def test_an_agent_without_a_node_is_told_what_is_missing() -> None:
    with pytest.raises(Denied, match="bound to no pod on a node, has no role"):
        check(RoleLists(nodes=Names.parse(AGENT)).of_token(AGENT, [], ""), Act.SEE_SERVER)


def test_reviews_are_kept_for_a_moment_and_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, list[str]]] = []

    async def review(client: Any, token: str, audiences: list[str]) -> Review:
        asked.append((token, audiences))
        await asyncio.sleep(0)
        if token == "away":
            raise ApiAway("no route")
        good = token == "good"
        why = f"invalid bearer token {token}"
        return Review(good, AGENT if good else "", extra={NODE_NAME: ("gpu-1",)}, error=why)

    monkeypatch.setattr(token_review, "review", review)
    now = [0.0]

    async def play() -> None:
        reviewer = token_review.KubernetesReviewer(None, "sluice-queue", lambda: now[0])  # type: ignore[arg-type]
        found = await asyncio.gather(*(reviewer.review("good") for _ in range(50)))
        assert set(found) == {Reviewed(AGENT, (), "gpu-1")}
        assert asked == [("good", ["sluice-queue"])]
        await refused(reviewer, "bad")
        await refused(reviewer, "bad")
        assert len(asked) == 2
        now[0] = 11.0
        await refused(reviewer, "bad")
        assert await reviewer.review("good")
        assert len(asked) == 3
        now[0] = 61.0
        assert await reviewer.review("good")
        assert len(asked) == 4
        assert "8192" in await refused(reviewer, "x" * 10_000)
        assert "1 to 8192" in await refused(reviewer, "")
        said = await refused(reviewer, "header01.payload1.signed01")
        assert said.endswith("invalid bearer token …")
        assert len(asked) == 5
        for _ in range(2):
            with pytest.raises(ReviewUnavailable):
                await reviewer.review("away")
        assert len(asked) == 7, "a review without an answer is not kept"

    asyncio.run(play())


def test_who_floods_waits_for_itself() -> None:
    order: list[str] = []

    async def play() -> None:
        turns = FairCalls(clock=lambda: 0.0)

        async def call(who: Caller) -> None:
            await turns.run(who, lambda: order.append(who.shown))

        flooders = [Caller(user=f"f{i}", shown="flooder") for i in range(33)]
        honest = Caller(user="ann", shown="ann")
        node = Caller(nodes=frozenset({"n1"}), shown="n1")
        calls = [call(one) for one in flooders for _ in range(MAX_WAITING)]
        await asyncio.gather(*calls, call(honest), call(node))

    asyncio.run(play())
    assert len(order) == 33 * MAX_WAITING + 2
    assert order.index("ann") <= 35, "one of each, and it is ann's turn"
    assert order.index("n1") <= 2, "nodes have a class of their own"


def test_more_waiting_calls_than_anybody_needs_are_refused() -> None:
    async def play() -> int:
        turns = FairCalls()
        eve = Caller(user="eve", shown="eve")
        calls = [turns.run(eve, lambda: None) for _ in range(MAX_WAITING + 10)]
        found = await asyncio.gather(*calls, return_exceptions=True)
        return sum(isinstance(one, Crowded) for one in found)

    assert asyncio.run(play()) == 10


def test_what_a_call_raises_is_its_callers() -> None:
    def fails() -> None:
        raise Denied("no")

    async def play() -> None:
        turns = FairCalls()
        with pytest.raises(Denied):
            await turns.run(Caller(user="eve"), fails)
        assert await turns.run(Caller(user="eve"), lambda: 5) == 5

    asyncio.run(play())


def test_lines_that_repeat_are_counted_instead_of_written() -> None:
    now = [0.0]
    limit = LogLimit(lambda: now[0])

    def line(text: str) -> logging.LogRecord:
        return logging.LogRecord("x", logging.ERROR, "file.py", 7, "%s failed", (text,), None)

    passed = sum(limit.limited(line(f"name-{i}")) is not None for i in range(1000))
    assert passed == BURST
    now[0] = 2.0
    last = line("one")
    written = limit.limited(last)
    assert written is not None
    assert written.getMessage() == f"one failed (and {1000 - int(BURST)} more like it)"
    assert last.getMessage() == "one failed", "other handlers of the record see it as it was"
    other = logging.LogRecord("x", logging.ERROR, "file.py", 8, "another place", (), None)
    assert limit.limited(other) is other
