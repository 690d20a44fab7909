"""Devices that follow HAMi's rules with one exception each: the unit of their amounts, what must be
whole, or what their plugins read in addition."""

from __future__ import annotations

import json
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
    capacity,
    closest,
    node_annotation,
    policies,
)
from sluicecommon.hami.devices import Device, Given, Part, number


class Cambricon(Counted):
    """Cambricon's dynamic sMLU: the node's capacity in share cores gives the number of cards and
    their memory."""

    def devices(self, vendor: Vendor, node: Document) -> tuple[Device, ...]:
        where = str((node.get("metadata") or {}).get("name") or "")
        cores, memory = capacity(node, vendor.cores), capacity(node, vendor.memory)
        total = -(-cores // WHOLE)
        return tuple(
            Device(
                f"{where}-cambricon-mlu-{i}",
                i,
                100,
                memory * vendor.unit_mib * WHOLE // cores,
                WHOLE,
                vendor.word,
            )
            for i in range(total)
        )

    def extras(
        self, vendor: Vendor, pod: Document, given: Given, node: str, now_ns: int
    ) -> dict[str, str]:
        first = next((part for parts in given for part in parts), None)
        if first is None:
            return {}
        profile = f"{first.index}_{first.cores}_{first.memory_mib // vendor.unit_mib}"
        return {"CAMBRICON_DSMLU_ASSIGHED": "false", "CAMBRICON_DSMLU_PROFILE": profile}


class Iluvatar(Rules):
    def admit(
        self, vendor: Vendor, container: Container, annotations: Mapping[str, str]
    ) -> Changes:
        ask = self.ask(vendor, container)
        if ask is None:
            return Changes()
        # The vendor's plugin reads this misspelt name.
        env = {"SOL_CONTINER_NAME": container.name} if container.name else {}
        limits = {vendor.cores: ask.count * WHOLE} if ask.count > 1 else {}
        return Changes(limits, env)


class MooreThreads(Counted):
    """Moore Threads: a card has 16 cores and units of 512 MiB; several cards are allocated
    whole."""

    CORES: Final = 16
    LEGAL: Final = (2, 4, 8, 16, 32, 64, 96)

    def devices(self, vendor: Vendor, node: Document) -> tuple[Device, ...]:
        where = str((node.get("metadata") or {}).get("name") or "")
        cores, memory = capacity(node, vendor.cores), capacity(node, vendor.memory)
        return tuple(
            Device(
                f"{where}-mthreads-{i}",
                i,
                100,
                memory * vendor.unit_mib * self.CORES // cores,
                self.CORES,
                vendor.word,
            )
            for i in range(-(-cores // self.CORES))
        )

    def ask(self, vendor: Vendor, container: Container) -> Ask | None:
        ask = super().ask(vendor, container)
        if ask is None:
            return None
        # The request gives memory and cores of all cards together.
        memory = ask.memory_mib // ask.count
        return Ask(ask.count, memory, 0 if memory else WHOLE, ask.cores // ask.count)

    def admit(
        self, vendor: Vendor, container: Container, annotations: Mapping[str, str]
    ) -> Changes:
        if not container.has(vendor.count):
            return Changes()
        count = container.amount(vendor.count)
        if count < 1:
            raise AskError(f"container {container.name}: {vendor.count}: request 1 or more")
        of_cards = vendor.more.get("memory_per_card", (self.LEGAL[-1],))[0]
        whole = {vendor.cores: count * self.CORES, vendor.memory: count * of_cards}
        if count > 1:
            return Changes(whole, annotations={"mthreads.com/request-gpu-num": str(count)})
        if not container.has(vendor.memory):
            return Changes(whole)
        legal = sorted({*self.LEGAL, of_cards})
        if container.amount(vendor.memory) not in legal:
            allowed = ", ".join(map(str, legal))
            raise AskError(
                f"container {container.name}: {vendor.memory}:"
                f" must be one of {allowed} (units of 512 MiB),"
                f" got {container.amount(vendor.memory)}"
            )
        return Changes()

    def part(self, vendor: Vendor, card: Card, ask: Ask, annotations: Mapping[str, str]) -> Part:
        made = super().part(vendor, card, ask, annotations)
        return Part(made.device, made.index, made.type, made.memory_mib, min(16, ask.cores))

    def too_full(self, card: Card, part: Part) -> str | None:
        if part.cores == self.CORES and card.slots:
            return "is shared, and all of its cores are requested"
        return super().too_full(card, part)

    def extras(
        self, vendor: Vendor, pod: Document, given: Given, node: str, now_ns: int
    ) -> dict[str, str]:
        indexes = [str(part.index) for parts in given for part in parts]
        return {
            "mthreads.com/gpu-index": ",".join(indexes),
            "mthreads.com/predicate-time": str(now_ns),
            "mthreads.com/predicate-node": node,
        }


class Amd(Rules):
    """AMD: cores are requested in percent of a card's compute units and allocated in units."""

    def admit(
        self, vendor: Vendor, container: Container, annotations: Mapping[str, str]
    ) -> Changes:
        if container.has(vendor.count) and container.has(vendor.cores):
            cores = container.amount(vendor.cores)
            if not 1 <= cores <= WHOLE:
                raise AskError(
                    f"container {container.name}: {vendor.cores}: must be from 1 to {WHOLE},"
                    f" got {cores}"
                )
        return super().admit(vendor, container, annotations)

    def part(self, vendor: Vendor, card: Card, ask: Ask, annotations: Mapping[str, str]) -> Part:
        device = card.device
        memory = ask.memory_mib or device.memory_mib
        units = max(1, device.cores * min(WHOLE, ask.cores) // WHOLE)
        together = device.info.get("cuPerWGP")
        if isinstance(together, int | float) and 1 < together <= device.cores:
            step = int(together)  # RDNA's mask has workgroup processors.
            units = -(-units // step) * step
        return Part(
            device.id, device.index, device.type or vendor.word, memory, min(units, device.cores)
        )

    def too_full(self, card: Card, part: Part) -> str | None:
        free = card.device.memory_mib - card.memory_mib
        if free < part.memory_mib:
            return f"has {max(0, free)} of {part.memory_mib} MiB free"
        free = card.device.cores - card.cores
        if free < part.cores:
            return f"has {max(0, free)} of {part.cores} compute units free"
        return None


class Whole(Rules):
    """Registered devices that are allocated whole, or shared up to the number of their slots.
    Memory is not counted."""

    def part(self, vendor: Vendor, card: Card, ask: Ask, annotations: Mapping[str, str]) -> Part:
        return Part(card.device.id, card.device.index, vendor.word, 0, 0)

    def too_full(self, card: Card, part: Part) -> str | None:
        return None


class Vastai(Whole):
    """Vastai: where dies are allocated, those of one card are kept together."""

    def pick(
        self, vendor: Vendor, cards: Sequence[Card], ask: Ask, annotations: Mapping[str, str]
    ) -> Sequence[Card]:
        if not _by_die(cards):
            return cards[: ask.count]
        return closest(cards, ask.count, _aic)

    def choose(
        self, vendor: Vendor, cards: Sequence[Card], ask: Ask, annotations: Mapping[str, str]
    ) -> tuple[Part, ...] | str:
        if "mutex" in policies(annotations) and _by_die(cards):
            # A card is exclusive only if none of its dies is in use.
            busy = {_aic(card) for card in cards if card.slots}
            cards = [card for card in cards if _aic(card) not in busy]
        return super().choose(vendor, cards, ask, annotations)


def _by_die(cards: Sequence[Card]) -> bool:
    return bool(cards) and cards[0].device.info.get("DeviceStrategy") == "die"


def _aic(card: Card) -> object:
    return str(card.device.info.get("AIC", card.device.id))


class MetaxGpu(Counted):
    """MetaX: whole, counted cards; nodes publish how well their cards are linked."""

    MEMORY_MIB: Final = 65536

    def device(self, vendor: Vendor, where: str, i: int, total: int, node: Document) -> Device:
        return Device(f"{where}-metax-{i}", i, 1, self.MEMORY_MIB, WHOLE, vendor.word)


class EnflameGcu(Counted):
    """Enflame GCU: whole, counted cards; HAMi gives them 100 for memory and for cores."""

    def device(self, vendor: Vendor, where: str, i: int, total: int, node: Document) -> Device:
        return Device(f"{where}-GCU-{i}", i, 1, 100, WHOLE, vendor.word)

    def ask(self, vendor: Vendor, container: Container) -> Ask | None:
        ask = super().ask(vendor, container)
        return None if ask is None else Ask(ask.count, 100, 0, WHOLE)


class EnflameShared(Counted):
    """Enflame's older way: parts of a card in percent, rounded up to the node's number of parts."""

    annotations = ()
    COUNT: Final = "enflame.com/gcu-count"
    PARTS: Final = "enflame.com/shared-gcu"

    def devices(self, vendor: Vendor, node: Document) -> tuple[Device, ...]:
        where = str((node.get("metadata") or {}).get("name") or "")
        total = capacity(node, self.COUNT)
        parts = capacity(node, self.PARTS) // total if total else 0
        return tuple(
            Device(f"{where}-enflame-{i}", i, 100, 100, WHOLE, vendor.word, info={"parts": parts})
            for i in range(total)
        )

    def part(self, vendor: Vendor, card: Card, ask: Ask, annotations: Mapping[str, str]) -> Part:
        device = card.device
        percent = ask.memory_percent or WHOLE
        if parts := number(device.info.get("parts"), "parts"):
            percent = min(WHOLE, -(-percent * parts // WHOLE) * WHOLE // parts)
        return Part(device.id, device.index, vendor.word, percent, 0)

    def extras(
        self, vendor: Vendor, pod: Document, given: Given, node: str, now_ns: int
    ) -> dict[str, str]:
        first = next((parts for parts in given if parts), ())
        return {
            "enflame.com/gcu-assigned": "false",
            "enflame.com/gcu-assigned-time": str(now_ns),
            "enflame.com/gcu-assigned-id": ",".join(str(part.index) for part in first),
        }


def metax_losses(node: Document, count: int, spread: bool) -> int:
    """Link quality of `count` MetaX GPUs of a node, more is better; 0 if the node does not publish
    it."""
    key = "scores" if spread else "losses"
    text = node_annotation(node, f"metax-tech.com/gpu.topology.{key}")
    try:
        found = json.loads(text)[str(count)] if text else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0
    return 2000 - found if isinstance(found, int) and 0 <= found <= 2000 else 0
