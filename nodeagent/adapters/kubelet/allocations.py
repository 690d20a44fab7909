"""The kubelet's allocations in SQLite: one row per answer to Allocate.

A row that is lost is found again in the kubelet's checkpoint.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from nodeagent.adapters.ledger.rows import SqliteRows, Table
from nodeagent.ports.kubelet import Allocation, AllocationState

KEEP_RELEASED: Final = 1000
"""Rows of released allocations that are kept for people to read."""

_SCHEMA: Final = """
CREATE TABLE allocations (
    nonce TEXT PRIMARY KEY,
    state TEXT NOT NULL,
    written_unix_s REAL NOT NULL,
    body TEXT NOT NULL
) STRICT;
CREATE INDEX allocations_by_state ON allocations (state, written_unix_s);
"""
_SCHEMA_2: Final = "ALTER TABLE allocations ADD COLUMN crc INTEGER;"
"""NULL in rows of an earlier version."""
_TABLE: Final = Table(
    "allocations",
    "nonce",
    "allocation",
    Allocation,
    lambda row: row.nonce,
    {"state": lambda row: row.state.value, "written_unix_s": lambda _row: time.time()},
)


class SqliteAllocations(SqliteRows[Allocation]):
    """An AllocationLedger."""

    def __init__(self, path: Path) -> None:
        """Raises LedgerLost, LedgerTooNew."""
        released = AllocationState.RELEASED.value
        super().__init__(path, (_SCHEMA, _SCHEMA_2), _TABLE, released, KEEP_RELEASED)
