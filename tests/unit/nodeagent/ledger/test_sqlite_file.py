"""The database: brought to a later schema with a copy kept, refused by an earlier version with the way back."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest

from nodeagent.adapters.ledger.sqlite import SqliteLedger
from nodeagent.adapters.ledger.sqlite_file import LedgerTooNew, SqliteFile

FIRST = "CREATE TABLE grants (name TEXT) STRICT;"
SECOND = "ALTER TABLE grants ADD COLUMN share INTEGER;"


def closed(path: Path, *schemas: str) -> None:
    SqliteFile(path, schemas).close()


def filled(path: Path) -> None:
    ledger = SqliteFile(path, [FIRST])
    ledger.run("INSERT INTO grants VALUES ('one')")
    ledger.close()


def test_a_later_schema_keeps_the_rows_and_a_copy_of_the_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    filled(path)
    ledger = SqliteFile(path, [FIRST, SECOND])
    assert ledger.run("SELECT name, share FROM grants") == [("one", None)]
    ledger.close()
    copy = tmp_path / "ledger.sqlite.schema-1"
    assert copy.stat().st_mode & 0o777 == 0o600
    with sqlite3.connect(copy) as db:
        assert db.execute("SELECT * FROM grants").fetchall() == [("one",)]
        assert db.execute("PRAGMA user_version").fetchone() == (1,)


def test_a_fresh_file_and_one_that_is_current_need_no_copy(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    closed(path, FIRST, SECOND)
    closed(path, FIRST, SECOND)
    assert list(tmp_path.glob("*.schema-*")) == []


def test_an_earlier_version_refuses_and_names_the_copy_which_works(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    filled(path)
    closed(path, FIRST, SECOND)
    with pytest.raises(LedgerTooNew, match=r"ledger\.sqlite\.schema-1"):
        SqliteFile(path, [FIRST])
    (tmp_path / "ledger.sqlite.schema-1").replace(path)
    again = SqliteFile(path, [FIRST])
    assert again.run("SELECT name FROM grants") == [("one",)]
    again.close()


def test_without_a_copy_it_says_what_is_left_to_do(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    closed(path, FIRST, SECOND)
    with pytest.raises(LedgerTooNew, match="move the file away"):
        SqliteFile(path, [FIRST])


def test_a_file_without_a_table_of_its_schema_is_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    filled(path)
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE grants")
    again = SqliteFile(path, [FIRST])
    assert again.was_rebuilt
    assert again.run("SELECT * FROM grants") == []
    again.close()
    kept = [one for one in tmp_path.glob("*.corrupt-*") if one.name[-4:] not in ("-wal", "-shm")]
    assert len(kept) == 1


def test_a_flipped_bit_in_a_definition_puts_the_file_aside(tmp_path: Path) -> None:
    """The daemon did not start again: the first statement that named the column failed each
    time."""
    path = tmp_path / "ledger.sqlite"
    SqliteLedger(path, "boot").close()
    whole = path.read_bytes()
    flipped = 0
    for at in (one.start() for one in re.finditer(rb"\bbody\b|\bkey\b|\bid\b", whole)):
        for file in tmp_path.iterdir():
            file.unlink()
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        ledger = SqliteLedger(path, "boot")
        ledger.load()
        ledger.close()
        flipped += 1
        assert list(tmp_path.glob("*.corrupt-*")), whole[at - 40 : at + 10]
    assert flipped >= 4
