"""Claims in SQLite: one row for each that the kubelet requested to prepare.

A row that is lost leaves the claim's grants, which live on by their own rows.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from nodeagent.adapters.ledger.rows import SqliteRows, Table
from nodeagent.ports.dra.claims import ClaimState, PreparedClaim

KEEP_RELEASED: Final = 1000
"""Rows of released claims that are kept for people to read."""

_SCHEMA: Final = """
CREATE TABLE claims (
    uid TEXT PRIMARY KEY,
    state TEXT NOT NULL,
    written_unix_s REAL NOT NULL,
    body TEXT NOT NULL,
    crc INTEGER NOT NULL
) STRICT;
CREATE INDEX claims_by_state ON claims (state, written_unix_s);
"""
_TABLE: Final = Table(
    "claims",
    "uid",
    "claim",
    PreparedClaim,
    lambda row: row.claim.uid,
    {"state": lambda row: row.state.value, "written_unix_s": lambda _row: time.time()},
)


class SqliteClaims(SqliteRows[PreparedClaim]):
    """A ClaimLedger."""

    def __init__(self, path: Path) -> None:
        """Raises LedgerLost, LedgerTooNew."""
        released = ClaimState.RELEASED.value
        super().__init__(path, (_SCHEMA,), _TABLE, released, KEEP_RELEASED)
