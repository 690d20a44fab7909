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

from queuecontroller.server.callers.authenticator import NotVouched, Reviewed, ReviewUnavailable
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.credentials import Credentials, NoAccess, in_cluster
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused
from sluicecommon.kubernetes.reviews import NODE_NAME, review

GOOD_S: Final = 60.0
BAD_S: Final = 10.0
MOST_KEPT: Final = 10_000
LONGEST_TOKEN: Final = 8192
MOST_ASKED: Final = 8
"""Questions under way at once."""
DEADLINE_S: Final = 4.0
"""For a question. A node waits 5 s for its report to be answered: it should hear why it is not."""
LONGEST_WHY: Final = 300
SHORTEST_PART: Final = 8
"""Characters of a token that would say something of it in a text."""


@dataclass(frozen=True, slots=True)
class _Answer:
    reviewed: Reviewed | None
    until_s: float
    why: str = ""
    """Where it is None."""

    def given(self) -> Reviewed:
        """Raises NotVouched."""
        if self.reviewed is None:
            raise NotVouched(f"Kubernetes does not vouch for the token: {self.why}")
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
        self._at_once = asyncio.Semaphore(MOST_ASKED)

    async def review(self, token: str) -> Reviewed:
        """Raises NotVouched, ReviewUnavailable."""
        if not 0 < len(token) <= LONGEST_TOKEN:
            raise NotVouched(f"a token has 1 to {LONGEST_TOKEN} characters; this has {len(token)}")
        digest = hashlib.sha256(token.encode(errors="replace")).digest()  # tokens are not kept
        known = self._answers.get(digest)
        if known is not None and self._clock() < known.until_s:
            return known.given()
        asking = self._asking.get(digest)
        if asking is None:
            asking = asyncio.get_running_loop().create_task(self._ask(digest, token))
            self._asking[digest] = asking
            asking.add_done_callback(lambda _: self._asking.pop(digest, None))
        # Shielded: one caller that hangs up must not take the answer from the others.
        return (await asyncio.shield(asking)).given()

    async def _ask(self, digest: bytes, token: str) -> _Answer:
        try:
            async with self._at_once:
                found = await review(self._client, token, [self._audience])
        except ApiAway as error:
            raise ReviewUnavailable(
                f"Kubernetes cannot be asked about the token: {_without(token, str(error))}"
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
        if len(self._answers) >= MOST_KEPT:
            self._answers.clear()
        self._answers[digest] = answer
        return answer

    async def close(self) -> None:
        for task in list(self._asking.values()):
            task.cancel()
        await self._client.close()


def _without(token: str, text: str) -> str:
    """What somebody else says of a token goes to its bearer and into the log: never a part of the
    token itself."""
    for part in sorted({token, *token.split(".")}, key=len, reverse=True):
        if len(part) >= SHORTEST_PART:
            text = text.replace(part, "…")
    return text[:LONGEST_WHY]


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
        client = ApiClient(Credentials(access), "sluice-queue", deadline_s=DEADLINE_S)
        return KubernetesReviewer(client, audience)
    except NoAccess as error:
        raise OSError(f"kubernetes.audience: {error}") from error
