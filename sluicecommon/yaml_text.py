"""YAML and JSON that somebody else wrote: whole, or refused with the reason, whatever is in it.

libyaml reads it where PyYAML has it, some twenty times as fast as PyYAML's own scanner. It ends the
process for what is nested without end, and a few aliases expand to more than any memory holds. So
the events are counted first, and only then is anything built.
"""

from __future__ import annotations

from typing import Any, Final

import yaml

LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
DEEPEST: Final = 64
"""Levels of nesting. A pod template needs about 12; at some ten thousand the stack is full."""
MOST_NODES: Final = 1_000_000
"""In all documents of a text, with what aliases stand for: a file of
4 MiB has fewer where it has none."""


def read(text: str) -> object:
    """Its one document, None where there is none. Raises ValueError."""
    found = read_all(text)
    if len(found) > 1:
        raise ValueError("not YAML or JSON: more than one document")
    return found[0] if found else None


def read_all(text: str) -> list[object]:
    """Its documents. Raises ValueError."""
    try:
        check_events(text)
        return list(yaml.load_all(text, LOADER))
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML or JSON: {_in_one_line(error)}") from error
    except (ValueError, OverflowError, LookupError, AttributeError, TypeError) as error:
        # What PyYAML lets escape for a scalar that does not suit its tag: `!!int x`, a month 99.
        what = f"a value is none of its kind: {_in_one_line(error)}"
        raise ValueError(f"not YAML or JSON: {what}") from error


def check_events(
    text: str, loader: Any = LOADER, deepest: int = DEEPEST, aliases: bool = True
) -> None:
    """Before anything is built. Raises YAMLError, with the mark of what is not taken."""
    sizes = [0]
    """Nodes in what is open, from the outside to the inside."""
    opened: list[str | None] = []
    """Anchors of what is open."""
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
        if sizes[-1] > MOST_NODES:
            wrong = f"more than {MOST_NODES} values, with what its aliases stand for"
        if wrong:
            mark: Any = event.start_mark
            raise yaml.composer.ComposerError(None, None, wrong, mark)


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
