"""A small durable database: SQLite in WAL mode, synchronous=FULL, one writer.

A damaged file is put aside as `*.corrupt-<time>` and an empty one takes its place. An I/O error is
never retried: after a failed fsync Linux drops the dirty pages, so nobody knows what is written.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nodeagent.ports import LedgerFull, LedgerLost


class LedgerTooNew(Exception):
    """Written by a later version of the daemon; refusing is better than guessing."""


class SqliteFile:
    def __init__(self, path: Path, schemas: Sequence[str], any_thread: bool = False) -> None:
        """`schemas[n]` leads from version n to n + 1. Opens, or creates, or replaces a damaged
        file. Raises LedgerLost, LedgerTooNew."""
        self.path = path
        self.was_rebuilt = False
        self._schemas = schemas
        self._any_thread = any_thread
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.is_dir():
            raise LedgerLost(f"{path}: is a directory")
        try:
            self._db = self._open()
        except sqlite3.DatabaseError as error:
            if _is_io(error):
                raise LedgerLost(f"{path}: {error}") from error
            self._quarantine()
            self.was_rebuilt = True
            self._db = self._open()

    def run(self, sql: str, arguments: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """One statement, durable when it returns. Raises LedgerFull, LedgerLost."""
        with self._telling():
            return self._db.execute(sql, arguments).fetchall()

    def run_all(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        """The statement for every row in one transaction. Raises LedgerFull, LedgerLost."""
        with self._telling():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self._db.executemany(sql, rows)
                self._db.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
                raise

    def close(self) -> None:
        self._db.close()

    @contextlib.contextmanager
    def _telling(self) -> Any:
        try:
            yield
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL:
                raise LedgerFull(f"{self.path}: {error}") from error
            raise LedgerLost(f"{self.path}: {error}") from error

    def _open(self) -> sqlite3.Connection:
        db = sqlite3.connect(
            self.path, isolation_level=None, timeout=2.0, check_same_thread=not self._any_thread
        )
        try:
            os.chmod(self.path, 0o600)
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            (answer,) = db.execute("PRAGMA quick_check(1)").fetchone()
            if answer != "ok":
                raise sqlite3.DatabaseError(answer)
            (version,) = db.execute("PRAGMA user_version").fetchone()
            newest = len(self._schemas)
            if version > newest:
                raise LedgerTooNew(self._too_new(version, newest))
            if self._schemas[version:]:
                if version:
                    self._keep_copy(db, version)
                steps = " ".join(self._schemas[version:])
                db.executescript(f"BEGIN; {steps} PRAGMA user_version = {newest}; COMMIT;")
            if missing := self._tables_of_schemas() - _tables(db):
                raise sqlite3.DatabaseError(f"has no {', '.join(sorted(missing))}")
        except BaseException:
            db.close()
            raise
        return db

    def _tables_of_schemas(self) -> set[str]:
        with contextlib.closing(sqlite3.connect(":memory:")) as db:
            db.executescript(" ".join(self._schemas))
            return _tables(db)

    def _copy_of(self, schema: int) -> Path:
        return self.path.with_name(f"{self.path.name}.schema-{schema}")

    def _keep_copy(self, db: sqlite3.Connection, schema: int) -> None:
        """As it was before it is brought to a later schema: what an earlier version needs."""
        new = self._copy_of(schema).with_suffix(".new")
        new.unlink(missing_ok=True)
        copy = sqlite3.connect(new)
        try:
            db.backup(copy)
        finally:
            copy.close()
        os.chmod(new, 0o600)
        new.replace(self._copy_of(schema))

    def _too_new(self, version: int, newest: int) -> str:
        copy = self._copy_of(newest)
        way_out = (
            f"or put {copy}, kept when it was brought to the newer schema, in its place (changes"
            " since then are lost; what runs is adopted by its regions)"
            if copy.is_file()
            else "or move the file away (what runs is adopted by its regions)"
        )
        return (
            f"{self.path} has schema {version}, this version knows {newest}: install the newer"
            f" sluice again, {way_out}"
        )

    def _quarantine(self) -> None:
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                source = self.path.with_name(self.path.name + suffix)
                source.rename(self.path.with_name(f"{self.path.name}.corrupt-{stamp}{suffix}"))


def _tables(db: sqlite3.Connection) -> set[str]:
    """quick_check finds pages that are damaged, not tables that are gone."""
    return {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}


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
