"""Creates the ResourceClaimTemplates that pods need; each is named after the shares that it
requests.

Kubernetes creates a pod's claim as soon as the template exists, so it may be created after the pod.
A template that was deleted is created again for the next pod that needs it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable, Mapping
from typing import Any, Final

from queuecontroller.gpushares.admission import share_of, template_of
from queuecontroller.gpushares.admission.names import SHARE_LABEL
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.decoding import Decoder
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused
from sluicecommon.kubernetes.following import Follower
from sluicecommon.kubernetes.reflector import Change, Changed, Reflector, Removed
from sluicecommon.kubernetes.resources import RESOURCE_CLAIM_TEMPLATES

log = logging.getLogger(__name__)
AGAIN_S: Final = 5.0
MAX_WAITING: Final = 10_000
"""Templates queued to be created; further ones are queued with their pods' next change."""


class Templates:
    def __init__(self) -> None:
        self._there: set[str] = set()
        """Keys of the templates that exist."""
        self._wanted: dict[tuple[str, str], None] = {}
        self._new = asyncio.Event()
        self.made_total = 0

    def want(self, names: Iterable[tuple[str, str]]) -> None:
        for namespace, name in names:
            if f"{namespace}/{name}" not in self._there and len(self._wanted) < MAX_WAITING:
                self._wanted[namespace, name] = None
                self._new.set()

    def follow(self, group: asyncio.TaskGroup, client: ApiClient) -> Follower[str]:
        """Watch existing templates, and create the missing ones."""
        reflector: Reflector[str] = Reflector(
            Decoder(_name_of),
            (("labelSelector", f"{SHARE_LABEL}=true"),),
            jitter=lambda: random.uniform(0.5, 1.5),
        )
        follower = Follower(client, RESOURCE_CLAIM_TEMPLATES, reflector, self.changed)
        group.create_task(follower.run())
        group.create_task(self._make_all(client))
        return follower

    def changed(self, change: Change[str]) -> None:
        match change:
            case Changed(item):
                self._there.add(item.key)
            case Removed(key):
                self._there.discard(key)
            case _:
                pass

    async def _make_all(self, client: ApiClient) -> None:
        while True:
            await self._new.wait()
            self._new.clear()
            while self._wanted:
                namespace, name = next(iter(self._wanted))
                if not await self._make(client, namespace, name):
                    await asyncio.sleep(AGAIN_S)
                    continue
                self._wanted.pop((namespace, name), None)

    async def _make(self, client: ApiClient, namespace: str, name: str) -> bool:
        """Create a template; returns False to be tried again."""
        share = share_of(name)
        if share is None or f"{namespace}/{name}" in self._there:
            return True
        try:
            await client.create(RESOURCE_CLAIM_TEMPLATES, template_of(share), namespace)
        except ApiRefused as refused:
            if not refused.conflict:  # A conflict: another replica has created it.
                log.warning(
                    "cannot create ResourceClaimTemplate %s/%s: %s", namespace, name, refused
                )
            return True
        except ApiAway as error:
            log.warning(
                "cannot create ResourceClaimTemplate %s/%s, trying again: %s",
                namespace,
                name,
                error,
            )
            return False
        self._there.add(f"{namespace}/{name}")
        self.made_total += 1
        return True


def _name_of(document: Mapping[str, Any]) -> str:
    return str(document["metadata"]["name"])
