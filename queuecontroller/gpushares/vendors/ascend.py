"""Huawei Ascend: a part of a chip is one of its templates, unless HAMi's own library divides it.

Each chip (910A, 910B3, 310P, …) is a row with its templates, to which memory is rounded up. A pod
with the annotation `huawei.com/vnpu-mode: hami-core`, or one that requests cores, gets exactly the
MiB it requests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from queuecontroller.gpushares.vendors.asks import (
    Ask,
    AskError,
    Container,
    Document,
    annotations_of,
)
from queuecontroller.gpushares.vendors.cards import Card
from queuecontroller.gpushares.vendors.rules import WHOLE, Changes, Rules, Vendor, closest, grouped
from sluicecommon.hami.devices import Given, Part

MODE: Final = "huawei.com/vnpu-mode"
SOFT: Final = "hami-core"
MODES: Final = (SOFT, "template")
PAIRED: Final = "Ascend910C"
"""Chip with two dies per module, which are allocated together."""
MODULE: Final = 2


@dataclass(frozen=True, slots=True)
class Template:
    name: str
    memory_mib: int
    ai_cores: int = 0
    ai_cpus: int = 0


@dataclass(frozen=True, slots=True)
class Chip:
    """Data of a chip, in `Vendor.more` under `chip`."""

    memory_allocatable_mib: int
    memory_capacity_mib: int
    templates: tuple[Template, ...] = ()
    """Templates, smallest first."""
    runtime_class: str = ""
    hide: bool = False
    """True if devices are hidden from containers that request none."""

    def fit(self, memory_mib: int) -> tuple[int, str] | None:
        """Memory rounded up to a template, and the template's name (empty for a whole chip); None
        if a chip has less."""
        for one in self.templates:
            if memory_mib <= one.memory_mib:
                return one.memory_mib, one.name
        if memory_mib <= self.memory_capacity_mib:
            return self.memory_allocatable_mib, ""
        return None


class Ascend(Rules):
    annotations = (MODE,)

    def hides(self, vendor: Vendor) -> bool:
        return _chip(vendor).hide

    def ask(self, vendor: Vendor, container: Container) -> Ask | None:
        ask = super().ask(vendor, container)
        if ask is None or not ask.memory_mib or container.has(vendor.cores):
            return ask
        return Ask(ask.count, ask.memory_mib, 0, ask.cores, by="template")

    def admit(
        self, vendor: Vendor, container: Container, annotations: Mapping[str, str]
    ) -> Changes:
        chip = _chip(vendor)
        mode = annotations.get(MODE, "")
        if mode and mode not in MODES:
            raise AskError(f"{MODE}: must be {' or '.join(MODES)}, got {mode!r}")
        if not container.has(vendor.count):
            return Changes(env={"ASCEND_VISIBLE_DEVICES": ""} if chip.hide else {})
        count = container.amount(vendor.count)
        limits = {}
        if vendor.word == PAIRED and count % MODULE:
            if count != 1:
                raise AskError(
                    f"container {container.name}: {vendor.count}: must be 1 or a multiple of 2,"
                    f" got {count}: two chips are one module"
                )
            count = limits[vendor.count] = MODULE
        memory = chip.memory_allocatable_mib
        if container.has(vendor.memory):
            asked = container.amount(vendor.memory) * vendor.unit_mib
            soft = mode == SOFT or container.has(vendor.cores)
            found = (asked, "") if soft else chip.fit(asked)
            if found is None:
                raise AskError(
                    f"container {container.name}: {vendor.memory}: {asked} MiB are more than the"
                    f" {chip.memory_capacity_mib} of a chip"
                )
            memory = found[0]
        if count > 1 and memory != chip.memory_allocatable_mib:
            raise AskError(
                f"container {container.name}: {vendor.memory}: a part of each of {count} chips"
                " cannot be allocated: request one chip, or for whole ones"
            )
        limits[vendor.memory] = memory // vendor.unit_mib
        return Changes(limits, runtime_class=chip.runtime_class)

    def part(self, vendor: Vendor, card: Card, ask: Ask, annotations: Mapping[str, str]) -> Part:
        made = super().part(vendor, card, ask, annotations)
        if ask.by != "template" or annotations.get(MODE) == SOFT:
            return made
        found = _chip(vendor).fit(made.memory_mib)
        memory = made.memory_mib if found is None else found[0]
        return Part(made.device, made.index, made.type, memory, made.cores)

    def too_full(self, card: Card, part: Part) -> str | None:
        # A chip registers AI cores, but pods request cores in percent.
        device = card.device
        free = device.memory_mib - card.memory_mib
        if free < part.memory_mib:
            return f"has {max(0, free)} of {part.memory_mib} MiB free"
        if part.cores and card.cores + part.cores > WHOLE:
            return f"has {max(0, WHOLE - card.cores)} of {part.cores} % free"
        return None

    def choose(
        self, vendor: Vendor, cards: Sequence[Card], ask: Ask, annotations: Mapping[str, str]
    ) -> tuple[Part, ...] | str:
        if vendor.word != PAIRED or ask.count == 1:
            return super().choose(vendor, cards, ask, annotations)
        fitting, _ = self.fitting(vendor, cards, ask, annotations)
        modules = grouped(fitting, lambda card: card.device.index // MODULE)
        whole = [card for one in modules.values() if len(one) == MODULE for card in one]
        if len(whole) < ask.count:
            if len(fitting) >= ask.count:
                return (
                    f"{len(whole)} of {ask.count} devices are in modules that are free as a whole"
                )
            return super().choose(vendor, cards, ask, annotations)
        return tuple(self.part(vendor, one, ask, annotations) for one in whole[: ask.count])

    def pick(
        self, vendor: Vendor, cards: Sequence[Card], ask: Ask, annotations: Mapping[str, str]
    ) -> Sequence[Card]:
        """Chips of one network, if every chip has a network ID."""
        if ask.count > 1 and all("NetworkID" in one.device.info for one in cards):
            return closest(cards, ask.count, lambda one: str(one.device.info["NetworkID"]))
        return cards[: ask.count]

    def extras(
        self, vendor: Vendor, pod: Document, given: Given, node: str, now_ns: int
    ) -> dict[str, str]:
        """Annotations of Ascend's device plugin: the template of each part, or its amounts."""
        soft = annotations_of(pod).get(MODE) == SOFT
        entries = []
        for part in (one for parts in given for one in parts):
            entry: dict[str, Any] = {"UUID": part.device}
            if soft:
                entry |= {"memory": part.memory_mib, "core": part.cores}
            elif (found := _chip(vendor).fit(part.memory_mib)) and found[1]:
                entry["temp"] = found[1]
            entries.append({key: value for key, value in entry.items() if value})
        return {
            "predicate-time": str(now_ns // 1_000_000_000),
            f"huawei.com/{vendor.word}": json.dumps(entries, separators=(",", ":")),
        }


def _chip(vendor: Vendor) -> Chip:
    found = vendor.more["chip"]
    assert isinstance(found, Chip)
    return found


ASCEND: Final = Ascend()
