"""ResourceClaims and ResourceSlices at the API server, through the node's own client.

Imported only on a node that has access to an API server, because it loads the HTTP client. A claim
is read when it is prepared, by name, and its UID is compared; slices are followed by a watch of
this driver's on this node.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

from nodeagent.core.dra.allocation import read_claim
from nodeagent.ports.dra.claims import (
    DRIVER,
    ClaimAllocation,
    ClaimGone,
    ClaimRef,
    ClaimsAway,
)
from nodeagent.ports.dra.pool import Conflict, PoolAway
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.decoding import BadAnswer, Decoder
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused
from sluicecommon.kubernetes.following import Follower
from sluicecommon.kubernetes.reflector import Change, Changed, Reflector, Removed
from sluicecommon.kubernetes.resources import RESOURCE_CLAIMS, RESOURCE_SLICES

T = TypeVar("T")
PAGE: Final = 500
_NO_API: Final = (
    "the API server has no resource.k8s.io/v1 (Kubernetes 1.34 and later has): set"
    ' door = "device-plugin"'
)


class ApiClaims:
    """Implements ClaimSource and ClaimStatus. `node` is the node's name and its pool's."""

    def __init__(self, client: ApiClient, node: str) -> None:
        self._client = client
        self._node = node

    async def allocation(self, claim: ClaimRef) -> ClaimAllocation:
        try:
            document = await self._client.get(RESOURCE_CLAIMS, claim.name, claim.namespace)
        except ApiRefused as refused:
            if refused.not_found:
                raise ClaimGone(f"claim {claim} was deleted") from None
            raise ClaimsAway(f"claim {claim} cannot be read: {refused}") from None
        except ApiAway as error:
            raise ClaimsAway(f"claim {claim} cannot be read: {error}") from None
        uid = (document.get("metadata") or {}).get("uid")
        if uid != claim.uid:
            raise ClaimGone(f"claim {claim} was recreated (UID differs): {uid!s:.64}")
        return read_claim(document, claim, self._node)

    async def write(self, claim: ClaimRef, devices: list[dict[str, Any]]) -> None:
        document = {
            "apiVersion": RESOURCE_CLAIMS.api_version,
            "kind": RESOURCE_CLAIMS.kind,
            "metadata": {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid},
            "status": {"devices": devices},
        }
        await _translated(
            self._client.apply(
                RESOURCE_CLAIMS, claim.name, document, DRIVER, claim.namespace, "status"
            )
        )

    async def promised(self) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = []
        more = ""
        while True:
            parameters = [("limit", str(PAGE)), *([("continue", more)] if more else [])]
            body = await _translated(self._client.list_page(RESOURCE_CLAIMS, parameters))
            try:
                page = Decoder(self._ours).page(body)
            except BadAnswer as error:
                raise PoolAway(f"claims cannot be read: {error}") from error
            found += [item.value for item in page.items if item.value is not None]
            more = page.more
            if not more:
                return found

    def _ours(self, document: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Keep a watched claim only if it has a device of this node's pool."""
        status = document.get("status") or {}
        devices = (status.get("allocation") or {}).get("devices") or {}
        results = devices.get("results") or ()
        ours = any(one["driver"] == DRIVER and one["pool"] == self._node for one in results)
        return document if ours else None


class ApiSlices:
    """Implements SliceStore and Endpoint."""

    def __init__(
        self,
        client: ApiClient,
        node: str,
        node_uid: Callable[[], str],
    ) -> None:
        self._client = client
        self._node_uid = node_uid
        self._known: dict[str, Mapping[str, Any]] = {}
        self._calls: list[Callable[[], None]] = []
        selector = f"spec.nodeName={node},spec.driver={DRIVER}"
        self.reflector: Reflector[Mapping[str, Any]] = Reflector(
            Decoder(dict), (("fieldSelector", selector),), _jitter
        )
        self.follower = Follower(client, RESOURCE_SLICES, self.reflector, self._changed)

    @property
    def node_uid(self) -> str:
        return self._node_uid()

    @property
    def synced(self) -> bool:
        return self.reflector.synced

    @property
    def trouble(self) -> str:
        if self.reflector.trouble.startswith("404"):
            return _NO_API
        return self.reflector.trouble

    def documents(self) -> Mapping[str, Mapping[str, Any]]:
        return self._known

    def on_change(self, call: Callable[[], None]) -> None:
        self._calls.append(call)

    def _changed(self, change: Change[Mapping[str, Any]]) -> None:
        match change:
            case Changed(item):
                if _newer(item.value, self._known.get(item.key)):
                    self._known[item.key] = item.value
            case Removed(key):
                self._known.pop(key, None)
        for call in self._calls:
            call()

    async def put(self, name: str, version: str, document: Mapping[str, Any]) -> str:
        if version:
            work = self._client.replace(RESOURCE_SLICES, name, document)
        else:
            work = self._client.create(RESOURCE_SLICES, document)
        written = await _translated(work)
        self._known[name] = written  # The watch reports it later.
        return str(written["metadata"]["resourceVersion"])

    async def delete(self, name: str, uid: str) -> None:
        try:
            await self._client.delete(RESOURCE_SLICES, name, uid=uid)
        except ApiRefused as refused:
            if not refused.not_found:
                raise _as_ours(refused) from None
        except ApiAway as error:
            raise PoolAway(str(error)) from None
        self._known.pop(name, None)


def _newer(now: Mapping[str, Any], known: Mapping[str, Any] | None) -> bool:
    """True if the written object is newer than the watched one: the watch may lag behind our own
    writes."""
    if known is None or known["metadata"]["uid"] != now["metadata"]["uid"]:
        return True
    old, new = known["metadata"]["resourceVersion"], now["metadata"]["resourceVersion"]
    return not (old.isdigit() and new.isdigit()) or int(new) >= int(old)


async def _translated(work: Awaitable[T]) -> T:
    try:
        return await work
    except ApiRefused as refused:
        raise _as_ours(refused) from None
    except ApiAway as error:
        raise PoolAway(str(error)) from None


def _as_ours(refused: ApiRefused) -> Exception:
    if refused.conflict or refused.not_found:
        return Conflict(str(refused))
    return PoolAway(str(refused))


def _jitter() -> float:
    return random.uniform(0.5, 1.5)
