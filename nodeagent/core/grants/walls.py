"""The driver's wall around a grant: how high it is, and what is to be done so that nothing of it
stays behind.

It stands a little outside of the interposer's, which is exact and shall answer first. A soft limit
is added by the driver to every cgroup around the one it is set on, and taken back only when it is
lowered there: of a cgroup that was removed before, its part has to be taken from the nearest one
that is left. That is no act to do twice, so it is written down with the figures before and after.
Source: NVIDIA's MPS documentation, "Memory Partitioning".
"""

from __future__ import annotations

from dataclasses import replace

from nodeagent.ports.driver.walls import WallReading, WallRow, WallStep
from nodeagent.ports.ledger import DeviceShare, GrantRecord, Spill
from nodeagent.units import Bytes, GpuUuid

MIG = "MIG-"


def is_instance(gpu: GpuUuid) -> bool:
    """Of a MIG instance the driver sets no limits: the instance is the wall."""
    return gpu.startswith(MIG)


def rows_of(
    record: GrantRecord, cgroup: str, headroom_bytes: int, ours: bool = False
) -> tuple[WallRow, ...]:
    """One for each of the grant's cards. Memory that a grant has only borrowed is not guaranteed,
    and one that is spilled is guaranteed none. A card whose memory is promised more than once
    guarantees nobody more than it has."""
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
    """The row that takes the place of an earlier one, of the same cgroup."""
    if before is None or before.cgroup != row.cgroup:
        return row
    return replace(row, most_bytes=Bytes(max(before.most_bytes, row.most_bytes)))


def settling(row: WallRow, around: str, reading: WallReading, inside_bytes: int) -> WallRow:
    """To be written before the soft limit of `around` is lowered by what the row may have added to
    it, but not below `inside_bytes`, what those still in it have: nobody can tell whether the last
    change of a cgroup that is gone was made."""
    after = Bytes(min(reading.soft_bytes, max(inside_bytes, reading.soft_bytes - row.most_bytes)))
    return replace(
        row,
        step=WallStep.SETTLING,
        around=around,
        before_bytes=reading.soft_bytes,
        after_bytes=after,
    )


def still_to_lower(row: WallRow, reading: WallReading) -> bool | None:
    """Of a row that settles, found after a restart: was the soft limit lowered already? None:
    somebody else has changed it since, nobody can tell."""
    if reading.soft_bytes == row.before_bytes:
        return row.before_bytes != row.after_bytes
    return False if reading.soft_bytes == row.after_bytes else None
