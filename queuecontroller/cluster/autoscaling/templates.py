"""Node templates: Kubernetes Nodes as an autoscaler would create them, read from documents.

`metadata.name` is the name of the template, its labels and taints are those of all its nodes, and
`status.allocatable` has what an autoscaler knows of a new node, before Sluice's agent runs there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from queuecontroller.kueueapi.manifests.nodes import GPUS, MEMORY, read_node
from queuecontroller.scheduler.placement.new_nodes import NodeTemplate
from sluicecommon.hami.names import ResourceNames
from sluicecommon.reader import ManifestError, Problem

MOST: Final = "sluice.dev/max-new-nodes"
"""Annotation of a template: new nodes of it at a time."""
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")
_OF_ONE_NODE: Final = ("kubernetes.io/hostname",)
_OF_THE_AGENT: Final = ("nvidia.com/",)
"""Prefix of labels that only exist once a node runs: an autoscaler does not know them."""


@dataclass(frozen=True, slots=True)
class Template:
    node: NodeTemplate
    requests: Mapping[str, str]
    """GPUs of a whole new node, in the resource names that the autoscaler knows."""

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def selector(self) -> dict[str, str]:
        """Labels by which an autoscaler finds the kind of node."""
        return {
            name: value
            for name, value in self.node.capacity.labels.items()
            if name not in _OF_ONE_NODE and not name.startswith(_OF_THE_AGENT)
        }


def read_templates(
    documents: Iterable[object], names: ResourceNames, where: str
) -> tuple[Template, ...]:
    """Read all templates. Raises ManifestError with all mistakes."""
    found: dict[str, Template] = {}
    problems: list[Problem] = []
    for document in documents:
        for body in _nodes_in(document):
            try:
                template = _read(body, names)
            except ManifestError as error:
                problems += [
                    Problem(f"{where}: {one.field}", one.message, one.fix) for one in error.problems
                ]
                continue
            if template.name in found:
                problems.append(Problem(f"{where}: {template.name}", "is given twice: remove one"))
            found[template.name] = template
    if not found and not problems:
        problems.append(Problem(where, "has no Node: write one for each kind of node"))
    if problems:
        raise ManifestError(problems)
    return tuple(found.values())


def _nodes_in(document: object) -> Iterable[Mapping[str, Any]]:
    if not isinstance(document, Mapping):
        return ()
    if document.get("kind") == "List":
        return [one for one in document.get("items") or () if isinstance(one, Mapping)]
    return [document]


def _read(body: Mapping[str, Any], names: ResourceNames) -> Template:
    """Raises ManifestError."""
    capacity = read_node(body)
    head = body.get("metadata") or {}
    name = str(head.get("name"))
    count = str(((body.get("status") or {}).get("allocatable") or {}).get(names.count) or "")
    most = str((head.get("annotations") or {}).get(MOST) or "")
    problems = []
    if body.get("kind") != "Node":
        problems.append(Problem(name, f"is a {body.get('kind')}, not a Node"))
    if not _NAME.fullmatch(name):
        text = "its name must be a DNS label of at most 40 characters"
        problems.append(Problem(f"{name}.metadata.name", text))
    if not capacity.gpus:
        text = f"describes no GPUs: set the annotation {GPUS} or the label {MEMORY}"
        problems.append(Problem(name, text))
    if not (count.isascii() and count.isdigit() and int(count) > 0):
        text = f"must be the number of {names.count} that an autoscaler knows on a new node"
        problems.append(Problem(f"{name}.status.allocatable", text))
    if most and not (most.isascii() and most.isdigit() and len(most) < 7):
        text = f"must be a whole number, got {most[:40]!r}"
        problems.append(Problem(f"{name}.metadata.annotations.{MOST}", text))
    if problems:
        raise ManifestError(problems)
    node = NodeTemplate(name, replace(capacity, unschedulable=False))
    if most:
        node = replace(node, most=int(most))
    return Template(node, {names.count: count})
