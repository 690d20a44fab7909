"""The gRPC service for users and their tools."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from typing import Any, Final

from queuecontroller.kueueapi.manifests.sources import CLUSTER_WIDE, DEEPEST
from queuecontroller.scheduler.explain import Explanation, explain
from queuecontroller.scheduler.model.objects import Workload, WorkloadKey
from queuecontroller.server.api.calls import Calls
from queuecontroller.server.api.messages import read_submission, write_status
from queuecontroller.server.api.wire import QUEUES, Wire
from queuecontroller.state.access import Act, Caller, Target, check, may
from queuecontroller.state.objects.authority import owned
from queuecontroller.state.objects.catalogue import OBJECT_KINDS, WORKLOAD_KINDS
from queuecontroller.state.objects.submission import Refused
from queuecontroller.state.records import ObjectId, WorkloadRecord
from queuecontroller.state.shell import Shell
from queuecontroller.state.status import Status
from sluicecommon.kubernetes.names import LONGEST
from sluicecommon.reader import ManifestError, Problem

MAX_OBJECTS: Final = 10_000
LARGEST_OBJECT: Final = 256 << 10
PAGE: Final = 500
KINDS: Final = (*OBJECT_KINDS, "Workload", "Node")
OpenPage = Callable[[Caller], tuple[str, float]]
"""Returns a URL for the caller, and its validity in seconds. Raises Refused."""


def no_page(caller: Caller) -> tuple[str, float]:
    raise Refused("conflict", "the web page is not served: page.listen is empty")


class UsersApi:
    def __init__(
        self,
        shell: Shell,
        wire: Wire,
        calls: Calls,
        version: str,
        open_page: OpenPage = no_page,
    ) -> None:
        self._shell = shell
        self._wire = wire
        self._calls = calls
        self._version = version
        self._open_page = open_page

    def handler(self) -> Any:
        return self._calls.handlers(
            self._wire,
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
                "OpenPage": self._page,
            },
            {"Watch": self._watch, "Follow": self._follow},
        )

    # -- changing ---------------------------------------------------------------------------------

    def _apply(self, request: Any, caller: Caller) -> Generator[None, None, Any]:
        """Read the objects in as many turns as it takes, and apply them in one."""
        if len(request.objects) > MAX_OBJECTS:
            raise Refused("invalid", f"objects: more than {MAX_OBJECTS} in one call")
        documents = yield from _documents(request.objects)
        reading = yield from self._shell.book.applying.read(documents, caller)
        applied = self._shell.step(
            "apply", lambda book, now_ns: book.put(reading, request.dry_run, now_ns)
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

    def _submit(self, request: Any, caller: Caller) -> Any:
        asked = read_submission(request, caller.user)
        nodes = frozenset({asked.node}) if asked.node else frozenset()
        check(caller, Act.SUBMIT, Target(caller.user, nodes), f"node {asked.node}" * bool(nodes))
        if nodes and not caller.admin and not caller.is_node(asked.node):
            # Only the node itself may bind a workload to it, since a process waits there.
            check(caller, Act.SESSION, Target(nodes=nodes), f"node {asked.node}")
        if asked.user != caller.user:
            check(caller, Act.SUBMIT_AS, Target(nodes=nodes), f"user {asked.user}")
        record = self._shell.step("submit", lambda book, now_ns: book.submit(asked, now_ns))
        return write_status(self._wire, self._shell.views.status(record.key, self._shell.now_ns()))

    def _delete(self, request: Any, caller: Caller) -> Any:
        identity = self._identity(request)
        self._check_owner(identity, caller, "delete it")
        _, shown = self._shell.views.render(identity, self._shell.now_ns())
        self._shell.step("delete", lambda book, now_ns: book.delete(identity, request.uid, now_ns))
        return self._object(identity, self._shell.book.journal.revision, shown)

    def _hold(self, request: Any, caller: Caller) -> Any:
        identity = self._identity(request.object)
        self._check_owner(identity, caller, "hold it")
        drain = request.drain
        self._shell.step("hold", lambda book, now_ns: book.hold(identity, drain, now_ns))
        return self._render(identity, caller)

    def _resume(self, request: Any, caller: Caller) -> Any:
        identity = self._identity(request)
        self._check_owner(identity, caller, "resume it")
        self._shell.step("resume", lambda book, now_ns: book.resume(identity, now_ns))
        return self._render(identity, caller)

    def _check_owner(self, identity: ObjectId, caller: Caller, what: str) -> None:
        kind, namespace, name = identity
        if kind == "Workload":
            record = self._shell.book.find(namespace, name)
            check(caller, Act.CHANGE_WORKLOAD, self._whose(record), f"{what}: {record.key}")
        else:
            act = Act.DELETE_NODE if kind == "Node" else Act.CHANGE_OBJECTS
            check(caller, act, what=f"{what}: {kind} {name[:LONGEST]}")

    def _whose(self, record: WorkloadRecord) -> Target:
        pods = self._shell.book.nodes.of_workload(record.key).values()
        return owned(record, frozenset(one.node for one in pods))

    # -- reading ----------------------------------------------------------------------------------

    def _get(self, request: Any, caller: Caller) -> Any:
        identity = self._identity(request)
        self._check_sight(identity, caller)
        return self._render(identity, caller)

    def _check_sight(self, identity: ObjectId, caller: Caller) -> None:
        kind, namespace, name = identity
        if kind != "Workload":
            check(caller, Act.LIST, what=kind)
        elif not may(caller, Act.SEE_WORKLOAD):  # Without that right, the owner decides.
            record = self._shell.book.find(namespace, name)
            check(caller, Act.SEE_WORKLOAD, self._whose(record), f"Workload {record.key}")

    def _list(self, request: Any, caller: Caller) -> Generator[None, None, Any]:
        check(caller, Act.LIST)
        kind = _kind(request.kind)
        limit = min(request.limit or PAGE, PAGE)
        after = _after(request.after)
        page: list[Any] = []
        following = ""
        for identity in self._shell.views.identities(kind, request.namespace):
            if after is not None and identity <= after:
                continue
            if len(page) == limit:
                following = json.dumps([page[-1].kind, page[-1].namespace, page[-1].name])
                break
            with contextlib.suppress(Refused, KeyError):  # It was deleted since the listing.
                if self._is_in(identity, request.queue):
                    page.append(self._render(identity, caller))
            yield
        return self._wire.ListResponse(
            objects=page, next=following, revision=self._shell.book.journal.revision
        )

    def _is_in(self, identity: ObjectId, queue: str) -> bool:
        """True if a workload is in this LocalQueue or ClusterQueue; other kinds always are."""
        if not queue or identity[0] != "Workload":
            return True
        key = WorkloadKey(f"{identity[1]}/{identity[2]}")
        record = self._shell.book.workloads.records[key]
        status = self._shell.views.status(key, self._shell.now_ns())
        return queue in (record.workload.queue_name, status.cluster_queue)

    def _explain(self, request: Any, caller: Caller) -> Any:
        identity = self._identity(request)
        record = self._shell.book.find(*identity[1:], uid=request.uid)
        check(caller, Act.SEE_WORKLOAD, self._whose(record), f"Workload {record.key}")
        now_ns = self._shell.now_ns()
        status = self._shell.views.status(record.key, now_ns, fresh=True)
        _, shown = self._shell.views.render(identity, now_ns)
        self._hide(shown, record, caller)
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

    def _server(self, request: Any, caller: Caller) -> Any:
        check(caller, Act.SEE_SERVER)
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

    def _page(self, request: Any, caller: Caller) -> Any:
        check(caller, Act.LIST, what="the page")
        url, valid_s = self._open_page(caller)
        return self._wire.QueuePageUrl(url=url, valid_seconds=valid_s)

    async def _watch(self, request: Any, caller: Caller) -> AsyncGenerator[Any, None]:
        check(caller, Act.LIST)
        kind = _kind(request.kind)
        changes = self._shell.subscribe()  # Before listing, so that no change is missed.
        try:
            known: set[ObjectId] = set()
            news: Iterable[ObjectId] = self._shell.views.identities(kind, request.namespace)
            listed = False
            while True:
                for identity in news:
                    # One object in a turn: hundreds of sending streams would delay all calls.
                    update = await self._calls.turns.run(
                        caller,
                        lambda one=identity: self._changed(one, request.queue, known, caller),  # type: ignore[misc]
                    )
                    if update is not None:
                        yield update
                if not listed:
                    listed = True
                    yield self._wire.ObjectUpdate(event="BOOKMARK")
                news = await changes.next_of(kind, request.namespace)
        finally:
            changes.close()

    def _changed(self, identity: ObjectId, queue: str, known: set[ObjectId], caller: Caller) -> Any:
        """The update for a watcher after a change; None if the watch does not include the
        object."""
        try:
            if not self._is_in(identity, queue):
                return None
            event = "MODIFIED" if identity in known else "ADDED"
            update = self._update(event, identity, caller)
        except (Refused, KeyError):
            if identity not in known:
                return None
            known.discard(identity)
            gone = self._wire.QueueObject(kind=identity[0], namespace=identity[1], name=identity[2])
            return self._wire.ObjectUpdate(event="DELETED", object=gone)
        known.add(identity)
        return update

    def _update(self, event: str, identity: ObjectId, caller: Caller) -> Any:
        return self._wire.ObjectUpdate(event=event, object=self._render(identity, caller))

    async def _follow(self, request: Any, caller: Caller) -> AsyncGenerator[Any, None]:
        key = WorkloadKey(f"{request.namespace}/{request.name}")
        record = self._shell.book.workloads.records.get(key)
        whose = self._whose(record) if record is not None else None
        if record is not None or not caller.nodes:  # A node may learn that a workload is gone.
            check(caller, Act.SEE_WORKLOAD, whose, f"Workload {key}")
        async for status in self._shell.follow(key, request.uid):
            yield write_status(self._wire, status)

    # -- helpers ----------------------------------------------------------------------------------

    def _identity(self, request: Any) -> ObjectId:
        """The object that a request names. Names are not checked, so that objects which an earlier
        version accepted can be read and deleted."""
        kind = _kind(request.kind)
        if not request.name:
            raise Refused("invalid", "name: is missing")
        namespace = request.namespace or "default"
        return (kind, "" if kind in (*CLUSTER_WIDE, "Node") else namespace, request.name)

    def _render(self, identity: ObjectId, caller: Caller) -> Any:
        revision, shown = self._shell.views.render(identity, self._shell.now_ns())
        if identity[0] == "Workload":
            self._hide(shown, self._shell.book.find(*identity[1:]), caller)
        return self._object(identity, revision, shown)

    def _hide(self, shown: dict[str, Any], record: WorkloadRecord, caller: Caller) -> None:
        """Remove the command line for other users, since it may contain passwords."""
        if "command" in shown["sluice"] and not may(caller, Act.SEE_COMMAND, self._whose(record)):
            del shown["sluice"]["command"]

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
        raise Refused("invalid", f"unknown kind {name[:64]!r}; known: {', '.join(KINDS)}")
    return name


def _documents(texts: Any) -> Generator[None, None, list[dict[str, Any]]]:
    """The objects in JSON texts. Raises ManifestError with every text that is not an object."""
    problems, documents = [], []
    for number, one in enumerate(texts, 1):
        yield
        where = f"object {number}"
        try:
            if len(one) > LARGEST_OBJECT:
                raise ValueError(f"is larger than {LARGEST_OBJECT >> 10} KiB")
            found = json.loads(one, parse_constant=_no_constant)
            if not isinstance(found, dict):
                raise ValueError("is not a JSON object")
            _check_inside(found)
            documents.append(found)
        except RecursionError:
            problems.append(Problem(where, f"is nested deeper than {DEEPEST}"))
        except ValueError as error:
            problems.append(Problem(where, str(error)))
    if problems:
        raise ManifestError(problems)
    return documents


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON number")


def _check_inside(value: object, depth: int = 0) -> None:
    """Check depth and strings of a value. Raises RecursionError, ValueError."""
    if depth > DEEPEST:
        raise RecursionError
    if isinstance(value, dict):
        for key, item in value.items():
            _check_inside(key, depth + 1)
            _check_inside(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _check_inside(item, depth + 1)
    elif isinstance(value, str) and not value.isascii():
        value.encode()  # A lone surrogate cannot be stored or sent.


def _after(text: str) -> ObjectId | None:
    """The object that `next` of the previous page names. Raises Refused."""
    if not text:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or len(found) != 3 or not all(isinstance(x, str) for x in found):
        raise Refused("invalid", "after: is not `next` of a previous page")
    kind, namespace, name = found
    return (kind, namespace, name)
