"""Where a device is on the PCI bus, by the kernel's tree in /sys."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from nodeagent.core.dra.devices import pci_address

DEVICES: Final = Path("/sys/bus/pci/devices")
_ROOT: Final = re.compile(r"/(pci[0-9a-f]{4}:[0-9a-f]{2})/")


def pcie_root(bus_id: str, devices: Path = DEVICES) -> str | None:
    """pci0000:64, of the root complex that a device is below; None: the kernel does not show it."""
    try:
        place = str((devices / pci_address(bus_id)).resolve(strict=True))
    except OSError:
        return None
    found = _ROOT.search(f"{place}/")
    return found[1] if found is not None else None
