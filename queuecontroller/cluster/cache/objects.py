"""Cache of the API server's objects: the newest document of each that was received.

An object is received twice, from the watch and in the answer to a write, in any order. The resource
version decides which is newer: those of one kind grow (Kubernetes compares them itself since 1.35,
and they have been etcd's revision all along).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from sys import intern
from typing import Any, Final

from queuecontroller.cluster.cache.policy import Policy
from sluicecommon.kubernetes.resources import Resource
from sluicecommon.newest import Newest

Document = Mapping[str, Any]
LONGEST_WORD: Final = 32
"""Longest text that is interned, in characters; shorter than a UID: UIDs never repeat."""
MAX_GONE: Final = 10_000
"""UIDs of deleted objects that are kept; answers to writes arrive within seconds."""


def pruned(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document without managedFields, which is often most of it, and with interned
    texts: otherwise ten thousand Workloads would hold as many copies of each field's name."""
    head = {name: value for name, value in document["metadata"].items() if name != "managedFields"}
    found: dict[str, Any] = _interned({**document, "metadata": head})
    return found


def _interned(value: Any) -> Any:
    """Return a copy. Interned texts are freed with the last object that has them."""
    kind = type(value)
    if kind is dict:
        return {intern(name): _interned(one) for name, one in value.items()}
    if kind is str:
        return intern(value) if len(value) <= LONGEST_WORD else value
    if kind is list:
        return [_interned(one) for one in value]
    return value


def version_of(document: Document) -> int:
    found = document["metadata"].get("resourceVersion") or "0"
    return int(found) if found.isascii() and found.isdigit() else 0


def key_of(document: Document) -> str:
    head = document["metadata"]
    namespace = head.get("namespace") or ""
    return intern(f"{namespace}/{head['name']}" if namespace else str(head["name"]))


def split_key(key: str) -> tuple[str, str]:
    """Split a key into namespace and name."""
    namespace, _, name = key.rpartition("/")
    return namespace, name


def is_leaving(document: Document) -> bool:
    return bool(document["metadata"].get("deletionTimestamp"))


def annotations_of(document: Document) -> Mapping[str, str]:
    return document["metadata"].get("annotations") or {}


def labels_of(document: Document) -> Mapping[str, str]:
    return document["metadata"].get("labels") or {}


def condition_of(document: Document, name: str) -> Mapping[str, Any]:
    """Return the condition of this type; empty if there is none."""
    for one in (document.get("status") or {}).get("conditions") or ():
        if one.get("type") == name:
            found: Mapping[str, Any] = one
            return found
    return {}


def has_condition(document: Document, name: str) -> bool:
    return condition_of(document, name).get("status") == "True"


def seconds_of(stamp: object) -> float | None:
    """Parse a time as Kubernetes writes it, in seconds since the epoch; None if malformed."""
    try:
        moment = datetime.fromisoformat(stamp) if isinstance(stamp, str) else None
    except ValueError:
        return None
    return moment.timestamp() if moment is not None and moment.tzinfo is not None else None


def controller_of(document: Document) -> Mapping[str, Any]:
    """Return the owner reference of the controller; empty if there is none."""
    for one in document["metadata"].get("ownerReferences") or ():
        if one.get("controller"):
            found: Mapping[str, Any] = one
            return found
    return {}


def is_answered_by(check: Document | None, controller: str) -> bool:
    """Return True for an AdmissionCheck of a controller."""
    return check is not None and (check.get("spec") or {}).get("controllerName") == controller


def covers(there: Any, mine: Any) -> bool:
    """Return True if `there` has all of `mine`. The API server adds defaults, and what a typed
    client has written lacks empty and zero values."""
    if there is None and not mine:
        return True
    if isinstance(mine, Mapping):
        found = {} if there is None else there
        return isinstance(found, Mapping) and all(
            covers(found.get(name), value) for name, value in mine.items()
        )
    if isinstance(mine, list):
        return isinstance(there, list) and len(there) == len(mine) and all(map(covers, there, mine))
    return bool(there == mine)


class ObjectCache:
    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy or Policy()
        self._of: dict[Resource, dict[str, Document]] = {}
        self._gone = Newest[str, None](MAX_GONE)
        """UIDs of deleted objects, the newest last: a late answer must not bring one back."""
        self.on_update: Callable[[Resource, str, Document], object] = lambda *_: None
        """Called by `update` with each version that is news: its kind, key and document."""

    def update(self, kind: Resource, document: Document) -> None:
        """Store a version that the watch reports or the answer to a write has, whichever is first:
        the other one is no news any more."""
        if self.take(kind, document):
            self.on_update(kind, key_of(document), document)

    def take(self, kind: Resource, document: Document) -> bool:
        """Store a document; returns False if it is not newer than the stored one."""
        mine = self._of.setdefault(kind, {})
        key = key_of(document)
        before = mine.get(key)
        if before is not None and version_of(before) >= version_of(document):
            return False
        if document["metadata"].get("uid") in self._gone:
            return False
        mine[key] = document
        return True

    def drop(self, kind: Resource, key: str, uid: str) -> bool:
        """Remove a deleted object; returns False if another object has its name."""
        self._gone[uid] = None
        known = self._of.get(kind, {}).get(key)
        if known is None or known["metadata"].get("uid") != uid:
            return False
        del self._of[kind][key]
        return True

    def get(self, kind: Resource, key: str) -> Document | None:
        return self._of.get(kind, {}).get(key)

    def all_of(self, kind: Resource) -> Iterator[Document]:
        return iter(list(self._of.get(kind, {}).values()))

    def count(self, kind: Resource) -> int:
        return len(self._of.get(kind, {}))
