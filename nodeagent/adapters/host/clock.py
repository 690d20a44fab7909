"""The real clocks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from nodeagent.units import Nanoseconds


class SystemClock:
    def monotonic_ns(self) -> Nanoseconds:
        return Nanoseconds(time.monotonic_ns())

    def unix_s(self) -> float:
        return time.time()


_BOOT_ID: Final = "proc/sys/kernel/random/boot_id"


def boot_id() -> str:
    """UUID of the running kernel's boot, the key of regions and ledger rows.

    It is read as jobs of this machine see it, whatever /proc the unit has: systemd-nspawn gives its
    containers an id of their own, by a mount that a new /proc does not have.
    """
    try:
        text = Path(f"/proc/1/root/{_BOOT_ID}").read_text(encoding="ascii")
    except OSError:  # The process is not root.
        text = Path(f"/{_BOOT_ID}").read_text(encoding="ascii")
    return text.strip()
