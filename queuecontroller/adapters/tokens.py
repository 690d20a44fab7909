"""Kubernetes says whose a token is: TokenReview, with its answers kept for a moment.

A token that is good is believed for a minute, so that a thousand nodes' reports do not each become
a question; one that is not, for ten seconds, so that a client with an old one is not either.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from time import monotonic
from typing import Final

from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.credentials import Credentials, NoAccess, in_cluster
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused
from sluicecommon.kubernetes.reviews import NODE_NAME, review

from .callers import Reviewed, ReviewUnavailable

GOOD_S: Final = 60.0
BAD_S: Final = 10.0
MOST_KEPT: Final = 10_000
LONGEST_TOKEN: Final = 8192
MOST_ASKED: Final = 8
"""Questions under way at once."""


@dataclass(frozen=True, slots=True)
class _Answer:
    reviewed: Reviewed | None
    until_s: float


class KubernetesReviewer:
    def __init__(
        self, client: ApiClient, audience: str, clock: Callable[[], float] = monotonic
    ) -> None:
        self._client = client
        self._audience = audience
        self._clock = clock
        self._answers: dict[bytes, _Answer] = {}
        self._asking: dict[bytes, asyncio.Task[Reviewed | None]] = {}
        self._at_once = asyncio.Semaphore(MOST_ASKED)

    async def review(self, token: str) -> Reviewed | None:
        """Raises ReviewUnavailable."""
        if not 0 < len(token) <= LONGEST_TOKEN:
            return None
        digest = hashlib.sha256(token.encode(errors="replace")).digest()  # tokens are not kept
        known = self._answers.get(digest)
        if known is not None and self._clock() < known.until_s:
            return known.reviewed
        asking = self._asking.get(digest)
        if asking is None:
            asking = asyncio.get_running_loop().create_task(self._ask(digest, token))
            self._asking[digest] = asking
            asking.add_done_callback(lambda _: self._asking.pop(digest, None))
        # Shielded: one caller that hangs up must not take the answer from the others.
        return await asyncio.shield(asking)

    async def _ask(self, digest: bytes, token: str) -> Reviewed | None:
        try:
            async with self._at_once:
                found = await review(self._client, token, [self._audience])
        except ApiAway as error:
            raise ReviewUnavailable(
                f"Kubernetes cannot be asked about the token: {error}"
            ) from None
        except ApiRefused as error:
            raise ReviewUnavailable(f"Kubernetes refuses to review tokens: {error}") from None
        reviewed = (
            Reviewed(found.username, found.groups, found.claim(NODE_NAME))
            if found.authenticated
            else None
        )
        if len(self._answers) >= MOST_KEPT:
            self._answers.clear()
        self._answers[digest] = _Answer(
            reviewed, self._clock() + (GOOD_S if reviewed is not None else BAD_S)
        )
        return reviewed

    async def close(self) -> None:
        for task in list(self._asking.values()):
            task.cancel()
        await self._client.close()


def open_reviewer(
    audience: str, environment: Mapping[str, str], api_server: str
) -> KubernetesReviewer:
    """Raises OSError where there is no Kubernetes to ask."""
    access = in_cluster(environment)
    if access is None:
        raise OSError(
            "kubernetes.audience: this is no pod with a service account's token, so nobody can be"
            " asked about tokens"
        )
    if api_server:
        access = replace(access, server=api_server.rstrip("/"))
    try:
        return KubernetesReviewer(ApiClient(Credentials(access), "sluice-queue"), audience)
    except NoAccess as error:
        raise OSError(f"kubernetes.audience: {error}") from error
