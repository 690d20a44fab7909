"""One-time tickets for the page: a caller on the service's socket receives a URL with a ticket, and
the browser that opens it receives a session. Pure; the time is passed in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

T = TypeVar("T")
TICKET_S: Final = 120.0
SESSION_S: Final = 12 * 3600.0
MAX_TICKETS: Final = 256
MAX_SESSIONS: Final = 1_000
LONGEST_SECRET: Final = 128


@dataclass(frozen=True, slots=True)
class _Kept(Generic[T]):
    whom: T
    until_s: float


class Tickets(Generic[T]):
    """`whom` is the caller as the service knows it. Only digests of secrets are stored, so that a
    memory dump contains no usable ticket."""

    def __init__(self, new_secret: Callable[[], str]) -> None:
        """`new_secret` returns at least 128 random bits as URL-safe text."""
        self._new_secret = new_secret
        self._tickets: dict[bytes, _Kept[T]] = {}
        self._sessions: dict[bytes, _Kept[T]] = {}

    def issue(self, whom: T, now_s: float) -> str:
        return self._keep(self._tickets, whom, now_s + TICKET_S, now_s, MAX_TICKETS)

    def redeem(self, ticket: str, now_s: float) -> tuple[str, T] | None:
        """A session and its caller; None if the ticket is unknown, used or expired."""
        kept = self._tickets.pop(_digest(ticket), None)
        if kept is None or kept.until_s <= now_s:
            return None
        session = self._keep(self._sessions, kept.whom, now_s + SESSION_S, now_s, MAX_SESSIONS)
        return session, kept.whom

    def whose(self, session: str, now_s: float) -> T | None:
        kept = self._sessions.get(_digest(session))
        return kept.whom if kept is not None and kept.until_s > now_s else None

    def end(self, session: str) -> None:
        self._sessions.pop(_digest(session), None)

    def _keep(
        self, where: dict[bytes, _Kept[T]], whom: T, until_s: float, now_s: float, most: int
    ) -> str:
        for digest in [digest for digest, kept in where.items() if kept.until_s <= now_s]:
            del where[digest]
        while len(where) >= most:
            del where[next(iter(where))]  # The oldest is first.
        secret = self._new_secret()
        where[_digest(secret)] = _Kept(whom, until_s)
        return secret


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret[: LONGEST_SECRET + 1].encode(errors="replace")).digest()
