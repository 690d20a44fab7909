"""The states of AdmissionChecks in a Workload's status, and the patch with an answer: no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from queuecontroller.cluster.cache.kinds import CHECKS
from queuecontroller.cluster.cache.objects import Document, ObjectCache, is_answered_by

_CUT: Final = 1024
"""Characters: where Kueue cuts the messages of conditions."""
_COUNTED: Final = "retryCount"


class State(StrEnum):
    PENDING = "Pending"
    READY = "Ready"
    RETRY = "Retry"
    REJECTED = "Rejected"


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer to one check of one Workload."""

    state: State
    message: str = ""
    updates: tuple[Mapping[str, Any], ...] = ()
    """The check's podSetUpdates."""
    again_s: int | None = None
    """requeueAfterSeconds of a Retry."""


def checks_of(workload: Document) -> dict[str, Mapping[str, Any]]:
    """Return the checks by name, in the order of the status; malformed ones are left out."""
    found = (workload.get("status") or {}).get("admissionChecks") or ()
    return {one["name"]: one for one in found if isinstance(one, Mapping) and one.get("name")}


def checks_by(cache: ObjectCache, controller: str) -> list[Document]:
    """Return the AdmissionChecks of a controller."""
    return [one for one in cache.all_of(CHECKS) if is_answered_by(one, controller)]


def check_by(cache: ObjectCache, controller: str, workload: Document) -> str:
    """Return the name of the Workload's first check of a controller; "" if it has none."""
    for name in checks_of(workload):
        if is_answered_by(cache.get(CHECKS, name), controller):
            return name
    return ""


def state_of(check: Mapping[str, Any]) -> str:
    return str(check.get("state") or State.PENDING)


def tries_of(check: Mapping[str, Any]) -> int:
    """Number of retries that the check has requested so far."""
    found = check.get(_COUNTED)
    return found if isinstance(found, int) and found > 0 else 0


def with_answers(
    workload: Document, answers: Mapping[str, Answer], now: str
) -> list[dict[str, Any]] | None:
    """Return all checks for a merge patch; None if nothing changes.

    Checks that the Workload does not have are not added: its ClusterQueue determines them. `now`
    is in RFC 3339.
    """
    known = checks_of(workload)
    made = {name: _answered(known[name], answers.get(name), now) for name in known}
    return list(made.values()) if any(made[one] != known[one] for one in known) else None


def _answered(check: Mapping[str, Any], answer: Answer | None, now: str) -> dict[str, Any]:
    if answer is None:
        return dict(check)
    made = {"name": check["name"], "state": str(answer.state), "message": answer.message[:_CUT]}
    same = check.get("state") == made["state"]
    made["lastTransitionTime"] = check.get("lastTransitionTime", now) if same else now
    if _COUNTED in check:
        made[_COUNTED] = check[_COUNTED]
    if answer.again_s is not None:
        made["requeueAfterSeconds"] = answer.again_s
    if answer.updates:
        made["podSetUpdates"] = [dict(one) for one in answer.updates]
    return made
