"""The ledger's lists of acts in force and of drivers: over a restart, not over a boot, and beside their writer."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from nodeagent.adapters.ledger.sqlite import KEEP_DRIVER_FILES, SqliteLedger, read_holds
from nodeagent.ports.ledger import LedgerLost
from nodeagent.ports.processes import LibraryIdentity
from nodeagent.ports.watch import Hold
from nodeagent.shell.gpus.drivers import Drivers

HOLD = Hold(
    0, 5.0, "freeze", "7:70", "unregistered_gpu_user", "", "contain", "{}", "g1", 7, 70, 1000, "/x",
    "", "", "", "", "", 0, 0, ((7, 70), (8, 80)),
)  # fmt: skip
DRIVER = LibraryIdentity(1, 2, 3, 4, 5, 0)


def test_acts_in_force_are_kept_until_they_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = SqliteLedger(path, "boot")
    first, second = ledger.store_hold(HOLD), ledger.store_hold(replace(HOLD, pid=9))
    assert (first.number, second.number) == (1, 2)
    ledger.store_hold(replace(first, done=True))
    assert read_holds(path, "boot") == [replace(first, done=True), second], "beside its writer"
    ledger.close()
    ledger = SqliteLedger(path, "boot")
    assert ledger.holds() == [replace(first, done=True), second]
    ledger.drop_hold(second.number)
    assert ledger.store_hold(HOLD).number == 3, "a number is never another act's"
    ledger.close()


def test_another_boot_has_none_of_them(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = SqliteLedger(path, "boot")
    ledger.store_hold(HOLD)
    ledger.store_driver_files([DRIVER])
    ledger.close()
    assert read_holds(path, "later") == []
    ledger = SqliteLedger(path, "later")
    assert (ledger.holds(), ledger.driver_files()) == ([], [])
    ledger.close()


def test_a_row_of_a_later_version_is_left_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = SqliteLedger(path, "boot")
    ledger.store_hold(HOLD)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE holds SET body = json_set(body, '$.of_2030', 1)")
    assert ledger.holds() == []
    assert len(ledger._run("SELECT * FROM holds")) == 1
    ledger.close()


def test_a_driver_is_remembered_once_and_the_oldest_make_room(tmp_path: Path) -> None:
    ledger = SqliteLedger(tmp_path / "ledger.sqlite", "boot")
    ledger.store_driver_files([DRIVER])
    ledger.store_driver_files([DRIVER])
    assert ledger.driver_files() == [DRIVER]
    ledger._file.run_all(
        "INSERT INTO driver_files (boot_id, body) VALUES ('boot', ?)",
        [(str(number),) for number in range(KEEP_DRIVER_FILES)],
    )
    ledger.store_driver_files([replace(DRIVER, inode=9)])
    assert ledger.driver_files() == [replace(DRIVER, inode=9)]
    ledger.close()


def test_all_libraries_of_a_node_are_recorded_in_one_transaction(tmp_path: Path) -> None:
    """A transaction for each would write some ten KiB and a sync each at the daemon's first start."""
    path = tmp_path / "ledger.sqlite"
    ledger = SqliteLedger(path, "boot")
    log = path.with_name("ledger.sqlite-wal")
    before = log.stat().st_size
    libraries = {replace(DRIVER, inode=number) for number in range(200)}
    Drivers(ledger, lambda _path: None).remember(libraries)
    assert set(ledger.driver_files()) == libraries
    assert log.stat().st_size - before < 128 * 1024
    again = log.stat().st_size
    Drivers(ledger, lambda _path: None).remember(libraries)
    assert log.stat().st_size == again, "nothing new is nothing written"
    ledger.close()


def test_a_ledger_that_is_none_is_said(tmp_path: Path) -> None:
    (tmp_path / "ledger.sqlite").write_text("x" * 4096)
    with pytest.raises(LedgerLost, match=r"ledger\.sqlite: file is not a database"):
        read_holds(tmp_path / "ledger.sqlite", "boot")


def test_an_earlier_schema_is_brought_up(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = SqliteLedger(path, "boot")
    ledger.close()
    with sqlite3.connect(path) as db:
        db.executescript("DROP TABLE holds; DROP TABLE driver_files; PRAGMA user_version = 3")
    with pytest.raises(LedgerLost, match="no such table"):
        read_holds(path, "boot")
    ledger = SqliteLedger(path, "boot")
    assert ledger.store_hold(HOLD).number == 1
    ledger.close()
