"""Questions over HTTP/1.1, byte by byte: however they are cut, one answer each, in order; and what is refused, how and when."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuecontroller.server.web import posts
from queuecontroller.server.web.posts import PostServer, Request, Response, Route
from tests.queue.server.asking import answer, question

Test = Callable[[PostServer], Awaitable[None]]


async def later(asked: Request) -> Response:
    await asyncio.sleep(0.001)
    return Response(b"later " + asked.body)


def broken(asked: Request) -> Response:
    raise RuntimeError("a defect")


def run(test: Test) -> None:
    routes = {
        "/now": Route(lambda asked: Response(b"now " + asked.body), 100_000),
        "/later": Route(later, 100_000),
        "/broken": Route(broken, 100),
        "/closed": Route(later, 100, lambda certificate: "nobody may"),
    }

    async def main() -> None:
        server = PostServer(routes, None)
        await server.start("127.0.0.1", 0)
        try:
            await asyncio.wait_for(test(server), 60)
        finally:
            await server.close()
        assert server.bytes == 0, "what was counted is given back"

    asyncio.run(main())


ASKED = [
    ("/now", b"1"),
    ("/later", b"22"),
    ("/now", b""),
    ("/later", b"4" * 30_000),
    ("/now", b"5"),
]
WHOLE = b"".join(question(path, body) for path, body in ASKED)


@given(st.lists(st.integers(1, len(WHOLE) - 1), max_size=6))
def test_however_they_are_cut_each_has_its_answer_in_order(cuts: list[int]) -> None:
    async def test(server: PostServer) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        at = 0
        for cut in (*sorted(cuts), len(WHOLE)):
            writer.write(WHOLE[at:cut])
            await writer.drain()
            await asyncio.sleep(0)
            at = cut
        for path, body in ASKED:
            assert await answer(reader) == (200, path[1:].encode() + b" " + body)
        writer.close()
        assert server.connections_total == 1

    run(test)


REFUSED = {
    "a path that is not served": (question("/other", b"{}"), 404),
    "another method": (question("/now", b"").replace(b"POST", b"PUT"), 405),
    "no HTTP": (b"hello\r\n\r\n", 400),
    "a header without a colon": (question("/now", b"", "none"), 400),
    "two lengths": (question("/now", b"", "content-length: 7"), 400),
    "no length": (b"POST /now HTTP/1.1\r\nHost: x\r\n\r\n", 411),
    "a length that is no number": (b"POST /now HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 411),
    "chunks": (question("/now", b"", "Transfer-Encoding: chunked") + b"1\r\nx\r\n0\r\n\r\n", 411),
    "more than is taken": (question("/now", b"x" * 100_001), 413),
    "who may not ask": (question("/closed", b"x"), 403),
    "a head without an end": (b"POST /now HTTP/1.1\r\nx: " + b"y" * 20_000, 431),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_is_said_and_the_connection_ends(what: str) -> None:
    async def test(server: PostServer) -> None:
        asked, status = REFUSED[what]
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(asked + question("/now", b"after it"))
        found = await answer(reader)
        assert found[0] == status
        assert found[1], "the reason is said"
        assert await reader.read() == b"", "and what came after is not answered"
        writer.close()

    run(test)


def test_a_defect_is_answered_and_the_connection_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def test(server: PostServer) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(question("/broken", b"x") + question("/now", b"y"))
        assert (await answer(reader))[0] == 500
        assert await answer(reader) == (200, b"now y")
        writer.close()

    run(test)
    assert "a defect" in caplog.text


def test_who_asks_for_it_is_told_to_go_on_and_who_closes_is_let_go() -> None:
    async def test(server: PostServer) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        asked = question("/later", b"body", "Expect: 100-continue", "Connection: close")
        writer.write(asked[:-4])
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"body")
        assert await answer(reader) == (200, b"later body")
        assert await reader.read() == b""
        writer.close()

    run(test)


def test_what_does_not_come_in_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posts, "READ_S", 0.05)
    monkeypatch.setattr(posts, "SWEEP_S", 0.02)

    async def test(server: PostServer) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(question("/now", b"whole")[:-1])
        assert (await answer(reader))[0] == 408
        assert server.bytes == 0
        writer.close()

    run(test)


async def asked_from(port: int, address: str, head: bytes) -> asyncio.StreamWriter:
    _, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
    writer.write(head)
    await writer.drain()
    return writer


def announced(length: int) -> bytes:
    return question("/now", b"").replace(b"Content-Length: 0", b"Content-Length: %d" % length)


def test_what_is_only_announced_takes_no_room_from_anybody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A caller of a webhook needs no identity: a few that announced much and sent nothing kept all
    others out."""
    monkeypatch.setattr(posts, "ALL_BYTES", 100_000)

    async def test(server: PostServer) -> None:
        silent = [await asked_from(server.port, "127.0.0.2", announced(100_000)) for _ in range(20)]
        while server.connections_total < len(silent):
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)  # as long as it takes to read their heads, and then some
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(question("/now", b"honest"))
        assert await answer(reader) == (200, b"now honest")
        for one in (*silent, writer):
            one.close()

    run(test)


def test_who_sends_much_has_half_of_the_room_and_others_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(posts, "ALL_BYTES", 150_000)

    async def test(server: PostServer) -> None:
        greedy = [
            await asked_from(server.port, "127.0.0.2", announced(100_000) + b"x" * 40_000)
            for _ in range(4)
        ]
        async with asyncio.timeout(30):
            while server.bytes_of["127.0.0.2"] != 40_000:
                await asyncio.sleep(0.001)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(question("/later", b"y" * 70_000))
        assert await answer(reader) == (200, b"later " + b"y" * 70_000)
        for one in (*greedy, writer):
            one.close()

    run(test)


def test_who_goes_meanwhile_has_what_was_counted_given_back() -> None:
    async def main() -> None:
        gate = asyncio.Event()

        async def held(asked: Request) -> Response:
            await gate.wait()
            return Response(b"held")

        server = PostServer({"/held": Route(held, 1000)}, None)
        await server.start("127.0.0.1", 0)
        _, asks = await asyncio.open_connection("127.0.0.1", server.port)
        asks.write(question("/held", b"x" * 1000))
        _, begins = await asyncio.open_connection("127.0.0.1", server.port)
        begins.write(question("/held", b"x" * 1000)[:-1])
        while server.bytes < 1999:
            await asyncio.sleep(0)
        for one in (asks, begins):
            one.transport.abort()
        while server.connections:
            await asyncio.sleep(0.001)
        assert server.bytes == 1000, "the request is answered, though the client has gone"
        gate.set()
        while server.tasks:
            await asyncio.sleep(0)
        assert server.bytes == 0
        await server.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_the_last_answer_is_given_before_it_ends() -> None:
    async def main() -> None:
        server = PostServer({"/later": Route(later, 100)}, None)
        await server.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(question("/later", b"x"))
        while not server.tasks:
            await asyncio.sleep(0)
        await server.close()
        assert await answer(reader) == (200, b"later x")
        writer.close()

    asyncio.run(main())


def test_while_it_drains_each_connection_ends_with_its_next_answer() -> None:
    """An API server writes its next request on a connection that it has kept. One that is closed at that moment fails the request."""

    async def test(server: PostServer) -> None:
        kept, late = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
        for reader, writer in (kept, late):
            writer.write(question("/now", b"1"))
            assert await answer(reader) == (200, b"now 1")
        late[1].write(question("/later", b"2"))
        while not server.tasks:
            await asyncio.sleep(0)
        server.drain()
        kept[1].write(question("/now", b"3"))
        for reader, said in ((kept[0], b"now 3"), (late[0], b"later 2")):
            whole = await reader.read()
            assert whole.endswith(said)
            assert b"Connection: close" in whole, "the client knows, and sends nothing more on it"
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(question("/now", b"4"))
        assert (await reader.read()).endswith(b"now 4"), "who has not heard of it yet is answered"
        for _, each in (kept, late, (reader, writer)):
            each.close()

    run(test)


def test_what_has_arrived_is_answered_before_the_end() -> None:
    async def main() -> None:
        server = PostServer({"/now": Route(lambda asked: Response(asked.body), 100)}, None)
        await server.start("127.0.0.1", 0)
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            while not server.connections:
                await asyncio.sleep(0)
            client.sendall(
                question("/now", b"last")
            )  # It waits in the kernel; nothing has read it yet.
            await server.close()
            client.settimeout(30)
            assert client.recv(1000).endswith(b"last")

    asyncio.run(main())
