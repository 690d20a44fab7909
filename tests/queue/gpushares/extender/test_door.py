"""The schedulers' HTTP interface: over the loopback any client is answered like one with a certificate, and no other path exists."""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import Awaitable
from pathlib import Path

import pytest

from queuecontroller.server.config import ConfigError, parse
from queuecontroller.server.web.extender import ExtenderEndpoint, LoopbackServer
from queuecontroller.state.access.lists import Names
from tests.queue.kueueapi.serving import certify
from tests.queue.server.asking import answer, question

CALLERS = {"callers": "kube-scheduler"}
FILES = {f"webhooks_{one}": f"/{one}" for one in ("certificate", "key", "ca")}
IN_A_CLUSTER = {"mode": "kubernetes", "webhooks_listen": "127.0.0.1:1", **FILES}


def answered(verb: str, body: bytes) -> bytes | Awaitable[bytes] | None:
    async def later() -> bytes:
        await asyncio.sleep(0)
        return b"bound " + body

    if verb == "other":
        return None
    return later() if verb == "bind" else verb.encode() + b" " + body


NO_FILES = (Path("/none"), Path("/none"), Path("/none"))


def door(leader: str = "", files: tuple[Path, Path, Path] = NO_FILES) -> ExtenderEndpoint:
    return ExtenderEndpoint(
        answered,
        lambda verb, why: why.encode(),
        ("filter", "bind", "other"),
        Names.parse("kube-scheduler"),
        lambda: leader,
        files,
    )


def asked(*questions: tuple[str, bytes]) -> list[tuple[int, bytes]]:
    async def main() -> list[tuple[int, bytes]]:
        server = LoopbackServer(("127.0.0.1", 0), door())
        await server.start()
        try:
            found = []
            for path, body in questions:
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(question(path, body))
                found.append(await asyncio.wait_for(answer(reader), 30))
                writer.close()
            return found
        finally:
            await server.close()

    return asyncio.run(main())


def test_over_the_loopback_nobody_is_asked_who_it_is() -> None:
    assert asked(("/scheduler/filter", b"1"), ("/scheduler/bind", b"2")) == [
        (200, b"filter 1"),
        (200, b"bound 2"),
    ]


def test_over_the_loopback_there_is_nothing_but_the_verbs() -> None:
    for path in ("/convert", "/validate", "/scheduler", "/metrics"):
        ((status, _),) = asked((path, b"{}"))
        assert status == 404


def test_who_does_not_lead_and_knows_nobody_says_so_over_the_loopback_too() -> None:
    ((status, text),) = asked(("/scheduler/other", b"1"))
    assert (status, b"is not the leader" in text) == (200, True)


def certified(*names: tuple[str, str], common: str = "eve") -> dict[str, object]:
    return {"subject": ((("commonName", common),),), "subjectAltName": names}


@pytest.mark.parametrize(
    ("certificate", "may"),
    [
        ({}, False),
        (certified(("URI", "sluice:scheduler:kube-scheduler")), True),
        (certified(("URI", "sluice:scheduler:other")), False),
        (certified(("URI", "sluice:admin:kube-scheduler")), False),
        (certified(("URI", "kube-scheduler")), False),
        (certified(("DNS", "sluice:scheduler:kube-scheduler")), False),
        (certified(("DNS", "kube-scheduler")), False),
        (certified(("email", "kube-scheduler")), False),
        (certified(common="kube-scheduler"), False),
    ],
)
def test_only_a_uri_of_the_role_opens_the_extender(
    certificate: dict[str, object], may: bool
) -> None:
    """An authority that serves the cluster gives any namespace a certificate with any DNS name."""
    assert {not one.why_not(certificate) for one in door().routes().values()} == {may}


def test_the_controllers_own_certificate_opens_the_extender(tmp_path: Path) -> None:
    authority = certify(tmp_path)
    authority.issue("other", "/CN=webhooks", "clientAuth", ["DNS:localhost"])
    files = (tmp_path / "server.crt", tmp_path / "server.key", tmp_path / "ca.crt")
    endpoint = door(files=files)

    def of(name: str) -> dict[str, object]:
        text = (tmp_path / f"{name}.crt").read_text()
        whole = ssl.PEM_cert_to_DER_cert(text[text.index("-----BEGIN") :])
        return {**certified(), "sha256": hashlib.sha256(whole).hexdigest()}

    before = of("server")
    (route, *_) = endpoint.routes().values()
    assert (route.why_not(before), bool(route.why_not(of("other")))) == ("", True)
    certify(tmp_path)
    assert route.why_not(of("server")) == ""
    assert route.why_not(before) == "", "a replica may still have the one before"


@pytest.mark.parametrize("address", ["127.0.0.1:9449", "127.8.0.1:0", "[::1]:9449"])
def test_an_address_on_the_loopback_is_taken(address: str) -> None:
    given = {"extender": {**CALLERS, "listen": address}, "kubernetes": IN_A_CLUSTER}
    assert parse(given).extender.listen == address


@pytest.mark.parametrize(
    ("extender", "wrong"),
    [
        ({**CALLERS, "listen": "0.0.0.0:9449"}, "not on the loopback"),
        ({**CALLERS, "listen": "[::]:9449"}, "not on the loopback"),
        ({**CALLERS, "listen": "10.0.0.1:9449"}, "not on the loopback"),
        ({**CALLERS, "listen": "localhost:9449"}, "extender.listen"),
        ({**CALLERS, "listen": "127.0.0.1"}, "not ADDRESS:PORT"),
        ({"listen": "127.0.0.1:9449"}, "requires extender.callers"),
    ],
)
def test_any_other_address_is_refused(extender: dict[str, object], wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"extender\.listen") as caught:
        parse({"extender": extender, "kubernetes": IN_A_CLUSTER})
    assert wrong in str(caught.value)
