"""Plans an import, step by step. No I/O.

One step is what happens to one object, as text for the user and as the write that does it. A plan
made again after it was carried out has nothing left to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from queuecontroller.cli.migrate.objects import (
    ConversionError,
    Name,
    carried,
    in_order,
    is_over,
    name_of,
    owner_of,
    runs,
    why_not,
)
from queuecontroller.cluster.cache.job_context import FRAMEWORKS, kind_of
from queuecontroller.cluster.cache.objects import Document
from queuecontroller.frameworks import is_suspended, queue_of, workload_of
from queuecontroller.state.objects.catalogue import OBJECT_KINDS
from sluicecommon.reader import ManifestError

_STATUS: Final = (
    "admission",
    "conditions",
    "admissionChecks",
    "reclaimablePods",
    "accumulatedPastExecutionTimeSeconds",
    "schedulingStats",
)
"""Status fields that a running Workload keeps."""


class Action(StrEnum):
    CREATE = "create"
    CHANGE = "change"
    DELETE = "delete"
    TAKE_OVER = "take over"
    KEEP = "keep"
    LEAVE = "leave"
    """It does not have to be imported."""
    REFUSE = "refuse"


ACTS: Final = frozenset({Action.CREATE, Action.CHANGE, Action.DELETE, Action.TAKE_OVER})


@dataclass(frozen=True, slots=True)
class Step:
    action: Action
    name: Name
    why: str = ""
    document: Mapping[str, Any] = field(default_factory=dict)
    """The object to create; of a change, the merge patch."""
    version: str = ""
    """The resourceVersion that the step was decided on."""

    def __str__(self) -> str:
        return f"{self.action} {self.name}{f': {self.why}' if self.why else ''}"


Find = Callable[[Mapping[str, Any], str], Document | None]
"""The object that an owner reference names, in a namespace of the target."""


def plan_cluster(
    given: Sequence[Document], there: Mapping[Name, Document], find: Find
) -> list[Step]:
    """Plan an import into a cluster; `there` are Kueue's objects in it. Running Workloads are taken
    over if their jobs run there; pending ones are created from their jobs by the controller."""
    found, steps = _carried(given)
    owned = {
        str(owner_of(one).get("uid")): name
        for name, one in there.items()
        if name.kind == "Workload"
    }
    for name, document in found.items():
        if wrong := why_not(document, found):
            steps.append(Step(Action.REFUSE, name, "; ".join(wrong)))
        elif name.kind == "Workload":
            steps.append(_workload_step(name, document, there, owned, find))
        else:
            steps.append(_object_step(name, document, there.get(name)))
    return steps


def plan_service(given: Sequence[Document], there: Mapping[Name, Document]) -> list[Step]:
    """Plan an import into the standalone service; `there` are its objects."""
    found, steps = _carried(given)
    for name, document in found.items():
        wrong = why_not(document, found)
        if name.kind not in OBJECT_KINDS and name.kind != "Workload":
            wrong = ["the standalone service does not support this kind"]
        if wrong:
            steps.append(Step(Action.REFUSE, name, "; ".join(wrong)))
        elif name.kind != "Workload":
            steps.append(_object_step(name, document, there.get(name)))
        elif is_over(document):
            steps.append(Step(Action.LEAVE, name, "it is finished"))
        elif runs(document):
            why = (
                "it runs in the cluster, and the standalone service cannot observe when it"
                " finishes: let it finish, and import again"
            )
            steps.append(Step(Action.REFUSE, name, why))
        elif name in there:
            steps.append(Step(Action.KEEP, name))
        else:
            steps.append(Step(Action.CREATE, name, _waits(document), _waiting(document)))
    return steps


def _carried(given: Sequence[Document]) -> tuple[dict[Name, dict[str, Any]], list[Step]]:
    """The objects that can be converted, and a step for each that cannot."""
    found: dict[Name, dict[str, Any]] = {}
    steps: list[Step] = []
    for one in in_order(given):
        try:
            found[name_of(one)] = carried(one)
        except ConversionError as error:
            steps.append(Step(Action.REFUSE, name_of(one), str(error)))
    return found, steps


def _object_step(name: Name, document: Mapping[str, Any], known: Document | None) -> Step:
    if known is None:
        return Step(Action.CREATE, name, "", document)
    there = carried(known)
    parts = sorted(
        part
        for part in ("spec", "value", "description")
        if not _covers(there.get(part), document.get(part))
    )
    if not parts:
        return Step(Action.KEEP, name)
    patch = {part: _patch(there.get(part), document.get(part)) for part in parts}
    version = str((known.get("metadata") or {}).get("resourceVersion") or "")
    why = ", ".join(_differing(part, there.get(part), document.get(part)) for part in parts)
    return Step(Action.CHANGE, name, why, {**document, **patch}, version)


def _workload_step(
    name: Name,
    document: Mapping[str, Any],
    there: Mapping[Name, Document],
    owned: Mapping[str, Name],
    find: Find,
) -> Step:
    owner = owner_of(document)
    if is_over(document):
        return Step(Action.LEAVE, name, "it is finished")
    if not owner:
        if name in there:
            return Step(Action.KEEP, name)
        action = Action.TAKE_OVER if runs(document) else Action.CREATE
        return Step(action, name, _waits(document), _to_create(document))
    who = f"{owner.get('kind')} {owner.get('name')}"
    job = find(owner, name.namespace)
    if job is None:
        why = f"its {who} is not in the cluster: apply it there, or let it finish first"
        return Step(Action.REFUSE, name, why)
    uid = str(job["metadata"]["uid"])
    if uid in owned:
        return Step(Action.KEEP, name, f"{who} has a Workload" if owned[uid] != name else "")
    if not runs(document):
        return Step(Action.LEAVE, name, f"{who} is queued by the controller")
    resource = kind_of(owner)
    if resource is not None and is_suspended(FRAMEWORKS[resource], job):
        return Step(Action.LEAVE, name, f"{who} is suspended there and is queued by the controller")
    mine = {**owner, "uid": uid, "controller": True, "blockOwnerDeletion": True}
    head = {**document["metadata"], "ownerReferences": [mine]}
    made = _to_create({**document, "metadata": head})
    return Step(Action.TAKE_OVER, name, f"{who} runs, and continues", made)


def plan_from_service(
    given: Sequence[Document], there: Mapping[Name, Document], find: Find
) -> list[Step]:
    """Plan an import from the standalone service into a cluster. The service keeps no pod templates
    of jobs, so they are read from the jobs in the cluster."""
    objects = [one for one in given if one.get("kind") != "Workload"]
    steps = plan_cluster(objects, there, find)
    owned = {
        str(owner_of(one).get("uid")) for name, one in there.items() if name.kind == "Workload"
    }
    for one in in_order(given):
        if one["kind"] == "Workload":
            steps.append(_from_service(name_of(one), one, owned, find))
    return steps


def _from_service(name: Name, shown: Document, owned: set[str], find: Find) -> Step:
    as_submitted = str((shown.get("sluice") or {}).get("submittedAs") or "")
    if is_over(shown):
        return Step(Action.LEAVE, name, "it is finished")
    framework = next(
        (one for kind, one in FRAMEWORKS.items() if kind.kind == as_submitted and one.suspend), None
    )
    if framework is None:
        what = f"was submitted as {as_submitted}" if as_submitted != "Workload" else "has no job"
        if (shown.get("sluice") or {}).get("node"):
            what = f"is a process on node {shown['sluice']['node']}"
        why = f"{what}: the cluster has no object for it: let it finish"
        return Step(Action.REFUSE, name, why)
    prefix = f"{as_submitted.lower()}-"
    reference = {
        "apiVersion": framework.api_versions[0],
        "kind": as_submitted,
        "name": name.name.removeprefix(prefix),
    }
    job = find(reference, name.namespace)
    who = f"{as_submitted} {reference['name']}"
    if job is None:
        return Step(Action.REFUSE, name, f"its {who} is not in the cluster: apply it there")
    if str(job["metadata"]["uid"]) in owned:
        return Step(Action.KEEP, name, f"{who} has a Workload")
    if not runs(shown) or is_suspended(framework, job):
        return Step(Action.LEAVE, name, f"{who} is queued by the controller")
    spec = shown.get("spec") or {}
    try:
        made = workload_of(
            framework,
            job,
            queue=str(spec.get("queueName") or queue_of(job)),
            priority=spec.get("priority"),
        )
    except ManifestError as error:
        return Step(Action.REFUSE, name, str(error))
    status = {key: value for key, value in (shown.get("status") or {}).items() if key in _STATUS}
    return Step(Action.TAKE_OVER, name, f"{who} runs, and continues", {**made, "status": status})


def plan_in_place(given: Iterable[Document]) -> list[Step]:
    """Plan the takeover of a cluster in which Kueue ran: the objects stay where they are."""
    found, steps = _carried(list(given))
    for name, document in found.items():
        if name.kind == "Workload" and is_over(document):
            continue
        if wrong := why_not(document, found):
            steps.append(Step(Action.REFUSE, name, "; ".join(wrong)))
        elif name.kind == "Workload" and runs(document):
            steps.append(Step(Action.KEEP, name, "it runs, and continues"))
        else:
            steps.append(Step(Action.KEEP, name))
    return steps


def _to_create(document: Mapping[str, Any]) -> dict[str, Any]:
    head = {k: v for k, v in document["metadata"].items() if k not in ("uid", "creationTimestamp")}
    made: dict[str, Any] = {**document, "metadata": head}
    status = made.pop("status", None) or {}
    if status.get("admission"):
        made["status"] = {key: status[key] for key in _STATUS if key in status}
    return made


def _waiting(document: Mapping[str, Any]) -> dict[str, Any]:
    made = {**document}
    made.pop("status", None)
    return made


def _waits(document: Document) -> str:
    spec = document.get("spec") or {}
    queue = f"in {spec.get('queueName')}" if spec.get("queueName") else ""
    priority = f"priority {spec['priority']}" if spec.get("priority") else ""
    return ", ".join(part for part in (queue, priority) if part)


def _covers(there: Any, mine: Any) -> bool:
    """True if they are equal apart from defaults that the API server fills in."""
    if isinstance(mine, Mapping):
        return isinstance(there, Mapping) and all(
            _covers(there.get(name), value) for name, value in mine.items()
        )
    if isinstance(mine, list):
        return (
            isinstance(there, list) and len(there) == len(mine) and all(map(_covers, there, mine))
        )
    return mine in (None, {}, []) or str(there) == str(mine)


def _patch(there: Any, mine: Any) -> Any:
    """The merge patch from `there` to `mine`; fields that `mine` lacks are removed."""
    if not isinstance(mine, Mapping) or not isinstance(there, Mapping):
        return mine
    gone = {name: None for name in there if name not in mine}
    return {**gone, **{name: _patch(there.get(name), value) for name, value in mine.items()}}


def _differing(at: str, there: Any, mine: Any) -> str:
    """Paths of the fields that differ, down to the first that is not a mapping."""
    if not isinstance(there, Mapping) or not isinstance(mine, Mapping):
        return at
    return ", ".join(
        _differing(f"{at}.{name}", there.get(name), value)
        for name, value in mine.items()
        if not _covers(there.get(name), value)
    )
