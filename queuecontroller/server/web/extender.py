"""The door for schedulers beside the webhooks: /scheduler/filter, /prioritize, /preempt, /bind.

Unlike the webhooks it changes something: whoever may ask can bind pods. So it takes only callers
with a certificate of our authority and a name that the settings list. Whoever does not lead hands
the question on to the replica that does.

A kube-scheduler in the same pod may come over the loopback instead, without TLS. Go's client keeps
two connections and a scheduler binds several pods at a time, so it opens and closes one for every
other pod: of three questions' cost on both sides, two thirds are handshakes.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp

from queuecontroller.server.web.posts import Answered, Asked, PostServer, Route
from queuecontroller.state.access.lists import Names

PREFIX: Final = "/scheduler"
LARGEST_BYTES: Final = 64 << 20
"""Of a question with whole nodes: 5,000 of 10 KiB."""
HANDED_ON_S: Final = 20.0
HANDED_ON: Final = "Sluice-Handed-On"
"""A question goes from one replica to another once."""
_log: Final = logging.getLogger(__name__)

Answer = Callable[[str, bytes], bytes | Awaitable[bytes] | None]
"""Of a verb and a question; None: this replica does not lead."""


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
        """`leader`: the URL of who leads, as far as is known; `files`: our certificate, its key,
        and the authority of all who may ask."""
        self._answer = answer
        self._refusal = refusal
        self.verbs = verbs
        self._callers = callers
        self._leader = leader
        self._files = files
        self._session: aiohttp.ClientSession | None = None
        self._session_of: tuple[int, ...] = ()

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
        """`anybody`: who comes there is not asked who it is."""
        why_not = (lambda certificate: "") if anybody else self._why_not
        return {
            self.path(verb): Route(partial(self.handle, verb), LARGEST_BYTES, why_not)
            for verb in self.verbs
        }

    def _why_not(self, certificate: Mapping[str, Any]) -> str:
        names = names_in(certificate)
        if any(one in self._callers for one in names):
            return ""
        shown = ", ".join(names)[:200] or "no certificate"
        return f"{shown}: may not ask; see extender.callers in the settings"

    def handle(self, verb: str, asked: Asked) -> Answered | Coroutine[Any, Any, Answered]:
        made = self._answer(verb, asked.body)
        if isinstance(made, bytes):
            return Answered(made)
        if made is None:
            made = self._hand_on(verb, asked.body, HANDED_ON.lower().encode() in asked.headers)
        return _later(made)

    async def _hand_on(self, verb: str, body: bytes, handed_on: bool) -> bytes:
        leader = self._leader()
        if handed_on or not leader:
            return self._refusal(verb, "this replica does not lead, and knows of none that does")
        try:
            timeout = aiohttp.ClientTimeout(total=HANDED_ON_S)
            async with self._connected().post(
                f"{leader}{self.path(verb)}",
                data=body,
                headers={HANDED_ON: "1", "Content-Type": "application/json"},
                timeout=timeout,
            ) as answer:
                made = await answer.read()
                if answer.status != 200:
                    said = made[:200].decode(errors="replace").strip()
                    return self._refusal(verb, f"{leader}: {answer.status}: {said}")
                return made
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            return self._refusal(verb, f"the leader at {leader} does not answer: {error!r}")

    def _connected(self) -> aiohttp.ClientSession:
        """Made anew when the certificate was renewed. The leader is found by its pod's address, for
        which no certificate has a name: that it is of our authority is what counts."""
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
    """The same door on the loopback alone."""

    def __init__(self, address: tuple[str, int], door: ExtenderEndpoint) -> None:
        self._address = address
        self._server = PostServer(door.routes(anybody=True), None, "extender.listen")

    async def start(self) -> None:
        """Raises OSError: the address is taken."""
        await self._server.start(*self._address)

    @property
    def port(self) -> int:
        return self._server.port

    async def close(self) -> None:
        await self._server.close()


async def _later(made: Awaitable[bytes]) -> Answered:
    return Answered(await made)


def names_in(certificate: Mapping[str, Any]) -> list[str]:
    """Common and alternative names, as `ssl` gives a verified certificate."""
    common = [
        value
        for part in certificate.get("subject") or ()
        for key, value in part
        if key == "commonName"
    ]
    others = [value for _, value in certificate.get("subjectAltName") or ()]
    return list(dict.fromkeys([*common, *others]))
