"""Authentication of Kubernetes tokens by TokenReview, with a short cache.

A valid token is cached for a minute, so that a thousand nodes' reports do not each cause a review;
an invalid one for ten seconds, so that a client with an expired token does not either.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from time import monotonic
from typing import Final

from queuecontroller.server.callers.authenticator import NotVouched, Reviewed, ReviewUnavailable
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.credentials import Credentials, NoAccess, in_cluster
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused
from sluicecommon.kubernetes.reviews import NODE_NAME, review

GOOD_S: Final = 60.0
BAD_S: Final = 10.0
MAX_CACHED: Final = 10_000
LONGEST_TOKEN: Final = 8192
MAX_CONCURRENT: Final = 8
"""Reviews in progress at once."""
DEADLINE_S: Final = 4.0
"""Timeout of a review. A node's own timeout is 5 s, so that it still receives the reason."""
LONGEST_WHY: Final = 300
SHORTEST_PART: Final = 8
"""Characters from which a part of a token is removed from texts."""


@dataclass(frozen=True, slots=True)
class _Answer:
    reviewed: Reviewed | None
    until_s: float
    why: str = ""
    """The reason if it is None."""

    def given(self) -> Reviewed:
        """The result. Raises NotVouched."""
        if self.reviewed is None:
            raise NotVouched(f"Kubernetes rejects the token: {self.why}")
        return self.reviewed


class KubernetesReviewer:
    def __init__(
        self, client: ApiClient, audience: str, clock: Callable[[], float] = monotonic
    ) -> None:
        self._client = client
        self._audience = audience
        self._clock = clock
        self._answers: dict[bytes, _Answer] = {}
        self._asking: dict[bytes, asyncio.Task[_Answer]] = {}
        self._at_once = asyncio.Semaphore(MAX_CONCURRENT)

    async def review(self, token: str) -> Reviewed:
        """Review a token. Raises NotVouched, ReviewUnavailable."""
        if not 0 < len(token) <= LONGEST_TOKEN:
            raise NotVouched(f"a token has 1 to {LONGEST_TOKEN} characters; this has {len(token)}")
        # Only the digest is stored, never the token.
        digest = hashlib.sha256(token.encode(errors="replace")).digest()
        known = self._answers.get(digest)
        if known is not None and self._clock() < known.until_s:
            return known.given()
        asking = self._asking.get(digest)
        if asking is None:
            asking = asyncio.get_running_loop().create_task(self._ask(digest, token))
            self._asking[digest] = asking
            asking.add_done_callback(lambda _: self._asking.pop(digest, None))
        # Shielded, since other callers may wait for the same review.
        return (await asyncio.shield(asking)).given()

    async def _ask(self, digest: bytes, token: str) -> _Answer:
        try:
            async with self._at_once:
                found = await review(self._client, token, [self._audience])
        except ApiAway as error:
            raise ReviewUnavailable(
                f"the token cannot be reviewed: {_without(token, str(error))}"
            ) from None
        except ApiRefused as error:
            raise ReviewUnavailable(
                f"Kubernetes refuses to review tokens: {_without(token, str(error))}"
            ) from None
        if found.authenticated:
            reviewed = Reviewed(found.username, found.groups, found.claim(NODE_NAME))
            answer = _Answer(reviewed, self._clock() + GOOD_S)
        else:
            answer = _Answer(None, self._clock() + BAD_S, _without(token, found.error))
        if len(self._answers) >= MAX_CACHED:
            self._answers.clear()
        self._answers[digest] = answer
        return answer

    async def close(self) -> None:
        for task in list(self._asking.values()):
            task.cancel()
        await self._client.close()


def _without(token: str, text: str) -> str:
    """The API server's text without parts of the token, because it is sent to the caller and
    logged."""
    for part in sorted({token, *token.split(".")}, key=len, reverse=True):
        if len(part) >= SHORTEST_PART:
            text = text.replace(part, "…")
    return text[:LONGEST_WHY]


def open_reviewer(
    audience: str, environment: Mapping[str, str], api_server: str
) -> KubernetesReviewer:
    """A reviewer that calls the pod's API server. Raises OSError outside a pod."""
    access = in_cluster(environment)
    if access is None:
        raise OSError(
            "kubernetes.audience: this is not a pod with a service account's token, so tokens"
            " cannot be reviewed"
        )
    if api_server:
        access = replace(access, server=api_server.rstrip("/"))
    try:
        client = ApiClient(Credentials(access), "sluice-queue", deadline_s=DEADLINE_S)
        return KubernetesReviewer(client, audience)
    except NoAccess as error:
        raise OSError(f"kubernetes.audience: {error}") from error
