"""A node's devices of other vendors, with what their pods have of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sluicecommon.hami.devices import Device, Part


@dataclass(slots=True)
class Card:
    """A device with the sum of its allocations."""

    device: Device
    slots: int = 0
    memory_mib: int = 0
    cores: int = 0
    holders: list[Mapping[str, str]] = field(default_factory=list)
    """Annotations of each pod that has a part of the device."""

    def take(self, part: Part, annotations: Mapping[str, str]) -> None:
        self.slots += part.slots
        self.memory_mib += part.memory_mib
        self.cores += part.cores
        self.holders.append(annotations)

    def copy(self) -> Card:
        return Card(self.device, self.slots, self.memory_mib, self.cores, list(self.holders))
