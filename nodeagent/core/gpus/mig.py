"""What of a card is given away: the card, or its MIG instances where it is cut into some.

A card in MIG mode cannot be used as a whole; each instance has memory, compute and a UUID of its
own, so it is a GPU to everybody who shares one out. Health and place on the bus are the card's.
Cutting a card anew is in core/gpus/mig_geometry.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nodeagent.ports.gpus import GpuReading, MigReading, ProcessReading
from nodeagent.units import Bytes, GpuUuid


def units(cards: Iterable[GpuReading]) -> tuple[GpuReading, ...]:
    """Readings of whatever has memory and time of its own, instances after the cards' order."""
    found: list[GpuReading] = []
    for card in cards:
        if card.mig is None:
            found.append(card)
            continue
        found += [
            replace(
                card,
                uuid=one.uuid,
                name=f"{card.name} MIG {one.profile}",
                memory_total_bytes=one.memory_total_bytes or Bytes(0),
                memory_used_bytes=one.memory_used_bytes,
                sm_count=None,
                utilization_ratio=None,
                power_watts=None,  # the card's: told once, or sums over a node come out too high
                processes=tuple(user for user in card.processes if _is_on(user, one)),
                mig=None,
                mig_profile=one.profile,
                mig_card=card.uuid,
                mig_slice_start=one.slice_start,
                mig_slices=one.slices,
            )
            for one in card.mig
        ]
    return tuple(found)


def unit_of(card: GpuReading, process: ProcessReading) -> GpuUuid:
    """What the process uses of the card: the instance where the driver says which, else the
    card."""
    return next((one.uuid for one in card.mig or () if _is_on(process, one)), card.uuid)


def _is_on(process: ProcessReading, one: MigReading) -> bool:
    return (process.gpu_instance, process.compute_instance) == (
        one.gpu_instance,
        one.compute_instance,
    )
