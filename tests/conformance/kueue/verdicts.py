"""Verdicts: an object or a change of one is sent to a real API server with the controller's webhooks.

What is judged is a dry run, so no case sees another's objects; only the state before an update is
stored. The controller answers its webhooks and does not lead: nothing else writes these objects.
"""

from __future__ import annotations

from typing import Any, Final

from tests.cluster.api import ApiError
from tests.cluster.control_plane import ControlPlane
from tests.conformance.kueue.cases import Document, VerdictCase, changed, value_at
from tests.conformance.kueue.objects import collection_of, path_of
from tests.kit.conformance.case import Outcome, Verdict

_DRY: Final = "?dryRun=All&fieldValidation=Strict"


def judge(plane: ControlPlane, case: VerdictCase, number: int) -> Outcome:
    """Return whether the API server answers as the case expects."""
    document = changed(case.document, {})
    name = f"{document['metadata']['name']}-{number}"
    document["metadata"]["name"] = name
    try:
        stored = _store(plane, document) if case.is_update else None
    except ApiError as error:
        return Outcome(Verdict.DIFFERS, (f"the state before is refused: {error}",))
    try:
        if stored is None:
            answer = plane.api.call(
                "POST", collection_of(document) + _DRY, changed(document, case.change)
            )
        else:
            part = f"/{case.subresource}" if case.subresource else ""
            answer = plane.api.call(
                "PUT", path_of(stored) + part + _DRY, changed(stored, case.change)
            )
    except ApiError as error:
        return _refused(case, error)
    return _accepted(case, answer)


def _store(plane: ControlPlane, document: Document) -> Document:
    """Store the object as it is, also what an object cannot have when it is created."""
    status = document.pop("status", None)
    stored: Document = plane.api.call("POST", collection_of(document), document)
    if _is_held(document) != _is_held(stored):  # The webhook suspends a new job.
        stored = plane.api.call("PUT", path_of(stored), changed(stored, {"suspended": False}))
    if status is not None:
        body = {**stored, "status": status}
        stored = plane.api.call("PUT", f"{path_of(stored)}/status", body)
    return stored


def _is_held(document: Document) -> tuple[Any, ...]:
    paths = ("spec.suspend", "spec.runPolicy.suspend", "spec.rayClusterConfig.suspend")
    return tuple(bool(value_at(document, path)) for path in paths)


def _refused(case: VerdictCase, error: ApiError) -> Outcome:
    if case.is_accepted:
        return Outcome(Verdict.DIFFERS, (f"expected accepted, got {error}",))
    details = []
    if case.names and case.names not in str(error):
        details.append(f"expected a refusal of {case.names}, got {error}")
    if case.code and case.code != error.status:
        details.append(f"expected {case.code}, got {error}")
    if error.status not in (400, 403, 422):
        details.append(f"no verdict: {error}")
    return Outcome(Verdict.DIFFERS if details else Verdict.AGREED, tuple(details))


def _accepted(case: VerdictCase, answer: Document) -> Outcome:
    if not case.is_accepted:
        return Outcome(Verdict.DIFFERS, ("expected refused, got accepted",))
    found = {path: value_at(answer, path) for path in case.stored}
    details = [
        f"{path}: expected {wanted!r}, got {found[path]!r}"
        for path, wanted in case.stored.items()
        if wanted != found[path]
    ]
    return Outcome(Verdict.DIFFERS if details else Verdict.AGREED, tuple(details))
