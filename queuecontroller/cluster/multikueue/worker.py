"""Connection to one worker: follows the copies there, and carries out what is wanted of them.

Each worker has its own connections, its own work queue and its own time limits, so that one that
hangs delays neither the others nor the decisions of this cluster.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from time import monotonic
from typing import Any, Final

from queuecontroller.cluster.cache.job_context import DISPATCHED, JOBS
from queuecontroller.cluster.cache.kinds import WORKLOADS
from queuecontroller.cluster.cache.objects import Document, ObjectCache, is_leaving, key_of
from queuecontroller.cluster.multikueue.copies import (
    gate_opened_at,
    is_in_step,
    job_copy,
    key_of_job,
    kind_of_job,
    open_gate_patch,
    priority_patch,
    read_copy,
    read_job,
    without_finalizer,
    workload_copy,
)
from queuecontroller.cluster.multikueue.decide import Want
from queuecontroller.cluster.status.workload_status import stamp
from queuecontroller.cluster.writers.workqueue import WorkQueue
from queuecontroller.frameworks.names import ORIGIN
from queuecontroller.state.figures import DEFECTS
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.decoding import BadAnswer, Bookmark, Decoder, Page, Seen, StreamError
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused
from sluicecommon.kubernetes.following import Follower
from sluicecommon.kubernetes.reflector import Change, Changed, Reflector, Removed, Synced
from sluicecommon.kubernetes.resources import Resource
from sluicecommon.reader import ManifestError

log = logging.getLogger(__name__)
WIDTH: Final = 4
"""Writes in flight to one worker."""
CONNECTIONS: Final = WIDTH + len(DISPATCHED) + 2
DEADLINE_S: Final = 15.0
"""Longest time that a worker may take for one answer."""
LARGEST_ANSWER_BYTES: Final = 32 << 20
LARGEST_EVENT_BYTES: Final = 4 << 20
MAX_OBJECTS: Final = 20_000
"""Copies of one kind in a worker; one that reports more is not used."""
PROBE_S: Final = 10.0
"""Seconds between two requests that show that a worker still answers: a watch may be silent."""
CHECK_S: Final = 0.5
AGAIN_S: Final = 30.0
LONGEST_TEXT: Final = 500
BEHIND: Final = "Background"
"""Deletion of a job with its pods, without waiting for them."""


class _Bounded(Decoder[Document]):
    """Decoder that refuses a large event before it is parsed, which would block the loop."""

    def line(self, line: bytes) -> Seen[Document] | Bookmark | StreamError:
        if len(line) > LARGEST_EVENT_BYTES:
            raise BadAnswer(f"an event of more than {LARGEST_EVENT_BYTES} bytes")
        return super().line(line)

    def page(self, body: bytes) -> Page[Document]:
        found = super().page(body)
        if len(found.items) > MAX_OBJECTS:
            raise BadAnswer(f"more than {MAX_OBJECTS} objects")
        return found


class WorkerLink:
    def __init__(
        self,
        name: str,
        client: ApiClient,
        origin: str,
        gated: bool,
        now_ns: Callable[[], int],
        wanted: Callable[[str], tuple[Want | None, Document | None, Document | None]],
        changed: Callable[[str, str], None],
        may_write: Callable[[], bool],
        dispatched: Callable[[str, Document], None],
    ) -> None:
        """`gated`: a copy is created with a closed preemption gate. `now_ns` returns the time since
        the epoch. `wanted` returns for a Workload's key what is wanted in this worker, the Workload
        and its job; `changed` is called with this worker's name and a key when something is new
        about that copy, or with an empty key when the connection was lost or made; `dispatched` is
        called with the name and the Workload after a copy was created."""
        self.name = name
        self.cache = ObjectCache()
        self.refusals: dict[str, str] = {}
        """Why the last write for a Workload failed, by its key."""
        self.work_queue: WorkQueue[str] = WorkQueue(f"worker {name}:", self._sync, WIDTH)
        self._client = client
        self._origin = origin
        self._gated = gated
        self._now_ns = now_ns
        self._wanted = wanted
        self._changed = changed
        self._may_write = may_write
        self._dispatched = dispatched
        self._followers: dict[Resource, Follower[Document]] = {}
        self._uids: dict[tuple[Resource, str], str] = {}
        self._jobs: dict[str, dict[Resource, str]] = {}
        """Keys of the jobs that are bound to a Workload, by its key."""
        self._bound: dict[tuple[Resource, str], str] = {}
        """Key of the Workload that each job is bound to."""
        self._group: asyncio.TaskGroup | None = None
        self._probe_error = "not connected yet"
        self.trouble = "not connected yet"
        """Why it is unreachable; "" if it is reachable."""
        self.lost_at_s: float | None = monotonic()
        """Since when it has been unreachable; None: it is reachable."""

    # -- facts ------------------------------------------------------------------------------------

    @property
    def lost_s(self) -> float | None:
        return None if self.lost_at_s is None else monotonic() - self.lost_at_s

    def copy(self, key: str) -> Document | None:
        return self.cache.get(WORKLOADS, key)

    def job(self, key: str) -> Document | None:
        """Return the job that is bound to the copy of a Workload."""
        found = self._jobs_of(key)
        return found[0][1] if found else None

    def _jobs_of(self, key: str) -> list[tuple[Resource, Document]]:
        named = ((kind, self.cache.get(kind, job)) for kind, job in self._jobs.get(key, {}).items())
        return [(kind, one) for kind, one in named if one is not None]

    def workload_keys(self) -> set[str]:
        """Return the keys of all Workloads that have something in this worker."""
        return {key_of(one) for one in self.cache.all_of(WORKLOADS)} | set(self._jobs)

    def serves(self, kind: Resource) -> bool:
        """Return True if jobs of a kind are followed, which begins when that is first asked."""
        self._follow(kind)
        follower = self._followers.get(kind)
        return follower is not None and follower.reflector.synced

    def lacks(self, kind: Resource) -> bool:
        """Return True if the worker is known not to serve a kind of job."""
        self._follow(kind)
        return self._followers[kind].reflector.missing

    # -- the connection ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow the worker and write to it until cancelled."""
        while True:
            try:
                async with asyncio.TaskGroup() as group:
                    self._group = group
                    self._follow(WORKLOADS)
                    self._follow(JOBS)
                    for kind in list(self._followers):
                        self._start(kind)
                    group.create_task(self.work_queue.run())
                    group.create_task(self._probe())
                    group.create_task(self._observe())
            except asyncio.CancelledError:
                raise
            except BaseExceptionGroup:
                # Only this worker is affected: it counts as lost until it is followed again.
                DEFECTS.add("worker")
                log.exception("worker %s: internal error, please report it", self.name)
                self._probe_error = "internal error"
                self._note_reachable()
            finally:
                self._group = None
            for one in self._followers.values():
                one.reflector.restart()
            await asyncio.sleep(AGAIN_S)

    def _follow(self, kind: Resource) -> None:
        if kind in self._followers:
            return
        selector = (("labelSelector", f"{ORIGIN}={self._origin}"),)
        reflector: Reflector[Document] = Reflector(
            _Bounded(read_copy if kind == WORKLOADS else read_job),
            selector,
            jitter=lambda: random.uniform(0.5, 1.5),
        )
        changed = partial(self._received, kind)
        self._followers[kind] = Follower(self._client, kind, reflector, changed)
        if self._group is not None and kind not in (WORKLOADS, JOBS):
            self._start(kind)

    def _start(self, kind: Resource) -> None:
        assert self._group is not None
        self._group.create_task(self._followers[kind].run())

    async def _probe(self) -> None:
        while True:
            try:
                await self._client.get_path("/version")
                self._probe_error = ""
            except (ApiAway, ApiRefused) as error:
                self._probe_error = str(error)
            await asyncio.sleep(PROBE_S if not self._probe_error else 2.0)

    async def _observe(self) -> None:
        while True:
            self._note_reachable()
            await asyncio.sleep(CHECK_S)

    def _note_reachable(self) -> None:
        self.trouble = self._trouble()[:LONGEST_TEXT]
        if self.trouble:
            if self.lost_at_s is None:
                self.lost_at_s = monotonic()
                log.warning("worker %s is unreachable: %s", self.name, self.trouble)
                self._changed(self.name, "")
        elif self.lost_at_s is not None:
            self.lost_at_s = None
            log.info("worker %s is reachable", self.name)
            self._changed(self.name, "")

    def _trouble(self) -> str:
        followed = self._followers.get(WORKLOADS)
        if followed is None or not followed.reflector.synced:
            why = followed.reflector.trouble if followed is not None else ""
            return self._probe_error or why or "its Workloads are not listed yet"
        if self.cache.count(WORKLOADS) > MAX_OBJECTS:
            return f"it has more than {MAX_OBJECTS} copies"
        return followed.reflector.trouble or self._probe_error

    def _received(self, kind: Resource, change: Change[Document]) -> None:
        match change:
            case Changed(item):
                self._uids[kind, item.key] = item.value["metadata"]["uid"]
                self._take(kind, item.value)
                self._told(kind, item.key)
            case Removed(key):
                self._told(kind, key)
                if self.cache.drop(kind, key, self._uids.pop((kind, key), "")):
                    self._forget(kind, key)
            case Synced():
                if kind != WORKLOADS:
                    self._changed(self.name, "")

    def _told(self, kind: Resource, key: str) -> None:
        mine = key if kind == WORKLOADS else self._bound.get((kind, key), "")
        if mine:
            self._changed(self.name, mine)

    def _take(self, kind: Resource, document: Document) -> None:
        if not self.cache.take(kind, document):
            return
        key = key_of(document)
        if kind == WORKLOADS:
            self._follow_owners(document)
            return
        self._forget(kind, key)
        if mine := key_of_job(document):
            self._bound[kind, key] = mine
            self._jobs.setdefault(mine, {})[kind] = key

    def _forget(self, kind: Resource, key: str) -> None:
        mine = self._bound.pop((kind, key), "")
        if mine and self._jobs.get(mine, {}).get(kind) == key:
            del self._jobs[mine][kind]
            if not self._jobs[mine]:
                del self._jobs[mine]

    def _follow_owners(self, copy: Document) -> None:
        """Follow the kind of the job that a copy has got, also if no Workload here has that kind
        any more."""
        kind = kind_of_job(copy)
        if kind is not None:
            self._follow(kind)

    # -- writes -----------------------------------------------------------------------------------

    async def _sync(self, key: str) -> None:
        """Bring the worker to what is wanted for a Workload."""
        if self.lost_at_s is not None or not self._may_write():
            return
        want, workload, job = self._wanted(key)
        if want is None:
            self.refusals.pop(key, None)
            return
        try:
            done = await self._carry_out(want, key, workload, job)
        except ApiRefused as refused:
            if refused.not_found or refused.conflict:
                raise  # Its watch is behind, or a namespace is missing.
            self._note(key, str(refused))
            raise
        except ManifestError as error:
            self._note(key, str(error))
            return
        if done and self.refusals.pop(key, None) is not None:
            self._changed(self.name, key)

    def _note(self, key: str, why: str) -> None:
        text = why[:LONGEST_TEXT]
        if self.refusals.get(key) != text:
            if len(self.refusals) > MAX_OBJECTS:
                self.refusals.clear()
            self.refusals[key] = text
            self._changed(self.name, key)

    async def _carry_out(
        self, want: Want, key: str, workload: Document | None, job: Document | None
    ) -> bool:
        """Return False if the worker cannot have it for now."""
        copy = self.copy(key)
        if want is Want.NOTHING or workload is None:
            await self._remove(key, copy)
            return True
        kind = kind_of_job(workload)
        if kind is not None and self.lacks(kind):
            self._note(key, f"it does not serve {kind.plural} of {kind.api_version}")
            self.work_queue.add_after(key, AGAIN_S)
            return False
        if copy is None:
            made = workload_copy(workload, self._origin, gated=self._gated)
            await self._create(WORKLOADS, made, read_copy)
            self._dispatched(self.name, workload)
            self._changed(self.name, key)
        elif is_leaving(copy) or not is_in_step(workload, copy):
            await self._remove(key, copy)
        elif patch := priority_patch(workload, copy):
            await self._patch(WORKLOADS, copy, patch, read_copy)
        elif want is Want.UNGATED_COPY and not gate_opened_at(copy):
            opened = open_gate_patch(copy, stamp(self._now_ns()))
            await self._patch(WORKLOADS, copy, opened, read_copy, "status")
            self._changed(self.name, key)
        if want is Want.JOB and job is not None and kind is not None and not self._jobs_of(key):
            if not self.serves(kind):
                return True  # Its jobs are being listed; what they are queues this again.
            name = str(workload["metadata"]["name"])
            await self._create(kind, job_copy(kind, job, name, self._origin), read_job)
            self._changed(self.name, key)
        return True

    async def _remove(self, key: str, copy: Document | None) -> None:
        """Delete the job first: without its Workload it would stay suspended for ever."""
        for kind, one in self._jobs_of(key):
            if not is_leaving(one):
                await self._gone(self._delete(kind, one, BEHIND))
        if copy is None:
            return
        if patch := without_finalizer(copy):
            await self._gone(self._patch(WORKLOADS, copy, patch, read_copy))
            copy = self.copy(key)
        if copy is not None and not is_leaving(copy):
            await self._gone(self._delete(WORKLOADS, copy))

    async def _gone(self, write: Awaitable[None]) -> None:
        try:
            await write
        except ApiRefused as refused:
            if not refused.not_found:
                raise

    async def _create(
        self,
        kind: Resource,
        document: Mapping[str, Any],
        read: Callable[[Mapping[str, Any]], dict[str, Any]],
    ) -> None:
        try:
            namespace = document["metadata"]["namespace"]
            found = await self._client.create(kind, document, namespace)
        except ApiRefused as refused:
            if refused.conflict:
                what = f"{kind.plural} {document['metadata']['name']}: another object has its name"
                self._note(_key_for(kind, document), what)
            elif refused.not_found:
                self._note(_key_for(kind, document), str(refused))
            raise
        self._stored(kind, found, read)

    async def _patch(
        self,
        kind: Resource,
        document: Document,
        patch: Mapping[str, Any],
        read: Callable[[Mapping[str, Any]], dict[str, Any]],
        subresource: str = "",
    ) -> None:
        head = document["metadata"]
        found = await self._client.merge_patch(
            kind,
            head["name"],
            patch,
            head["namespace"],
            subresource,
            resource_version=head["resourceVersion"],
        )
        self._stored(kind, found, read)

    async def _delete(self, kind: Resource, document: Document, propagation: str = "") -> None:
        head = document["metadata"]
        await self._client.delete(kind, head["name"], head["namespace"], head["uid"], propagation)

    def _stored(
        self,
        kind: Resource,
        answer: Mapping[str, Any],
        read: Callable[[Mapping[str, Any]], dict[str, Any]],
    ) -> None:
        try:
            document = read(answer)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ApiAway(f"worker {self.name}: not an object: {error}") from error
        self._take(kind, document)


def _key_for(kind: Resource, document: Mapping[str, Any]) -> str:
    return key_of(document) if kind == WORKLOADS else key_of_job(document)
