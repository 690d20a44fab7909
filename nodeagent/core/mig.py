"""What of a card is given away: the card, or its MIG instances where it is cut into some.

A card in MIG mode cannot be used as a whole; each instance has memory, compute and a UUID of its
own, so it is a GPU to everybody who shares one out. Health and place on the bus are the card's. The
geometry is the operator's: nothing here changes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nodeagent.ports import GpuReading
from nodeagent.units import Bytes


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
                processes=(),
                mig=None,
                mig_profile=one.profile,
            )
            for one in card.mig
        ]
    return tuple(found)
