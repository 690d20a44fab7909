"""Claims in SQLite: one row for each that the kubelet asked us to prepare, in a file of their own.

Committing waits for the disk, in a thread of its own, as with the kubelet's allocations.
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
from nodeagent.ports.dra.claims import ClaimState, PreparedClaim
from sluicecommon.plain import read_plain, write_all_fields

log = logging.getLogger(__name__)

KEEP_RELEASED: Final = 1000
"""Rows of released claims kept for people to look at."""

_SCHEMA: Final = """
CREATE TABLE claims (
    uid TEXT PRIMARY KEY,
    state TEXT NOT NULL,
    written_unix_s REAL NOT NULL,
    body TEXT NOT NULL,
    crc INTEGER NOT NULL
) STRICT;
CREATE INDEX claims_by_state ON claims (state, written_unix_s);
"""


class SqliteClaims:
    """A ClaimLedger."""

    def __init__(self, path: Path) -> None:
        """Raises LedgerLost, LedgerTooNew."""
        self._file = SqliteFile(path, (_SCHEMA,), any_thread=True, settle=_settle)
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="claims")

    def load(self) -> list[PreparedClaim]:
        """A row that cannot be read is skipped: its grants say what lives."""
        found = []
        for uid, body, crc in self._file.run(
            "SELECT uid, body, crc FROM claims WHERE state != ?", (ClaimState.RELEASED.value,)
        ):
            if crc != row_sum(uid, body):
                log.error("the row of claim %.64s is damaged and not believed", uid)
                continue
            with contextlib.suppress(*UNREADABLE):
                found.append(read_plain(PreparedClaim, json.loads(body)))
        return found

    async def commit(self, rows: Sequence[PreparedClaim]) -> None:
        now_s = time.time()
        written = []
        for row in rows:
            uid = row.claim.uid
            body = json.dumps(write_all_fields(row), separators=(",", ":"))
            written.append((uid, row.state.value, now_s, body, row_sum(uid, body)))
        await asyncio.get_running_loop().run_in_executor(self._writer, self._write, written)

    def _write(self, rows: Sequence[Sequence[object]]) -> None:
        self._file.run_all(
            "INSERT INTO claims VALUES (?, ?, ?, ?, ?) ON CONFLICT (uid) DO UPDATE SET"
            " state = excluded.state, written_unix_s = excluded.written_unix_s,"
            " body = excluded.body, crc = excluded.crc",
            rows,
        )

    def close(self) -> None:
        """Waits for what is being written."""
        self._writer.shutdown(wait=True)
        self._file.close()


def _settle(db: sqlite3.Connection) -> None:
    released = ClaimState.RELEASED.value
    db.execute(
        "DELETE FROM claims WHERE state = ? AND uid NOT IN (SELECT uid FROM claims WHERE state = ?"
        " ORDER BY written_unix_s DESC LIMIT ?)",
        (released, released, KEEP_RELEASED),
    )
