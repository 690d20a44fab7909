"""Rows of a ledger that have a checksum: a key, a JSON body and the CRC of both.

SQLite checks the structure of its pages and not their content, so a flipped bit in a row would be
read as another limit. A row whose checksum differs is ignored; the callers have another source for
it (the region, the kubelet's checkpoint, the driver).
"""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from nodeagent.adapters.ledger.sqlite_file import UNREADABLE, SqliteFile, row_sum
from sluicecommon.plain import read_plain, write_all_fields

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Table(Generic[T]):
    """A table with a key column, the columns `body` and `crc`, and those in `columns`."""

    name: str
    key: str
    """The column of the primary key."""
    noun: str
    """The word for a row in log lines."""
    kind: type[T]
    key_of: Callable[[T], str]
    columns: Mapping[str, Callable[[T], object]] = field(default_factory=dict)
    """Values of the other columns, by which rows are found and people read them."""

    def read(self, file: SqliteFile, where: str = "", values: Sequence[object] = ()) -> list[T]:
        """The rows that `where` selects, without those that are damaged."""
        found = []
        for key, body, crc in file.run(
            f"SELECT {self.key}, body, crc FROM {self.name} {where}", values
        ):
            if crc is not None and crc != row_sum(key, body):  # None: of before there was one
                log.error("%s %.128s: checksum mismatch, row ignored", self.noun, key)
                continue
            try:
                found.append(read_plain(self.kind, json.loads(body)))
            except UNREADABLE as error:
                log.error("%s %.128s: unreadable, row ignored: %s", self.noun, key, error)
        return found

    @property
    def upsert(self) -> str:
        """The statement that writes one row of `values()`."""
        names = (*self.columns, "body", "crc")
        return (
            f"INSERT INTO {self.name} ({', '.join((self.key, *names))})"
            f" VALUES (?{', ?' * len(names)}) ON CONFLICT ({self.key}) DO UPDATE SET "
            + ", ".join(f"{name} = excluded.{name}" for name in names)
        )

    def values(self, row: T) -> tuple[object, ...]:
        """The row's values in the order of `upsert`."""
        key, body = self.key_of(row), to_json(row)
        return (key, *(value(row) for value in self.columns.values()), body, row_sum(key, body))

    def keep_newest(self, db: sqlite3.Connection, state: str, rows: int) -> None:
        """Delete all but the newest rows of a state, for tables that have `state` and
        `written_unix_s`."""
        db.execute(
            f"DELETE FROM {self.name} WHERE state = ? AND {self.key} NOT IN (SELECT {self.key}"
            f" FROM {self.name} WHERE state = ? ORDER BY written_unix_s DESC LIMIT ?)",
            (state, state, rows),
        )


class SqliteRows(Generic[T]):
    """One table in a file of its own.

    Committing waits for the disk, so a thread of its own does it: a disk that hangs delays one
    caller up to its timeout, and not the daemon.
    """

    def __init__(
        self,
        path: Path,
        schemas: Sequence[str],
        table: Table[T],
        closed_state: str = "",
        keep_closed: int = 0,
    ) -> None:
        """Rows of `closed_state` are not loaded; the newest `keep_closed` stay for people to read.

        Raises LedgerLost, LedgerTooNew.
        """
        self._table = table
        self._closed = closed_state

        def settle(db: sqlite3.Connection) -> None:
            if closed_state:
                table.keep_newest(db, closed_state, keep_closed)

        self._file = SqliteFile(path, schemas, any_thread=True, settle=settle)
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix=table.name)

    @property
    def was_rebuilt(self) -> bool:
        """True if the file was damaged, moved aside and replaced by an empty one."""
        return self._file.was_rebuilt

    def load(self) -> list[T]:
        """All rows that are not closed. A damaged row is logged and ignored."""
        if self._closed:
            return self._table.read(self._file, "WHERE state != ?", (self._closed,))
        return self._table.read(self._file)

    async def commit(self, rows: Sequence[T], drop: Sequence[T] = ()) -> None:
        """Write rows and delete those in `drop`, in one transaction; durable when it returns.

        Raises LedgerFull, LedgerLost.
        """
        table = self._table
        statements: list[tuple[str, Sequence[Sequence[object]]]] = [
            (f"DELETE FROM {table.name} WHERE {table.key} = ?", [(table.key_of(r),) for r in drop]),
            (table.upsert, [table.values(row) for row in rows]),
        ]
        await asyncio.get_running_loop().run_in_executor(
            self._writer, self._file.run_each, statements
        )

    def close(self) -> None:
        """Waits for what is being written."""
        self._writer.shutdown(wait=True)
        self._file.close()


def to_json(value: object) -> str:
    """A row's body: every field, so that an earlier version and people can read it."""
    return json.dumps(write_all_fields(value), separators=(",", ":"))
