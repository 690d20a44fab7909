"""What counts for a job besides itself, out of what the API server has: its namespace's default
queue, and what it belongs to. Any replica can tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from queuecontroller.jobs import (
    Framework,
    Holding,
    PriorityClass,
    Setting,
    frameworks,
    is_managed,
)
from sluicecommon.kubernetes.resources import Resource

from .kinds import LOCAL_QUEUES
from .world import Document, World, controller_of

DEEPEST: Final = 8
"""Owners of owners."""


def resource_of(framework: Framework) -> Resource:
    return Resource(framework.group, framework.versions[0], framework.plural, framework.kind)


KINDS: Final[Mapping[Resource, Framework]] = {
    resource_of(one): one for one in frameworks() if one.holding is Holding.SUSPEND
}
"""Jobs that are held by a field of their own. Those whose pods are held are not there yet."""
_BY_NAME: Final = {(kind.group, kind.kind): kind for kind in KINDS}


def kind_of(owner: Mapping[str, Any]) -> Resource | None:
    """Of an owner reference, or of an object; None: of no framework of ours."""
    group, _, _ = str(owner.get("apiVersion") or "").rpartition("/")
    return _BY_NAME.get((group, str(owner.get("kind") or "")))


def setting(
    world: World,
    document: Document,
    namespace: str,
    priority_of: Callable[[PriorityClass | None], int | None] = lambda _: None,
) -> Setting:
    default = world.get(LOCAL_QUEUES, f"{namespace}/default") is not None
    above = any(_is_managed(one, default) for one in _above(world, document, namespace))
    return Setting(default_queue=default, parent_managed=above, priority_of=priority_of)


def _above(world: World, document: Document, namespace: str) -> Iterator[Document]:
    for _ in range(DEEPEST):
        owner = controller_of(document)
        kind = kind_of(owner)
        found = world.get(kind, f"{namespace}/{owner.get('name')}") if kind else None
        if found is None or found["metadata"].get("uid") != owner.get("uid"):
            return
        yield found
        document = found


def _is_managed(document: Document, default: bool) -> bool:
    kind = kind_of(document)
    return kind is not None and is_managed(KINDS[kind], document, Setting(default_queue=default))
