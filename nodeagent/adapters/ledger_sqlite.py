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
from typing import Any, Final

from nodeagent.core.events import read_plain, write_plain
from nodeagent.ports import GrantRecord, GrantState, LedgerFull, LedgerLost
from nodeagent.queue_ports import Done, Fence, Work, WorkKey

SCHEMA_VERSION: Final = 2
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
_SCHEMA_2: Final = """
CREATE TABLE queue_fence (one INTEGER PRIMARY KEY CHECK (one = 1), body TEXT NOT NULL) STRICT;
CREATE TABLE queue_work (
    workload TEXT NOT NULL, pod TEXT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (workload, pod)
) STRICT;
CREATE TABLE queue_done (
    id INTEGER PRIMARY KEY, uid TEXT NOT NULL, attempt INTEGER NOT NULL, body TEXT NOT NULL
) STRICT;
"""
KEEP_DONE: Final = 1000
"""Ended work of the queue remembered, as the reducer does."""


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
        body = _json(record)
        self._run(
            "INSERT INTO grants VALUES (?, ?, ?, ?, ?) ON CONFLICT (grant_id) DO UPDATE SET"
            " state = excluded.state, written_unix_s = excluded.written_unix_s,"
            " body = excluded.body",
            (record.grant, record.boot_id, record.state.value, time.time(), body),
        )

    # --- the queue ---

    def load_queue(self) -> tuple[Fence, list[Work], list[Done]]:
        """A row that cannot be read is skipped: the controller knows it too."""
        fences: list[Fence] = self._bodies("queue_fence", Fence)
        return (
            fences[0] if fences else Fence(),
            self._bodies("queue_work", Work),
            self._bodies("queue_done", Done),
        )

    def _bodies(self, table: str, kind: type[Any]) -> list[Any]:
        found = []
        for (body,) in self._run(f"SELECT body FROM {table}", ()):
            with contextlib.suppress(ValueError, TypeError, KeyError):
                found.append(read_plain(kind, json.loads(body)))
        return found

    def store_fence(self, fence: Fence) -> None:
        self._run("INSERT OR REPLACE INTO queue_fence VALUES (1, ?)", (_json(fence),))

    def store_work(self, work: Work) -> None:
        self._run("INSERT OR REPLACE INTO queue_work VALUES (?, ?, ?)", (*work.key, _json(work)))

    def drop_work(self, key: WorkKey, done: Done | None) -> None:
        if done is not None:  # first: forgetting both would let a repeated decision start it again
            self._run(
                "INSERT INTO queue_done (uid, attempt, body) VALUES (?, ?, ?)",
                (done.uid, done.attempt, _json(done)),
            )
            self._run(
                "DELETE FROM queue_done WHERE id <= (SELECT max(id) FROM queue_done) - ?",
                (KEEP_DONE,),
            )
        self._run("DELETE FROM queue_work WHERE workload = ? AND pod = ?", tuple(key))

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
            missing = (_SCHEMA, _SCHEMA_2)[version:]
            if missing:
                db.executescript(
                    f"BEGIN; {' '.join(missing)} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
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


def _json(value: object) -> str:
    return json.dumps(write_plain(value), separators=(",", ":"))


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
