"""kube-scheduler's documents to and from an extender (`k8s.io/kube-scheduler/extender/v1`).

The types have no field tags, so keys are the fields' names in upper camel case; Go's reader accepts
any case, and so does this one. An error in a request is returned as `Error` in a response of status
200, because any other status hides the reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from json.encoder import encode_basestring_ascii
from typing import Any, Final

MAX_NODES: Final = 20_000
"""Kubernetes is tested with 5,000."""


class BadQuestion(ValueError):
    """Raised for a malformed request; the text goes into the scheduler's log."""


@dataclass(frozen=True, slots=True)
class Question:
    """Request to filter or prioritize."""

    pod: Mapping[str, Any]
    names: tuple[str, ...]
    nodes: Mapping[str, Mapping[str, Any]] | None = None
    """Whole nodes by name, from a scheduler without a node cache for extenders, or from an
    autoscaler that simulates new nodes. The request is a dry run then."""


@dataclass(frozen=True, slots=True)
class Passed:
    """Result of filter."""

    names: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    hopeless: Mapping[str, str] = field(default_factory=dict)
    """Nodes where no preemption would help, with the reason."""


@dataclass(frozen=True, slots=True)
class BindQuestion:
    namespace: str
    name: str
    uid: str
    node: str


def read_json(body: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadQuestion(f"invalid JSON: {str(error)[:200]}") from error
    if not isinstance(found, dict):
        raise BadQuestion("expected a JSON object")
    return found


def _field(document: Mapping[str, Any], name: str) -> Any:
    """Value of a field, ignoring the case of the key."""
    if name in document:
        return document[name]
    low = name.lower()
    return next((value for key, value in document.items() if key.lower() == low), None)


def _pod(document: Mapping[str, Any]) -> Mapping[str, Any]:
    pod = _field(document, "Pod")
    parts = ("metadata", "spec")
    if not isinstance(pod, dict) or not all(isinstance(pod.get(one), dict) for one in parts):
        raise BadQuestion("Pod: expected metadata and spec")
    return pod


def read_question(body: bytes) -> Question:
    """Parse a filter or prioritize request. Raises BadQuestion."""
    document = read_json(body)
    pod, names, nodes = _pod(document), _field(document, "NodeNames"), _field(document, "Nodes")
    if isinstance(names, list):
        return Question(pod, _texts(names, "NodeNames"))
    items = _field(nodes, "items") if isinstance(nodes, dict) else None
    if not isinstance(items, list) or len(items) > MAX_NODES:
        raise BadQuestion(f"neither NodeNames nor Nodes is a list of at most {MAX_NODES}")
    found: dict[str, Mapping[str, Any]] = {}
    for one in items:
        head = one.get("metadata") if isinstance(one, dict) else None
        name = head.get("name") if isinstance(head, dict) else None
        if not isinstance(name, str):
            raise BadQuestion("Nodes: one has no name")
        found[name] = one
    return Question(pod, tuple(found), found)


def _texts(values: list[Any], what: str) -> tuple[str, ...]:
    if len(values) > MAX_NODES:
        raise BadQuestion(f"{what}: more than {MAX_NODES}")
    if not all(isinstance(one, str) for one in values):
        raise BadQuestion(f"{what}: expected strings")
    return tuple(values)


def _formatted(reason: str) -> str:
    """The reason without percent signs, because kube-scheduler takes it for a format string."""
    return reason.replace(" %", " percent").replace("%", " percent")


def write_filter(question: Question | None, answer: Passed | str) -> bytes:
    if isinstance(answer, str):
        return _dumps({"Error": _formatted(answer)})
    made: dict[str, Any] = {
        "FailedNodes": {node: _formatted(why) for node, why in answer.failed.items()},
        "FailedAndUnresolvableNodes": {
            node: _formatted(why) for node, why in answer.hopeless.items()
        },
        "Error": "",
    }
    if question is not None and question.nodes is not None:
        made["Nodes"] = {"metadata": {}, "items": [question.nodes[one] for one in answer.names]}
    else:
        made["NodeNames"] = answer.names
    return _dumps(made)


def write_points(points: Iterable[tuple[str, int]]) -> bytes:
    each = [f'{{"Host":{encode_basestring_ascii(name)},"Score":{score}}}' for name, score in points]
    return f"[{','.join(each)}]".encode()


def read_preemption(body: bytes) -> tuple[Mapping[str, Any], dict[str, tuple[list[str], int]]]:
    """The pod, and by node the UIDs of the victims with the number of budgets they violate. Raises
    BadQuestion."""
    document = read_json(body)
    table = _field(document, "NodeNameToMetaVictims") or _field(document, "NodeNameToVictims")
    if not isinstance(table, dict) or len(table) > MAX_NODES:
        raise BadQuestion(f"NodeNameToMetaVictims: expected an object of at most {MAX_NODES} nodes")
    found = {}
    for node, victims in table.items():
        if not isinstance(victims, dict):
            raise BadQuestion(f"NodeNameToMetaVictims: {node[:80]}: expected an object")
        pods = _field(victims, "Pods") or []
        if not isinstance(pods, list):
            raise BadQuestion(f"NodeNameToMetaVictims: {node[:80]}: Pods: expected a list")
        uids = [_uid(one) for one in pods]
        broken = _field(victims, "NumPDBViolations") or 0
        found[node] = (uids, broken if type(broken) is int else 0)
    return _pod(document), found


def _uid(one: Any) -> str:
    uid = _field(one, "UID") if isinstance(one, dict) else None
    if uid is None and isinstance(one, dict):  # a whole pod
        head = one.get("metadata")
        uid = head.get("uid") if isinstance(head, dict) else None
    if not isinstance(uid, str):
        raise BadQuestion("NodeNameToMetaVictims: a victim has no UID")
    return uid


def write_preemption(victims: Mapping[str, tuple[list[str], int]]) -> bytes:
    return _dumps(
        {
            "NodeNameToMetaVictims": {
                node: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": broken}
                for node, (uids, broken) in victims.items()
            }
        }
    )


def read_bind(body: bytes) -> BindQuestion:
    """Parse a bind request. Raises BadQuestion."""
    document = read_json(body)
    fields = [_field(document, one) for one in ("PodNamespace", "PodName", "PodUID", "Node")]
    if not all(isinstance(one, str) and 0 < len(one) <= 253 for one in fields):
        raise BadQuestion("PodNamespace, PodName, PodUID and Node: one is missing")
    return BindQuestion(*fields)


def write_bind(error: str) -> bytes:
    return _dumps({"Error": error})


def _dumps(made: Any) -> bytes:
    return json.dumps(made, separators=(",", ":")).encode()
