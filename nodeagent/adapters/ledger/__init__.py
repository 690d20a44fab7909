"""The ledger in SQLite, and the one daemon that may write it."""
