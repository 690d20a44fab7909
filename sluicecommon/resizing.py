"""Parses the pod annotation `resize.sluice.dev/CONTAINER: "gpumem=8192 gpucores=40"`, which the
node applies and the queue counts."""

from __future__ import annotations

from typing import Final

PREFIX: Final = "resize.sluice.dev/"
REQUEST_PREFIX: Final = "request.sluice.dev/"
"""Annotation of a new pod: the guaranteed part of a container's memory, in the same words."""
LONGEST: Final = 256
"""Characters of one annotation."""
MEMORY, PERCENT, CORES = "gpumem", "gpumem-percentage", "gpucores"
KNOWN: Final = (MEMORY, PERCENT, CORES)


def words(text: str) -> dict[str, str]:
    """Amounts by name, not parsed yet. Raises ValueError."""
    if len(text) > LONGEST:
        raise ValueError(f" is longer than {LONGEST} characters")
    given: dict[str, str] = {}
    for word in text.replace(",", " ").split():
        name, equals, amount = word.partition("=")
        if name not in KNOWN or not equals:
            raise ValueError(f": {word[:40]!r} is not NAME=AMOUNT with {', '.join(KNOWN)}")
        if name in given:
            raise ValueError(f": {name} is given twice")
        given[name] = amount
    if MEMORY in given and PERCENT in given:
        raise ValueError(f": {MEMORY} and {PERCENT} both set the memory: leave one out")
    return given
