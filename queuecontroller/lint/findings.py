"""One thing that is wrong, where, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import yaml


class Severity(StrEnum):
    ERROR = "error"
    """Something here can never work as written."""
    WARNING = "warning"
    """It works, perhaps not as meant."""


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Severity
    rule: str
    file: str
    line: int
    """Of the document's first line; 0: not known."""
    object: str
    """Kind/name, with the namespace where there is one."""
    field: str
    text: str
    fix: str

    def as_dict(self) -> dict[str, Any]:
        return {
            "severity": str(self.severity),
            "rule": self.rule,
            "file": self.file,
            "line": self.line,
            "object": self.object,
            "field": self.field,
            "text": self.text,
            "fix": self.fix,
        }


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML document with its place."""

    file: str
    line: int
    kind: str
    namespace: str
    name: str
    body: Mapping[str, Any]

    @property
    def label(self) -> str:
        where = f"{self.namespace}/" if self.namespace else ""
        return f"{self.kind}/{where}{self.name}"


def documents_of(texts: Mapping[str, str]) -> list[Document]:
    """Every document that is one; broken files are told by the loader."""
    found = []
    for file, text in texts.items():
        try:
            nodes = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
            bodies = list(yaml.safe_load_all(text))
        except yaml.YAMLError:
            continue
        for node, body in zip(nodes, bodies, strict=True):
            if not isinstance(body, Mapping):
                continue
            line = node.start_mark.line + 1 if node is not None else 0
            items = body.get("items") if body.get("kind") == "List" else [body]
            found += [_document(file, line, one) for one in items or () if isinstance(one, Mapping)]
    return found


def _document(file: str, line: int, body: Mapping[str, Any]) -> Document:
    head = body.get("metadata")
    head = head if isinstance(head, Mapping) else {}
    return Document(
        file,
        line,
        str(body.get("kind", "")),
        str(head.get("namespace", "")),
        str(head.get("name", "")),
        body,
    )
