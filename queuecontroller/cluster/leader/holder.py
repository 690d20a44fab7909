"""Acquires, renews and releases the Lease in the API server, as `lease` decides."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Final

from queuecontroller.cluster.cache.kinds import LEASES
from queuecontroller.cluster.cache.objects import Document
from queuecontroller.cluster.leader.lease import Elector, Write
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused

LEASE: Final = "sluice-queue"
LEADER_URL: Final = "sluice.dev/leader-url"
"""Annotation of the Lease: the URL at which other replicas reach the leader."""
GIVEN_BACK_S: Final = 2.0


class Holder:
    def __init__(
        self, client: ApiClient, elector: Elector, namespace: str, own_url: str = ""
    ) -> None:
        """`own_url`: URL at which other replicas reach this one while it leads."""
        self._client = client
        self._elector = elector
        self._namespace = namespace
        self._own_url = own_url
        self.uid = ""
        """UID of the Lease that was last written."""
        self.leader_url = ""
        """URL of the leader; "" if it is not known."""

    async def step(self) -> None:
        """Read the Lease, and write it if `lease` decides so. Raises ApiAway, ApiRefused."""
        lease: dict[str, Any] | None
        try:
            lease = await self._client.get(LEASES, LEASE, self._namespace)
        except ApiRefused as refused:
            if not refused.not_found:
                raise
            lease = None
        self.leader_url = _annotated_url(lease)
        stamp = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        asked_s = monotonic()
        write = self._elector.look(lease, asked_s, stamp)
        if write is not None:
            lease = await self._put(write, lease is None)
            self.uid = str(lease["metadata"].get("uid") or "")
            self._elector.written(write, asked_s, monotonic())

    async def give_back(self) -> None:
        """Release the lease, so the next leader need not wait for its end."""
        elector = self._elector
        if not elector.leads(monotonic()):
            return
        with contextlib.suppress(ApiAway, ApiRefused, TimeoutError):
            async with asyncio.timeout(GIVEN_BACK_S):
                lease = await self._client.get(LEASES, LEASE, self._namespace)
                if (lease.get("spec") or {}).get("holderIdentity") == elector.identity:
                    version = str(lease["metadata"]["resourceVersion"])
                    await self._put(Write(elector.released(), version), is_new=False)
        elector.lost()

    async def _put(self, write: Write, is_new: bool) -> dict[str, Any]:
        namespace = self._namespace
        annotated = {"annotations": {LEADER_URL: self._own_url}} if self._own_url else {}
        if is_new:
            head = {"name": LEASE, "namespace": namespace, **annotated}
            made = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": head}
            return await self._client.create(LEASES, {**made, "spec": dict(write.spec)}, namespace)
        return await self._client.merge_patch(
            LEASES,
            LEASE,
            {"spec": dict(write.spec), "metadata": annotated},
            namespace,
            resource_version=write.resource_version,
        )


def _annotated_url(lease: Document | None) -> str:
    found = ((lease or {}).get("metadata") or {}).get("annotations") or {}
    return str(found.get(LEADER_URL) or "")
