"""Who may scrape, over what, and what they are answered."""

from __future__ import annotations

import asyncio
import base64
import ssl
import subprocess
from pathlib import Path

import pytest

from nodeagent.adapters.metrics_http import Access, Certificate, MetricsServer
from nodeagent.core.exposition import OPENMETRICS, TEXT
from nodeagent.ports import LoopView
from tests.unit.nodeagent.views import node

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
            writer.write(request.replace("\n", "\r\n").encode() + b"\r\n\r\n")
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


def test_probes_need_neither() -> None:
    ((status, _, body),) = served("GET /healthz HTTP/1.1", access=Access("s3cret"))
    assert (status.split()[1], body) == ("200", b"ok\n")


def test_a_silent_loop_is_told_by_its_name() -> None:
    assert node().loops == (LoopView("planning", 1.7e9),)
    ((status, _, body),) = served("GET /healthz HTTP/1.1", now_s=NOW_S + 60)
    assert (status.split()[1], body) == ("503", b"silent: planning\n")


@pytest.mark.parametrize("request_", ["POST /metrics HTTP/1.1", "nonsense", "GET /metrics"])
def test_anything_else_is_refused(request_: str) -> None:
    ((status, _, _),) = served(request_)
    assert status.split()[1] == "405"


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
