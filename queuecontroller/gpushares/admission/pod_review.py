"""Review of one pod: an admission request of the API server and the response."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from queuecontroller.gpushares.admission.json_patch import patch
from queuecontroller.gpushares.admission.pod_verdict import (
    Rules,
    admit,
    hidden_debugging,
    refused_change,
    refused_debugging,
)
from queuecontroller.gpushares.admission.quota import Quotas
from queuecontroller.gpushares.admission.resizing import changed, problems
from queuecontroller.gpushares.admission.usage import is_over, use_of
from queuecontroller.gpushares.vendors.asks import table
from sluicecommon.reader import Problem

NO_CHANGE: Final = b"[]"


@dataclass(frozen=True, slots=True)
class Question:
    document: Mapping[str, Any]
    old: Mapping[str, Any] | None
    """None: the pod is being created."""
    namespace: str
    user: str
    uid: str
    """UID of the admission request."""
    dry: bool = False
    """True if the API server stores nothing (dry run)."""


@dataclass(frozen=True, slots=True)
class Answer:
    problems: Sequence[Problem] = ()
    warnings: Sequence[str] = ()
    patch: bytes = NO_CHANGE


def _of_change(
    rules: Rules, quotas: Quotas, asked: Question, old: Mapping[str, Any], now_ns: int
) -> Answer:
    refused = refused_change(rules, old, asked.document, asked.user)
    debugging = refused_debugging(old, asked.document)
    if debugging and use_of(rules.devices, old, asked.namespace).use:
        refused += debugging
    wanted = changed(old, asked.document)
    refused += problems(wanted)
    hidden, seen = hidden_debugging(rules, old, asked.document)
    refused += seen
    if refused or not wanted or is_over(asked.document):
        return Answer(refused, patch=NO_CHANGE if refused else patch(asked.document, hidden))
    use = use_of(rules.devices, asked.document, asked.namespace)
    uid = str(table(asked.document, "metadata").get("uid"))
    why = quotas.change(uid, use, now_ns, dry=asked.dry)
    if not why:
        return Answer()
    fix = "request less, or wait until another pod of the namespace ends"
    return Answer(tuple(Problem(f"metadata.annotations[{key}]", why, fix) for key in wanted))


def answer(rules: Rules, quotas: Quotas, asked: Question, now_ns: int) -> Answer:
    if asked.old is not None:
        return _of_change(rules, quotas, asked, asked.old, now_ns)
    verdict = admit(rules, asked.document, asked.user, asked.uid)
    if verdict.problems:
        return Answer(verdict.problems, verdict.warnings)
    if verdict.asks or verdict.opted_out:
        use = use_of(rules.devices, verdict.pod, asked.namespace)
        # A pod that is left as it is has no ticket by which its reservation would be found.
        why = quotas.let_in(use, now_ns, dry=asked.dry or verdict.opted_out)
        if why:
            fix = "request less, or wait until another pod of the namespace ends"
            return Answer((Problem(f"namespace {asked.namespace}", why, fix),), verdict.warnings)
    return Answer((), verdict.warnings, patch(asked.document, verdict.pod))
