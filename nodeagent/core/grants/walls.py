"""The driver's own memory limits ("walls") around a grant: their height, and the steps that leave
nothing of them behind.

A wall stands a little above the interposer's limit, which is exact and should be reached first. The
driver adds a soft limit to every cgroup around the one that it is set on, and removes it only when
it is lowered there. If that cgroup was removed before, its part has to be subtracted from the
nearest cgroup that is left. Subtracting it twice would be wrong, so the step is recorded with the
figures before and after. Source: NVIDIA's MPS documentation, "Memory Partitioning".
"""

from __future__ import annotations

from dataclasses import replace

from nodeagent.ports.driver.walls import WallReading, WallRow, WallStep
from nodeagent.ports.ledger import DeviceShare, GrantRecord, Spill
from nodeagent.units import Bytes, GpuUuid

MIG = "MIG-"


def is_instance(gpu: GpuUuid) -> bool:
    """True for a MIG instance: the driver sets no limits on it, because the instance is the
    limit."""
    return gpu.startswith(MIG)


def rows_of(
    record: GrantRecord, cgroup: str, headroom_bytes: int, ours: bool = False
) -> tuple[WallRow, ...]:
    """One row for each of the grant's cards.

    Memory that a grant only borrows is not guaranteed, and a spilled grant is guaranteed none. An
    overcommitted card guarantees no grant more than it has.
    """
    away = record.spill is Spill.SPILLED

    def soft(device: DeviceShare) -> Bytes:
        return Bytes(0 if away else min(device.guaranteed_bytes, device.physical_bytes))

    return tuple(
        WallRow(
            record.grant,
            device.gpu,
            cgroup,
            soft(device),
            Bytes(device.memory_bytes + headroom_bytes),
            most_bytes=soft(device),
            ours=ours,
        )
        for device in record.devices
        if not is_instance(device.gpu)
    )


def after(before: WallRow | None, row: WallRow) -> WallRow:
    """The row that replaces an earlier one of the same cgroup."""
    if before is None or before.cgroup != row.cgroup:
        return row
    return replace(row, most_bytes=Bytes(max(before.most_bytes, row.most_bytes)))


def settling(row: WallRow, around: str, reading: WallReading, inside_bytes: int) -> WallRow:
    """The row to be recorded before the soft limit of `around` is lowered by what the row may have
    added to it.

    It is not lowered below `inside_bytes`, the memory of those still in it, because it is unknown
    whether the last change of a cgroup that is gone was made.
    """
    after = Bytes(min(reading.soft_bytes, max(inside_bytes, reading.soft_bytes - row.most_bytes)))
    return replace(
        row,
        step=WallStep.SETTLING,
        around=around,
        before_bytes=reading.soft_bytes,
        after_bytes=after,
    )


def still_to_lower(row: WallRow, reading: WallReading) -> bool | None:
    """True if, after a restart, the soft limit of a settling row has still to be lowered; None if
    another program has changed it since, so that it is unknown."""
    if reading.soft_bytes == row.before_bytes:
        return row.before_bytes != row.after_bytes
    return False if reading.soft_bytes == row.after_bytes else None
