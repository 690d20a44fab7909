"""Asks the autoscaler for the nodes that pending GPU shares need, and withdraws what is not needed
any more.

Every `every_s` the pending requests are packed onto the present nodes and then onto new ones
(`placement.new_nodes`), and the objects in the API server are made equal to the result: one for
each new node, in the controller's own namespace. A few are created at a time. Nothing is
remembered: a new leader finds the objects by their label.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

from queuecontroller.cluster.admissionchecks.requests import POD_TEMPLATES, REQUESTS
from queuecontroller.cluster.autoscaling import objects
from queuecontroller.cluster.autoscaling.objects import NEW_NODE, Owner
from queuecontroller.cluster.autoscaling.pending import PendingGpus, Waiting
from queuecontroller.cluster.autoscaling.templates import Template
from queuecontroller.cluster.cache.kinds import WORKLOADS
from queuecontroller.cluster.cache.objects import Document, condition_of, seconds_of
from queuecontroller.cluster.status.events import KubernetesEvent
from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.model.reasons import NEW_NODES_REQUESTED, NO_NODE_TEMPLATE
from queuecontroller.scheduler.placement.new_nodes import NewNodes, in_words, new_nodes
from queuecontroller.state.shell import Shell
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused
from sluicecommon.kubernetes.resources import PODS, Resource

log = logging.getLogger(__name__)
AT_ONCE: Final = 10
"""Objects created in one round."""
PAGE: Final = 500
RETRY_S: Final = 300.0
"""Seconds until a ProvisioningRequest that failed is replaced."""
CONFLICT: Final = 409


@dataclass(frozen=True, slots=True)
class Autoscaling:
    """Settings of the requests for nodes."""

    templates: tuple[Template, ...]
    by_pods: bool = True
    """Placeholders; False: ProvisioningRequests."""
    class_name: str = ""
    """Provisioning class."""
    most: int = 20
    """New nodes at a time, over all templates."""
    waits_s: float = 15.0
    every_s: float = 10.0
    scale_down_hints: bool = False
    """True if nodes are annotated for scaling down."""


class NodeRequests:
    def __init__(
        self,
        shell: Shell,
        client: ApiClient,
        settings: Autoscaling,
        owner: Owner,
        pending: PendingGpus,
        may_write: Callable[[], bool],
        record: Callable[[Document, Resource, KubernetesEvent], None],
        workload_of: Callable[[WorkloadKey], Document | None],
        knows_all: Callable[[], bool],
    ) -> None:
        """`record` records an event about a Workload or a pod. `knows_all` returns True once all
        pods that hold GPUs are known."""
        self._shell = shell
        self._client = client
        self._settings = settings
        self._owner = owner
        self._pending = pending
        self._may_write = may_write
        self._record = record
        self._workload_of = workload_of
        self._knows_all = knows_all
        self._kind = PODS if settings.by_pods else REQUESTS
        self._templates = {one.name: one for one in settings.templates}
        self._reported: dict[str, str] = {}
        """Text of the last event about each request."""
        self._may_be_there = True
        """False once there was no object, and none was created since."""
        self.wanted: Counter[str] = Counter()
        """New nodes by template, as of the last look."""
        self.created_total = 0
        self.deleted_total = 0

    async def run(self) -> None:
        """Look and write until cancelled."""
        while True:
            began_s = monotonic()
            if self._may_write() and self._knows_all():
                try:
                    await self.reconcile()
                except (ApiAway, ApiRefused) as error:
                    log.warning("requests for new nodes: %s", error)
            # A look that took long is not followed by the next at once.
            await asyncio.sleep(max(self._settings.every_s, 10 * (monotonic() - began_s)))

    async def reconcile(self) -> None:
        found = self._look()
        self.wanted = found.nodes
        if not self.wanted and not self._may_be_there:
            return
        there = await self._list()
        over = {str(one["metadata"]["uid"]): self._is_over(one) for one in there}
        change = objects.compare(self.wanted, there, AT_ONCE, over)
        for one in change.delete:
            await self._delete(one)
        for template, name in change.create:
            await self._create(self._templates[template], name)
        if self._settings.by_pods:
            for one in there:
                if objects.needs_condition(one):
                    await self._mark(str(one["metadata"]["name"]))
        self._may_be_there = bool(there or change.create)

    # -- the look ---------------------------------------------------------------------------------

    def _look(self) -> NewNodes:
        book, now_ns = self._shell.book, self._shell.now_ns()
        book.nodes_room.follow(now_ns)
        waiting = self._pending.look(now_ns, self._settings.waits_s)
        templates = [one.node for one in self._settings.templates]
        found = new_nodes(
            book.nodes_room.stock,
            [one.request for one in waiting],
            templates,
            self._settings.most,
        )
        self._explain(waiting, found)
        return found

    def _explain(self, waiting: Sequence[Waiting], found: NewNodes) -> None:
        """Note which nodes a Workload waits for, and record an event where that is new."""
        texts: dict[str, str] = {}
        notes: dict[WorkloadKey, str] = {}
        for one in waiting:
            key = one.request.key
            if (nodes := found.waits.get(key)) is not None:
                text, reason = f"Waits for {in_words(nodes)}", NEW_NODES_REQUESTED
                if one.workload is not None:
                    notes[one.workload] = in_words(nodes)
            elif key in found.unfit:
                text, reason = f"Gets no new node: {found.unfit[key]}", NO_NODE_TEMPLATE
            else:
                continue
            texts[key] = text
            if self._reported.get(key) != text:
                self._report(one, KubernetesEvent(reason, text, reason == NO_NODE_TEMPLATE))
        self._reported = texts
        self._shell.book.new_nodes = notes

    def _report(self, one: Waiting, event: KubernetesEvent) -> None:
        if one.pod is not None:
            self._record(one.pod, PODS, event)
        elif one.workload is not None:
            workload = self._workload_of(one.workload)
            if workload is not None:
                self._record(workload, WORKLOADS, event)

    def _is_over(self, one: Document) -> bool:
        if self._settings.by_pods:
            return (one.get("status") or {}).get("phase") in ("Failed", "Succeeded")
        since = [
            seconds_of(condition_of(one, name).get("lastTransitionTime"))
            for name in objects.FINISHED
            if objects.is_finished(one)
        ]
        latest_s = max((one for one in since if one is not None), default=None)
        return latest_s is not None and self._shell.now_ns() / 1e9 - latest_s >= RETRY_S

    # -- the API server ---------------------------------------------------------------------------

    async def _list(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        token = ""
        while True:
            parameters = [("labelSelector", NEW_NODE), ("limit", str(PAGE))]
            parameters += [("continue", token)] if token else []
            body = await self._client.list_page(self._kind, parameters, self._owner.namespace)
            page = json.loads(body)
            found += page.get("items") or ()
            token = str((page.get("metadata") or {}).get("continue") or "")
            if not token:
                return found

    async def _create(self, template: Template, name: str) -> None:
        if self._settings.by_pods:
            pod = objects.placeholder(template, name, self._owner)
            await self._create_one(PODS, pod)
            await self._mark(name)
        else:
            pods, request = objects.provisioning_request(
                template, name, self._owner, self._settings.class_name
            )
            # First: the autoscaler fails a request whose template it does not find.
            await self._create_one(POD_TEMPLATES, pods)
            await self._create_one(REQUESTS, request)
        self.created_total += 1
        log.info("a new node of template %s is requested: %s", template.name, name)

    async def _create_one(self, kind: Resource, document: dict[str, Any]) -> None:
        try:
            await self._client.create(kind, document, self._owner.namespace)
        except ApiRefused as refused:
            if refused.status != CONFLICT:
                raise

    async def _mark(self, name: str) -> None:
        """Write the condition by which autoscalers find a placeholder."""
        patch = {"status": {"conditions": [objects.UNSCHEDULABLE]}}
        try:
            await self._client.merge_patch(PODS, name, patch, self._owner.namespace, "status")
        except ApiRefused as refused:
            if not refused.not_found:
                raise

    async def _delete(self, one: Document) -> None:
        head = one["metadata"]
        kinds = [self._kind] if self._settings.by_pods else [REQUESTS, POD_TEMPLATES]
        for kind in kinds:
            uid = str(head["uid"]) if kind == self._kind else ""
            try:
                await self._client.delete(kind, head["name"], self._owner.namespace, uid)
            except ApiRefused as refused:
                if not refused.not_found and not refused.conflict:
                    raise
        self.deleted_total += 1
