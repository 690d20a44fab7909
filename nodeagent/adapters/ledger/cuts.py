"""MIG instances in SQLite: one row for each that is to be created, exists, or is to be destroyed.

An instance whose row is lost has to be removed by an administrator: the daemon destroys only those
that it has a row for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from nodeagent.adapters.ledger.rows import SqliteRows, Table
from nodeagent.ports.mig import Cut

_SCHEMA: Final = """
CREATE TABLE cuts (
    place TEXT PRIMARY KEY,
    body TEXT NOT NULL,
    crc INTEGER NOT NULL
) STRICT;
"""
_TABLE: Final = Table("cuts", "place", "MIG instance", Cut, lambda row: f"{row.card} {row.place}")


class SqliteCuts(SqliteRows[Cut]):
    """A CutLedger."""

    def __init__(self, path: Path) -> None:
        """Raises LedgerLost, LedgerTooNew."""
        super().__init__(path, (_SCHEMA,), _TABLE)
