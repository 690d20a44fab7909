"""The units that are allocated: a card, or its MIG instances if it is partitioned.

A card in MIG mode cannot be used as a whole. Each instance has memory, compute and a UUID of its
own, so the rest of the node treats it as a GPU. Health and bus address are the card's.
Repartitioning a card is in core/gpus/mig_geometry.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nodeagent.ports.gpus import GpuReading, MigReading, ProcessReading
from nodeagent.units import Bytes, GpuUuid


def units(cards: Iterable[GpuReading]) -> tuple[GpuReading, ...]:
    """Readings of every unit with memory and compute of its own; instances take their card's place
    in the order."""
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
                # Reported once, by the card: otherwise sums over a node are too high.
                power_watts=None,
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
    """The unit that a process uses: its instance if the driver reports one, else the card."""
    return next((one.uuid for one in card.mig or () if _is_on(process, one)), card.uuid)


def _is_on(process: ProcessReading, one: MigReading) -> bool:
    return (process.gpu_instance, process.compute_instance) == (
        one.gpu_instance,
        one.compute_instance,
    )
