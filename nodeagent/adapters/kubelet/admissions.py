"""Reads Kueue's Workloads from the API server, for queued pods that start. Implements
Admissions."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from nodeagent.core.kubelet.admitted import JOB_UID, is_admitted, is_for, why_pending
from nodeagent.ports.kubelet import KubeletAway
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.decoding import BadAnswer, Decoder
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused
from sluicecommon.kubernetes.resources import Resource

WORKLOADS: Final = Resource("kueue.x-k8s.io", "v1beta2", "workloads", "Workload")
NONE: Final = (
    "no Workload of it is admitted; if it was created while the queue controller was away, delete"
    " it, and its controller creates it again"
)


class ApiAdmissions:
    def __init__(self, client: ApiClient) -> None:
        self._client = client

    async def why_not(
        self, namespace: str, name: str, uids: Collection[str], all_known: bool
    ) -> str:
        try:
            return await self._why_not(namespace, name, uids, all_known)
        except ApiRefused as refused:
            raise KubeletAway(f"its Workload cannot be read: {refused}") from None
        except (ApiAway, BadAnswer) as error:
            raise KubeletAway(f"its Workload cannot be read: {error}") from None
        except (KeyError, TypeError, AttributeError) as error:
            raise KubeletAway(f"its Workload is not an object: {error!r}") from None

    async def _why_not(
        self, namespace: str, name: str, uids: Collection[str], all_known: bool
    ) -> str:
        pending = ""
        if name:
            try:
                found = await self._client.get(WORKLOADS, name, namespace)
            except ApiRefused as refused:
                if not refused.not_found:
                    raise
            else:
                mine = is_for(found, uids) or not all_known
                if mine and is_admitted(found):
                    return ""
                pending = why_pending(found) if mine else f"Workload {name} is another job's"
        # An elastic job's pods may name an earlier slice.
        selector = f"{JOB_UID} in ({','.join(sorted(uids))})"
        page = Decoder(lambda document: (is_admitted(document), why_pending(document))).page(
            await self._client.list_page(WORKLOADS, (("labelSelector", selector),), namespace)
        )
        for item in page.items:
            admitted, why = item.value
            if admitted:
                return ""
            pending = why or pending
        return pending or NONE
