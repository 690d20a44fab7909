"""The extender's endpoint for schedulers: /scheduler/filter, /prioritize, /preempt, /bind.

Unlike the webhooks it changes state: its callers can bind pods. So it accepts only callers with the
controller's own certificate, which other replicas have, or with one of the configured CA whose URI
`sluice:scheduler:NAME` has a name in extender.callers. Other names in a certificate count for
nothing: an authority that serves a whole cluster issues them to any namespace. A replica that does
not lead forwards the request to the leader.

A kube-scheduler in the same pod may call over the loopback instead, without TLS. Go's client keeps
two idle connections and a scheduler binds several pods at a time, so it opens and closes one for
every other pod: two thirds of the cost of three requests are handshakes.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp

from queuecontroller.server.web.posts import SHA256, PostServer, Request, Response, Route
from queuecontroller.state.access.lists import SCHEME, Names
from sluicecommon.kubernetes.client import UNTIMED

PREFIX: Final = "/scheduler"
LARGEST_BYTES: Final = 64 << 20
"""Limit of a request with whole nodes: 5,000 of 10 KiB."""
ROLE: Final = f"{SCHEME}:scheduler:"
"""Beginning of the URI in a certificate that may call the extender."""
_END: Final = "-----END CERTIFICATE-----"

HANDED_ON_S: Final = 20.0
HANDED_ON: Final = "Sluice-Handed-On"
"""Header of a forwarded request, which is not forwarded again."""
_log: Final = logging.getLogger(__name__)

Answer = Callable[[str, bytes], bytes | Awaitable[bytes] | None]
"""Answers a request of a verb; returns None if this replica does not lead."""


class ExtenderEndpoint:
    def __init__(
        self,
        answer: Answer,
        refusal: Callable[[str, str], bytes],
        verbs: tuple[str, ...],
        callers: Names,
        leader: Callable[[], str],
        files: tuple[Path, Path, Path],
    ) -> None:
        """`leader` returns the leader's URL, empty if unknown; `files` are our certificate, its
        key, and the callers' CA."""
        self._answer = answer
        self._refusal = refusal
        self.verbs = verbs
        self._callers = callers
        self._leader = leader
        self._files = files
        self._session: aiohttp.ClientSession | None = None
        self._session_of: tuple[int, ...] = ()
        self._own: tuple[str, ...] = ()
        self._own_of = 0

    @property
    def authority(self) -> Path:
        return self._files[2]

    def path(self, verb: str) -> str:
        return f"{PREFIX}/{verb}"

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def routes(self, *, anybody: bool = False) -> dict[str, Route]:
        """The routes of all verbs; with `anybody`, callers are not authenticated."""
        why_not = (lambda certificate: "") if anybody else self._why_not
        return {
            self.path(verb): Route(partial(self.handle, verb), LARGEST_BYTES, why_not)
            for verb in self.verbs
        }

    def _why_not(self, certificate: Mapping[str, Any]) -> str:
        if not certificate:
            return "no certificate: see extender.callers"
        if any(one in self._callers for one in schedulers_in(certificate)):
            return ""
        if certificate.get(SHA256) in self._own_checksums():
            return ""
        shown = ", ".join(names_in(certificate))[:200] or "a certificate without names"
        return (
            f"{shown}: is not permitted to call the extender: the certificate has no URI"
            f" {ROLE}NAME with a name of extender.callers"
        )

    def _own_checksums(self) -> tuple[str, ...]:
        """Checksums of the controller's certificate and the one before it, which a replica may
        still have."""
        try:
            changed_ns = self._files[0].stat().st_mtime_ns
            if changed_ns != self._own_of:
                text = self._files[0].read_text(encoding="ascii")
                first = text[: text.index(_END) + len(_END)]
                now = hashlib.sha256(ssl.PEM_cert_to_DER_cert(first)).hexdigest()
                self._own_of, self._own = changed_ns, (now, *self._own[:1])
        except (OSError, ValueError):  # Half written; the known ones count until it is whole.
            pass
        return self._own

    def handle(self, verb: str, request: Request) -> Response | Coroutine[Any, Any, Response]:
        made = self._answer(verb, request.body)
        if isinstance(made, bytes):
            return Response(made)
        if made is None:
            made = self._hand_on(verb, request.body, HANDED_ON.lower().encode() in request.headers)
        return _later(made)

    async def _hand_on(self, verb: str, body: bytes, handed_on: bool) -> bytes:
        leader = self._leader()
        if handed_on or not leader:
            return self._refusal(verb, "this replica is not the leader, and no leader is known")
        try:
            async with (
                asyncio.timeout(HANDED_ON_S),
                self._connected().post(
                    f"{leader}{self.path(verb)}",
                    data=body,
                    headers={HANDED_ON: "1", "Content-Type": "application/json"},
                    timeout=UNTIMED,
                ) as answer,
            ):
                made = await answer.read()
                if answer.status != 200:
                    why = made[:200].decode(errors="replace").strip()
                    return self._refusal(verb, f"{leader}: {answer.status}: {why}")
                return made
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            return self._refusal(verb, f"the leader at {leader} does not answer: {error!r}")

    def _connected(self) -> aiohttp.ClientSession:
        """The client session, recreated after the certificate changed. The leader is reached by its
        pod's address, which is in no certificate, so only the CA is verified."""
        seen = tuple(one.stat().st_mtime_ns for one in self._files)
        if self._session is None or seen != self._session_of:
            old, self._session_of = self._session, seen
            if old is not None:
                asyncio.get_running_loop().create_task(old.close())
            context = ssl.create_default_context(cafile=self._files[2])
            context.check_hostname = False
            context.load_cert_chain(*self._files[:2])
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=context, limit=32), trust_env=False
            )
        return self._session


class LoopbackServer:
    """The extender's endpoint on the loopback, without authentication."""

    def __init__(self, address: tuple[str, int], endpoint: ExtenderEndpoint) -> None:
        self._address = address
        self._server = PostServer(endpoint.routes(anybody=True), None, "extender.listen")

    async def start(self) -> None:
        """Start to listen. Raises OSError if the address is in use."""
        await self._server.start(*self._address)

    @property
    def port(self) -> int:
        return self._server.port

    def drain(self) -> None:
        """See `PostServer.drain`."""
        self._server.drain()

    async def close(self) -> None:
        await self._server.close()


async def _later(made: Awaitable[bytes]) -> Response:
    return Response(await made)


def schedulers_in(certificate: Mapping[str, Any]) -> list[str]:
    """Names of schedulers in the URIs of a verified certificate."""
    names = certificate.get("subjectAltName") or ()
    return [
        value.removeprefix(ROLE)
        for kind, value in names
        if kind == "URI" and value.startswith(ROLE)
    ]


def names_in(certificate: Mapping[str, Any]) -> list[str]:
    """Common and alternative names of a verified certificate in `ssl`'s form."""
    common = [
        value
        for part in certificate.get("subject") or ()
        for key, value in part
        if key == "commonName"
    ]
    others = [value for _, value in certificate.get("subjectAltName") or ()]
    return list(dict.fromkeys([*common, *others]))
