"""Admission gates: controllers that have to agree before a job is queued, in an annotation of the
job and of its Workload."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from queuecontroller.frameworks import names
from queuecontroller.frameworks.patches import Document, at
from sluicecommon.reader import Problem, shown

FIELD: Final = f"metadata.annotations[{names.GATED_BY}]"
LONGEST: Final = 63
_GATE: Final = re.compile(
    r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?",
    re.ASCII,
)


def gates_of(text: object) -> list[str]:
    """The controllers that an annotation names."""
    return [one for one in text.split(",") if one] if isinstance(text, str) else []


def fewer_gates(document: Document, workload: Document) -> dict[str, Any]:
    """The patch by which a Workload loses the gates that its job does not name any more; empty: it
    loses none. Gates are never added, since another controller may have removed them from the
    Workload alone."""
    path = ("metadata", "annotations", names.GATED_BY)
    known, wanted = (gates_of(at(one, path)) for one in (workload, document))
    left = [one for one in known if one in wanted]
    if left == known:
        return {}
    return {"metadata": {"annotations": {names.GATED_BY: ",".join(left) or None}}}


def gate_problems(text: object, before: object) -> Iterator[Problem]:
    """Problems of the annotation. `before` is the stored one's, None for a new object: gates may be
    removed, and none may be added."""
    if text is None or text == "":
        return
    seen: set[str] = set()
    for one in text.split(",") if isinstance(text, str) else ():
        if not _GATE.fullmatch(one) or len(one.rpartition("/")[2]) > LONGEST:
            what = f"{shown(one)} is not the name of a controller"
            yield Problem(FIELD, what, "write names such as example.com/controller, with commas")
        elif one in seen:
            yield Problem(FIELD, f"{shown(one)} is given twice", "remove one")
        seen.add(one)
    if before is not None and (more := sorted(seen - set(gates_of(before)))):
        what = f"{', '.join(map(shown, more))} cannot be added, gates can only be removed"
        yield Problem(FIELD, what, "name all gates when the object is created")
