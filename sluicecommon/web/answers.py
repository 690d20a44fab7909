"""An answer to a GET request, the function that gives it, and the limit of a request's size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

LONGEST_REQUEST_BYTES: Final = 8 << 10
PLAIN: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Answer:
    """A response."""

    status: int
    body: bytes
    kind: str = PLAIN
    """The header Content-Type."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Further headers."""


Responder = Callable[[str, Mapping[str, str]], Answer]
"""Returns the answer for a path without its query, and headers whose names ignore case."""
