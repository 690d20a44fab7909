"""Carries out the decisions of `provisioning`: answers checks, creates requests with their
templates, and deletes the ones that are not needed any more.

Templates are created first, owned by the Workload, so that none is left over if creating the
request fails; afterwards the request owns them, and they are deleted with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from queuecontroller.cluster.admissionchecks.provisioning import CONTROLLER, config_of, decide
from queuecontroller.cluster.admissionchecks.requests import POD_TEMPLATES, REQUESTS, Config, Making
from queuecontroller.cluster.admissionchecks.states import (
    Answer,
    State,
    check_by,
    checks_by,
    checks_of,
)
from queuecontroller.cluster.admissionchecks.status_writer import CheckStatusWriter
from queuecontroller.cluster.admissionchecks.stored import AnswersStored, Stored
from queuecontroller.cluster.cache.kinds import CHECKS, FLAVORS, WORKLOADS, of_kueue
from queuecontroller.cluster.cache.mirror import Mirror
from queuecontroller.cluster.cache.objects import (
    Document,
    covers,
    is_answered_by,
    key_of,
    pruned,
)
from queuecontroller.cluster.status.events import KubernetesEvent
from queuecontroller.cluster.writers.event_recorder import EventRecorder
from queuecontroller.cluster.writers.workqueue import WorkQueue
from queuecontroller.frameworks import pod_set_infos
from queuecontroller.scheduler.model.reasons import FAILED_CREATE, PROVISIONING_REQUEST_CREATED
from queuecontroller.state.shell import Shell
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.errors import ApiRefused
from sluicecommon.kubernetes.resources import Resource
from sluicecommon.reader import ManifestError

CONFIGS: Final = of_kueue("ProvisioningRequestConfig")
WIDTH: Final = 4
CONFLICT: Final = 409
LOOK_S: Final = 30.0
"""Seconds between two checks of whether ProvisioningRequests are served."""
_NOT_SERVED: Final = (
    f"the API server does not serve {REQUESTS.plural} of {REQUESTS.api_version}: install the"
    " cluster autoscaler's definitions"
)
WorkItem = tuple[Resource, str]
"""A Workload to be answered, or an AdmissionCheck whose condition is to be written."""


class Provisioner:
    def __init__(
        self,
        shell: Shell,
        mirror: Mirror,
        client: ApiClient,
        may_write: Callable[[], bool],
        recorder: EventRecorder,
        is_followed: Callable[[Resource], bool],
        stored: Stored,
    ) -> None:
        """`is_followed` returns True if all objects of a kind are in the cache."""
        self._cache = mirror.cache
        self._client = client
        self._may_write = may_write
        self._is_followed = is_followed
        told = AnswersStored(
            shell, mirror, stored, lambda key: self.work_queue.add((WORKLOADS, key))
        )
        self._status_writer = CheckStatusWriter(client, mirror.cache, recorder, shell.now_ns, told)
        self.work_queue: WorkQueue[WorkItem] = WorkQueue("check of", self._reconcile, WIDTH)
        self._owned: dict[str, dict[str, None]] = {}
        """Keys of each Workload's requests."""
        self._owner: dict[str, str] = {}
        """Key of each request's Workload."""
        self._handed_over: set[str] = set()
        """UIDs of requests that own their templates."""

    # -- changes ----------------------------------------------------------------------------------

    def add_all(self) -> None:
        for request in self._cache.all_of(REQUESTS):
            self._note(key_of(request), request)
        for check in self._cache.all_of(CHECKS):
            self.check_changed(key_of(check), check)

    def workload_changed(self, key: str, document: Document | None) -> None:
        if document is not None and (key in self._owned or self._is_asked(document)):
            self.work_queue.add((WORKLOADS, key))

    def request_changed(self, key: str, document: Document | None) -> None:
        owner = self._note(key, document)
        if owner:
            self.work_queue.add((WORKLOADS, owner))

    def check_changed(self, key: str, document: Document | None) -> None:
        self._ask_check(key)

    def config_changed(self, key: str, document: Document | None) -> None:
        """Queue the checks that name a ProvisioningRequestConfig."""
        for check in checks_by(self._cache, CONTROLLER):
            named = (check.get("spec") or {}).get("parameters") or {}
            if named.get("name") == key:
                self._ask_check(key_of(check))

    def _note(self, key: str, request: Document | None) -> str:
        """Record a request; returns the key of its Workload, or "" without one."""
        owner = self._owner.get(key, "")
        if request is None:
            self._owner.pop(key, None)
            self._owned.get(owner, {}).pop(key, None)
            if not self._owned.get(owner, {"": None}):
                del self._owned[owner]
            return owner
        for one in request["metadata"].get("ownerReferences") or ():
            if one.get("controller") and one.get("kind") == WORKLOADS.kind:
                owner = f"{request['metadata']['namespace']}/{one.get('name')}"
                self._owner[key] = owner
                self._owned.setdefault(owner, {})[key] = None
        return owner

    def _is_asked(self, workload: Document) -> bool:
        return bool(check_by(self._cache, CONTROLLER, workload))

    def _ask_check(self, name: str) -> None:
        self.work_queue.add((CHECKS, name))
        for workload in self._cache.all_of(WORKLOADS):
            if name in checks_of(workload):
                self.work_queue.add((WORKLOADS, key_of(workload)), urgent=False)

    # -- one Workload, or one check ---------------------------------------------------------------

    async def _reconcile(self, item: WorkItem) -> None:
        kind, key = item
        if not self._may_write():
            return
        document = self._cache.get(kind, key)
        if document is None:
            return
        if kind == CHECKS:
            await self._write_active(document)
        elif self._is_followed(REQUESTS):
            await self._answer(key, document)

    async def _answer(self, key: str, workload: Document) -> None:
        configs = {key_of(one): self._config(one)[0] for one in checks_by(self._cache, CONTROLLER)}
        try:
            infos = pod_set_infos(_without_updates(workload), self._flavors())
        except ManifestError:
            return  # The job reconciler records an event.
        decision = decide(workload, configs, self._requests(key, workload), infos)
        if await self._status_writer.write_answers(workload, decision.answers):
            return  # The Workload as stored now is queued again.
        for one in decision.ends:
            await self._delete(one)
        for making in decision.makes:
            await self._make(workload, making)
        for one in self._requests(key, workload):
            await self._hand_over(one)

    def _requests(self, key: str, workload: Document) -> list[Document]:
        """Return the requests of this Workload, not of an earlier one with the same name."""
        found = (self._cache.get(REQUESTS, one) for one in self._owned.get(key, ()))
        uid = workload["metadata"]["uid"]
        return [
            one
            for one in found
            if one is not None
            and any(owner.get("uid") == uid for owner in one["metadata"]["ownerReferences"])
        ]

    def _flavors(self) -> dict[str, Document]:
        return {key_of(one): one for one in self._cache.all_of(FLAVORS)}

    def _config(self, check: Document) -> tuple[Config | None, str]:
        if not self._is_followed(REQUESTS):
            return None, _NOT_SERVED
        return config_of(check, {key_of(one): one for one in self._cache.all_of(CONFIGS)})

    async def _delete(self, request: Document) -> None:
        head = request["metadata"]
        try:
            await self._client.delete(REQUESTS, head["name"], head["namespace"], head["uid"])
        except ApiRefused as refused:
            if not refused.not_found and not refused.conflict:
                raise

    async def _make(self, workload: Document, making: Making) -> None:
        namespace = workload["metadata"]["namespace"]
        try:
            for template in making.templates:
                await self._create_template(template, namespace)
            # Last: the autoscaler fails a request whose templates it does not find.
            made = pruned(await self._client.create(REQUESTS, making.request, namespace))
        except ApiRefused as refused:
            # On a conflict an earlier request of this name is still being deleted.
            if refused.status != CONFLICT:
                await self._record_failure(workload, making, refused)
            raise
        name = making.request["metadata"]["name"]
        self._cache.take(REQUESTS, made)
        self._note(f"{namespace}/{name}", made)
        event = KubernetesEvent(
            PROVISIONING_REQUEST_CREATED, f'Created ProvisioningRequest: "{name}"'
        )
        self._status_writer.record(workload, event)

    async def _create_template(self, template: Mapping[str, Any], namespace: str) -> None:
        try:
            await self._client.create(POD_TEMPLATES, template, namespace)
        except ApiRefused as refused:
            if refused.status != CONFLICT:
                raise
            # A template left from an earlier attempt is replaced if its content differs.
            name = template["metadata"]["name"]
            found = await self._client.get(POD_TEMPLATES, name, namespace)
            if not covers(found.get("template"), template["template"]):
                await self._client.delete(POD_TEMPLATES, name, namespace, found["metadata"]["uid"])
                raise

    async def _record_failure(
        self, workload: Document, making: Making, refused: ApiRefused
    ) -> None:
        text = f"ProvisioningRequest {making.request['metadata']['name']}: {refused}"
        self._status_writer.record(workload, KubernetesEvent(FAILED_CREATE, text, warning=True))
        check = checks_of(workload).get(making.check) or {}
        if check.get("state") == State.PENDING:
            await self._status_writer.write_answers(
                workload, {making.check: Answer(State.PENDING, text)}
            )

    async def _hand_over(self, request: Document) -> None:
        """Make the request own its templates, so that they are deleted with it."""
        head = request["metadata"]
        if head["uid"] in self._handed_over:
            return
        owner = {
            "apiVersion": REQUESTS.api_version,
            "kind": REQUESTS.kind,
            "name": head["name"],
            "uid": head["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
        for one in (request.get("spec") or {}).get("podSets") or ():
            name = str((one.get("podTemplateRef") or {}).get("name") or "")
            try:
                found = await self._client.get(POD_TEMPLATES, name, head["namespace"])
                if found["metadata"].get("ownerReferences") != [owner]:
                    patch = {"metadata": {"ownerReferences": [owner]}}
                    await self._status_writer.patch(POD_TEMPLATES, found, patch)
            except ApiRefused as refused:
                if not refused.not_found:
                    raise
        self._handed_over.add(head["uid"])

    # -- the check itself -------------------------------------------------------------------------

    async def _write_active(self, check: Document) -> None:
        """Write the condition Active; while it is False, its ClusterQueues admit no workloads."""
        if not is_answered_by(check, CONTROLLER):
            return
        if not self._is_followed(REQUESTS):
            self.work_queue.add_after((CHECKS, key_of(check)), LOOK_S)
        await self._status_writer.write_active(check, self._config(check)[1])


def _without_updates(workload: Document) -> Document:
    """Return the Workload without podSetUpdates: they do not count for where nodes are created."""
    status = {**(workload.get("status") or {}), "admissionChecks": []}
    return {**workload, "status": status}
