"""Actions that the page offers. A backend's table of them is the only place that names one: from it
come the buttons, the text of the confirmation and what is carried out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Field:
    """An input of the confirmation, sent with the action."""

    name: str
    label: str
    mode: str = "text"
    """HTML's `inputmode`."""


@dataclass(frozen=True, slots=True)
class Verb(Generic[T]):
    title: str
    """Text of the button."""
    meaning: str
    """Sentence in the dialog that asks for confirmation."""
    does: T
    """Function, or data, by which the backend carries it out."""
    kinds: frozenset[str]
    """Kinds of objects that have it."""
    fields: tuple[Field, ...] = ()
    held: bool | None = None
    """True: only for objects that are held; False: only for those that are not; None: for all."""


Verbs = dict[str, Verb[T]]
"""Actions by the last part of their URL."""


def offered(verbs: Verbs[T], kind: str, names: Iterable[str] | None = None) -> dict[str, Any]:
    """The answer to `may`: an object's actions, and their words. `names` are those that the viewer
    has a right to, None for all."""
    there = {name: one for name, one in verbs.items() if kind in one.kinds}
    if names is not None:
        there = {name: there[name] for name in names if name in there}
    return {
        "verbs": list(there),
        "words": {
            name: {
                "title": one.title,
                "meaning": one.meaning,
                "fields": [asdict(field) for field in one.fields],
                "held": one.held,
            }
            for name, one in there.items()
        },
    }
