"""Viewers of the page, authenticated by a one-time URL in standalone mode or by a Kubernetes token.

With a token, the API server authenticates and authorizes the viewer by requests made with that
token: the name (SelfSubjectReview), the visible objects (SelfSubjectAccessReview), and each action
as the viewer's own write. The controller's own rights are therefore never used for a viewer.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, Final, Protocol

from queuecontroller.cluster.cache.kinds import (
    CLUSTER_QUEUES,
    COHORTS,
    FLAVORS,
    LOCAL_QUEUES,
    TOPOLOGIES,
    WORKLOADS,
)
from queuecontroller.state.access import Act, Caller, may
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.credentials import Access, Credentials, NoAccess, Secret
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused
from sluicecommon.kubernetes.resources import NODES, Resource
from sluicecommon.page.board import Sight
from sluicecommon.page.tickets import Tickets
from sluicecommon.web.page import Refusal, Viewer

log = logging.getLogger(__name__)

EVERYTHING: Final = Sight(
    frozenset(
        {
            "Overview",
            "ClusterQueue",
            "Cohort",
            "ResourceFlavor",
            "Topology",
            "Node",
            "Gpu",
            "Event",
            "Detection",
        }
    ),
    None,
)
KEPT_S: Final = 30.0
"""How long a review of a token is cached: rights that are taken away end after so long."""
MAX_CACHED: Final = 1_000
MAX_NAMESPACES: Final = 500
"""Namespaces reviewed one by one for viewers without the right to list in all."""
AT_ONCE: Final = 8
DEADLINE_S: Final = 10.0
SELF_REVIEWS: Final = Resource(
    "authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False
)
ACCESS_REVIEWS: Final = Resource(
    "authorization.k8s.io",
    "v1",
    "selfsubjectaccessreviews",
    "SelfSubjectAccessReview",
    namespaced=False,
)
ACTED_ON: Final[Mapping[str, Resource]] = {
    "Workload": WORKLOADS,
    "ClusterQueue": CLUSTER_QUEUES,
    "LocalQueue": LOCAL_QUEUES,
}
SIGHTS: Final[tuple[tuple[Resource, frozenset[str]], ...]] = (
    (CLUSTER_QUEUES, frozenset({"Overview", "ClusterQueue"})),
    (COHORTS, frozenset({"Cohort"})),
    (FLAVORS, frozenset({"ResourceFlavor"})),
    (TOPOLOGIES, frozenset({"Topology"})),
    (NODES, frozenset({"Node", "Gpu", "Event", "Detection"})),
)
"""Kinds of documents that the right to list a cluster-wide kind makes visible."""


class Viewers(Protocol):
    takes_tokens: bool

    async def enter(self, secret: str) -> str:
        """Log in; returns the session's credential. Raises Refusal."""

    async def viewer(self, credential: str) -> Viewer:
        """The viewer of a session. Raises Refusal."""

    def leave(self, credential: str) -> None: ...


class ByTicket:
    """Viewers with a one-time URL: the caller that requested it, with its rights in the access
    table."""

    takes_tokens = False

    def __init__(self, tickets: Tickets[Caller]) -> None:
        self._tickets = tickets

    async def enter(self, secret: str) -> str:
        redeemed = self._tickets.redeem(secret, monotonic())
        if redeemed is None:
            raise Refusal(
                403,
                "this URL has been used, or is older than two minutes: run `sluice-queue web` for"
                " a new one",
            )
        session, whom = redeemed
        log.info("page: session opened for %s", whom.shown)
        return session

    async def viewer(self, credential: str) -> Viewer:
        caller = self._tickets.whose(credential, monotonic())
        if caller is None:
            raise Refusal(401, "your session has ended: run `sluice-queue web` for a new URL")
        sight = EVERYTHING if may(caller, Act.LIST) else Sight()
        if not caller.admin:  # Evidence contains the names of other users' processes.
            sight = replace(sight, kinds=sight.kinds - {"Detection"})
        rights = {"actions": "all" if caller.admin else "own", "user": caller.user, "whatif": True}
        return Viewer(caller.user or caller.shown, sight, rights, caller)

    def leave(self, credential: str) -> None:
        self._tickets.end(credential)


@dataclass(frozen=True, slots=True)
class _Kept:
    viewer: Viewer
    until_s: float


class ByToken:
    """Viewers with a Kubernetes token. The browser gets the name of a session and never the token:
    cookies reach every port of their host, and the token is good for the whole API. Sessions are
    this replica's, and end with it."""

    takes_tokens = True

    def __init__(self, access: Access, namespaces: Callable[[], Iterable[str]]) -> None:
        """`namespaces` returns the namespaces that have a LocalQueue."""
        self._access = access
        self._sessions: Tickets[str] = Tickets(lambda: secrets.token_urlsafe(32))
        self._namespaces = namespaces
        self._kept: dict[bytes, _Kept] = {}
        self._asking: dict[bytes, asyncio.Task[Viewer]] = {}
        self._at_once = asyncio.Semaphore(AT_ONCE)

    async def enter(self, secret: str) -> str:
        await self.viewer(secret)
        return self._sessions.begin(secret, monotonic())

    def leave(self, credential: str) -> None:
        self._kept.pop(_digest(self._token(credential)), None)
        self._sessions.end(credential)

    def _token(self, credential: str) -> str:
        """The token of a session, or the credential itself, as a proxy sends it in the header
        Authorization."""
        return self._sessions.whose(credential, monotonic()) or credential

    async def viewer(self, credential: str) -> Viewer:
        credential = self._token(credential)
        digest = _digest(credential)
        known = self._kept.get(digest)
        if known is not None and monotonic() < known.until_s:
            return known.viewer
        asking = self._asking.get(digest)
        if asking is None:
            asking = asyncio.get_running_loop().create_task(self._ask(digest, credential))
            self._asking[digest] = asking
            asking.add_done_callback(lambda _: self._asking.pop(digest, None))
        return await asyncio.shield(asking)

    async def _ask(self, digest: bytes, token: str) -> Viewer:
        async with self._at_once:
            client = self.client(token)
            try:
                viewer = await self._review(client, token)
            except ApiRefused as refused:
                if refused.status == 401:
                    raise Refusal(401, "Kubernetes rejects this token") from None
                raise Refusal(502, f"Kubernetes: {refused}") from None
            except ApiAway as error:
                raise Refusal(503, f"the API server cannot be reached: {error}") from None
            finally:
                await client.close()
        if len(self._kept) >= MAX_CACHED:
            self._kept.clear()
        self._kept[digest] = _Kept(viewer, monotonic() + KEPT_S)
        return viewer

    def client(self, token: str) -> ApiClient:
        """A client with the viewer's token and without the controller's credentials. Raises
        Refusal."""
        access = replace(
            self._access,
            token=Secret(token.encode(errors="replace")),
            certificate=Secret(),
            key=Secret(),
        )
        if not token.isascii() or not token.isprintable():
            raise Refusal(401, "this is not a token")
        try:
            return ApiClient(Credentials(access), "sluice-queue-page", AT_ONCE, DEADLINE_S)
        except NoAccess as error:
            raise Refusal(503, str(error)) from None

    async def _review(self, client: ApiClient, token: str) -> Viewer:
        made = {"apiVersion": SELF_REVIEWS.api_version, "kind": SELF_REVIEWS.kind}
        answer = await client.create(SELF_REVIEWS, made)
        name = str(((answer.get("status") or {}).get("userInfo") or {}).get("username") or "")
        if not name or name == "system:anonymous":
            raise Refusal(401, "Kubernetes rejects this token")
        asked = [allowed(client, "list", WORKLOADS)]
        asked += [allowed(client, "list", resource) for resource, _ in SIGHTS]
        everywhere, *wide = await asyncio.gather(*asked)
        kinds: frozenset[str] = frozenset()
        for (_, shown), is_allowed in zip(SIGHTS, wide, strict=True):
            kinds |= shown if is_allowed else frozenset()
        namespaces = None if everywhere else await self._own(client)
        sight = Sight(kinds, namespaces)
        rights = {
            "actions": "ask",
            "user": name,
            "whatif": everywhere and EVERYTHING.kinds <= kinds,
        }
        return Viewer(name, sight, rights, token)

    async def _own(self, client: ApiClient) -> frozenset[str]:
        names = sorted(set(self._namespaces()))[:MAX_NAMESPACES]
        answers = await asyncio.gather(*(allowed(client, "list", WORKLOADS, one) for one in names))
        return frozenset(name for name, is_in in zip(names, answers, strict=True) if is_in)


async def allowed(
    client: ApiClient, verb: str, resource: Resource, namespace: str = "", name: str = ""
) -> bool:
    """True if the client's user has the right. Raises ApiRefused, ApiAway."""
    attributes = {
        "verb": verb,
        "group": resource.group,
        "resource": resource.plural,
        **({"namespace": namespace} if namespace else {}),
        **({"name": name} if name else {}),
    }
    answer = await client.create(
        ACCESS_REVIEWS,
        {
            "apiVersion": ACCESS_REVIEWS.api_version,
            "kind": ACCESS_REVIEWS.kind,
            "spec": {"resourceAttributes": attributes},
        },
    )
    status: Any = answer.get("status") or {}
    return status.get("allowed") is True


def _digest(credential: str) -> bytes:
    return hashlib.sha256(credential.encode(errors="replace")).digest()
