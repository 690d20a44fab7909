"""The real clocks."""

from __future__ import annotations

import time
from pathlib import Path

from nodeagent.units import Nanoseconds


class SystemClock:
    def monotonic_ns(self) -> Nanoseconds:
        return Nanoseconds(time.monotonic_ns())

    def unix_s(self) -> float:
        return time.time()


def boot_id() -> str:
    """UUID of the running kernel's boot; what regions and ledger rows are keyed by."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
