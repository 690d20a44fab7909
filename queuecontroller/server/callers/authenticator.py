"""Authenticates the caller of a gRPC call by the kernel's credentials of its socket, by its
certificate, or by its Kubernetes token."""

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
MAX_WRONG_TOKENS: Final = 3
"""Limit of one connection; each costs a TokenReview."""


class Unauthenticated(Exception):
    """The caller's identity could not be verified."""


class NotVouched(Unauthenticated):
    """A TokenReview found the token invalid or for another audience; the text gives the reason."""


class ReviewUnavailable(Exception):
    """A TokenReview failed; the call can be retried."""


@dataclass(frozen=True, slots=True)
class Reviewed:
    """Result of a TokenReview."""

    user: str
    groups: tuple[str, ...] = ()
    node: str = ""
    """Node of the pod that the token is bound to; empty if it is bound to none."""


class TokenReviewer(Protocol):
    async def review(self, token: str) -> Reviewed:
        """Review a token. Raises NotVouched, ReviewUnavailable; neither text contains a part of the
        token."""


class Authenticator:
    def __init__(
        self,
        listeners: Listeners,
        certificates: RoleLists | None,
        tokens: RoleLists | None = None,
        reviewer: TokenReviewer | None = None,
    ) -> None:
        """`certificates` is None if no client certificates are requested over TLS."""
        self._listeners = listeners
        self._certificates = certificates
        self._tokens = tokens
        self._reviewer = reviewer

    async def caller(self, context: Any) -> Caller:
        """The authenticated caller of a call. Raises Denied, Crowded, Unauthenticated,
        ReviewUnavailable."""
        connection = self._listeners.of(context.peer())
        if connection is None:
            raise Denied("the connection was closed")
        self._listeners.began(connection)
        caller = await self._named(connection, context)
        self._listeners.prove(connection, caller)
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
            raise Unauthenticated("this server accepts neither certificates nor tokens")
        if header[: len(BEARER)].lower() != BEARER:
            raise Unauthenticated("a token is required, in the header authorization: Bearer TOKEN")
        try:
            reviewed = await self._reviewer.review(header[len(BEARER) :].strip())
        except NotVouched as error:
            connection.wrong_tokens += 1
            if connection.wrong_tokens >= MAX_WRONG_TOKENS:
                asyncio.get_running_loop().call_later(0.5, connection.abort)
            log.warning("%s: %s", connection.address, error)
            raise
        return self._tokens.of_token(reviewed.user, reviewed.groups, reviewed.node)
