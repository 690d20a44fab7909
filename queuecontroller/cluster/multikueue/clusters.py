"""Connections to the workers that MultiKueueClusters name, and the condition Active of each."""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections.abc import Callable
from time import monotonic
from typing import Final

from queuecontroller.cluster.admissionchecks.status_writer import CheckStatusWriter
from queuecontroller.cluster.cache.kinds import MULTIKUEUE_CLUSTERS as CLUSTERS
from queuecontroller.cluster.cache.multikueue import KUBECONFIG_KEY, MultiKueueSettings
from queuecontroller.cluster.cache.objects import Document, ObjectCache, is_leaving
from queuecontroller.cluster.multikueue.kubeconfig import BAD, Unusable, at_path, read_access
from queuecontroller.cluster.multikueue.worker import (
    CONNECTIONS,
    DEADLINE_S,
    LARGEST_ANSWER_BYTES,
    LONGEST_TEXT,
    WorkerLink,
)
from queuecontroller.scheduler.model.reasons import ACTIVE
from sluicecommon import yaml_text
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.credentials import Access, Credentials, NoAccess
from sluicecommon.kubernetes.errors import ApiRefused
from sluicecommon.kubernetes.resources import Resource

log = logging.getLogger(__name__)
SECRETS: Final = Resource("", "v1", "secrets", "Secret")
READ_S: Final = 30.0
"""Seconds between two reads of a kubeconfig: its Secret is not watched, which would need the right
to list all Secrets of the namespace."""
GRACE_S: Final = 5.0
"""Seconds that a worker may be unreachable before its condition Active becomes False."""
NO_PROFILE: Final = "MultiKueueClusterProfileFeatureDisabled"
FAILED: Final = "ClientConnectionFailed"


class Clusters:
    def __init__(
        self,
        client: ApiClient,
        cache: ObjectCache,
        status_writer: CheckStatusWriter,
        settings: MultiKueueSettings,
        namespace: str,
        link: Callable[[str, ApiClient], WorkerLink],
    ) -> None:
        """`namespace` has the Secrets; `link` makes the connection of a worker."""
        self._client = client
        self._cache = cache
        self._status_writer = status_writer
        self._settings = settings
        self._namespace = namespace
        self._link = link
        self.links: dict[str, WorkerLink] = {}
        self._access: dict[str, Access] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._clients: dict[str, ApiClient] = {}
        self._lost_at_s: dict[str, float] = {}
        """Since when workers without a connection have had none."""

    def lost_s(self, name: str) -> float | None:
        """Return the seconds for which a worker has been unreachable; None if it is reachable."""
        link = self.links.get(name)
        if link is not None:
            return link.lost_s
        return monotonic() - self._lost_at_s.setdefault(name, monotonic())

    async def reconcile(self, name: str) -> float | None:
        """Connect to a worker, or end its connection, and write its condition; returns the seconds
        until it is to be called again."""
        document = self._cache.get(CLUSTERS, name)
        if document is None or is_leaving(document):
            await self._stop(name)
            return None
        try:
            access = await self._read(document)
            if self._access.get(name) != access:
                await self._stop(name)
                self._start(name, access)
        except Unusable as error:
            await self._stop(name)
            text = f"load client config failed: {error}"[:LONGEST_TEXT]
            await self._write(document, False, error.reason, text)
            return READ_S
        link = self.links[name]
        lost_s = link.lost_s
        if lost_s is None:
            await self._write(document, True, ACTIVE, "Connected")
        elif lost_s < GRACE_S:
            return GRACE_S - lost_s
        else:
            await self._write(document, False, FAILED, link.trouble)
        return READ_S

    async def _write(self, document: Document, active: bool, reason: str, message: str) -> None:
        await self._status_writer.write_condition(CLUSTERS, document, active, reason, message)

    async def _read(self, document: Document) -> Access:
        """Read the kubeconfig of a worker. Raises Unusable, ApiAway."""
        source = (document.get("spec") or {}).get("clusterSource") or {}
        given = source.get("kubeConfig")
        if not given:
            raise Unusable(NO_PROFILE, "ClusterProfiles are not supported: name a kubeConfig")
        location = str(given.get("location") or "")
        if given.get("locationType") == "Path":
            return read_access(at_path(location, self._settings.kubeconfigs), yaml_text.read)
        try:
            found = await self._client.get(SECRETS, location, self._namespace)
        except ApiRefused as refused:
            raise Unusable(BAD, f"Secret {self._namespace}/{location}: {refused}") from None
        encoded = (found.get("data") or {}).get(KUBECONFIG_KEY)
        if not isinstance(encoded, str):
            text = f"Secret {self._namespace}/{location} has no key {KUBECONFIG_KEY}"
            raise Unusable(BAD, text)
        try:
            return read_access(base64.b64decode(encoded), yaml_text.read)
        except binascii.Error:
            raise Unusable(BAD, f"Secret {self._namespace}/{location} is malformed") from None

    def _start(self, name: str, access: Access) -> None:
        """Raises Unusable."""
        try:
            credentials = Credentials(access)
            credentials.tls()
            client = ApiClient(
                credentials,
                "sluice-queue-multikueue",
                CONNECTIONS,
                DEADLINE_S,
                largest_bytes=LARGEST_ANSWER_BYTES,
            )
        except NoAccess as error:
            raise Unusable(BAD, str(error)[:LONGEST_TEXT]) from None
        link = self._link(name, client)
        since_s = self._lost_at_s.pop(name, None)
        if since_s is not None:
            link.lost_at_s = since_s
        self.links[name], self._access[name], self._clients[name] = link, access, client
        self._running[name] = asyncio.create_task(link.run(), name=f"worker {name}")
        log.info("worker %s: connecting to %s", name, access.server)

    async def _stop(self, name: str) -> None:
        link = self.links.pop(name, None)
        if link is None:
            return
        self._lost_at_s[name] = monotonic() if link.lost_at_s is None else link.lost_at_s
        self._access.pop(name)
        await _end(self._running.pop(name), self._clients.pop(name))

    async def close(self) -> None:
        for name in list(self.links):
            await self._stop(name)


async def _end(task: asyncio.Task[None], client: ApiClient) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await client.close()
