"""Actions shared by the reconcilers of jobs and pods: writes of Workloads, each with a step."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, TypeVar, assert_never

from queuecontroller.cluster.cache.job_context import setting
from queuecontroller.cluster.cache.kinds import FLAVORS, IN_USE, WORKLOADS
from queuecontroller.cluster.cache.objects import (
    Document,
    ObjectCache,
    annotations_of,
    condition_of,
    is_leaving,
    key_of,
    pruned,
    seconds_of,
    split_key,
    version_of,
)
from queuecontroller.cluster.status.events import KubernetesEvent
from queuecontroller.cluster.status.workload_status import LONGEST, holds, stamp
from queuecontroller.cluster.writers.event_recorder import EventRecorder
from queuecontroller.frameworks import (
    CreateWorkload,
    DeleteWorkload,
    Finished,
    FinishWorkload,
    HoldWorkload,
    PodSetInfo,
    PriorityClass,
    Refuse,
    ReleaseQuota,
    ResumeWorkload,
    SetPodsReady,
    Setting,
    UpdateReclaimable,
    UpdateWorkload,
    WaitForReplacements,
    pod_set_infos,
)
from queuecontroller.scheduler.lifecycle import SECOND_NS
from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.model.reasons import (
    ADMITTED,
    CREATED_WORKLOAD,
    DELETED_WORKLOAD,
    EVICTED,
    FINISHED_WORKLOAD,
    OWNER_REFERENCES_ADDED,
    PODS_READY,
    PRIORITY_CLASS_NOT_FOUND,
    RECOVERED,
    STARTED,
    UPDATED_WORKLOAD,
    WAIT_FOR_RECOVERY,
    WAITING_FOR_PODS,
    WORKLOAD_NOT_COMPOSED,
    WORKLOAD_PRIORITY_CLASS_NOT_FOUND,
)
from queuecontroller.state.book import Book
from queuecontroller.state.figures import Figures
from queuecontroller.state.shell import Shell
from queuecontroller.state.workloads.conditions import with_condition
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.errors import ApiRefused
from sluicecommon.kubernetes.resources import PODS, Resource

T = TypeVar("T")
INVALID: Final = 422
NEVER: Final = (400, 413, INVALID)
"""HTTP statuses of requests that would be refused again."""
MANAGER: Final = "sluice-queue"
"""Field manager of server-side applies."""

WorkloadAction = (
    CreateWorkload
    | UpdateWorkload
    | DeleteWorkload
    | FinishWorkload
    | ReleaseQuota
    | HoldWorkload
    | ResumeWorkload
    | UpdateReclaimable
    | SetPodsReady
    | WaitForReplacements
    | Refuse
)


class WorkloadActions:
    """Workload writes shared by the job and pod reconcilers."""

    def __init__(
        self,
        shell: Shell,
        cache: ObjectCache,
        client: ApiClient,
        recorder: EventRecorder,
    ) -> None:
        self._shell = shell
        self._client = client
        self.cache = cache
        self.recorder = recorder
        self.starting: set[str] = set()
        """Keys of Workloads whose job or pods are being started."""
        self._refused: dict[tuple[Resource, str], str] = {}
        """Last error recorded for each job without a Workload, with the job's generation."""
        self._without_class: set[tuple[Resource, str]] = set()
        """Jobs and pods that named a priority class that does not exist."""
        self.writes_total = 0

    async def do(
        self,
        action: WorkloadAction,
        workload: Document | None,
        kind: Resource = WORKLOADS,
        owner: Document | None = None,
    ) -> None:
        """Carry out one action on a Workload, and record the event of it on its owner, of `kind`.

        A Workload that the API server refuses for good is recorded on the owner, too, and not tried
        again. Raises ApiAway, ApiRefused.
        """
        event: KubernetesEvent | None = None
        match action:
            case CreateWorkload(document):
                with self._refusals_recorded(kind, owner):
                    event = await self._create(document, owner)
            case UpdateWorkload():
                with self._refusals_recorded(kind, owner):
                    event = await self._update(_existing(workload), action)
            case DeleteWorkload(why):
                event = await self._delete(_existing(workload), why)
            case FinishWorkload(done):
                event = self._finish(key_of(_existing(workload)), done)
            case ReleaseQuota():
                self._release_quota(key_of(_existing(workload)))
            case HoldWorkload(message):
                mine = WorkloadKey(key_of(_existing(workload)))
                self.step(
                    "hold", lambda book, now_ns: book.workloads.put_on_hold(mine, message, now_ns)
                )
            case ResumeWorkload():
                mine = WorkloadKey(key_of(_existing(workload)))
                self.step("resume", lambda book, now_ns: book.workloads.take_off_hold(mine, now_ns))
            case UpdateReclaimable(pods):
                self._set_reclaimable(key_of(_existing(workload)), pods)
            case SetPodsReady(ready):
                self._set_ready(key_of(_existing(workload)), ready)
            case WaitForReplacements(waiting, reason, message):
                self._set_waiting(key_of(_existing(workload)), waiting, reason, message)
            case Refuse(problems, reason):
                assert owner is not None
                self.refuse(kind, owner, "; ".join(map(str, problems)), reason)
            case _:
                assert_never(action)
        if event is not None and owner is not None:
            self.record(owner, kind, event)

    @contextmanager
    def _refusals_recorded(self, kind: Resource, owner: Document | None) -> Iterator[None]:
        """Record on the owner that the API server refuses its Workload, and suppress the error if
        the same request would be refused again."""
        try:
            yield
        except ApiRefused as refused:
            for_good = refused.status in NEVER
            if owner is not None and (for_good or refused.denied):
                self.refuse(kind, owner, f"the API server refuses its Workload: {refused.message}")
            if owner is None or not for_good:
                raise

    # -- Workloads in the API ---------------------------------------------------------------------

    async def _create(self, made: Mapping[str, Any], owner: Document | None) -> KubernetesEvent:
        namespace = made["metadata"]["namespace"]
        self.writes_total += 1
        try:
            found = await self._client.create(WORKLOADS, made, namespace)
            self._count_creation(found, owner)
        except ApiRefused as refused:
            if refused.status != 409:
                raise
            found = await self._client.get(WORKLOADS, made["metadata"]["name"], namespace)
        self.take(pruned(found))
        return KubernetesEvent(CREATED_WORKLOAD, f"Created Workload: {key_of(made)}", detail=True)

    def _count_creation(self, made: Document, owner: Document | None) -> None:
        """Measure how long after its owner a Workload was created.

        An owner of a later generation is left out: it may have had a Workload before.
        """
        if owner is None or (owner["metadata"].get("generation") or 1) > 1:
            return
        job_s, made_s = (
            seconds_of(one["metadata"].get("creationTimestamp")) for one in (owner, made)
        )
        if job_s is not None and made_s is not None:
            kind = str(owner.get("kind") or PODS.kind)
            self.figures.creation_latency.add(made_s - job_s, kind)

    def count_gate(self, workload: Document, gate: str, is_group: bool) -> None:
        """Measure the time from admission to the removal of a pod's gate."""
        since_s = seconds_of(condition_of(workload, ADMITTED).get("lastTransitionTime"))
        if since_s is None:
            return
        queue = ((workload.get("status") or {}).get("admission") or {}).get("clusterQueue") or ""
        latency_s = self._shell.now_ns() / SECOND_NS - since_s
        group = "true" if is_group else "false"
        self.figures.gate_removal.add(latency_s, gate, str(queue), group)

    @property
    def figures(self) -> Figures:
        return self._shell.book.workloads.figures

    async def _update(self, workload: Document, action: UpdateWorkload) -> KubernetesEvent | None:
        await self._patch(workload, action.patch)
        if more := _new_owners(action.patch, workload):
            text = f"Added {more} owner reference(s)"
            self.record(
                workload, WORKLOADS, KubernetesEvent(OWNER_REFERENCES_ADDED, text, detail=True)
            )
        if "spec" not in action.patch:
            return None
        return KubernetesEvent(
            UPDATED_WORKLOAD, f"Updated Workload {key_of(workload)}: {action.why}"
        )

    async def _patch(self, workload: Document, patch: Mapping[str, Any]) -> None:
        head = workload["metadata"]
        self.writes_total += 1
        found = await self._client.merge_patch(
            WORKLOADS,
            head["name"],
            patch,
            head["namespace"],
            resource_version=str(head["resourceVersion"]),
        )
        self.take(pruned(found))

    def take(self, found: Document) -> None:
        """Handle a Workload that an answer has as the watch would."""
        if is_leaving(found) and not found["metadata"].get("finalizers"):
            return  # Deleted by that write: the watch reports it.
        self.cache.update(WORKLOADS, found)

    async def _delete(self, workload: Document, why: str) -> KubernetesEvent:
        await self.delete(workload)
        return KubernetesEvent(DELETED_WORKLOAD, f"Deleted Workload {key_of(workload)}: {why}")

    async def finalize(self, workload: Document) -> None:
        """Remove the finalizer, which delays the deletion of a Workload until nothing runs."""
        finalizers = workload["metadata"].get("finalizers") or ()
        if IN_USE in finalizers:
            left = [one for one in finalizers if one != IN_USE]
            await self._patch(workload, {"metadata": {"finalizers": left or None}})

    async def delete(self, workload: Document) -> None:
        head = workload["metadata"]
        await self.finalize(workload)
        if not is_leaving(workload):
            self.writes_total += 1
            await self._client.delete(WORKLOADS, head["name"], head["namespace"], head["uid"])

    async def find(self, namespace: str, name: str) -> Document | None:
        """Read a Workload from the API server: its watch may be behind that of jobs."""
        found = await self.look(WORKLOADS, f"{namespace}/{name}")
        if found is not None:
            self.take(found)
        return found

    async def look(self, kind: Resource, key: str) -> Document | None:
        """Read an object from the API server; None if it does not exist."""
        namespace, name = split_key(key)
        try:
            return pruned(await self._client.get(kind, name, namespace))
        except ApiRefused as refused:
            if refused.not_found:
                return None
            raise

    async def is_any(
        self,
        kind: Resource,
        namespace: str,
        selector: str,
        fields: str = "",
        annotation: tuple[str, str] | None = None,
    ) -> bool:
        """Return True if the API server has an object with such labels, fields and annotation."""
        most = "100" if annotation else "1"
        asked = {"labelSelector": selector, "fieldSelector": fields, "limit": most}
        while True:
            page = json.loads(await self._client.list_page(kind, [*asked.items()], namespace))
            if any(annotation in (None, *annotations_of(one).items()) for one in page["items"]):
                return True
            if not (after := page["metadata"].get("continue")):
                return False
            asked["continue"] = after

    async def list_some(self, kind: Resource, namespace: str, selector: str, limit: int) -> Any:
        """Return the first objects with such labels, as the list that the API server answers."""
        parameters = (("labelSelector", selector), ("limit", str(limit)))
        return json.loads(await self._client.list_page(kind, parameters, namespace))

    # -- jobs and pods in the API -----------------------------------------------------------------

    async def patch(
        self, kind: Resource, document: Document, patch: Mapping[str, Any], part: str = ""
    ) -> Document:
        """Patch an object; returns it as stored."""
        head = document["metadata"]
        self.writes_total += 1
        found = pruned(
            await self._client.merge_patch(
                kind,
                head["name"],
                patch,
                head["namespace"],
                part,
                resource_version=str(head["resourceVersion"]),
            )
        )
        self.cache.take(kind, found)
        return found

    async def mark(self, pod: Document, condition: str, reason: str, message: str) -> None:
        """Add a condition to a pod by server-side apply. Raises ApiAway, ApiRefused."""
        head = pod["metadata"]
        name = {key: head[key] for key in ("name", "namespace", "uid")}
        made = {
            "type": condition,
            "status": "True",
            "reason": reason,
            "message": message[:LONGEST],
            "lastTransitionTime": stamp(self._shell.now_ns()),
        }
        document = {
            "apiVersion": PODS.api_version,
            "kind": PODS.kind,
            "metadata": name,
            "status": {"conditions": [made]},
        }
        self.writes_total += 1
        try:
            await self._client.apply(
                PODS, head["name"], document, MANAGER, head["namespace"], "status"
            )
        except ApiRefused as refused:
            # On a conflict the name is another object's.
            if not refused.not_found and not refused.conflict:
                raise

    async def remove(self, kind: Resource, document: Document, propagation: str = "") -> None:
        """Delete an object. `propagation`: see `ApiClient.delete`."""
        head = document["metadata"]
        self.writes_total += 1
        try:
            await self._client.delete(
                kind, head["name"], head["namespace"], head["uid"], propagation
            )
        except ApiRefused as refused:
            # On a conflict the name is another object's.
            if not refused.not_found and not refused.conflict:
                raise

    async def look_again(self, kind: Resource, key: str) -> bool:
        """Read an object after a conflict; returns False if the cache had its newest version."""
        known = self.cache.get(kind, key)
        found = await self.look(kind, key) if known is not None else None
        if found is None or known is None or version_of(found) <= version_of(known):
            return False  # If it is gone, the watch reports it.
        if kind == WORKLOADS:
            self.take(found)
        else:
            self.cache.update(kind, found)
        return True

    # -- events -----------------------------------------------------------------------------------

    def record(self, document: Document, kind: Resource, event: KubernetesEvent) -> None:
        self.recorder.record(document, kind, event)

    def refuse(
        self, kind: Resource, document: Document, why: str, reason: str = WORKLOAD_NOT_COMPOSED
    ) -> None:
        """Record an error event on a job, once for each generation of it."""
        key = kind, key_of(document)
        if reason in (PRIORITY_CLASS_NOT_FOUND, WORKLOAD_PRIORITY_CLASS_NOT_FOUND):
            self._without_class.add(key)
        error = f"{document['metadata'].get('generation')} {why}"
        if self._refused.get(key) != error:
            self._refused[key] = error
            self.record(document, kind, KubernetesEvent(reason, why, warning=True))

    def forget(self, kind: Resource, key: str) -> None:
        self._refused.pop((kind, key), None)
        self._without_class.discard((kind, key))

    def take_those_without_class(self) -> set[tuple[Resource, str]]:
        """Return jobs and pods that named a class that does not exist, since the last call."""
        taken, self._without_class = self._without_class, set()
        return taken

    # -- the book ---------------------------------------------------------------------------------

    def step(self, label: str, call: Callable[[Book, int], T]) -> T:
        return self._shell.step(label, call)

    def may_run(self, workload: Document) -> bool:
        """Return True unless the book has revoked the admission that the API server has."""
        record = self._shell.book.workloads.records.get(WorkloadKey(key_of(workload)))
        return (
            record is not None and holds(record.workload) and not record.workload.is_true(EVICTED)
        )

    def infos(self, workload: Document, gates: tuple[str, ...] = ()) -> list[PodSetInfo]:
        """Return what the admission gives each pod set. Raises ManifestError."""
        flavors = {one["metadata"]["name"]: one for one in self.cache.all_of(FLAVORS)}
        return pod_set_infos(workload, flavors, gates=gates)

    def _finish(self, key: str, finished: Finished) -> KubernetesEvent:
        self.finish(key, finished.reason, finished.message)
        text = f"Workload '{key}' is declared finished"
        return KubernetesEvent(FINISHED_WORKLOAD, text, detail=True)

    def finish(self, key: str, reason: str, message: str) -> None:
        mine = WorkloadKey(key)
        if mine in self._shell.book.workloads.records:
            self.step(
                "finished",
                lambda book, now_ns: book.workloads.finish(mine, reason, message, now_ns),
            )

    def _release_quota(self, key: str) -> None:
        mine = WorkloadKey(key)
        self.step("stopped", lambda book, now_ns: book.workloads.complete_eviction(mine, now_ns))

    def _set_reclaimable(self, key: str, pods: Mapping[str, int]) -> None:
        mine = WorkloadKey(key)
        record = self._shell.book.workloads.records.get(mine)
        if record is None or dict(record.workload.reclaimable_pods) == dict(pods):
            return
        workload = replace(record.workload, reclaimable_pods=dict(pods))
        self.step("reclaimable", lambda book, now_ns: book.workloads.change(mine, workload, now_ns))

    def _set_ready(self, key: str, ready: bool) -> None:
        record = self._shell.book.workloads.records.get(WorkloadKey(key))
        settings = self._shell.book.settings.pods_ready
        if record is None or settings.of(record.workload)[0] is None:
            return
        before = record.workload.condition(PODS_READY)
        again = before is not None and before.reason in (WAIT_FOR_RECOVERY, RECOVERED)
        if ready:
            text = "All pods are ready or succeeded"
            self._set(key, PODS_READY, True, RECOVERED if again else STARTED, text)
        else:
            text = "A pod is no longer ready"
            self._set(key, PODS_READY, False, WAIT_FOR_RECOVERY, text)

    def _set_waiting(self, key: str, waiting: bool, reason: str, text: str) -> None:
        if not waiting:
            reason, text = PODS_READY, "No pods need replacement"
        self._set(key, WAITING_FOR_PODS, waiting, reason, text)

    def _set(self, key: str, kind: str, status: bool, reason: str, text: str) -> None:
        mine = WorkloadKey(key)
        record = self._shell.book.workloads.records.get(mine)
        if record is None or record.workload.is_true(kind) == status:
            return
        workload = with_condition(record.workload, kind, status, reason, text, self._shell.now_ns())
        self.step("condition", lambda book, now_ns: book.workloads.change(mine, workload, now_ns))

    # -- the context of a job ---------------------------------------------------------------------

    def setting(self, document: Document) -> Setting:
        namespace = document["metadata"].get("namespace") or ""
        return setting(self.cache, document, namespace, self._priority_of)

    def _priority_of(self, named: PriorityClass | None) -> int | None:
        priorities = self._shell.book.catalogue.priorities()
        if named is None:
            return priorities.default or None
        return priorities.classes(named.kind).get(named.name)


def _existing(workload: Document | None) -> Document:
    """The Workload of an action that every framework takes for an existing one only."""
    assert workload is not None
    return workload


def _new_owners(patch: Mapping[str, Any], workload: Document) -> int:
    wanted = (patch.get("metadata") or {}).get("ownerReferences") or ()
    return max(0, len(wanted) - len(workload["metadata"].get("ownerReferences") or ()))
