"""The database in SQLite: WAL, synchronous=FULL, one writer, one transaction per group of
steps.

It holds the fencing term, which is incremented at every opening before anything is read: nodes
refuse a controller with an older term. A file lock excludes a second controller. A damaged file is
never replaced by an empty one, because the queue would be lost silently: the controller refuses to
start and names the remedy.
"""

from __future__ import annotations

import fcntl
import json
import sqlite3
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from queuecontroller.scheduler.quota.usage_history import UsageRecord
from queuecontroller.server.store.seal_key import read_or_make_key
from queuecontroller.state.records import (
    Assignment,
    Change,
    Event,
    Gap,
    NodeRecord,
    ObjectRecord,
    Snapshot,
    StoreLost,
    WorkloadRecord,
)
from sluicecommon.plain import read_plain, write_plain
from sluicecommon.sqlite import bring_up, open_file

SCHEMA_VERSION: Final = 2
KEEP_EVENTS: Final = 50_000
"""Rows of the audit trail that are kept, about 10 MB."""

_SCHEMA: Final = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE objects (
    kind TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
    revision INTEGER NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (kind, namespace, name)
) STRICT;
CREATE TABLE workloads (
    key TEXT PRIMARY KEY, revision INTEGER NOT NULL, body TEXT NOT NULL
) STRICT;
CREATE TABLE assignments (
    workload TEXT NOT NULL, pod TEXT NOT NULL, node TEXT NOT NULL,
    revision INTEGER NOT NULL UNIQUE, body TEXT NOT NULL,
    PRIMARY KEY (workload, pod)
) STRICT;
CREATE TABLE nodes (name TEXT PRIMARY KEY, body TEXT NOT NULL) STRICT;
CREATE TABLE events (
    id INTEGER PRIMARY KEY, revision INTEGER NOT NULL, at_ns INTEGER NOT NULL,
    kind TEXT NOT NULL, subject TEXT NOT NULL, text TEXT NOT NULL
) STRICT;
CREATE INDEX events_by_subject ON events (subject, id);
"""
_USAGE: Final = """
CREATE TABLE usage (queue TEXT PRIMARY KEY, body TEXT NOT NULL) STRICT;
"""
_STEPS: Final = (_SCHEMA, _USAGE)
"""Migrations, one for each version of the schema; an older file is upgraded in one transaction."""


_OBJECTS: Final = "SELECT kind, namespace, name, revision, body FROM objects ORDER BY revision"
_NO_ROOM: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


_REMEDY: Final = (
    "If the file is damaged, restore a backup, or move it away and apply the manifests again:"
    " nodes report running work either way"
)
_DAMAGE: Final = (UnicodeDecodeError, OverflowError, MemoryError, RecursionError)
"""Errors that the readers of SQLite and JSON raise for flipped bits besides their own; MemoryError
comes from a damaged length."""
MAX_NUMBER: Final = 1 << 62
"""Limit of terms and revisions; larger values come from a defect or a damaged disk."""


class StoreUnusable(Exception):
    """The database file cannot be used; the text is one line with the remedy."""

    def __init__(self, text: str) -> None:
        super().__init__(" ".join(text.splitlines()))  # SQLite's messages can have several lines.


class SqliteStore:
    def __init__(self, path: Path) -> None:
        """Open or create the file and begin a new term. Raises StoreUnusable, StoreLost."""
        self._path = path
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = open(f"{path}.lock", "w", encoding="ascii")  # noqa: SIM115  # until close
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreUnusable(f"{path}: another queue controller is using it") from None
        except OSError as error:
            raise StoreUnusable(f"{path}: {error.strerror}") from error
        try:
            if path.is_dir():
                raise StoreUnusable(f"{path}: is a directory; server.database must name a file")
            if path.is_file() and path.stat().st_size == 0:
                raise StoreUnusable(
                    f"{path}: is empty: restore a backup, or remove it to start a new queue"
                )
            self._db = self._open()
            # A reader on the writer's connection would wait for the disk with it.
            self._reader = sqlite3.connect(path, isolation_level=None, timeout=2.0)
        except StoreUnusable:
            self._lock.close()
            raise
        except sqlite3.Error as error:
            self._lock.close()
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _NO_ROOM:
                raise StoreLost(f"{path}: {error}") from error
            raise StoreUnusable(f"{path}: {error}. {_REMEDY}") from error
        except (*_DAMAGE, ValueError, TypeError) as error:
            self._lock.close()
            raise StoreUnusable(f"{path}: {type(error).__name__}: {error}. {_REMEDY}") from error
        try:
            self._seal_key = read_or_make_key(Path(f"{path}.key"))
        except OSError as error:
            self.close()
            raise StoreUnusable(f"{error.filename}: {error.strerror}") from error
        except ValueError as error:
            self.close()
            raise StoreUnusable(str(error)) from error
        self._commits = 0
        self._staged = ""
        """Label of the open transaction."""

    def _open(self) -> sqlite3.Connection:
        db = open_file(self._path, "quick_check", any_thread=True)
        try:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version > SCHEMA_VERSION:
                raise StoreUnusable(
                    f"{self._path} has schema {version}, this version supports {SCHEMA_VERSION}:"
                    " install the newer sluice again, or restore a backup made with this version"
                )
            bring_up(db, version, _STEPS)
            db.execute("BEGIN IMMEDIATE")
            db.execute("INSERT OR IGNORE INTO meta VALUES ('cluster_id', ?)", (str(uuid.uuid4()),))
            db.execute("INSERT OR IGNORE INTO meta VALUES ('term', '0'), ('revision', '0')")
            (term,) = db.execute("SELECT value FROM meta WHERE name = 'term'").fetchone()
            db.execute("UPDATE meta SET value = ? WHERE name = 'term'", (_number(term, 1),))
            db.execute("COMMIT")
        except BaseException:
            db.close()
            raise
        return db

    # -- reading ----------------------------------------------------------------------------------

    def load(self) -> Snapshot:
        """Load all rows. Raises StoreUnusable for a row that cannot be read, since skipping it
        would free its quota."""
        try:
            meta: dict[str, str] = dict(self._read("SELECT name, value FROM meta"))
            cluster_id, forgotten = meta["cluster_id"], json.loads(meta.get("forgotten", "[]"))
            term, revision = int(_number(meta["term"])), int(_number(meta["revision"]))
            gaps: tuple[Gap, ...] = read_plain(tuple[Gap, ...], forgotten)
        except (ValueError, TypeError, KeyError) as error:
            raise StoreUnusable(f"{self._path}: meta: {error!r}. {_REMEDY}") from error
        return Snapshot(
            cluster_id=cluster_id,
            term=term,
            revision=revision,
            forgotten=gaps,
            seal_key=self._seal_key,
            objects=[self._object(row) for row in self._read(_OBJECTS)],
            workloads=self._bodies("workloads", WorkloadRecord, "revision"),
            assignments=self._bodies("assignments", Assignment, "revision"),
            nodes=self._bodies("nodes", NodeRecord, "name"),
            usage=self._bodies("usage", UsageRecord, "queue"),
        )

    def _object(self, row: tuple[Any, ...]) -> ObjectRecord:
        try:
            if not isinstance(json.loads(row[-1]), dict):
                raise ValueError("expected a JSON object")
        except (ValueError, TypeError, *_DAMAGE) as error:
            named = "/".join(str(part) for part in row[:3] if part)
            raise StoreUnusable(f"{self._path}: the row of {named}: {error}") from error
        return ObjectRecord(*row)

    def _bodies(self, table: str, kind: Any, order: str) -> list[Any]:
        rows = []
        for (body,) in self._each(f"SELECT body FROM {table} ORDER BY {order}"):
            try:
                rows.append(read_plain(kind, json.loads(body)))
            except (ValueError, TypeError, KeyError, *_DAMAGE) as error:
                raise StoreUnusable(f"{self._path}: a row of {table}: {error}") from error
        return rows

    def _each(self, sql: str) -> Iterator[Any]:
        """Rows in batches, so that the texts of 100,000 workloads are not in memory at once."""
        try:
            cursor = self._db.execute(sql)
            while part := cursor.fetchmany(1000):
                yield from part
        except (sqlite3.Error, *_DAMAGE) as error:
            raise self._unread(error) from error

    def events(self, subject: str, limit: int) -> list[Event]:
        rows = self._read(
            "SELECT revision, at_ns, kind, subject, text FROM events WHERE subject = ?"
            " ORDER BY id DESC LIMIT ?",
            (subject, limit),
            self._reader,
        )
        return [Event(*row) for row in rows]

    def _read(
        self,
        sql: str,
        arguments: tuple[object, ...] = (),
        db: sqlite3.Connection | None = None,
    ) -> list[Any]:
        try:
            return (db or self._db).execute(sql, arguments).fetchall()
        except (sqlite3.Error, *_DAMAGE) as error:
            raise self._unread(error) from error

    def _unread(self, error: BaseException) -> StoreUnusable | StoreLost:
        if isinstance(error, sqlite3.Error):
            if _is_damage(error):
                return StoreUnusable(f"{self._path}: {error}. {_REMEDY}")
            return StoreLost(f"{self._path}: {error}")
        return StoreUnusable(f"{self._path}: {type(error).__name__}: {error}. {_REMEDY}")

    # -- writing ----------------------------------------------------------------------------------

    def stage(self, change: Change) -> None:
        self._staged = change.label
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._write(change)
        except (sqlite3.Error, *_DAMAGE, ValueError) as error:
            raise StoreLost(f"{self._path}: {change.label}: {error}") from error

    def sync(self) -> None:
        try:
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise StoreLost(f"{self._path}: {self._staged}: {error}") from error

    def commit(self, change: Change) -> None:
        """Write a change durably. Raises StoreLost."""
        self.stage(change)
        self.sync()

    def _write(self, change: Change) -> None:
        db = self._db
        values = [("revision", _number(change.revision)), ("term", _number(change.term))]
        db.executemany("UPDATE meta SET value = ?2 WHERE name = ?1", values)
        if change.forgotten is not None:
            gaps = json.dumps(change.forgotten)
            db.execute("INSERT OR REPLACE INTO meta VALUES ('forgotten', ?)", (gaps,))
        for identity, found in change.objects.items():
            if found is None:
                db.execute(
                    "DELETE FROM objects WHERE kind = ? AND namespace = ? AND name = ?", identity
                )
            else:
                row = (*identity, found.revision, found.body)
                db.execute("INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?)", row)
        gone = [(key,) for key, record in change.workloads.items() if record is None]
        rows = [
            (key, record.revision, _json(record))
            for key, record in change.workloads.items()
            if record is not None
        ]
        db.executemany("DELETE FROM workloads WHERE key = ?", gone)
        db.executemany("INSERT OR REPLACE INTO workloads VALUES (?, ?, ?)", rows)
        over = [pod for pod, one in change.assignments.items() if one is None]
        given = [
            (*pod, one.node, one.revision, _json(one))
            for pod, one in change.assignments.items()
            if one is not None
        ]
        db.executemany("DELETE FROM assignments WHERE workload = ? AND pod = ?", over)
        # REPLACE would delete another pod's row with the same revision; UNIQUE must refuse that.
        db.executemany(
            "INSERT INTO assignments VALUES (?, ?, ?, ?, ?) ON CONFLICT (workload, pod)"
            " DO UPDATE SET node = excluded.node, revision = excluded.revision,"
            " body = excluded.body",
            given,
        )
        for name, node in change.nodes.items():
            if node is None:
                db.execute("DELETE FROM nodes WHERE name = ?", (name,))
            else:
                db.execute("INSERT OR REPLACE INTO nodes VALUES (?, ?)", (name, _json(node)))
        for queue, history in change.usage.items():
            if history is None:
                db.execute("DELETE FROM usage WHERE queue = ?", (queue,))
            else:
                db.execute("INSERT OR REPLACE INTO usage VALUES (?, ?)", (queue, _json(history)))
        if change.events:
            db.executemany(
                "INSERT INTO events (revision, at_ns, kind, subject, text) VALUES (?, ?, ?, ?, ?)",
                [(e.revision, e.at_ns, e.kind, e.subject, e.text) for e in change.events],
            )
            self._commits += 1
            if self._commits % 1000 == 1:
                db.execute(
                    "DELETE FROM events WHERE id <= (SELECT max(id) FROM events) - ?",
                    (KEEP_EVENTS,),
                )

    def close(self) -> None:
        self._reader.close()
        self._db.close()
        self._lock.close()


def _number(value: object, more: int = 0) -> str:
    """A term or revision as stored, plus `more`. Raises ValueError if it is out of range."""
    found = int(str(value))
    if not 0 <= found < MAX_NUMBER - more:
        raise ValueError(f"expected a term or revision, got {found}")
    return str(found + more)


def _is_damage(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or (
        isinstance(error, sqlite3.OperationalError) and "Could not decode" in str(error)
    )


_ENCODER: Final = json.JSONEncoder(separators=(",", ":"))


def _json(value: object) -> str:
    return _ENCODER.encode(write_plain(value))
