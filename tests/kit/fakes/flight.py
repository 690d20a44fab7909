"""Replays what `sluice doctor --dump` wrote: `python -m tests.kit.fakes.flight FILE`.

By book the number of events, and the first decision that this version takes otherwise than the
daemon did, if any; status 1 then, 2 where FILE is no dump.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from nodeagent.core.flight import replay


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        found = replay(Path(arguments[0]).read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"{arguments[0]}: {error}", file=sys.stderr)
        return 2
    for name, book in found.items():
        print(f"{name}: {book.events} events, {book.differs or 'the same decisions'}")
    return int(any(book.differs for book in found.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
