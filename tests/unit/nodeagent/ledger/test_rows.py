"""Rows with a checksum: written, read, damaged, dropped, and those of an earlier version."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from nodeagent.adapters.ledger.rows import SqliteRows, Table
from nodeagent.adapters.ledger.sqlite_file import row_sum


@dataclass(frozen=True)
class Thing:
    name: str
    amount: int = 1
    state: str = "open"


SCHEMAS = (
    "CREATE TABLE things (name TEXT PRIMARY KEY, state TEXT NOT NULL, written_unix_s REAL NOT NULL,"
    " body TEXT NOT NULL) STRICT;",
    "ALTER TABLE things ADD COLUMN crc INTEGER;",
)
TABLE = Table(
    "things",
    "name",
    "thing",
    Thing,
    lambda one: one.name,
    {"state": lambda one: one.state, "written_unix_s": lambda _one: time.time()},
)


def opened(tmp_path: Path) -> SqliteRows[Thing]:
    return SqliteRows(tmp_path / "things.sqlite", SCHEMAS, TABLE, "closed", 2)


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[SqliteRows[Thing]]:
    found = opened(tmp_path)
    yield found
    found.close()


def test_what_was_written_last_is_read(rows: SqliteRows[Thing], tmp_path: Path) -> None:
    asyncio.run(rows.commit([Thing("a"), Thing("b")]))
    asyncio.run(rows.commit([Thing("a", 2), Thing("c", state="closed")], [Thing("b")]))
    rows.close()
    again = opened(tmp_path)
    assert again.load() == [Thing("a", 2)]
    assert not again.was_rebuilt
    again.close()
    with sqlite3.connect(tmp_path / "things.sqlite") as db:
        written = db.execute("SELECT name, state, body, crc FROM things ORDER BY name").fetchall()
    body = '{"name":"a","amount":2,"state":"open"}'
    assert written[0] == ("a", "open", body, row_sum("a", body))
    assert [name for name, *_ in written] == ["a", "c"]


def test_a_row_whose_checksum_differs_is_logged_and_ignored(
    rows: SqliteRows[Thing], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asyncio.run(rows.commit([Thing("a"), Thing("b")]))
    with sqlite3.connect(tmp_path / "things.sqlite") as db:
        db.execute("UPDATE things SET body = replace(body, '1', '9') WHERE name = 'a'")
    assert rows.load() == [Thing("b")]
    assert "thing a: checksum mismatch, row ignored" in caplog.text


@pytest.mark.parametrize("body", ["{", "[]", '{"name":"a","of_2030":1}'])
def test_a_row_that_cannot_be_read_is_logged_and_ignored(
    rows: SqliteRows[Thing], tmp_path: Path, caplog: pytest.LogCaptureFixture, body: str
) -> None:
    asyncio.run(rows.commit([Thing("b")]))
    with sqlite3.connect(tmp_path / "things.sqlite") as db:
        values = ("a", "open", 1.0, body, row_sum("a", body))
        db.execute("INSERT INTO things VALUES (?, ?, ?, ?, ?)", values)
    assert rows.load() == [Thing("b")]
    assert "thing a: unreadable, row ignored: " in caplog.text


def test_rows_of_before_there_was_a_checksum_are_read(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "things.sqlite") as db:
        db.executescript(SCHEMAS[0] + "PRAGMA user_version = 1;")
        body = json.dumps({"name": "a", "amount": 7})
        db.execute("INSERT INTO things VALUES ('a', 'open', 1.0, ?)", (body,))
    db.close()
    rows = opened(tmp_path)
    assert rows.load() == [Thing("a", 7)]
    rows.close()


def test_the_newest_closed_rows_are_kept(tmp_path: Path) -> None:
    rows = opened(tmp_path)
    for name in "abcd":
        asyncio.run(rows.commit([Thing(name, state="closed")]))
    rows.close()
    opened(tmp_path).close()
    with sqlite3.connect(tmp_path / "things.sqlite") as db:
        assert db.execute("SELECT name FROM things ORDER BY name").fetchall() == [("c",), ("d",)]
