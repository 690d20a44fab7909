"""Who is at the other end of a call: by the kernel, by its certificate, or by its Kubernetes
token."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from queuecontroller.server.callers.listeners import Connection, Listeners
from queuecontroller.state.access import Caller, Denied, RoleLists

log = logging.getLogger(__name__)

BEARER: Final = "bearer "
MOST_WRONG_TOKENS: Final = 3
"""On one connection; each is a question to Kubernetes."""


class Unauthenticated(Exception):
    """It says who it is, and nobody vouches for that."""


class NotVouched(Unauthenticated):
    """Kubernetes says that a token is not good, or not for us; the text says why."""


class ReviewUnavailable(Exception):
    """Kubernetes could not be asked about a token: try again."""


@dataclass(frozen=True, slots=True)
class Reviewed:
    """What Kubernetes says of a token."""

    user: str
    groups: tuple[str, ...] = ()
    node: str = ""
    """Where the pod runs that the token is bound to; empty: it is bound to none."""


class TokenReviewer(Protocol):
    async def review(self, token: str) -> Reviewed:
        """Raises NotVouched, ReviewUnavailable. Neither text holds anything of the token."""


class Authenticator:
    def __init__(
        self,
        doors: Listeners,
        certificates: RoleLists | None,
        tokens: RoleLists | None = None,
        reviewer: TokenReviewer | None = None,
    ) -> None:
        """`certificates` None: callers over TLS are not asked for any."""
        self._doors = doors
        self._certificates = certificates
        self._tokens = tokens
        self._reviewer = reviewer

    async def caller(self, context: Any) -> Caller:
        """Raises Denied, Crowded, Unauthenticated, ReviewUnavailable."""
        connection = self._doors.of(context.peer())
        if connection is None:
            raise Denied("the connection is gone")
        self._doors.began(connection)
        caller = await self._named(connection, context)
        self._doors.prove(connection, caller)
        return caller

    async def _named(self, connection: Connection, context: Any) -> Caller:
        if connection.kernel is not None:
            return connection.kernel
        if self._certificates is not None:
            return connection.caller or self._by_certificate(context)
        return await self._by_token(connection, context.invocation_metadata())

    def _by_certificate(self, context: Any) -> Caller:
        assert self._certificates is not None
        found = context.auth_context()

        def texts(name: str) -> list[str]:
            return [raw.decode(errors="replace") for raw in found.get(name, ())]

        uris = texts("peer_uri")
        names = [one for one in texts("x509_subject_alternative_name") if one not in uris]
        common = next(iter(texts("x509_common_name")), "")
        return self._certificates.of_certificate(common, names, uris)

    async def _by_token(self, connection: Connection, metadata: Any) -> Caller:
        headers: Mapping[str, Any] = dict(metadata or ())
        header = headers.get("authorization", "")
        if self._tokens is None or self._reviewer is None or not isinstance(header, str):
            raise Unauthenticated("this server takes neither certificates nor tokens")
        if header[: len(BEARER)].lower() != BEARER:
            raise Unauthenticated("a token is needed, in the header authorization: Bearer TOKEN")
        try:
            reviewed = await self._reviewer.review(header[len(BEARER) :].strip())
        except NotVouched as error:
            connection.wrong_tokens += 1
            if connection.wrong_tokens >= MOST_WRONG_TOKENS:
                asyncio.get_running_loop().call_later(0.5, connection.abort)
            log.warning("%s: %s", connection.address, error)
            raise
        return self._tokens.of_token(reviewed.user, reviewed.groups, reviewed.node)
