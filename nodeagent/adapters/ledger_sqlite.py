"""The ledger in SQLite: WAL, synchronous=FULL, one writer, one row per grant.

A row is written before its effect (state `preparing`, `ending`, or new limits) and again after
it. A damaged file is put aside as `*.corrupt-<time>` and an empty one takes its place: the
regions know what lives. An I/O error is never retried (after a failed fsync Linux drops the
dirty pages); the daemon exits and its restart looks at what is there.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from pathlib import Path
from typing import Final

from nodeagent.core.events import read_plain, write_plain
from nodeagent.ports import GrantRecord, GrantState, LedgerFull, LedgerLost

SCHEMA_VERSION: Final = 1
KEEP_ENDED: Final = 1000
"""Rows of ended grants kept for people to look at."""

_SCHEMA: Final = """
CREATE TABLE grants (
    grant_id TEXT PRIMARY KEY,
    boot_id TEXT NOT NULL,
    state TEXT NOT NULL,
    written_unix_s REAL NOT NULL,
    body TEXT NOT NULL
) STRICT;
CREATE INDEX grants_by_boot ON grants (boot_id, state);
"""


class LedgerTooNew(Exception):
    """Written by a later version of the daemon; refusing is better than guessing."""


class SqliteLedger:
    def __init__(self, path: Path, boot_id: str) -> None:
        """Opens, or creates, or replaces a damaged file. Raises LedgerLost, LedgerTooNew."""
        self._path = path
        self._boot_id = boot_id
        self._rebuilt = False
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self._db = self._open()
        except sqlite3.DatabaseError as error:
            if _is_io(error):
                raise LedgerLost(f"{path}: {error}") from error
            self._quarantine()
            self._rebuilt = True
            self._db = self._open()

    @property
    def was_rebuilt(self) -> bool:
        return self._rebuilt

    def load(self) -> list[GrantRecord]:
        """Grants of this boot that have not ended. A row that cannot be read is skipped: its
        region tells more."""
        rows = self._run(
            "SELECT body FROM grants WHERE boot_id = ? AND state != ?",
            (self._boot_id, GrantState.ENDED.value),
        )
        records = []
        for (body,) in rows:
            with contextlib.suppress(ValueError, TypeError, KeyError):
                records.append(read_plain(GrantRecord, json.loads(body)))
        return records

    def store(self, record: GrantRecord) -> None:
        body = json.dumps(write_plain(record), separators=(",", ":"))
        self._run(
            "INSERT INTO grants VALUES (?, ?, ?, ?, ?) ON CONFLICT (grant_id) DO UPDATE SET"
            " state = excluded.state, written_unix_s = excluded.written_unix_s,"
            " body = excluded.body",
            (record.grant, record.boot_id, record.state.value, time.time(), body),
        )

    def close(self) -> None:
        self._db.close()

    def _run(self, sql: str, arguments: tuple[object, ...]) -> list[tuple[str]]:
        try:
            return self._db.execute(sql, arguments).fetchall()
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL:
                raise LedgerFull(f"{self._path}: {error}") from error
            raise LedgerLost(f"{self._path}: {error}") from error

    def _open(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, isolation_level=None, timeout=2.0)
        try:
            os.chmod(self._path, 0o600)
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            (answer,) = db.execute("PRAGMA quick_check(1)").fetchone()
            if answer != "ok":
                raise sqlite3.DatabaseError(answer)
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version > SCHEMA_VERSION:
                raise LedgerTooNew(
                    f"{self._path} has schema {version}, this version knows {SCHEMA_VERSION}:"
                    " install the newer sluice again, or move the file away"
                )
            if version == 0:
                db.executescript(
                    f"BEGIN; {_SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
                )
            # Grants of an earlier boot died with it.
            db.execute(
                "UPDATE grants SET state = ? WHERE boot_id != ?",
                (GrantState.ENDED.value, self._boot_id),
            )
            db.execute(
                "DELETE FROM grants WHERE state = ? AND grant_id NOT IN (SELECT grant_id FROM"
                " grants WHERE state = ? ORDER BY written_unix_s DESC LIMIT ?)",
                (GrantState.ENDED.value, GrantState.ENDED.value, KEEP_ENDED),
            )
        except BaseException:
            db.close()
            raise
        return db

    def _quarantine(self) -> None:
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                source = self._path.with_name(self._path.name + suffix)
                source.rename(self._path.with_name(f"{self._path.name}.corrupt-{stamp}{suffix}"))


def _is_io(error: sqlite3.Error) -> bool:
    primary = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return primary in (
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
    )
