"""A grant's region whose files are gone or damaged while its processes live.

Root removed them, or the disk failed. The processes continue with the pages they have mapped, under
the last limits in them, and the daemon cannot reach those pages any more. It only keeps their quota
until they end: in a new region each child would be charged from zero beside its parents, and two of
them would have twice the memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from nodeagent.ports.processes import Process
from nodeagent.ports.regions import DeviceLimits, DeviceTurn, SlotOwner, UsageImage
from nodeagent.units import Nanoseconds, SlotIndex


class LostRegion:
    """A Region that nothing is written to and nothing read from."""

    directory = ""

    def set_limits(self, device: int, limits: DeviceLimits) -> None:
        pass

    def set_turn(self, device: int, turn: DeviceTurn, wake: bool) -> None:
        pass

    def heartbeat(self, now_ns: Nanoseconds) -> None:
        pass

    def set_population(self, live_slots: int, slot_high: int) -> None:
        pass

    def own_slot(self, slot: SlotIndex, process: Process, adopted: bool = False) -> int:
        return 1

    def clear_slot(self, slot: SlotIndex) -> None:
        pass

    def owners(self) -> list[SlotOwner]:
        return []

    def read_usage(self, slots: Sequence[SlotIndex]) -> UsageImage:
        return UsageImage({})

    def self_claims(self) -> dict[SlotIndex, tuple[int, int]]:
        return {}

    def image_in(self, slot: SlotIndex) -> int:
        return 0

    def drop_claim(self, slot: SlotIndex) -> None:
        pass

    def repair_usage(self) -> None:
        pass

    def usage_file(self) -> tuple[int, int]:
        return 0, 0

    def close(self) -> None:
        pass
