"""The kubelet's allocations in SQLite: one row per answer to Allocate, in a file of their own.

Committing waits for the disk, so it happens in a thread of its own: a disk that hangs delays one
answer up to its deadline, and not the daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sqlite3
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from nodeagent.adapters.ledger.sqlite_file import UNREADABLE, SqliteFile, row_sum
from nodeagent.ports.kubelet import Allocation, AllocationState
from sluicecommon.plain import read_plain, write_all_fields

log = logging.getLogger(__name__)

KEEP_RELEASED: Final = 1000
"""Rows of released allocations kept for people to look at."""

_SCHEMA: Final = """
CREATE TABLE allocations (
    nonce TEXT PRIMARY KEY,
    state TEXT NOT NULL,
    written_unix_s REAL NOT NULL,
    body TEXT NOT NULL
) STRICT;
CREATE INDEX allocations_by_state ON allocations (state, written_unix_s);
"""
_SCHEMA_2: Final = "ALTER TABLE allocations ADD COLUMN crc INTEGER;"
"""row_sum() of it; NULL: of an earlier version."""


class SqliteAllocations:
    """An AllocationLedger."""

    def __init__(self, path: Path) -> None:
        """Raises LedgerLost, LedgerTooNew."""
        self._file = SqliteFile(path, (_SCHEMA, _SCHEMA_2), any_thread=True, settle=_settle)
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="allocations")

    @property
    def was_rebuilt(self) -> bool:
        """The file was damaged and put aside: the kubelet's checkpoint knows the rest."""
        return self._file.was_rebuilt

    def load(self) -> list[Allocation]:
        """A row that cannot be read is skipped: the kubelet's checkpoint has it too."""
        found = []
        for nonce, body, crc in self._file.run(
            "SELECT nonce, body, crc FROM allocations WHERE state != ?",
            (AllocationState.RELEASED.value,),
        ):
            if crc is not None and crc != row_sum(nonce, body):
                log.error("the row of allocation %.64s is damaged and not believed", nonce)
                continue
            with contextlib.suppress(*UNREADABLE):
                found.append(read_plain(Allocation, json.loads(body)))
        return found

    async def commit(self, rows: Sequence[Allocation]) -> None:
        now_s = time.time()
        written = []
        for row in rows:
            body = json.dumps(write_all_fields(row), separators=(",", ":"))
            written.append((row.nonce, row.state.value, now_s, body, row_sum(row.nonce, body)))
        await asyncio.get_running_loop().run_in_executor(self._writer, self._write, written)

    def _write(self, rows: Sequence[Sequence[object]]) -> None:
        self._file.run_all(
            "INSERT INTO allocations VALUES (?, ?, ?, ?, ?) ON CONFLICT (nonce) DO UPDATE SET"
            " state = excluded.state, written_unix_s = excluded.written_unix_s,"
            " body = excluded.body, crc = excluded.crc",
            rows,
        )

    def close(self) -> None:
        """Waits for what is being written."""
        self._writer.shutdown(wait=True)
        self._file.close()


def _settle(db: sqlite3.Connection) -> None:
    released = AllocationState.RELEASED.value
    db.execute(
        "DELETE FROM allocations WHERE state = ? AND nonce NOT IN (SELECT nonce FROM"
        " allocations WHERE state = ? ORDER BY written_unix_s DESC LIMIT ?)",
        (released, released, KEEP_RELEASED),
    )
