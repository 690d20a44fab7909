"""The schedulers' door: over the loopback whoever is there is answered as one who showed a certificate is, and nothing else is there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path

import pytest

from queuecontroller.server.config import ConfigError, parse
from queuecontroller.server.web.extender import ExtenderEndpoint, LoopbackServer
from queuecontroller.state.access.lists import Names
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


def door(leader: str = "") -> ExtenderEndpoint:
    return ExtenderEndpoint(
        answered,
        lambda verb, why: why.encode(),
        ("filter", "bind", "other"),
        Names.parse("kube-scheduler"),
        lambda: leader,
        (Path("/none"), Path("/none"), Path("/none")),
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


def test_elsewhere_a_name_is_asked_for() -> None:
    routes = door().routes()
    mine = {"subject": ((("commonName", "kube-scheduler"),),)}
    assert {bool(one.why_not({})) for one in routes.values()} == {True}
    assert {one.why_not(mine) for one in routes.values()} == {""}


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
