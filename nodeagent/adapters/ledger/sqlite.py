"""The ledger in SQLite, one row per grant.

A row is written before its effect (state `preparing`, `ending`, or new limits) and again after it.
A damaged file is replaced by an empty one, because the regions have copies of the living grants.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from nodeagent.adapters.ledger.rows import Table, to_json
from nodeagent.adapters.ledger.sqlite_file import UNREADABLE, SqliteFile
from nodeagent.ports.driver.walls import WallRow
from nodeagent.ports.ledger import GrantRecord, GrantState, LedgerLost
from nodeagent.ports.processes import LibraryIdentity
from nodeagent.ports.queue import Done, Fence, Work, WorkKey
from nodeagent.ports.watch import AuditRow, Hold
from nodeagent.units import GrantId
from sluicecommon.plain import read_plain

KEEP_ENDED: Final = 1000
"""Rows of ended grants that are kept for people to read."""

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
_SCHEMA_3: Final = """
CREATE TABLE audit (
    id INTEGER PRIMARY KEY, boot_id TEXT NOT NULL, at_unix_s REAL NOT NULL, body TEXT NOT NULL
) STRICT;
"""
_HOLDS: Final = "SELECT id, body FROM holds WHERE boot_id = ? ORDER BY id"
_SCHEMA_4: Final = """
CREATE TABLE holds (
    id INTEGER PRIMARY KEY AUTOINCREMENT, boot_id TEXT NOT NULL, body TEXT NOT NULL
) STRICT;
CREATE TABLE driver_files (
    id INTEGER PRIMARY KEY, boot_id TEXT NOT NULL, body TEXT NOT NULL, UNIQUE (boot_id, body)
) STRICT;
"""
_SCHEMA_5: Final = "ALTER TABLE grants ADD COLUMN crc INTEGER;"
"""NULL in rows of an earlier version."""
_SCHEMA_6: Final = """
CREATE TABLE walls (
    grant_id TEXT NOT NULL, gpu TEXT NOT NULL, boot_id TEXT NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (grant_id, gpu)
) STRICT;
"""
_GRANTS: Final = Table(
    "grants",
    "grant_id",
    "grant",
    GrantRecord,
    lambda record: record.grant,
    {
        "boot_id": lambda record: record.boot_id,
        "state": lambda record: record.state.value,
        "written_unix_s": lambda _record: time.time(),
    },
)
KEEP_AUDIT: Final = 10_000
"""Rows of audited acts that are kept, even after their grants' rows."""
KEEP_DRIVER_FILES: Final = 1000
KEEP_DONE: Final = 1000
"""Rows of ended work of the queue; as many as the reducer remembers."""


class SqliteLedger:
    def __init__(self, path: Path, boot_id: str) -> None:
        """Opens or creates the file, or replaces a damaged one. Raises LedgerLost, LedgerTooNew."""
        self._boot_id = boot_id
        schemas = (_SCHEMA, _SCHEMA_2, _SCHEMA_3, _SCHEMA_4, _SCHEMA_5, _SCHEMA_6)
        self._file = SqliteFile(path, schemas, settle=self._settle)
        self._run = self._file.run

    def _settle(self, db: sqlite3.Connection) -> None:
        """Delete or end rows of an earlier boot, whose processes, cgroups and pins ended with
        it."""
        ended, boot_id = GrantState.ENDED.value, self._boot_id
        db.execute("DELETE FROM holds WHERE boot_id != ?", (boot_id,))
        db.execute("DELETE FROM driver_files WHERE boot_id != ?", (boot_id,))
        db.execute("DELETE FROM walls WHERE boot_id != ?", (boot_id,))
        db.execute("UPDATE grants SET state = ? WHERE boot_id != ?", (ended, boot_id))
        _GRANTS.keep_newest(db, ended, KEEP_ENDED)

    @property
    def was_rebuilt(self) -> bool:
        return self._file.was_rebuilt

    def load(self) -> list[GrantRecord]:
        """Grants of this boot that have not ended. A damaged row is ignored: its region has a
        copy."""
        return _GRANTS.read(
            self._file,
            "WHERE boot_id = ? AND state != ?",
            (self._boot_id, GrantState.ENDED.value),
        )

    def ended(self) -> frozenset[GrantId]:
        rows = self._run(
            "SELECT grant_id FROM grants WHERE boot_id = ? AND state = ?",
            (self._boot_id, GrantState.ENDED.value),
        )
        return frozenset(GrantId(grant) for (grant,) in rows)

    def store(self, record: GrantRecord) -> None:
        self._run(_GRANTS.upsert, _GRANTS.values(record))

    # --- audited acts ---

    def audit(self, row: AuditRow) -> None:
        self._run(
            "INSERT INTO audit (boot_id, at_unix_s, body) VALUES (?, ?, ?)",
            (self._boot_id, row.at_unix_s, to_json(row)),
        )
        self._run("DELETE FROM audit WHERE id <= (SELECT max(id) FROM audit) - ?", (KEEP_AUDIT,))

    def audit_rows(self, rule: str = "") -> list[AuditRow]:
        return self._bodies(
            "audit", AuditRow, "WHERE ? IN ('', json_extract(body, '$.rule')) ORDER BY id", rule
        )

    # --- acts in force ---

    def holds(self) -> list[Hold]:
        """Acts in force. A row that cannot be read is of a later version, and is left in the
        table."""
        found = []
        for number, body in self._run(_HOLDS, (self._boot_id,)):
            with contextlib.suppress(*UNREADABLE):
                found.append(_hold(number, body))
        return found

    def store_hold(self, hold: Hold) -> Hold:
        body = to_json(hold)
        if hold.number:
            self._run("UPDATE holds SET body = ? WHERE id = ?", (body, hold.number))
            return hold
        rows = self._run(
            "INSERT INTO holds (boot_id, body) VALUES (?, ?) RETURNING id", (self._boot_id, body)
        )
        return replace(hold, number=rows[0][0])

    def drop_hold(self, number: int) -> None:
        self._run("DELETE FROM holds WHERE id = ?", (number,))

    # --- the driver's walls ---

    def wall_rows(self) -> list[WallRow]:
        return self._bodies("walls", WallRow, "WHERE boot_id = ? ORDER BY rowid", self._boot_id)

    def store_wall(self, row: WallRow) -> None:
        self._run(
            "INSERT OR REPLACE INTO walls VALUES (?, ?, ?, ?)",
            (row.grant, row.gpu, self._boot_id, to_json(row)),
        )

    def drop_wall(self, row: WallRow) -> None:
        self._run("DELETE FROM walls WHERE grant_id = ? AND gpu = ?", (row.grant, row.gpu))

    # --- driver libraries seen here ---

    def driver_files(self) -> list[LibraryIdentity]:
        return self._bodies(
            "driver_files", LibraryIdentity, "WHERE boot_id = ? ORDER BY id", self._boot_id
        )

    def store_driver_file(self, identity: LibraryIdentity) -> None:
        self._run(
            "INSERT OR IGNORE INTO driver_files (boot_id, body) VALUES (?, ?)",
            (self._boot_id, to_json(identity)),
        )
        self._run(
            "DELETE FROM driver_files WHERE id <= (SELECT max(id) FROM driver_files) - ?",
            (KEEP_DRIVER_FILES,),
        )

    # --- the queue ---

    def load_queue(self) -> tuple[Fence, list[Work], list[Done]]:
        """The queue's rows. One that cannot be read is ignored: the controller has it too."""
        fences: list[Fence] = self._bodies("queue_fence", Fence)
        return (
            fences[0] if fences else Fence(),
            self._bodies("queue_work", Work),
            self._bodies("queue_done", Done),
        )

    def _bodies(self, table: str, kind: type[Any], which: str = "", *values: str) -> list[Any]:
        found = []
        for (body,) in self._run(f"SELECT body FROM {table} {which}", values):
            with contextlib.suppress(*UNREADABLE):
                found.append(read_plain(kind, json.loads(body)))
        return found

    def store_fence(self, fence: Fence) -> None:
        self._run("INSERT OR REPLACE INTO queue_fence VALUES (1, ?)", (to_json(fence),))

    def store_work(self, work: Work) -> None:
        self._run("INSERT OR REPLACE INTO queue_work VALUES (?, ?, ?)", (*work.key, to_json(work)))

    def drop_work(self, key: WorkKey, done: Done | None) -> None:
        if done is not None:
            # Written first, because without both rows a repeated decision would start it again.
            self._run(
                "INSERT INTO queue_done (uid, attempt, body) VALUES (?, ?, ?)",
                (done.uid, done.attempt, to_json(done)),
            )
            self._run(
                "DELETE FROM queue_done WHERE id <= (SELECT max(id) FROM queue_done) - ?",
                (KEEP_DONE,),
            )
        self._run("DELETE FROM queue_work WHERE workload = ? AND pod = ?", tuple(key))

    def close(self) -> None:
        self._file.close()


def read_holds(path: Path, boot_id: str) -> list[Hold]:
    """Acts in force, read while another process may write the ledger. Raises LedgerLost."""
    try:
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        try:
            return [_hold(number, body) for number, body in db.execute(_HOLDS, (boot_id,))]
        finally:
            db.close()
    except (sqlite3.Error, *UNREADABLE) as error:
        raise LedgerLost(f"{path}: {error}") from error


def _hold(number: int, body: str) -> Hold:
    read: Hold = read_plain(Hold, json.loads(body))
    return replace(read, number=number)
