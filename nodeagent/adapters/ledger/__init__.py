"""The ledger in SQLite, and the lock of the one daemon that may write it."""
