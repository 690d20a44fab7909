"""Reads untrusted YAML and JSON: completely, or refused with a reason.

libyaml is used if PyYAML has it, since it is about twenty times as fast as PyYAML's own scanner. It
crashes the process on very deep nesting, and a few aliases can expand to more than fits in memory.
So the events are counted first, and only then are values built.
"""

from __future__ import annotations

from typing import Any, Final

import yaml

LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
DEEPEST: Final = 64
"""Levels of nesting. A pod template needs about 12; the stack overflows at about ten thousand."""
MAX_NODES: Final = 1_000_000
"""Values in all documents of a text, with aliases expanded; a file of 4 MiB without aliases has
fewer."""


def read(text: str) -> object:
    """The document of a text with at most one; None if there is none. Raises ValueError."""
    found = read_all(text)
    if len(found) > 1:
        raise ValueError("not YAML or JSON: more than one document")
    return found[0] if found else None


def read_all(text: str) -> list[object]:
    """All documents of a text. Raises ValueError."""
    try:
        check_events(text)
        return list(yaml.load_all(text, LOADER))
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML or JSON: {_in_one_line(error)}") from error
    except (ValueError, OverflowError, LookupError, AttributeError, TypeError) as error:
        # PyYAML raises these for a scalar that does not fit its tag: `!!int x`, a month 99.
        what = f"a value does not fit its tag: {_in_one_line(error)}"
        raise ValueError(f"not YAML or JSON: {what}") from error


def check_events(
    text: str, loader: Any = LOADER, deepest: int = DEEPEST, aliases: bool = True
) -> None:
    """Check limits before values are built. Raises YAMLError, with the mark of the refused part."""
    sizes = [0]
    """Number of nodes in each open collection, from the outermost."""
    opened: list[str | None] = []
    """Anchors of the open collections."""
    anchored: dict[str | None, int] = {}
    for event in yaml.parse(text, Loader=loader):
        wrong = ""
        if isinstance(event, yaml.AliasEvent):
            if not aliases:
                wrong = f"aliases (*{event.anchor}) are not taken; write it out"
            elif event.anchor in opened:
                wrong = f"*{event.anchor} stands within itself"
            sizes[-1] += anchored.get(event.anchor, 1)
        elif isinstance(event, yaml.ScalarEvent):
            sizes[-1] += 1
            anchored[event.anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            opened.append(event.anchor)
            sizes.append(1)
            wrong = f"nested deeper than {deepest}" if len(opened) > deepest else ""
        elif isinstance(event, yaml.CollectionEndEvent):
            size = sizes.pop()
            sizes[-1] += size
            anchored[opened.pop()] = size
        if sizes[-1] > MAX_NODES:
            wrong = f"more than {MAX_NODES} values, with what its aliases stand for"
        if wrong:
            mark: Any = event.start_mark
            raise yaml.composer.ComposerError(None, None, wrong, mark)


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
