"""Valid forms of names in Kubernetes (RFC 1123).

Names are checked when an object is submitted, not when it is read again: objects that an earlier
version accepted must stay readable and deletable.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

LONGEST: Final = 253
LONGEST_LABEL: Final = 63
MAX_SHOWN: Final = 64
"""Characters of an invalid name that are shown in a message."""

SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
NODE: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9._]{0,251}[A-Za-z0-9])?")
"""Host names, which may contain capitals and underscores."""
_LABEL_KEY: Final = re.compile(
    r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
_LABEL_VALUE: Final = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")

_SUBDOMAIN_FORM: Final = "lower-case letters, digits, '-' and '.', as Kubernetes has it"
_LABEL_FORM: Final = "at most 63 lower-case letters, digits and '-', as Kubernetes has it"
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"


def shown(name: object) -> str:
    text = repr(name)
    return text if len(text) <= MAX_SHOWN + 2 else f"{text[:MAX_SHOWN]}…'"


def wrong_name(name: str) -> str:
    """The problem of an object's name; empty if it is valid."""
    return "" if SUBDOMAIN.fullmatch(name) else f"{shown(name)}: {_SUBDOMAIN_FORM}"


def wrong_namespace(name: str) -> str:
    return "" if LABEL.fullmatch(name) else f"{shown(name)}: {_LABEL_FORM}"


def wrong_names(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Pairs of field and problem for every invalid name in a submitted object."""
    head = _fields(document, "metadata")
    for field in ("name", "generateName"):
        name = head.get(field)
        bare = name.rstrip("-") if isinstance(name, str) and field == "generateName" else name
        if isinstance(bare, str) and bare and (problem := wrong_name(bare)):
            yield f"metadata.{field}", problem
    namespace = head.get("namespace")
    if isinstance(namespace, str) and namespace and (problem := wrong_namespace(namespace)):
        yield "metadata.namespace", problem
    yield from _wrong_labels(_fields(head, "labels"))
    spec = _fields(document, "spec")
    queue = spec.get("queueName")
    if isinstance(queue, str) and queue and (problem := wrong_name(queue)):
        yield "spec.queueName", problem
    sets = spec.get("podSets")
    for number, one in enumerate(sets if isinstance(sets, list) else ()):
        name = one.get("name") if isinstance(one, Mapping) else None
        if isinstance(name, str) and name and not LABEL.fullmatch(name):
            yield f"spec.podSets[{number}].name", f"{shown(name)}: {_LABEL_FORM}"


def _wrong_labels(labels: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in labels.items():
        if not _LABEL_KEY.fullmatch(str(key)):
            yield "metadata.labels", f"expected the name of a label, got {shown(key)}"
        elif key == QUEUE_LABEL and isinstance(value, str) and value:
            if problem := wrong_name(value):
                yield f"metadata.labels.{QUEUE_LABEL}", problem
        elif isinstance(value, str) and not _LABEL_VALUE.fullmatch(value):
            yield "metadata.labels", f"{key}: expected the value of a label, got {shown(value)}"


def _fields(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = value.get(name)
    return found if isinstance(found, Mapping) else {}
