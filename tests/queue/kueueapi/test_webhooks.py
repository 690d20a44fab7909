"""The webhooks over their wire: TLS, bounds, renewal."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from queuecontroller.server.web import posts, reviews
from queuecontroller.server.web.webhooks import LARGEST_BYTES, WebhookServer
from tests.queue.kueueapi.reviews import admission, conversion, made
from tests.queue.kueueapi.serving import certify, webhooks


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[WebhookServer, Path]]:
    certify(tmp_path)
    with webhooks(tmp_path) as server:
        yield server, tmp_path


def connect(server: WebhookServer, place: Path) -> http.client.HTTPSConnection:
    context = ssl.create_default_context(cafile=str(place / "ca.crt"))
    return http.client.HTTPSConnection("127.0.0.1", server.port, timeout=20, context=context)


def ask(
    server: WebhookServer, place: Path, path: str, body: bytes, **headers: str
) -> tuple[int, str]:
    connection = connect(server, place)
    connection.request("POST", f"{path}/{server.word}", body, headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_both_are_answered(served: tuple[WebhookServer, Path]) -> None:
    status, text = ask(*served, "/validate", admission(made("LocalQueue", {})))
    assert status == 200
    assert "spec.clusterQueue: is required" in json.loads(text)["response"]["status"]["message"]
    queues = [made("ClusterQueue", {"cohort": "c" * 100}, "v1beta1") for _ in range(2000)]
    body = conversion(queues, "kueue.x-k8s.io/v1beta2")
    assert len(body) > reviews.LARGE_BYTES
    status, text = ask(*served, "/convert", body)
    assert (status, len(json.loads(text)["response"]["convertedObjects"])) == (200, 2000)


@pytest.mark.parametrize("path", ["/convert", "/validate"])
def test_nonsense_is_answered_with_what_is_wrong(
    served: tuple[WebhookServer, Path], path: str
) -> None:
    assert ask(*served, path, b"{") == (
        400,
        "is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)\n",
    )
    assert ask(*served, "/other", b"{}")[0] == 404


def test_what_is_too_large_is_refused_before_it_is_read(
    served: tuple[WebhookServer, Path],
) -> None:
    connection = connect(*served)
    connection.putrequest("POST", f"/validate/{served[0].word}")
    connection.putheader("Content-Length", str(LARGEST_BYTES + 1))
    connection.endheaders()
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (413, b"8388609 bytes are more than 8388608\n")
    connection.close()


def test_a_body_without_a_length_is_refused(served: tuple[WebhookServer, Path]) -> None:
    connection = connect(*served)
    connection.request(
        "POST",
        f"/convert/{served[0].word}",
        iter([b"{", b"}"]),
        encode_chunked=True,
        headers={"Transfer-Encoding": "chunked"},
    )
    assert connection.getresponse().status == 411
    connection.close()


def test_all_together_are_bounded(
    served: tuple[WebhookServer, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posts, "ALL_BYTES", 1000)
    first = connect(*served)
    first.putrequest("POST", f"/validate/{served[0].word}")
    first.putheader("Content-Length", "900")
    first.endheaders(b" " * 400)  # half of the room is the most for one address
    status = 0
    while status != 503:  # until what the first one has sent was read
        status = ask(*served, "/validate", b" " * 200)[0]
        assert status in (400, 503)
    first.close()


def test_a_renewed_certificate_is_taken_without_a_restart(
    served: tuple[WebhookServer, Path],
) -> None:
    server, place = served

    def serial() -> str:
        context = ssl.create_default_context(cafile=str(place / "ca.crt"))
        with (
            socket.create_connection(("127.0.0.1", server.port), 20) as raw,
            context.wrap_socket(raw, server_hostname="127.0.0.1") as tls,
        ):
            found = tls.getpeercert()
            assert found
            return str(found["serialNumber"])

    before = serial()
    certify(place)
    server.renew()
    assert serial() != before


def test_a_bad_certificate_is_told_at_the_start(tmp_path: Path) -> None:
    certify(tmp_path)
    (tmp_path / "server.crt").write_text("no certificate")
    with pytest.raises(OSError), webhooks(tmp_path):
        pass
