"""Who looks at the page: by a one-time URL on a machine of its own, or by a Kubernetes token.

With a token the API server decides everything, asked with that very token: who it is
(SelfSubjectReview), what it may see (SelfSubjectAccessReview), and an action is the viewer's own
write. So the controller needs no right for it, and cannot be talked into using its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
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
KEPT_S: Final = 60.0
"""How long an answer about a token is believed; the same as for nodes' tokens."""
MOST_KEPT: Final = 1_000
MOST_NAMESPACES: Final = 500
"""Asked about one by one, for who may not list everywhere."""
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
"""What the right to list a cluster-wide kind shows."""


class Viewers(Protocol):
    takes_tokens: bool

    async def enter(self, secret: str) -> str:
        """Raises Refusal."""

    async def viewer(self, credential: str) -> Viewer:
        """Raises Refusal."""

    def leave(self, credential: str) -> None: ...


class ByTicket:
    """The caller who asked for the URL over the socket; the table of rights says the rest."""

    takes_tokens = False

    def __init__(self, tickets: Tickets[Caller]) -> None:
        self._tickets = tickets

    async def enter(self, secret: str) -> str:
        redeemed = self._tickets.redeem(secret, monotonic())
        if redeemed is None:
            raise Refusal(
                403,
                "this URL has been used, or is older than two minutes: `sluice-queue web` gives"
                " another",
            )
        session, whom = redeemed
        log.info("page: a session for %s", whom.shown)
        return session

    async def viewer(self, credential: str) -> Viewer:
        caller = self._tickets.whose(credential, monotonic())
        if caller is None:
            raise Refusal(401, "your session is over: `sluice-queue web` gives another URL")
        sight = EVERYTHING if may(caller, Act.LIST) else Sight()
        if not caller.admin:  # evidence names other users' processes
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
    takes_tokens = True

    def __init__(self, access: Access, namespaces: Callable[[], Iterable[str]]) -> None:
        """`namespaces`: those where somebody could have work."""
        self._access = access
        self._namespaces = namespaces
        self._kept: dict[bytes, _Kept] = {}
        self._asking: dict[bytes, asyncio.Task[Viewer]] = {}
        self._at_once = asyncio.Semaphore(AT_ONCE)

    async def enter(self, secret: str) -> str:
        await self.viewer(secret)
        return secret

    def leave(self, credential: str) -> None:
        self._kept.pop(_digest(credential), None)

    async def viewer(self, credential: str) -> Viewer:
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
                    raise Refusal(401, "Kubernetes does not take this token") from None
                raise Refusal(502, f"Kubernetes: {refused}") from None
            except ApiAway as error:
                raise Refusal(503, f"Kubernetes cannot be asked: {error}") from None
            finally:
                await client.close()
        if len(self._kept) >= MOST_KEPT:
            self._kept.clear()
        self._kept[digest] = _Kept(viewer, monotonic() + KEPT_S)
        return viewer

    def client(self, token: str) -> ApiClient:
        """As the token's owner: the controller's own credentials stay out of it. Raises
        Refusal."""
        access = replace(
            self._access,
            token=Secret(token.encode(errors="replace")),
            certificate=Secret(),
            key=Secret(),
        )
        if not token.isascii() or not token.isprintable():
            raise Refusal(401, "that is no token")
        try:
            return ApiClient(Credentials(access), "sluice-queue-page", AT_ONCE, DEADLINE_S)
        except NoAccess as error:
            raise Refusal(503, str(error)) from None

    async def _review(self, client: ApiClient, token: str) -> Viewer:
        made = {"apiVersion": SELF_REVIEWS.api_version, "kind": SELF_REVIEWS.kind}
        answer = await client.create(SELF_REVIEWS, made)
        name = str(((answer.get("status") or {}).get("userInfo") or {}).get("username") or "")
        if not name or name == "system:anonymous":
            raise Refusal(401, "Kubernetes does not take this token")
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
        names = sorted(set(self._namespaces()))[:MOST_NAMESPACES]
        answers = await asyncio.gather(*(allowed(client, "list", WORKLOADS, one) for one in names))
        return frozenset(name for name, is_in in zip(names, answers, strict=True) if is_in)


async def allowed(
    client: ApiClient, verb: str, resource: Resource, namespace: str = "", name: str = ""
) -> bool:
    """Raises ApiRefused, ApiAway."""
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
