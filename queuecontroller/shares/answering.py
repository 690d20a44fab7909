"""One question of the API server about a pod, and its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from queuecontroller.reader import Problem
from queuecontroller.shares.admitting import Rules, admit, refused_change
from queuecontroller.shares.patching import patch
from queuecontroller.shares.quota import Quotas
from queuecontroller.shares.using import use_of

NO_CHANGE: Final = b"[]"


@dataclass(frozen=True, slots=True)
class Question:
    document: Mapping[str, Any]
    old: Mapping[str, Any] | None
    """None: it is being made."""
    namespace: str
    user: str
    uid: str
    """Of the question."""
    dry: bool = False
    """Nothing is going to be stored."""


@dataclass(frozen=True, slots=True)
class Answer:
    problems: Sequence[Problem] = ()
    warnings: Sequence[str] = ()
    patch: bytes = NO_CHANGE


def answer(rules: Rules, quotas: Quotas, asked: Question, now_ns: int) -> Answer:
    if asked.old is not None:
        return Answer(refused_change(rules, asked.old, asked.document, asked.user))
    verdict = admit(rules, asked.document, asked.user, asked.uid)
    if verdict.problems:
        return Answer(verdict.problems, verdict.warnings)
    if verdict.asks:
        use = use_of(rules.devices, verdict.pod, asked.namespace)
        why = quotas.let_in(use, now_ns, dry=asked.dry)
        if why:
            fix = "ask for less, or wait until somebody's pod has ended"
            return Answer((Problem(f"namespace {asked.namespace}", why, fix),), verdict.warnings)
    return Answer((), verdict.warnings, patch(asked.document, verdict.pod))
