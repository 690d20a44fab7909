"""The real daemon with two invented GPUs: everything but NVML is the product's own."""

from __future__ import annotations

import os
import resource
import sys

from nodeagent.__main__ import main
from nodeagent.adapters.ledger.sqlite import SqliteLedger
from nodeagent.assembly.daemon import Makers
from nodeagent.ports.ledger import GrantRecord, LedgerLost
from tests.kit.fakes.nvml import FakeNvml, gpu_reading


class LosingLedger(SqliteLedger):
    """A disk that fails the first fsync."""

    def store(self, record: GrantRecord) -> None:
        raise LedgerLost("disk I/O error")


if __name__ == "__main__":
    if limit := int(os.environ.get("SLUICE_TEST_NOFILE", "0")):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    losing = os.environ.get("SLUICE_TEST_FAIL_LEDGER")
    makers = Makers(
        nvml=lambda settings, clock: FakeNvml([gpu_reading(0), gpu_reading(1)]),
        ledger=LosingLedger if losing else SqliteLedger,
    )
    sys.exit(main(makers=makers))
