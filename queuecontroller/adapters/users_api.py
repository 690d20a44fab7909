"""The service for users and their tools."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any, Final

from queuecontroller.engine.model import Workload, WorkloadKey
from queuecontroller.explain import Explanation, explain
from queuecontroller.manifests.reader import ManifestError, Problem
from queuecontroller.manifests.sources import CLUSTER_WIDE, DEEPEST
from queuecontroller.records import ObjectId
from queuecontroller.service.catalogue import OBJECT_KINDS, WORKLOAD_KINDS
from queuecontroller.service.shell import Shell
from queuecontroller.service.status import Status
from queuecontroller.service.submission import Refused

from .callers import Permissions
from .calls import handlers
from .messages import read_submission, text, write_status
from .wire import QUEUES, Wire

MOST_OBJECTS: Final = 10_000
LARGEST_OBJECT: Final = 256 << 10
PAGE: Final = 500
KINDS: Final = (*OBJECT_KINDS, "Workload", "Node")


class UsersApi:
    def __init__(self, shell: Shell, wire: Wire, permissions: Permissions, version: str) -> None:
        self._shell = shell
        self._wire = wire
        self._permissions = permissions
        self._version = version

    def handler(self) -> Any:
        return handlers(
            self._wire,
            self._shell,
            QUEUES,
            {
                "Apply": self._apply,
                "Submit": self._submit,
                "Get": self._get,
                "List": self._list,
                "Explain": self._explain,
                "Delete": self._delete,
                "Hold": self._hold,
                "Resume": self._resume,
                "GetServer": self._server,
            },
            {"Watch": self._watch, "Follow": self._follow},
        )

    # -- changing ---------------------------------------------------------------------------------

    def _apply(self, request: Any, context: Any) -> Any:
        caller = self._permissions.caller(context)
        if len(request.objects) > MOST_OBJECTS:
            raise Refused("invalid", f"objects: more than {MOST_OBJECTS} in one call")
        documents = _documents(request.objects)
        if any(one.get("kind") not in WORKLOAD_KINDS for one in documents):
            self._permissions.as_admin(caller, "apply queue objects")
        applied = self._shell.step(
            "apply", lambda book, now_ns: book.apply(documents, request.dry_run, now_ns)
        )
        return self._wire.ApplyResponse(
            applied=[
                self._wire.AppliedObject(
                    kind=one.who.kind,
                    namespace=one.who.namespace,
                    name=one.who.name,
                    action=one.action,
                )
                for one in applied
            ],
            revision=self._shell.book.journal.revision,
        )

    def _submit(self, request: Any, context: Any) -> Any:
        caller = self._permissions.caller(context)
        asked = read_submission(request)
        if asked.node:
            self._permissions.as_node(caller, asked.node)
        elif caller.named:
            asked = replace(asked, user=caller.shown)
        record = self._shell.step("submit", lambda book, now_ns: book.submit(asked, now_ns))
        return write_status(self._wire, self._shell.views.status(record.key, self._shell.now_ns()))

    def _delete(self, request: Any, context: Any) -> Any:
        identity = self._identity(request)
        self._check_owner(identity, context, "delete it")
        _, shown = self._shell.views.render(identity, self._shell.now_ns())
        self._shell.step("delete", lambda book, now_ns: book.delete(identity, request.uid, now_ns))
        return self._object(identity, self._shell.book.journal.revision, shown)

    def _hold(self, request: Any, context: Any) -> Any:
        identity = self._identity(request.object)
        self._check_owner(identity, context, "hold it")
        drain = request.drain
        self._shell.step("hold", lambda book, now_ns: book.hold(identity, drain, now_ns))
        return self._render(identity)

    def _resume(self, request: Any, context: Any) -> Any:
        identity = self._identity(request)
        self._check_owner(identity, context, "resume it")
        self._shell.step("resume", lambda book, now_ns: book.resume(identity, now_ns))
        return self._render(identity)

    def _check_owner(self, identity: ObjectId, context: Any, what: str) -> None:
        caller = self._permissions.caller(context)
        kind, namespace, name = identity
        if kind == "Workload":
            record = self._shell.book.find(namespace, name)
            self._permissions.as_owner(caller, record.user, record.node, what)
        else:
            self._permissions.as_admin(caller, what)

    # -- reading ----------------------------------------------------------------------------------

    def _get(self, request: Any, context: Any) -> Any:
        return self._render(self._identity(request))

    def _list(self, request: Any, context: Any) -> Any:
        kind = _kind(request.kind)
        limit = min(request.limit or PAGE, PAGE)
        after = tuple(json.loads(request.after)) if request.after else None
        page: list[Any] = []
        following = ""
        for identity in self._shell.views.identities(kind, request.namespace):
            if after is not None and identity <= after:
                continue
            if len(page) == limit:
                following = json.dumps([page[-1].kind, page[-1].namespace, page[-1].name])
                break
            if self._is_in(identity, request.queue):
                page.append(self._render(identity))
        return self._wire.ListResponse(
            objects=page, next=following, revision=self._shell.book.journal.revision
        )

    def _is_in(self, identity: ObjectId, queue: str) -> bool:
        """Whether a workload stands in this LocalQueue or ClusterQueue."""
        if not queue or identity[0] != "Workload":
            return True
        key = WorkloadKey(f"{identity[1]}/{identity[2]}")
        record = self._shell.book.workloads.records[key]
        status = self._shell.views.status(key, self._shell.now_ns())
        return queue in (record.workload.queue_name, status.cluster_queue)

    def _explain(self, request: Any, context: Any) -> Any:
        identity = self._identity(request)
        record = self._shell.book.find(*identity[1:], uid=request.uid)
        now_ns = self._shell.now_ns()
        status = self._shell.views.status(record.key, now_ns, fresh=True)
        _, shown = self._shell.views.render(identity, now_ns)
        events = self._shell.store.events(f"Workload/{record.key}", 20)
        shown["events"] = [
            {"revision": e.revision, "atUnixSeconds": e.at_ns / 1e9, "kind": e.kind, "text": e.text}
            for e in reversed(events)
        ]
        found = self._explanation(record.workload, status, now_ns)
        if found is not None:
            shown["explanation"] = found.as_dict()
        return self._wire.Explanation(
            status=write_status(self._wire, status),
            remedies=found.ways if found is not None else (),
            json=json.dumps(shown, default=str),
        )

    def _explanation(self, workload: Workload, status: Status, now_ns: int) -> Explanation | None:
        if workload.admission is not None or status.phase not in ("Pending", "Paused"):
            return None
        engine = self._shell.book.engine
        queue, ahead = status.cluster_queue, max(0, status.position - 1)
        return explain(engine, workload, queue, status.reason, status.message, now_ns, ahead)

    def _server(self, request: Any, context: Any) -> Any:
        book = self._shell.book
        return self._wire.ServerInfo(
            version=self._version,
            cluster_id=book.journal.cluster_id,
            term=book.journal.term,
            revision=book.journal.revision,
            nodes=len(book.nodes.each_ready(self._shell.now_ns())),
            ready=not self._shell.why_not_ready,
            why_not_ready=self._shell.why_not_ready,
        )

    async def _watch(self, request: Any, context: Any) -> AsyncGenerator[Any, None]:
        kind = _kind(request.kind)
        changes = self._shell.subscribe()  # before listing: no change may fall in between
        try:
            known = set()
            for identity in list(self._shell.views.identities(kind, request.namespace)):
                if self._is_in(identity, request.queue):
                    known.add(identity)
                    yield self._update("ADDED", identity)
            yield self._wire.ObjectUpdate(event="BOOKMARK")
            while True:
                identity = await changes.next()
                if identity[0] != kind or request.namespace not in ("", identity[1]):
                    continue
                update = self._changed(identity, request.queue, known)
                if update is not None:
                    yield update
        finally:
            changes.close()

    def _changed(self, identity: ObjectId, queue: str, known: set[ObjectId]) -> Any:
        """What a watcher is told of a change; None when it is not its business."""
        try:
            if not self._is_in(identity, queue):
                return None
            update = self._update("MODIFIED" if identity in known else "ADDED", identity)
        except (Refused, KeyError):
            if identity not in known:
                return None
            known.discard(identity)
            gone = self._wire.QueueObject(kind=identity[0], namespace=identity[1], name=identity[2])
            return self._wire.ObjectUpdate(event="DELETED", object=gone)
        known.add(identity)
        return update

    def _update(self, event: str, identity: ObjectId) -> Any:
        return self._wire.ObjectUpdate(event=event, object=self._render(identity))

    async def _follow(self, request: Any, context: Any) -> AsyncGenerator[Any, None]:
        key = WorkloadKey(f"{request.namespace}/{request.name}")
        async for status in self._shell.follow(key, request.uid):
            yield write_status(self._wire, status)

    # -- helpers ----------------------------------------------------------------------------------

    def _identity(self, request: Any) -> ObjectId:
        kind = _kind(request.kind)
        name = text(request.name, "name", 253)
        if not name:
            raise Refused("invalid", "name: is missing")
        namespace = text(request.namespace, "namespace", 63) or "default"
        return (kind, "" if kind in (*CLUSTER_WIDE, "Node") else namespace, name)

    def _render(self, identity: ObjectId) -> Any:
        revision, shown = self._shell.views.render(identity, self._shell.now_ns())
        return self._object(identity, revision, shown)

    def _object(self, identity: ObjectId, revision: int, shown: Any) -> Any:
        kind, namespace, name = identity
        return self._wire.QueueObject(
            kind=kind,
            namespace=namespace,
            name=name,
            revision=revision,
            json=json.dumps(shown, default=str),
        )


def _kind(name: str) -> str:
    if name in WORKLOAD_KINDS:
        return "Workload"
    if name not in KINDS:
        raise Refused("invalid", f"kind {name[:64]!r}: known are {', '.join(KINDS)}")
    return name


def _documents(texts: Any) -> list[dict[str, Any]]:
    """Raises ManifestError with every text that is no object."""
    problems, documents = [], []
    for number, one in enumerate(texts, 1):
        where = f"object {number}"
        try:
            if len(one) > LARGEST_OBJECT:
                raise ValueError(f"is larger than {LARGEST_OBJECT >> 10} KiB")
            found = json.loads(one, parse_constant=_no_constant)
            if not isinstance(found, dict):
                raise ValueError("is no object with fields")
            _check_depth(found)
            documents.append(found)
        except RecursionError:
            problems.append(Problem(where, f"is nested deeper than {DEEPEST}"))
        except ValueError as error:
            problems.append(Problem(where, str(error)))
    if problems:
        raise ManifestError(problems)
    return documents


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON number")


def _check_depth(value: object, depth: int = 0) -> None:
    if depth > DEEPEST:
        raise RecursionError
    if isinstance(value, dict):
        for item in value.values():
            _check_depth(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _check_depth(item, depth + 1)
