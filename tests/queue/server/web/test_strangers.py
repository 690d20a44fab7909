"""Clients without credentials at every HTTP port of the controller: what they send is refused, is
never a traceback, and costs the event loop little CPU time at a stretch and no memory afterwards.
Longer than 500 lines because all of it is tried at one set of ports."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import socket
import ssl
import threading
import time
from asyncio.sslproto import SSLProtocol
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from queuecontroller.cluster.setup.front_proxy import FrontProxy
from queuecontroller.server.web import large, posts, visibility, webhooks
from queuecontroller.server.web.extender import ExtenderEndpoint, LoopbackServer
from queuecontroller.server.web.http import HttpServer
from queuecontroller.server.web.large import LargeReviews
from queuecontroller.server.web.reviews import patched, reviewed
from queuecontroller.server.web.visibility import VisibilityServer
from queuecontroller.server.web.webhooks import WebhookServer
from queuecontroller.state.access.lists import Names
from sluicecommon.page.board import Board, Frames
from sluicecommon.web import listener, page
from sluicecommon.web.listener import Certificate
from sluicecommon.web.page import PageServer, Refusal, Viewer
from tests.queue.kueueapi.reviews import admission, made
from tests.queue.kueueapi.serving import certify
from tests.queue.server.asking import answer, question

SILENCE_S = 3.0
MAX_CPU_S = 0.02
"""Limit for one callback; the best of three tries. 5 ms are promised, with a margin for a processor that
others use."""


class Nobody:
    """A page that no credential opens."""

    site = "queue"
    takes_tokens = True
    why_not_ready = ""

    def __init__(self) -> None:
        self.frames: Frames | None = Frames(Board("i"))

    def start(self) -> None: ...
    async def close(self) -> None: ...
    async def enter(self, secret: str) -> str:
        raise Refusal(401, "no")

    async def viewer(self, credential: str) -> Viewer:
        raise Refusal(401, "no")

    def leave(self, credential: str) -> None: ...
    def watched(self, viewers: int) -> None: ...
    async def ask(self, viewer: Viewer, what: str, given: Mapping[str, str]) -> Any:
        raise AssertionError

    async def act(self, viewer: Viewer, what: str, given: Mapping[str, Any]) -> Any:
        raise AssertionError


class Ready:
    why_not_ready = ""

    def silent_loops(self, seconds: float) -> list[str]:
        return []


class Ports:
    """Every HTTP server of the controller, and what reached the code behind it."""

    def __init__(self, place: Path) -> None:
        certify(place)
        self.place = place
        self.reached: list[str] = []
        files = (place / "server.crt", place / "server.key")
        extender = ExtenderEndpoint(
            self._scheduled,
            lambda verb, why: why.encode(),
            ("filter", "bind"),
            Names.parse("kube-scheduler"),
            lambda: "",
            (*files, place / "ca.crt"),
        )

        def judge(asked: Any) -> Any:
            self.reached.append("shares")
            raise AssertionError

        more: dict[str, Callable[[bytes], bytes]] = {
            "/mutate": partial(patched, patch_of=self._patch, problems_of_change=lambda *_: ()),
            "/shares": partial(reviewed, judge=judge),
        }
        address = ("127.0.0.1", 0)
        self.webhooks = WebhookServer(address, *files, more, extender)
        self.visibility = VisibilityServer(address, files, self._proxy, self._why_not, self._answer)
        self.metrics = HttpServer("metrics", address, Ready(), lambda: b"x 1\n")
        self.loopback = LoopbackServer(address, extender)
        bound = socket.create_server(("127.0.0.1", 0))
        bound.setblocking(False)
        self.page = PageServer(bound, Nobody(), Certificate(*files))

    def _scheduled(self, verb: str, body: bytes) -> bytes:
        self.reached.append(verb)
        return b"{}"

    def _patch(
        self, document: dict[str, Any], before: dict[str, Any] | None, namespace: str
    ) -> bytes:
        self.reached.append("mutate")
        return b"[]"

    async def _proxy(self) -> FrontProxy:
        return FrontProxy((self.place / "ca.crt").read_text())

    async def _why_not(self, user: Any, attributes: dict[str, str]) -> str | None:
        self.reached.append("visibility")
        return None

    def _answer(self, asked: Any) -> dict[str, Any]:
        raise AssertionError

    def ports(self) -> dict[str, tuple[int, bool]]:
        """Port and whether it has TLS."""
        return {
            "webhooks": (self.webhooks.port, True),
            "visibility": (self.visibility.port, True),
            "page": (self.page.port, True),
            "metrics": (self.metrics.port, False),
            "loopback": (self.loopback.port, False),
        }


@asynccontextmanager
async def listening(place: Path) -> AsyncIterator[Ports]:
    ports = Ports(place)
    servers = (ports.webhooks, ports.visibility, ports.metrics, ports.loopback, ports.page)
    for one in servers:
        await one.start()
    async with asyncio.timeout(30):
        while not ports.visibility.listens:
            await asyncio.sleep(0.01)
    try:
        yield ports
    finally:
        for one in servers:
            await one.close()


async def connect(
    port: int, tls: bool, host: str = "127.0.0.1"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    context = None
    if tls:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, local_addr=(host, 0), limit=1 << 20
    )


class Stopwatch:
    """CPU time of the longest callback of the loop."""

    def __init__(self) -> None:
        self.most_s = 0.0
        self.what = ""


@contextlib.contextmanager
def measured() -> Iterator[Stopwatch]:
    watch, run = Stopwatch(), asyncio.events.Handle._run

    own = threading.get_ident()

    def timed(handle: asyncio.Handle) -> None:
        if threading.get_ident() != own:
            run(handle)
            return
        begin_s = time.thread_time()
        run(handle)
        took_s = time.thread_time() - begin_s
        if took_s > watch.most_s:
            watch.most_s, watch.what = took_s, repr(handle)

    gc.collect()
    gc.disable()
    asyncio.events.Handle._run = timed  # type: ignore[method-assign,assignment]
    try:
        yield watch
    finally:
        asyncio.events.Handle._run = run  # type: ignore[method-assign]
        gc.enable()


LISTS = b"[" + b"[]," * (2 << 20) + b"[]]"
DEEP = b'{"kind":' + b"[" * 500_000
REVIEW = admission(made("LocalQueue", {}))


def get(path: str, *headers: str) -> bytes:
    return "\r\n".join((f"GET {path} HTTP/1.1", "Host: x", *headers)).encode() + b"\r\n\r\n"


SENT: dict[str, bytes] = {
    "not HTTP": b"\x16\x03\x01 what\r\n\r\n" * 10,
    "a NUL": b"\0" * 30_000,
    "no end of the head": b"GET / HTTP/1.1\r\nx: " + b"y" * 200_000,
    "many headers": get("/", *(f"h{n}: {n}" for n in range(20_000))),
    "a bad method": b"G\x80T / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a bad version": b"GET / HTTP/9.9\r\nHost: x\r\n\r\n",
    "a bad target": b"GET http://[::1 HTTP/1.1\r\nHost: x\r\n\r\n",
    "a bad host": b"GET //%zz:99999999/ HTTP/1.1\r\nHost: [\r\n\r\n",
    "a bad header": get("/", "x y: z", ": b", "a\x0b: c"),
    "two lengths": get("/", "Content-Length: 1", "Content-Length: 2"),
    "a bad length": get("/", "Content-Length: -1"),
    "a long number": get("/", "Content-Length: " + "9" * 5_000),
    "a bad chunk": get("/", "Transfer-Encoding: chunked") + b"zz\r\n" * 1000,
    "a bad encoding": question("/api/enter", b"xx", "Content-Encoding: gzip"),
    "a bad cookie": get("/api/session", "Cookie: " + "a=b; " * 1500),
    "bad credentials": get("/api/session", "Authorization: Bearer " + "\xff" * 100),
    "a long path": get("/" + "a/" * 3_000),
    "many queries": get("/api/explain?" + "a=b&" * 1_900, "X-Sluice-Page: 1"),
    "pipelined": get("/") * 500,
    **{
        f"{path} with lists": question(path, LISTS)
        for path in ("/convert", "/validate", "/mutate", "/shares", "/scheduler/bind")
    },
    **{
        f"{path} with a guess": question(f"{path}/{'0' * 32}", LISTS)
        for path in ("/convert", "/shares")
    },
    "depth at the page": question(
        "/api/enter", DEEP, "Content-Type: application/json", "X-Sluice-Page: 1"
    ),
    "lists at the page": question(
        "/api/enter", LISTS, "Content-Type: application/json", "X-Sluice-Page: 1"
    ),
    "/shares": question("/shares", REVIEW),
    "/bind": question("/scheduler/bind", b"{}"),
    "visibility": get(
        "/apis/visibility.kueue.x-k8s.io/v1beta1/clusterqueues/a/pendingworkloads",
        "X-Remote-User: admin",
    ),
}


async def send(port: int, tls: bool, sent: bytes) -> bytes:
    """Return the answer until the server closes or is silent."""
    got = b""
    try:
        reader, writer = await connect(port, tls)
    except OSError:
        return got  # It was closed for another one.
    try:
        writer.write(sent)
        async with asyncio.timeout(SILENCE_S):
            while part := await reader.read(1 << 16):
                got += part
    except (TimeoutError, OSError):
        pass
    finally:
        writer.transport.abort()
    return got


TRIES = 3


def test_what_a_stranger_sends_costs_the_loop_little_and_makes_no_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    async def main() -> dict[str, tuple[float, str]]:
        longest: dict[str, tuple[float, str]] = {}
        async with listening(tmp_path) as ports:
            for name, (port, tls) in ports.ports().items():
                # Over the loopback a scheduler is no stranger.
                every = [
                    sent
                    for what, sent in SENT.items()
                    if name != "loopback" or not what.startswith(("/scheduler", "/bind"))
                ]
                await asyncio.to_thread(send_all, port, tls, [b"\r\n\r\n"])  # aiohttp is loaded
                for _ in range(TRIES):
                    with measured() as watch:
                        await asyncio.to_thread(send_all, port, tls, every)
                    longest[name] = (watch.most_s, watch.what)
                    if watch.most_s <= MAX_CPU_S:
                        break
            assert ports.reached == []
        return longest

    longest = asyncio.run(main())
    assert {name: one for name, one in longest.items() if one[0] > MAX_CPU_S} == {}
    assert [one.getMessage() for one in caplog.records if one.exc_info] == []


def send_all(port: int, tls: bool, every: list[bytes]) -> None:
    """In a thread of its own: the client's work is not the loop's."""

    async def main() -> None:
        await asyncio.gather(*(send(port, tls, one) for one in every))

    asyncio.run(main())


def test_a_webhook_without_its_word_is_refused_before_its_body(tmp_path: Path) -> None:
    """The reviews of /shares count against a namespace's quota, and an answer tells how much of it
    is used."""

    async def main() -> list[tuple[str, int]]:
        found = []
        async with listening(tmp_path) as ports:
            for path in ("/convert", "/validate", "/mutate", "/shares"):
                for wrong in ("", "/", "/" + "0" * 32, f"/{ports.webhooks.word}x"):
                    reader, writer = await connect(ports.webhooks.port, tls=True)
                    head = question(path + wrong, b"").replace(b"-Length: 0", b"-Length: 9")
                    writer.write(head)  # The body is not sent.
                    found.append((path + wrong, (await answer(reader))[0]))
                    writer.transport.abort()
            assert ports.reached == []
        return found

    assert {status for _, status in asyncio.run(main())} == {404}


def test_a_renewed_key_makes_a_new_word_and_the_old_one_is_served_until_the_next(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with listening(tmp_path) as ports:
            server = ports.webhooks

            async def status(word: str) -> int:
                reader, writer = await connect(server.port, tls=True)
                writer.write(question(f"/validate/{word}", REVIEW))
                found = (await answer(reader))[0]
                writer.transport.abort()
                return found

            first = server.word
            assert first == webhooks.word_of(tmp_path / "server.key")
            certify(tmp_path)
            server.renew()
            second = server.word
            assert first != second
            assert [await status(one) for one in (first, second)] == [200, 200]
            certify(tmp_path)
            server.renew()
            assert [await status(one) for one in (first, second)] == [404, 200]

    asyncio.run(main())


@pytest.mark.parametrize("name", ["webhooks", "visibility", "page"])
def test_silent_connections_are_counted_before_the_handshake_and_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for module in (posts, visibility, page):
        monkeypatch.setattr(module, "FIRST_S", 3.0)

    async def main() -> None:
        async with listening(tmp_path) as ports:
            port, tls = ports.ports()[name]
            most = {"webhooks": posts.MAX_SILENT, "visibility": visibility.MAX_SILENT}.get(
                name, page.MAX_SILENT
            )
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(most + 50)]
            async with asyncio.timeout(60):
                await asyncio.gather(*(reader.read() for reader, _ in silent[:50]))
            assert await send(port, tls, get("/x")), "an honest client is answered"
            async with asyncio.timeout(60):  # FIRST_S after it connected each has been closed.
                await asyncio.gather(*(reader.read() for reader, _ in silent[50:]))
            for _, writer in silent:
                writer.transport.abort()

    asyncio.run(main())


@pytest.mark.parametrize("name", ["webhooks", "visibility", "page"])
def test_a_handshake_without_a_request_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for module in (posts, visibility, page):
        monkeypatch.setattr(module, "FIRST_S", 1.0)

    async def main() -> None:
        async with listening(tmp_path) as ports:
            port, tls = ports.ports()[name]
            reader, writer = await connect(port, tls)
            writer.write(b"GET / HTTP/1.1\r\n")
            async with asyncio.timeout(60):
                with contextlib.suppress(OSError):
                    assert await reader.read() == b""
            writer.transport.abort()

    asyncio.run(main())


@pytest.mark.parametrize("name", ["webhooks", "visibility", "page", "metrics", "loopback"])
def test_few_connections_are_accepted_in_one_pass_of_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Honest callers wait for a pass; the handshakes of all that were accepted are in the next."""

    async def main() -> int:
        async with listening(tmp_path) as ports:
            loop, accepted = asyncio.get_running_loop(), [0]
            made = listener._Connection.connection_made

            def counted(one: listener._Connection, transport: asyncio.BaseTransport) -> None:
                accepted[-1] += 1
                made(one, transport)

            def passes() -> None:
                accepted.append(0)
                loop.call_soon(passes)

            monkeypatch.setattr(listener._Connection, "connection_made", counted)
            port, _ = ports.ports()[name]
            waiting = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
            loop.call_soon(passes)
            async with asyncio.timeout(60):
                while sum(accepted) < len(waiting):
                    await asyncio.sleep(0)
            for one in waiting:
                one.close()
        return max(accepted)

    assert asyncio.run(main()) <= listener.ACCEPTS_A_PASS


def test_a_closed_connection_leaves_no_buffers_to_the_cycle_collector(tmp_path: Path) -> None:
    """A connection that is open at a collection is frozen (see `collector`), so what only the
    cycle collector can free is kept for long. aiohttp's own small objects are freed so."""

    def silent(port: int, first: bytes) -> None:
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", port)) as one:
                one.sendall(first)
                one.settimeout(0.1)
                with contextlib.suppress(OSError):
                    one.recv(1)

    def kept() -> Counter[str]:
        return Counter(
            type(one).__name__
            for one in gc.get_objects()
            if isinstance(one, (posts._Connection, listener._Connection))
            or (isinstance(one, SSLProtocol) and vars(one)["_sslobj"].server_side)
        )

    async def main() -> None:
        async with listening(tmp_path) as ports:
            with_tls = {name: port for name, (port, tls) in ports.ports().items() if tls}
            assert len(with_tls) == 3
            for port in with_tls.values():
                await asyncio.to_thread(send_all, port, True, [get("/")])  # aiohttp is loaded
            gc.collect()
            gc.disable()
            try:
                for name, port in with_tls.items():
                    for first in (b"", b"\x16\x03\x01\x02\x00", b"\0" * 30_000):
                        await asyncio.to_thread(silent, port, first)
                    await asyncio.to_thread(send_all, port, True, [b"", get("/"), SENT["/shares"]])
                    end_s = time.monotonic() + 60
                    while kept() and time.monotonic() < end_s:
                        await asyncio.sleep(0.1)
                    assert not kept(), name
            finally:
                gc.enable()

    asyncio.run(main())


def test_a_large_review_is_parsed_elsewhere_within_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the word, as a user of the API server causes one."""
    monkeypatch.setattr(large, "ANSWER_S", 120.0)
    tail = b"," + REVIEW[1:]
    most = webhooks.LARGEST_BYTES
    lists = b'{"junk":[' + b"[]," * ((most - len(tail) - 20) // 3) + b"[]]" + tail
    conversion = lists.replace(b"AdmissionReview", b"ConversionReview")

    async def main() -> tuple[dict[str, tuple[int, bytes]], Stopwatch]:
        found = {}
        async with listening(tmp_path) as ports:
            port, word = ports.webhooks.port, ports.webhooks.word

            def ask(path: str, body: bytes) -> tuple[int, bytes]:
                async def main() -> tuple[int, bytes]:
                    reader, writer = await connect(port, tls=True)
                    writer.write(question(f"{path}/{word}", body))
                    got = await answer(reader)
                    writer.transport.abort()
                    return got

                return asyncio.run(main())

            with measured() as watch:
                for path in ("/convert", "/validate", "/mutate", "/shares"):
                    body = conversion if path == "/convert" else lists
                    found[path] = await asyncio.to_thread(ask, path, body)
                found["small"] = await asyncio.to_thread(ask, "/validate", REVIEW)
            assert ports.reached == []
        return found, watch

    found, watch = asyncio.run(main())
    assert found["/convert"][0] == 400
    for path in ("/mutate", "/shares"):
        response = json.loads(found[path][1])["response"]
        assert response["allowed"] is False
        assert "values" in response["status"]["message"]
    assert (found["/validate"][0], found["small"][0]) == (200, 200)
    assert watch.most_s < 0.1, watch.what  # The parser alone takes ten times as long.


def test_a_review_that_exceeds_the_limits_ends_the_child_and_the_next_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large, "ANSWER_S", 120.0)

    async def main() -> None:
        reviews = LargeReviews()
        child = await reviews._started()
        child.kill()
        answered = await reviews.read("/validate", REVIEW)
        assert answered is not None
        assert answered.status == 413
        answered = await reviews.read("/validate", REVIEW)
        assert answered is not None
        assert answered.status == 200
        assert await reviews.read("/shares", REVIEW) is None, "it is small enough to answer here"
        await reviews.close()

    asyncio.run(main())
