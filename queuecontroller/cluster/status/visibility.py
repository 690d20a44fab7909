"""Kueue's visibility API: the pending workloads of a queue in their order; paths to documents, no
I/O.

The fields are Kueue's; an item has `reason`, `message` and `estimateSeconds` in addition. The
leader uses the book's own order. Any other replica has only the objects and sorts by priority, then
by age: the same order, except where usage of LocalQueues decides. It has no estimates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs, unquote

from queuecontroller.cluster.cache.kinds import CLUSTER_QUEUES, LOCAL_QUEUES, WORKLOADS
from queuecontroller.cluster.cache.objects import (
    Document,
    ObjectCache,
    condition_of,
    has_condition,
    key_of,
)
from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.model.reasons import EVICTED, FINISHED, QUOTA_RESERVED
from queuecontroller.state.book import Book
from queuecontroller.state.status import Views

GROUP: Final = "visibility.kueue.x-k8s.io"
VERSIONS: Final = ("v1beta2", "v1beta1")
"""Served versions, the preferred one first."""
ROOT: Final = f"/apis/{GROUP}"
PART: Final = "pendingworkloads"
DEFAULT_LIMIT: Final = 1000
"""Kueue's default."""
MOST: Final = 10_000
"""Largest limit of a request; an item has some 500 bytes."""
_KINDS: Final = {"clusterqueues": ("ClusterQueue", False), "localqueues": ("LocalQueue", True)}
_COLUMNS: Final = (
    ("Name", "string", "name"),
    ("Namespace", "string", ""),
    ("Queue", "string", ""),
    ("Priority", "integer", ""),
    ("Position", "integer", ""),
    ("Estimate", "string", ""),
    ("Reason", "string", ""),
)


class Wrong(Exception):
    """An error answer: HTTP status, Kubernetes' reason, and message."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message

    def document(self) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Status",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.status,
        }


@dataclass(frozen=True, slots=True)
class Question:
    version: str
    plural: str
    name: str
    namespace: str = ""
    offset: int = 0
    limit: int = DEFAULT_LIMIT

    @property
    def attributes(self) -> dict[str, str]:
        """Return the resource attributes for a SubjectAccessReview."""
        made = {
            "group": GROUP,
            "version": self.version,
            "resource": self.plural,
            "subresource": PART,
            "name": self.name,
            "verb": "get",
        }
        return {**made, "namespace": self.namespace} if self.namespace else made


def question(path: str, query: str) -> Question | str:
    """Parse a path and query as received; returns a version if only its resources are listed.

    Raises Wrong.
    """
    parts = path.removeprefix(ROOT).strip("/").split("/") if path.startswith(f"{ROOT}/") else [""]
    version, rest = parts[0], [unquote(one) for one in parts[1:]]
    if version not in VERSIONS:
        raise Wrong(404, "NotFound", "the server could not find the requested resource")
    if not rest:
        return version
    namespace = ""
    if len(rest) == 5 and rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    known = _KINDS.get(rest[0])
    if known is None or len(rest) != 3 or rest[2] != PART or known[1] != bool(namespace):
        raise Wrong(404, "NotFound", "the server could not find the requested resource")
    given = parse_qs(query, keep_blank_values=True, max_num_fields=16)
    return Question(
        version,
        rest[0],
        rest[1],
        namespace,
        _whole(given, "offset", 0),
        _whole(given, "limit", DEFAULT_LIMIT),
    )


def _whole(given: Mapping[str, list[str]], name: str, default: int) -> int:
    text = given.get(name, [""])[-1]
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise Wrong(400, "BadRequest", f"{name}: expected a whole number from 0, got {text[:40]!r}")
    if name == "limit" and int(text) > MOST:
        text = f"limit: {text} is more than {MOST}: use offset to read the list in parts"
        raise Wrong(400, "BadRequest", text)
    return int(text)


def resources(version: str) -> dict[str, Any]:
    """Return the discovery document of a version."""
    listed = []
    for plural, (kind, namespaced) in _KINDS.items():
        for name, shown in ((plural, kind), (f"{plural}/{PART}", "PendingWorkloadsSummary")):
            listed.append(
                {
                    "name": name,
                    "singularName": "" if "/" in name else kind.lower(),
                    "namespaced": namespaced,
                    "kind": shown,
                    "verbs": ["get"],
                }
            )
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{GROUP}/{version}",
        "resources": listed,
    }


@dataclass(frozen=True, slots=True)
class Waiting:
    """A pending workload."""

    document: Document
    priority: int
    reason: str = ""
    message: str = ""
    estimate_s: float | None = None


def answer(
    request: Question, cache: ObjectCache, book: Book | None, views: Views | None, now_ns: int
) -> dict[str, Any]:
    """Return the summary. `book` and `views`: the leader's. Raises Wrong."""
    queue, local = _queue(request, cache)
    in_line = _by_book(book, queue, cache) if book is not None else _by_objects(cache, queue)
    last = request.offset + request.limit
    items: list[dict[str, Any]] = []
    seen: dict[str, int] = {}
    found = 0
    for position, waiting in enumerate(in_line):
        document = waiting.document
        name = f"{document['metadata'].get('namespace')}/{_queue_name(document)}"
        in_local = seen.get(name, 0)
        seen[name] = in_local + 1
        if local and name != local:
            continue
        found += 1
        if found <= request.offset:
            continue
        if found > last:
            break
        if book is not None and views is not None:
            waiting = _with_status(waiting, book, views, now_ns)
        items.append(_item(waiting, position, in_local))
    return {
        "apiVersion": f"{GROUP}/{request.version}",
        "kind": "PendingWorkloadsSummary",
        "metadata": {"creationTimestamp": None},
        "items": items,
    }


def _queue(request: Question, cache: ObjectCache) -> tuple[str, str]:
    """Return the ClusterQueue, and the LocalQueue if the question is about one."""
    if request.plural == "clusterqueues":
        if cache.get(CLUSTER_QUEUES, request.name) is None:
            raise _missing("clusterqueues", request.name)
        return request.name, ""
    key = f"{request.namespace}/{request.name}"
    document = cache.get(LOCAL_QUEUES, key)
    if document is None:
        raise _missing("localqueues", request.name)
    return str((document.get("spec") or {}).get("clusterQueue") or ""), key


def _missing(plural: str, name: str) -> Wrong:
    return Wrong(404, "NotFound", f'{plural}.{GROUP} "{name[:253]}" not found')


def _queue_name(document: Document) -> str:
    return str((document.get("spec") or {}).get("queueName") or "")


def _by_book(book: Book, queue: str, cache: ObjectCache) -> Iterator[Waiting]:
    line = book.engine.pending.get(queue)
    for info in line.everyone() if line is not None else ():
        document = cache.get(WORKLOADS, info.key)
        if document is not None:
            yield Waiting(document, info.priority)


def _with_status(waiting: Waiting, book: Book, views: Views, now_ns: int) -> Waiting:
    key = WorkloadKey(key_of(waiting.document))
    status = views.status(key, now_ns)
    message = book.with_moves(key, status.reason, status.message)
    return Waiting(waiting.document, waiting.priority, status.reason, message, status.estimate_s)


def _by_objects(cache: ObjectCache, queue: str) -> list[Waiting]:
    local_queues = {
        key_of(one)
        for one in cache.all_of(LOCAL_QUEUES)
        if (one.get("spec") or {}).get("clusterQueue") == queue
    }
    found = []
    for document in cache.all_of(WORKLOADS):
        spec, status = document.get("spec") or {}, document.get("status") or {}
        name = f"{document['metadata'].get('namespace')}/{_queue_name(document)}"
        if name not in local_queues or status.get("admission") or spec.get("active") is False:
            continue
        if has_condition(document, FINISHED):
            continue
        why = condition_of(document, QUOTA_RESERVED)
        found.append(
            Waiting(
                document,
                _number(spec.get("priority")),
                str(why.get("reason") or "Pending"),
                str(why.get("message") or "not yet considered by the scheduler"),
            )
        )
    return sorted(found, key=_order)


def _order(waiting: Waiting) -> tuple[int, str, str]:
    document = waiting.document
    head = document["metadata"]
    evicted = condition_of(document, EVICTED)
    since = head.get("creationTimestamp") or ""
    if evicted.get("status") == "True" and evicted.get("reason") == "PodsReadyTimeout":
        since = evicted.get("lastTransitionTime") or since
    return -waiting.priority, str(since), key_of(document)


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _item(waiting: Waiting, position: int, in_local: int) -> dict[str, Any]:
    head = waiting.document["metadata"]
    kept = ("name", "namespace", "creationTimestamp")
    metadata: dict[str, Any] = {name: head[name] for name in kept if head.get(name)}
    # Callers need not know more of the owners of others' work.
    of_owner = ("apiVersion", "kind", "name", "uid")
    if owners := head.get("ownerReferences"):
        metadata["ownerReferences"] = [{name: one.get(name) for name in of_owner} for one in owners]
    made: dict[str, Any] = {
        "metadata": metadata,
        "priority": waiting.priority,
        "localQueueName": _queue_name(waiting.document),
        "positionInClusterQueue": position,
        "positionInLocalQueue": in_local,
    }
    if waiting.reason:
        made["reason"], made["message"] = waiting.reason, waiting.message
    if waiting.estimate_s is not None:
        made["estimateSeconds"] = round(waiting.estimate_s)
    return made


def table(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the summary as a Table, which `kubectl get` requests."""
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {},
        "columnDefinitions": [
            {"name": name, "type": kind, "format": form, "description": "", "priority": 0}
            for name, kind, form in _COLUMNS
        ],
        "rows": [{"cells": _cells(one), "object": _partial(one)} for one in summary["items"]],
    }


def _cells(item: Mapping[str, Any]) -> list[Any]:
    head = item["metadata"]
    seconds = item.get("estimateSeconds")
    return [
        head["name"],
        head.get("namespace", ""),
        item["localQueueName"],
        item["priority"],
        item["positionInClusterQueue"],
        "" if seconds is None else f"{seconds}s",
        item.get("reason", ""),
    ]


def _partial(item: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": item["metadata"],
    }


def wants_table(accept: Iterable[str]) -> bool:
    """Return True if the first supported type in the Accept headers is a Table."""
    for one in ",".join(accept).split(","):
        words = {word.strip() for word in one.split(";")}
        if "application/json" in words or "*/*" in words:
            return "as=Table" in words and "v=v1" in words
    return False


def services(ca_bundle: str, service: str, namespace: str) -> Sequence[dict[str, Any]]:
    """Return the APIServices, which register this server at the API server."""
    return [
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {
                "name": f"{version}.{GROUP}",
                "labels": {"app.kubernetes.io/part-of": "sluice"},
            },
            "spec": {
                "group": GROUP,
                "version": version,
                "groupPriorityMinimum": 100,
                "versionPriority": 100 + 10 * (len(VERSIONS) - number),
                "caBundle": ca_bundle,
                "service": {"name": service, "namespace": namespace, "port": 443},
            },
        }
        for number, version in enumerate(VERSIONS)
    ]
