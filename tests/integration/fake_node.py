"""The real daemon with two invented GPUs: everything but NVML is the product's own."""

from __future__ import annotations

import os
import resource
import sys

import nodeagent.__main__ as daemon
from nodeagent.adapters.ledger_sqlite import SqliteLedger
from nodeagent.ports import GrantRecord, LedgerLost
from nodeagent.testing.nvml import FakeNvml, gpu_reading


class LosingLedger(SqliteLedger):
    """A disk that fails the first fsync."""

    def store(self, record: GrantRecord) -> None:
        raise LedgerLost("disk I/O error")


if __name__ == "__main__":
    daemon.make_nvml = lambda settings, clock: FakeNvml([gpu_reading(0), gpu_reading(1)])
    if limit := int(os.environ.get("SLUICE_TEST_NOFILE", "0")):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    if os.environ.get("SLUICE_TEST_FAIL_LEDGER"):
        daemon.SqliteLedger = LosingLedger
    sys.exit(daemon.main())
