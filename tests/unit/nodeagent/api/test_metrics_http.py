"""Access to the metrics port: the clients, the protocols, and their answers."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import socket
import ssl
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import pytest

from nodeagent.adapters.web.metrics import Access, Certificate, MetricsServer
from nodeagent.adapters.web.probes import ProbeServer
from nodeagent.ports.views import LoopView
from sluicecommon.prometheus import OPENMETRICS, TEXT
from sluicecommon.web import get_server
from sluicecommon.web.clients import MOST, Clients, origin_of
from tests.unit.nodeagent.metrics.views import node

NOW_S = 1.7e9 + 1
ANYBODY = Access()


def served(
    *requests: str, access: Access = ANYBODY, certificate: Certificate | None = None,
    trust: ssl.SSLContext | None = None, now_s: float = NOW_S,
) -> list[tuple[str, dict[str, str], bytes]]:  # fmt: skip
    """(status line, headers, body) of each request; the page is b'page' or b'open'."""

    async def run() -> list[tuple[str, dict[str, str], bytes]]:
        server = MetricsServer(
            "127.0.0.1", 0, node, lambda openmetrics: b"open" if openmetrics else b"page",
            lambda: now_s, access, certificate,
        )  # fmt: skip
        await server.start()
        answers = []
        for request in requests:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", server.port, ssl=trust, server_hostname="localhost" if trust else None
            )
            first, *others = request.split("\n")
            lines = [first, "Host: localhost", *others, "", ""]
            writer.write("\r\n".join(lines).encode())
            head, _, body = (await asyncio.wait_for(reader.read(), 60)).partition(b"\r\n\r\n")
            status, *lines = head.decode().split("\r\n")
            answers.append((status, dict(line.split(": ", 1) for line in lines), body))
            writer.close()
        await server.close()
        return answers

    return asyncio.run(run())


def test_the_format_is_negotiated() -> None:
    plain, open_ = served(
        "GET /metrics HTTP/1.1",
        "GET /metrics HTTP/1.1\nAccept: application/openmetrics-text;version=1.0.0;q=0.8,*/*;q=0.1",
    )
    assert (plain[1]["Content-Type"], plain[2]) == (TEXT, b"page")
    assert (open_[1]["Content-Type"], open_[2]) == (OPENMETRICS, b"open")


def basic(pair: str) -> str:
    return f"GET /metrics HTTP/1.1\nauthorization: Basic {base64.b64encode(pair.encode()).decode()}"


@pytest.mark.parametrize(
    ("request_", "allowed"),
    [
        ("GET /metrics HTTP/1.1", False),
        ("GET /metrics HTTP/1.1\nAuthorization: Bearer s3cret", True),
        ("GET /metrics HTTP/1.1\nAUTHORIZATION: bearer  s3cret", True),
        ("GET /metrics HTTP/1.1\nAuthorization: Bearer s3cre", False),
        ("GET /metrics HTTP/1.1\nAuthorization: Bearer", False),
        ("GET /metrics HTTP/1.1\nAuthorization: Basic s3cret", False),
        (basic("prom:pass"), True),
        (basic("prom:other"), False),
        (basic(":"), False),
    ],
)
def test_a_scrape_needs_the_token_or_the_password(request_: str, allowed: bool) -> None:
    ((status, _headers, body),) = served(request_, access=Access("s3cret", "prom:pass"))
    assert status.split()[1] == ("200" if allowed else "401")
    assert (body == b"page") is allowed


def test_a_credential_that_is_not_utf_8_is_refused() -> None:
    access = Access("s3cret")
    assert not access.allows("Bearer s3cr\udced")
    assert not access.allows("Bearer gehe\xefm")


def test_probes_need_neither() -> None:
    ((status, _, body),) = served("GET /healthz HTTP/1.1", access=Access("s3cret"))
    assert (status.split()[1], body) == ("200", b"ok\n")


def test_a_silent_loop_is_told_by_its_name() -> None:
    assert node().loops == (LoopView("planning", 1.7e9),)
    ((status, _, body),) = served("GET /healthz HTTP/1.1", now_s=NOW_S + 60)
    assert (status.split()[1], body) == ("503", b"silent: planning\n")


@pytest.mark.parametrize(
    ("request_", "refused"),
    [("POST /metrics HTTP/1.1", "405"), ("nonsense", "400"), ("GET /metrics", "400")],
)
def test_anything_else_is_refused(
    request_: str, refused: str, caplog: pytest.LogCaptureFixture
) -> None:
    ((status, headers, _),) = served(request_)
    assert status.split()[1] == refused
    assert headers["Connection"] == "close"
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []


def test_an_answer_names_no_version_of_the_server_and_ends_the_connection() -> None:
    get, head = served("GET /metrics HTTP/1.1", "HEAD /metrics HTTP/1.1")
    for status, headers, _ in (get, head):
        assert status == "HTTP/1.1 200 OK"
        assert (headers["Server"], headers["Connection"]) == ("sluice", "close")
        assert headers["Content-Length"] == "4"
    assert (get[2], head[2]) == (b"page", b"")


def in_a_loop(
    act: Callable[[MetricsServer], Awaitable[bytes]], certificate: Certificate | None = None,
    page: bytes = b"page",
) -> bytes:  # fmt: skip
    async def run() -> bytes:
        server = MetricsServer(
            "127.0.0.1", 0, node, lambda _: page, lambda: NOW_S, certificate=certificate
        )
        await server.protocol()  # aiohttp is loaded
        await server.start()
        found = await asyncio.wait_for(act(server), 60)
        async with asyncio.timeout(60):
            while len(server.clients):
                await asyncio.sleep(0.01)
        await server.close()
        return found

    return asyncio.run(run())


@pytest.mark.parametrize("said", [b"", b"GET /metrics HTTP/1.1\r\nX: "], ids=["nothing", "half"])
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_request_that_is_not_complete_in_time_ends(
    said: bytes, tls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that never begins its TLS handshake, and it counts as a client until then."""
    monkeypatch.setattr(get_server, "REQUEST_S", 0.3)
    seen: list[int] = []

    async def act(server: MetricsServer) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(said)
        await asyncio.sleep(0.05)
        seen.append(len(server.clients))
        with contextlib.suppress(ConnectionError):
            return await reader.read()
        return b""

    certificate = Certificate(*make_certificate(tmp_path)) if tls else None
    assert in_a_loop(act, certificate) == b""
    assert seen == [1] if not (tls and said) else seen in ([0], [1])


def test_a_client_that_does_not_read_is_cut() -> None:
    async def act(server: MetricsServer) -> bytes:
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", server.port))
        await asyncio.get_running_loop().sock_sendall(
            raw, b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n"
        )
        async with asyncio.timeout(60):
            while not len(server.clients):
                await asyncio.sleep(0.01)
            while len(server.clients):
                await asyncio.sleep(0.01)
        raw.close()
        return b""

    assert in_a_loop(act, page=b"x" * (32 << 20)) == b""


def test_a_request_that_is_too_long_is_cut() -> None:
    async def act(server: MetricsServer) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        with contextlib.suppress(ConnectionError):
            for _ in range(40):
                writer.write(b"GET / HTTP/1.1\r\n" if not _ else b"X-A: " + b"y" * 500 + b"\r\n")
                await writer.drain()
            return await reader.read()
        return b""

    assert in_a_loop(act) == b""


def test_a_defect_in_an_answer_is_told_in_the_log_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def act(server: MetricsServer) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n")
        return await reader.read()

    found = in_a_loop(act, page=cast(bytes, object()))
    assert found.startswith(b"HTTP/1.1 500 ")
    assert b"object" not in found
    assert "internal error" in caplog.text


def make_certificate(directory: Path) -> tuple[Path, Path]:
    certificate, key = directory / "c.pem", directory / "k.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", "/CN=localhost", "-keyout", str(key)),
            *("-addext", "subjectAltName=DNS:localhost", "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    return certificate, key


def test_tls_and_a_renewed_certificate_without_a_restart(tmp_path: Path) -> None:
    files = make_certificate(tmp_path)
    served_with = Certificate(*files)
    trust = ssl.create_default_context(cafile=str(files[0]))
    ((status, _, body),) = served("GET /metrics HTTP/1.1", certificate=served_with, trust=trust)
    assert (status.split()[1], body) == ("200", b"page")
    make_certificate(tmp_path)
    served_with.refresh()
    with pytest.raises(ssl.SSLCertVerificationError):
        served("GET /metrics HTTP/1.1", certificate=served_with, trust=trust)
    renewed = ssl.create_default_context(cafile=str(files[0]))
    assert served("GET /metrics HTTP/1.1", certificate=served_with, trust=renewed)[0][2] == b"page"
    files[0].unlink()
    served_with.refresh()
    assert served("GET /metrics HTTP/1.1", certificate=served_with, trust=renewed)[0][2] == b"page"


def test_who_is_silent_takes_nothing_from_who_asks() -> None:
    """200 connections that say nothing, from one address and from many: each scrape is answered."""

    async def run() -> list[bytes]:
        server = MetricsServer("127.0.0.1", 0, node, lambda _: b"page", lambda: NOW_S)
        probes = ProbeServer(("127.0.0.1", 0), lambda: node().loops, lambda: NOW_S)
        for one in (server, probes):
            await one.start()
        silent = []
        answers = []
        for number in range(200):
            for one in (server, probes):
                local = (f"127.0.{number % 50}.2", 0)
                silent.append(
                    await asyncio.open_connection("127.0.0.1", one.port, local_addr=local)
                )
            if number % 20 == 19:
                for one, path in ((server, "/metrics"), (server, "/healthz"), (probes, "/readyz")):
                    reader, writer = await asyncio.open_connection("127.0.0.1", one.port)
                    writer.write(f"GET {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
                    answers.append((await reader.read()).rpartition(b"\r\n")[2])
                    writer.close()
        assert len(server.clients) <= MOST
        for _, writer in silent:
            writer.close()
        for one in (server, probes):
            await one.close()
        return answers

    assert asyncio.run(run()) == [b"page", b"ok\n", b"ok\n"] * 10


def test_probes_answer_nothing_else() -> None:
    async def run() -> bytes:
        probes = ProbeServer(("127.0.0.1", 0), lambda: (), lambda: NOW_S)
        await probes.start()
        found = b""
        for path in ("/metrics", "/readyz", "/healthz"):
            reader, writer = await asyncio.open_connection("127.0.0.1", probes.port)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
            found += (await reader.read()).split(b"\r\n")[0] + b"\n"
            writer.close()
        await probes.close()
        return found

    assert asyncio.run(run()).decode().splitlines() == [
        "HTTP/1.1 404 Not Found",
        "HTTP/1.1 503 Service Unavailable",
        "HTTP/1.1 200 OK",
    ]


def test_the_address_with_the_most_makes_room_its_oldest_silent_one_first() -> None:
    gone: list[str] = []
    clients = Clients(most=4, most_per_address=3)
    for name in ("a1", "b1", "b2"):
        one = clients.enter(name[0], lambda name=name: gone.append(name))
        clients.mark(one, asked=name == "b1")
    clients.enter("c", lambda: gone.append("c1"))
    clients.enter("d", lambda: gone.append("d1"))
    assert gone == ["b2"], "b1 is being answered"
    for name in ("a2", "a3", "a4"):
        clients.enter("a", lambda name=name: gone.append(name))
    assert gone == ["b2", "a1", "a2", "a3"], "a has the most by then, and pays for itself"
    assert len(clients) == 4


def test_where_requests_are_kept_the_new_one_goes() -> None:
    gone: list[str] = []
    clients = Clients(most=2, most_per_address=2, keeps_asked=True)
    first = clients.enter("a", lambda: gone.append("a"))
    clients.enter("b", lambda: gone.append("b"))
    clients.mark(first, asked=True)
    clients.mark(clients.enter("c", lambda: gone.append("c")), asked=True)
    assert gone == ["b"], "it was silent"
    clients.enter("d", lambda: gone.append("d"))
    assert gone == ["b", "d"]
    assert len(clients) == 2


def test_ipv6_counts_by_network() -> None:
    assert origin_of("2001:db8::1") == origin_of("2001:db8::2") != origin_of("2001:db8:0:1::1")
    assert origin_of("::ffff:10.0.0.1") == origin_of("10.0.0.1") == "10.0.0.1"
