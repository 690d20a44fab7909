"""Kunlunxin: eight cards in two wings of four; several cards are allocated only if they are linked.

Cards 0 to 3 and 4 to 7 are linked among themselves, and each with the card at the same position of
the other wing. Only 1, 2, 4 or 8 cards are allocated: within the wing that is fullest afterwards,
else across the wings where links exist.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from queuecontroller.gpushares.vendors.asks import Ask, AskError, Container, Document
from queuecontroller.gpushares.vendors.cards import Card
from queuecontroller.gpushares.vendors.rules import (
    WHOLE,
    Changes,
    Counted,
    Rules,
    Vendor,
    unwanted,
)
from sluicecommon.hami.devices import Device, Given, Part

WING: Final = 4
CARDS: Final = 2 * WING
COUNTS: Final = (1, 2, 4, 8)
SQUARES: Final = (
    (0, 1, 4, 5),
    (2, 3, 6, 7),
    (0, 2, 4, 6),
    (1, 3, 5, 7),
    (0, 3, 4, 7),
    (1, 2, 5, 6),
)
"""Sets of four cards that are linked across the wings."""
MEMORY_MIB: Final = 98304
SIZES_MIB: Final = (24576, 49152, MEMORY_MIB)
"""Memory sizes for a part of a card."""


class _Linked(Rules):
    """Rules for linked cards, shared by whole cards and parts."""

    def choose(
        self, vendor: Vendor, cards: Sequence[Card], ask: Ask, annotations: Mapping[str, str]
    ) -> tuple[Part, ...] | str:
        if ask.count not in COUNTS:
            return f"{ask.count} devices cannot be linked: request 1, 2, 4 or 8"
        fitting, why = self.fitting(vendor, cards, ask, annotations)
        by_index = {card.device.index: card for card in fitting}
        found = together(frozenset(by_index), ask.count)
        if found is None:
            reasons = "; ".join(f"{n} {reason}" for reason, n in why.most_common(4))
            tail = f"; {reasons}" if reasons else ""
            return f"no {ask.count} of {len(fitting)} free devices are linked{tail}"
        return tuple(self.part(vendor, by_index[i], ask, annotations) for i in found)


def together(free: frozenset[int], count: int) -> tuple[int, ...] | None:
    """`count` linked cards of these free ones, chosen so that the remaining ones stay useful; None
    if there are none."""
    if count == CARDS:
        return tuple(range(CARDS)) if len(free) == CARDS else None
    wings = (
        [i for i in range(WING) if i in free],
        [i for i in range(WING, CARDS) if i in free],
    )
    # A single card comes from a wing with an odd number of free cards, so that pairs remain.
    order = (1, 3, 2, 4) if count == 1 else range(count, WING + 1)
    for size in order:
        for wing in wings:
            if len(wing) == size and size >= count:
                return tuple(wing[:count])
    if count == 2:
        for i in wings[0]:
            if i + WING in free:
                return i, i + WING
    if count == WING:
        fits = [one for one in SQUARES if free.issuperset(one)]
        # Squares that leave a linked pair come first.
        fits.sort(key=lambda one: not _has_pair(free.difference(one)))
        return fits[0] if fits else None
    return None


def _has_pair(free: frozenset[int]) -> bool:
    return any(
        a != b and (a // WING == b // WING or abs(a - b) == WING) for a in free for b in free
    )


class Xpu(_Linked, Counted):
    """Whole cards, counted."""

    def device(self, vendor: Vendor, where: str, i: int, total: int, node: Document) -> Device:
        wing = int(i >= total // 2)
        return Device(f"{where}-kunlun-{i}", i, 100, MEMORY_MIB, WHOLE, vendor.word, wing)

    def obstacle(
        self, vendor: Vendor, card: Card, ask: Ask, annotations: Mapping[str, str]
    ) -> str | None:
        if reason := unwanted(vendor, card.device, annotations):
            return reason
        return "is taken" if card.slots else None

    def part(self, vendor: Vendor, card: Card, ask: Ask, annotations: Mapping[str, str]) -> Part:
        device = card.device
        return Part(device.id, device.index, vendor.word, device.memory_mib, device.cores)

    def extras(
        self, vendor: Vendor, pod: Document, given: Given, node: str, now_ns: int
    ) -> dict[str, str]:
        indexes = [str(part.index) for parts in given for part in parts]
        return {"BAIDU_COM_DEVICE_IDX": ",".join(indexes)}


class VirtualXpu(_Linked):
    """Parts of cards: all parts of one card are of one size."""

    def ask(self, vendor: Vendor, container: Container) -> Ask | None:
        ask = super().ask(vendor, container)
        if ask is None:
            return None
        memory = _size(ask.memory_mib) if ask.memory_mib else MEMORY_MIB
        return Ask(ask.count, memory, 0, memory * WHOLE // MEMORY_MIB)

    def admit(
        self, vendor: Vendor, container: Container, annotations: Mapping[str, str]
    ) -> Changes:
        ask = self.ask(vendor, container)
        if ask is None or not container.has(vendor.memory):
            return Changes()
        if container.amount(vendor.memory) > MEMORY_MIB:
            raise AskError(
                f"container {container.name}: {vendor.memory}: a card has {MEMORY_MIB} MiB"
            )
        return Changes({vendor.memory: ask.memory_mib})

    def obstacle(
        self, vendor: Vendor, card: Card, ask: Ask, annotations: Mapping[str, str]
    ) -> str | None:
        if card.slots and card.memory_mib // card.slots != ask.memory_mib:
            size = card.memory_mib // card.slots
            return f"is divided into parts of {size} MiB, not {ask.memory_mib}"
        return super().obstacle(vendor, card, ask, annotations)


def _size(memory_mib: int) -> int:
    return next((one for one in SIZES_MIB if memory_mib <= one), MEMORY_MIB)


XPU: Final = Xpu()
VIRTUAL: Final = VirtualXpu()
