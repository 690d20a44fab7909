"""Our MIG instances in SQLite: one row for each that is to be made, is there, or is to go.

In a file of its own, as claims are; committing waits for the disk, in a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from nodeagent.adapters.ledger.sqlite_file import UNREADABLE, SqliteFile, row_sum
from nodeagent.ports.mig import Cut
from sluicecommon.plain import read_plain, write_all_fields

log = logging.getLogger(__name__)

_SCHEMA: Final = """
CREATE TABLE cuts (
    place TEXT PRIMARY KEY,
    body TEXT NOT NULL,
    crc INTEGER NOT NULL
) STRICT;
"""


class SqliteCuts:
    """A CutLedger."""

    def __init__(self, path: Path) -> None:
        """Raises LedgerLost, LedgerTooNew."""
        self._file = SqliteFile(path, (_SCHEMA,), any_thread=True)
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="cuts")

    def load(self) -> list[Cut]:
        """A row that cannot be read is skipped: its instance is then nobody's to destroy."""
        found = []
        for place, body, crc in self._file.run("SELECT place, body, crc FROM cuts"):
            if crc != row_sum(place, body):
                log.error("the row of instance %.128s is damaged and not believed", place)
                continue
            with contextlib.suppress(*UNREADABLE):
                found.append(read_plain(Cut, json.loads(body)))
        return found

    async def commit(self, put: Sequence[Cut], drop: Sequence[Cut] = ()) -> None:
        written = []
        for row in put:
            body = json.dumps(write_all_fields(row), separators=(",", ":"))
            written.append((_name(row), body, row_sum(_name(row), body)))
        dropped = [(_name(row),) for row in drop]
        await asyncio.get_running_loop().run_in_executor(
            self._writer, self._write, written, dropped
        )

    def _write(
        self, written: Sequence[Sequence[object]], dropped: Sequence[Sequence[object]]
    ) -> None:
        self._file.run_each(
            [
                ("DELETE FROM cuts WHERE place = ?", dropped),
                (
                    "INSERT INTO cuts VALUES (?, ?, ?) ON CONFLICT (place) DO UPDATE SET"
                    " body = excluded.body, crc = excluded.crc",
                    written,
                ),
            ]
        )

    def close(self) -> None:
        """Waits for what is being written."""
        self._writer.shutdown(wait=True)
        self._file.close()


def _name(row: Cut) -> str:
    return f"{row.card} {row.place}"
