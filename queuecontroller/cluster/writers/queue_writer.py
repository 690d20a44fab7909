"""Writes the status of queues and cohorts, and the finalizers of objects that are in use.

However much changes, each object is written at most once a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from queuecontroller.cluster.cache.kinds import (
    CHECKS,
    CLUSTER_QUEUES,
    COHORTS,
    FLAVORS,
    IN_USE,
    LOCAL_QUEUES,
    TOPOLOGIES,
)
from queuecontroller.cluster.cache.mirror import Mirror
from queuecontroller.cluster.cache.objects import Document, is_leaving, pruned
from queuecontroller.cluster.status.queue_status import QueueStatus, differing
from queuecontroller.cluster.writers.workqueue import WorkQueue
from queuecontroller.state.records import ObjectId
from queuecontroller.state.shell import Shell
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.errors import ApiRefused
from sluicecommon.kubernetes.resources import Resource

WIDTH: Final = 2
COALESCED_S: Final = 1.0
WITH_STATUS: Final = {one.kind: one for one in (CLUSTER_QUEUES, LOCAL_QUEUES, COHORTS)}
"""Kinds whose status is written here."""
HELD: Final = {one.kind: one for one in (CLUSTER_QUEUES, FLAVORS, CHECKS, TOPOLOGIES)}
"""Kinds that are kept by a finalizer while they are used."""
KEPT: Final = WITH_STATUS | HELD


class QueueWriter:
    def __init__(
        self, shell: Shell, mirror: Mirror, client: ApiClient, may_write: Callable[[], bool]
    ) -> None:
        self._shell = shell
        self._mirror = mirror
        self._client = client
        self._may_write = may_write
        self.status = QueueStatus(mirror)
        self.work_queue: WorkQueue[ObjectId] = WorkQueue("status of", self._write, WIDTH)
        self.writes_total = 0

    def add(self, identities: Iterable[ObjectId]) -> None:
        for one in identities:
            if one[0] in KEPT:
                self.work_queue.add_after(one, COALESCED_S)

    def add_all(self) -> None:
        for kind in KEPT.values():
            for document in self._mirror.cache.all_of(kind):
                head = document["metadata"]
                self.add([(kind.kind, head.get("namespace") or "", head["name"])])

    async def _write(self, identity: ObjectId) -> None:
        kind, namespace, name = identity
        resource = KEPT[kind]
        key = f"{namespace}/{name}" if namespace else name
        document = self._mirror.cache.get(resource, key)
        if document is None or not self._may_write():
            return
        try:
            if kind in WITH_STATUS and self._stays(kind, name, document):
                wanted = self.status.status(document, self._shell.now_ns())
                patch = differing(document, wanted)
                if patch:
                    document = await self._send(resource, document, {"status": patch}, "status")
            if kind in HELD:
                finalizers = self._finalizers(kind, name, document)
                if finalizers is not None:
                    patch = {"metadata": {"finalizers": finalizers}}
                    await self._send(resource, document, patch)
        except ApiRefused as refused:
            if not refused.conflict and not refused.not_found:
                raise
            self.add([identity])

    async def _send(
        self, resource: Resource, document: Document, patch: dict[str, Any], part: str = ""
    ) -> Document:
        head = document["metadata"]
        self.writes_total += 1
        answer = await self._client.merge_patch(
            resource,
            head["name"],
            patch,
            head.get("namespace") or "",
            part,
            str(head["resourceVersion"]),
        )
        found = pruned(answer)
        self._mirror.cache.update(resource, found)
        return found

    def _finalizers(self, kind: str, name: str, document: Document) -> list[str] | None:
        """Return the finalizers to write; None if they stay."""
        found = list(document["metadata"].get("finalizers") or ())
        if not is_leaving(document):
            return None if IN_USE in found else [*found, IN_USE]
        if IN_USE not in found or self._is_used(kind, name):
            return None
        return [one for one in found if one != IN_USE]

    def _stays(self, kind: str, name: str, document: Document) -> bool:
        """Return False for an object that is about to go; a deleted ClusterQueue stays while
        Workloads hold its quota."""
        return not is_leaving(document) or (kind in HELD and self._is_used(kind, name))

    def _is_used(self, kind: str, name: str) -> bool:
        engine = self._mirror.book.engine
        queues = engine.cache.queues
        if kind == "ClusterQueue":
            return name in queues and bool(queues[name].workloads)
        if kind == "Topology":
            flavors = self._mirror.cache.all_of(FLAVORS)
            return any((one.get("spec") or {}).get("topologyName") == name for one in flavors)
        specs = [state.spec for state in queues.values()]
        if kind == "AdmissionCheck":
            return any(rule.name == name for one in specs for rule in one.admission_checks)
        return any(
            flavor.flavor == name
            for one in specs
            for group in one.resource_groups
            for flavor in group.flavors
        )
