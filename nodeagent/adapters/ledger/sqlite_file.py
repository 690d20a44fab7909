"""A small durable database: SQLite in WAL mode, synchronous=FULL, one writer.

A damaged file is moved aside as `*.corrupt-<time>` and replaced by an empty one, whatever the
damage looks like: a flipped bit can be a DatabaseError, a UnicodeDecodeError, or a version number
of the year 2300. An I/O error is never retried: after a failed fsync Linux drops the dirty pages,
so the file's contents are unknown.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from nodeagent.ports.ledger import LedgerFull, LedgerLost
from sluicecommon.sqlite import bring_up, open_file

log = logging.getLogger(__name__)

_DAMAGE: Final = (sqlite3.Error, ValueError, TypeError, ArithmeticError, LookupError)
"""Exceptions of Python's sqlite3 for a damaged file; UnicodeDecodeError is a ValueError,
OverflowError an ArithmeticError."""
KEEP_ASIDE: Final = 8
"""Damaged files that are kept for people; a disk that damages one per minute must not fill up."""
UNREADABLE: Final = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""Exceptions that json and read_plain can raise for a damaged body."""
Definitions = dict[str, tuple[tuple[Any, ...], ...]]
_VERSION_CHECK: Final = 0x534C_0000
"""The header's application_id is this XOR the schema's version, so that a flipped bit in either
does not look like a later version."""


class LedgerTooNew(Exception):
    """The file was written by a later version of the daemon, and guessing its meaning would be
    unsafe."""


class SqliteFile:
    def __init__(
        self,
        path: Path,
        schemas: Sequence[str],
        any_thread: bool = False,
        settle: Callable[[sqlite3.Connection], object] = lambda _db: None,
    ) -> None:
        """`schemas[n]` migrates from version n to n + 1; `settle` changes rows at every start.
        Opens or creates the file, or replaces a damaged one. Raises LedgerLost, LedgerTooNew."""
        self.path = path
        self.aside: Path | None = None
        """The path to which a damaged file was moved."""
        self._schemas = schemas
        self._any_thread = any_thread
        self._settle = settle
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.is_dir():
            raise LedgerLost(f"{path}: is a directory")
        try:
            self._db = self._open()
        except _DAMAGE as error:
            if isinstance(error, sqlite3.Error) and self._is_io(error):
                raise LedgerLost(f"{path}: {error}") from error
            try:
                self.aside = self._quarantine()
                log.error(
                    "%s is corrupt (%s): moved aside as %s, starting with an empty file",
                    path,
                    error,
                    self.aside,
                )
                self._db = self._open()
            except (*_DAMAGE, OSError) as again:
                raise LedgerLost(f"{path}: {again}") from again

    @property
    def was_rebuilt(self) -> bool:
        return self.aside is not None

    def run(self, sql: str, arguments: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run one statement, durable when it returns. Raises LedgerFull, LedgerLost."""
        with self._ledger_errors():
            return self._db.execute(sql, arguments).fetchall()

    def run_all(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        """Run a statement for every row in one transaction. Raises LedgerFull, LedgerLost."""
        self.run_each([(sql, rows)])

    def run_each(self, statements: Sequence[tuple[str, Sequence[Sequence[object]]]]) -> None:
        """Run each statement for every row of its own, all in one transaction. Raises LedgerFull,
        LedgerLost."""
        with self._ledger_errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                for sql, rows in statements:
                    self._db.executemany(sql, rows)
                self._db.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
                raise

    def close(self) -> None:
        self._db.close()

    @contextlib.contextmanager
    def _ledger_errors(self) -> Any:
        try:
            yield
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL:
                raise LedgerFull(f"{self.path}: {error}") from error
            raise LedgerLost(f"{self.path}: {error}") from error

    def _open(self) -> sqlite3.Connection:
        # Not quick_check, because an index that lost a key would fail the first write that uses
        # it. A damaged character makes its row unreadable, but not the file.
        db = open_file(self.path, "integrity_check", any_thread=self._any_thread, read_text=_text)
        try:
            version, newest = self._version(db), len(self._schemas)
            if version > newest:
                raise LedgerTooNew(self._too_new(version, newest))
            if 0 < version < newest:
                self._keep_copy(db, version)
            bring_up(db, version, self._schemas)
            db.execute(f"PRAGMA application_id = {_VERSION_CHECK ^ newest}")
            _compare(self._definitions_of_schemas(), _definitions(db))
            self._settle(db)
        except BaseException:
            db.close()
            raise
        return db

    def _version(self, db: sqlite3.Connection) -> int:
        """The schema's version. Raises sqlite3.DatabaseError if the two places that have it
        disagree."""
        version: int = db.execute("PRAGMA user_version").fetchone()[0]
        check: int = db.execute("PRAGMA application_id").fetchone()[0]
        if version < 0 or check not in (0, _VERSION_CHECK ^ version):  # 0: an early version.
            raise sqlite3.DatabaseError(f"schema {version} with check {check:#x}")
        return version

    def _definitions_of_schemas(self) -> Definitions:
        with contextlib.closing(sqlite3.connect(":memory:")) as db:
            db.executescript(" ".join(self._schemas))
            return _definitions(db)

    def _copy_of(self, schema: int) -> Path:
        return self.path.with_name(f"{self.path.name}.schema-{schema}")

    def _keep_copy(self, db: sqlite3.Connection, schema: int) -> None:
        """Copy the file before it is migrated to a later schema, for a downgrade."""
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

    def _quarantine(self) -> Path:
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        aside = self.path.with_name(f"{self.path.name}.corrupt-{stamp}")
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                source = self.path.with_name(self.path.name + suffix)
                source.rename(aside.with_name(aside.name + suffix))
        kept = sorted(
            one
            for one in self.path.parent.glob(f"{self.path.name}.corrupt-*")
            if not one.name.endswith(("-wal", "-shm"))
        )
        for old in kept[:-KEEP_ASIDE]:
            for suffix in ("", "-wal", "-shm"):
                old.with_name(old.name + suffix).unlink(missing_ok=True)
        return aside

    def _is_io(self, error: sqlite3.Error) -> bool:
        primary = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if primary == sqlite3.SQLITE_READONLY:  # A damaged header may cause this, too.
            return not os.access(self.path, os.W_OK)
        return primary in (
            sqlite3.SQLITE_IOERR,
            sqlite3.SQLITE_FULL,
            sqlite3.SQLITE_CANTOPEN,
            sqlite3.SQLITE_BUSY,
            sqlite3.SQLITE_LOCKED,
        )


def row_sum(key: str, body: str) -> int:
    """Checksum of a row. SQLite checks its pages' structure and not their content: one flipped bit
    turns 9 GiB into 1 GiB."""
    return zlib.crc32(f"{key}\0{body}".encode(errors="surrogatepass"))


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")


def _definitions(db: sqlite3.Connection) -> Definitions:
    """Columns of the tables and of their indexes. The integrity check finds damaged pages, but not
    a missing table, and not a flipped bit in the name of a column."""
    found: Definitions = {}
    tables = db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
    for (table,) in tables:
        rows = db.execute("SELECT * FROM pragma_table_xinfo(?)", (table,)).fetchall()
        indexes = db.execute(
            'SELECT l."unique", l.origin, l.partial, group_concat(i.name)'
            " FROM pragma_index_list(?) l, pragma_index_info(l.name) i GROUP BY l.name",
            (table,),
        ).fetchall()
        found[table] = (*rows, *sorted(indexes, key=str))
    return found


def _compare(wanted: Definitions, there: Definitions) -> None:
    """Raises sqlite3.DatabaseError."""
    if missing := wanted.keys() - there.keys():
        raise sqlite3.DatabaseError(f"has no {', '.join(sorted(missing))}")
    for table, definition in wanted.items():
        if there[table] != definition:
            raise sqlite3.DatabaseError(f"the definition of {table} is not this version's")
