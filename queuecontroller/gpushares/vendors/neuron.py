"""AWS Neuron: devices with a few cores each, allocated whole or by cores of one device.

The cores in use are a mask, and an allocation has the mask in place of a number of cores. Several
devices must be neighbours: any on Inferentia; on Trainium aligned blocks of 4, 8 or 16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from queuecontroller.gpushares.vendors.asks import Ask, AskError, Container, Document, containers_of
from queuecontroller.gpushares.vendors.cards import Card
from queuecontroller.gpushares.vendors.rules import (
    Changes,
    Counted,
    Vendor,
    capacity,
    taken,
    too_few,
    unwanted,
)
from sluicecommon.hami.devices import BadRegister, Device, Given, Part

CORES: Final = "cores"
MAX_CORES: Final = 16
"""Cores per device; real devices have 2 to 8."""
BLOCKS: Final = (1, 4, 8, 16)


class Neuron(Counted):
    def device(self, vendor: Vendor, where: str, i: int, total: int, node: Document) -> Device:
        each = capacity(node, vendor.cores) // total
        if not 1 <= each <= MAX_CORES:
            raise BadRegister(f"{vendor.cores}: {each} for each device is not 1 to {MAX_CORES}")
        labels = (node.get("metadata") or {}).get("labels") or {}
        kind = str(labels.get("node.kubernetes.io/instance-type") or "")
        mask = (1 << each) - 1
        info = {"each": each, "kind": kind}
        return Device(f"{where}-{vendor.word}-{i}", i, each, 0, mask, vendor.word, info=info)

    def ask(self, vendor: Vendor, container: Container) -> Ask | None:
        whole = super().ask(vendor, container)
        if whole is not None:
            return Ask(whole.count)
        if not container.has(vendor.cores):
            return None
        cores = container.amount(vendor.cores)
        return Ask(1, cores=cores, by=CORES) if cores else None

    def admit(
        self, vendor: Vendor, container: Container, annotations: Mapping[str, str]
    ) -> Changes:
        for resource in (vendor.count, vendor.cores):
            if container.has(resource) and container.amount(resource) < 1:
                raise AskError(f"container {container.name}: {resource}: request 1 or more")
        return super().admit(vendor, container, annotations)

    def choose(
        self, vendor: Vendor, cards: Sequence[Card], ask: Ask, annotations: Mapping[str, str]
    ) -> tuple[Part, ...] | str:
        each = int(cards[0].device.info["each"]) if cards else 1
        if ask.by == CORES and ask.cores > each:
            if ask.cores % each:
                return f"{ask.cores} cores are neither part of a device nor whole ones of {each}"
            ask = Ask(ask.cores // each, cores=each, by=CORES)
        if ask.count == 1:
            return super().choose(vendor, cards, ask, annotations)
        fitting, why = self.fitting(vendor, cards, ask, annotations)
        found = _neighbours(fitting, ask.count)
        if found is None:
            if len(fitting) < ask.count:
                return too_few(ask.count, len(fitting), why)
            return f"no {ask.count} of {len(fitting)} free devices are neighbours"
        return tuple(self.part(vendor, card, ask, annotations) for card in found)

    def obstacle(
        self, vendor: Vendor, card: Card, ask: Ask, annotations: Mapping[str, str]
    ) -> str | None:
        reason = unwanted(vendor, card.device, annotations) or taken(card, annotations)
        if reason:
            return reason
        free = int(card.device.info["each"]) - card.cores.bit_count()
        wanted = _wanted(card.device, ask)
        return None if free >= wanted else f"has {free} of {wanted} cores free"

    def part(self, vendor: Vendor, card: Card, ask: Ask, annotations: Mapping[str, str]) -> Part:
        device, mask = card.device, 0
        wanted = _wanted(device, ask)
        for bit in range(int(device.info["each"])):
            if wanted and not card.cores >> bit & 1:
                mask |= 1 << bit
                wanted -= 1
        return Part(device.id, device.index, vendor.word, 0, mask, mask.bit_count(), device.info)

    def restored(self, vendor: Vendor, device: Device, part: Part) -> Part:
        mask = part.cores & device.cores
        return Part(part.device, device.index, part.type, 0, mask, mask.bit_count(), device.info)

    def both(self, one: Part, other: Part, at_once: bool) -> Part:
        mask = one.cores | other.cores
        return replace(one, cores=mask, slots=mask.bit_count())

    def extras(
        self, vendor: Vendor, pod: Document, given: Given, node: str, now_ns: int
    ) -> dict[str, str]:
        numbers: list[int] = []
        by_cores = False
        for container, parts in zip(containers_of(pod), given, strict=False):
            for part in parts:
                if container.has(vendor.count):
                    numbers.append(part.index)
                    continue
                by_cores = True
                each = int(part.info["each"])
                numbers += [part.index * each + bit for bit in range(each) if part.cores >> bit & 1]
        made = {
            "AWS_NEURON_IDS": ",".join(map(str, numbers)),
            "NEURON_ALLOC_TIME": str(now_ns),
            "NEURON_ALLOCATED": "false",
            "aws.amazon.com/predicate-node": node,
        }
        return made | {"NEURON_RESOURCE_TYPE": vendor.cores} if by_cores else made


def _wanted(device: Device, ask: Ask) -> int:
    return ask.cores if ask.by == CORES else int(device.info["each"])


def _neighbours(cards: Sequence[Card], count: int) -> list[Card] | None:
    by_index = {card.device.index: card for card in cards if not card.slots}
    kinds = {str(card.device.info["kind"]).lower() for card in cards}
    anywhere = all("inf" in kind for kind in kinds)
    if not anywhere and count not in BLOCKS:
        return None
    step = 1 if anywhere else count
    for start in range(0, max(by_index, default=-1) + 1, step):
        run = [by_index.get(i) for i in range(start, start + count)]
        if all(one is not None for one in run):
            return [one for one in run if one is not None]
    return None


NEURON: Final = Neuron()
