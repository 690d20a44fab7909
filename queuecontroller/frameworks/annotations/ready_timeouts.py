"""The annotation by which a job has its own timeouts for its pods to be ready."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from queuecontroller.frameworks import names
from sluicecommon.reader import Problem, shown

FIELD: Final = f"metadata.annotations[{names.WAIT_FOR_PODS_READY}]"
_TIMEOUT: Final = "timeoutSeconds"
_RECOVERY: Final = "recoveryTimeoutSeconds"
_EXAMPLE: Final = f'{{"{_TIMEOUT}": 300}}'
LONGEST: Final = 1024
"""Longest text that is read, in characters."""


@dataclass(frozen=True, slots=True)
class ReadyTimeouts:
    timeout_s: int
    """Seconds from admission until the pods must be ready."""
    recovery_timeout_s: int
    """Seconds until pods that stopped being ready must be ready again; 0: no limit."""


def ready_timeouts(text: object) -> ReadyTimeouts | None:
    """The timeouts that an annotation has; None: it is missing or invalid."""
    found = _read(text)
    return found if isinstance(found, ReadyTimeouts) else None


def timeout_problems(text: object, longest_s: int) -> Iterator[Problem]:
    """Problems of the annotation, whose timeouts may be up to `longest_s`."""
    if not text:
        return
    found = _read(text)
    if isinstance(found, str):
        yield Problem(FIELD, found, f"write a text such as {_EXAMPLE}")
        return
    for name, seconds in ((_TIMEOUT, found.timeout_s), (_RECOVERY, found.recovery_timeout_s)):
        if seconds > longest_s:
            what = f"{name} {seconds} is more than {longest_s}, the most that is allowed"
            yield Problem(FIELD, what, "write less")


def _read(text: object) -> ReadyTimeouts | str:
    """The timeouts, or what is wrong with the text."""
    try:
        given = json.loads(text) if isinstance(text, str) and len(text) <= LONGEST else None
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        return f"expected a JSON object, got {shown(text)}"
    if unknown := sorted(given.keys() - {_TIMEOUT, _RECOVERY}):
        return f"{', '.join(map(shown, unknown))} is not a field of it"
    timeout = given.get(_TIMEOUT)
    if timeout is None:
        return f"{_TIMEOUT} is required"
    recovery = given.get(_RECOVERY, timeout)
    seconds: list[int] = []
    for name, least, value in ((_TIMEOUT, 1, timeout), (_RECOVERY, 0, recovery)):
        if type(value) is not int or not least <= value < 1 << 31:
            return f"{name}: expected a whole number from {least}, got {shown(value)}"
        seconds.append(value)
    return ReadyTimeouts(*seconds)
