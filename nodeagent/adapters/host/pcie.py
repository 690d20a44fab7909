"""A device's place on the PCI bus, from the kernel's tree in /sys."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from nodeagent.core.dra.devices import pci_address

DEVICES: Final = Path("/sys/bus/pci/devices")
_ROOT: Final = re.compile(r"/(pci[0-9a-f]{4}:[0-9a-f]{2})/")


def pcie_root(bus_id: str, devices: Path = DEVICES) -> str | None:
    """The root complex that a device is below, for example pci0000:64; None if the kernel does not
    show it."""
    try:
        place = str((devices / pci_address(bus_id)).resolve(strict=True))
    except OSError:
        return None
    found = _ROOT.search(f"{place}/")
    return found[1] if found is not None else None
