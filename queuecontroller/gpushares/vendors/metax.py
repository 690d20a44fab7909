"""MetaX sGPU: shares with a policy for contended compute time.

All shares of a card have one policy (`best-effort`, `fixed-share`, `burst-share`), except for a pod
that has the whole card. Pods of the classes online and offline share cards only with pods of these
classes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from queuecontroller.gpushares.vendors.asks import Ask, AskError, Container, Document
from queuecontroller.gpushares.vendors.cards import Card
from queuecontroller.gpushares.vendors.rules import (
    WHOLE,
    Changes,
    Rules,
    Vendor,
    closest,
    node_annotation,
    taken,
    unwanted,
)
from sluicecommon.hami.devices import (
    BadRegister,
    Device,
    Given,
    Part,
    checked,
    name,
    number,
    parsed,
)
from sluicecommon.reader import shown

POLICY: Final = "metax-tech.com/sgpu-qos-policy"
CLASS: Final = "metax-tech.com/sgpu-app-class"
TOPOLOGY: Final = "metax-tech.com/sgpu-topology-aware"
POLICIES: Final = ("best-effort", "fixed-share", "burst-share")
ONLINE: Final = "online"
OFFLINE: Final = "offline"
GIB_MIB: Final = 1024


class Sgpu(Rules):
    annotations = (POLICY, CLASS, TOPOLOGY)

    def devices(self, vendor: Vendor, node: Document) -> tuple[Device, ...]:
        text = node_annotation(node, vendor.register)
        if not text:
            return ()
        given = parsed(text)
        if not isinstance(given, list):
            raise BadRegister(f"expected a list of devices, got {shown(given)}")
        return checked(_device(vendor, i, one) for i, one in enumerate(given[: 1 << 12]))

    def ask(self, vendor: Vendor, container: Container) -> Ask | None:
        ask = super().ask(vendor, container)
        if ask is None or not container.has(vendor.memory):
            return ask
        given = container.amounts[vendor.memory]
        amount = container.amount(vendor.memory)
        # An amount without a unit is in GiB.
        bare = not any(c.isalpha() for c in str(given))
        memory = amount * GIB_MIB if bare else amount >> 20
        return Ask(ask.count, memory, 0 if memory else WHOLE, ask.cores)

    def admit(
        self, vendor: Vendor, container: Container, annotations: Mapping[str, str]
    ) -> Changes:
        ask = self.ask(vendor, container)
        if ask is None:
            return Changes()
        kind = annotations.get(CLASS, "")
        if kind and kind not in (ONLINE, OFFLINE):
            raise AskError(f"{CLASS}: must be {ONLINE} or {OFFLINE}, got {kind!r}")
        if kind and ask.count != 1:
            raise AskError(
                f"container {container.name}: {vendor.count}: a pod with {CLASS} has one device"
            )
        policy = annotations.get(POLICY, "")
        if kind == ONLINE:
            return Changes()
        if not policy:
            return Changes(annotations={POLICY: POLICIES[0]})
        if policy not in POLICIES:
            raise AskError(f"{POLICY}: must be one of {', '.join(POLICIES)}, got {policy!r}")
        return Changes()

    def obstacle(
        self, vendor: Vendor, card: Card, ask: Ask, annotations: Mapping[str, str]
    ) -> str | None:
        return (
            unwanted(vendor, card.device, annotations)
            or taken(card, annotations)
            or _of_class(card, annotations.get(CLASS, ""))
            or _of_policy(card, ask, annotations)
            or self.too_full(card, self.part(vendor, card, ask, annotations))
        )

    def too_full(self, card: Card, part: Part) -> str | None:
        online = any(one.get(CLASS) == ONLINE for one in card.holders)
        if part.cores == 0 and (online or not card.slots):
            free = card.device.memory_mib - card.memory_mib
            return (
                f"has {max(0, free)} of {part.memory_mib} MiB free"
                if (free < part.memory_mib)
                else None
            )
        return super().too_full(card, part)

    def part(self, vendor: Vendor, card: Card, ask: Ask, annotations: Mapping[str, str]) -> Part:
        made = super().part(vendor, card, ask, annotations)
        if annotations.get(CLASS) != ONLINE:
            return made
        return Part(made.device, made.index, made.type, made.memory_mib, 0)

    def pick(
        self, vendor: Vendor, cards: Sequence[Card], ask: Ask, annotations: Mapping[str, str]
    ) -> Sequence[Card]:
        """Whole cards in one link zone; for online pods the cards with the fewest of them."""
        if annotations.get(CLASS) == ONLINE:
            return sorted(cards, key=_crowd)[: ask.count]
        if ask.cores < WHOLE or ask.count < 2:
            return cards[: ask.count]
        linked = [one for one in cards if one.device.info.get("linkZone")]
        rest = [one for one in cards if not one.device.info.get("linkZone")]
        found = closest(linked, ask.count, lambda one: one.device.info["linkZone"])
        return [*found, *rest][: ask.count]

    def extras(
        self, vendor: Vendor, pod: Document, given: Given, node: str, now_ns: int
    ) -> dict[str, str]:
        entries = [
            [
                {
                    key: value
                    for key, value in (
                        ("uuid", part.device),
                        ("compute", part.cores),
                        ("vRam", part.memory_mib),
                    )
                    if value
                }
                for part in parts
            ]
            for parts in given
        ]
        return {
            "metax-tech.com/gpu-devices-allocated": json.dumps(entries, separators=(",", ":")),
            "metax-tech.com/predicate-time": str(now_ns),
        }


def _device(vendor: Vendor, i: int, given: object) -> Device:
    if not isinstance(given, dict):
        raise BadRegister(f"device {i}: expected an object, got {shown(given)}")
    at = f"device {i}"
    return Device(
        name(given.get("uuid"), f"{at}: uuid"),
        i,
        number(given.get("totalDevCount"), f"{at}: totalDevCount"),
        number(given.get("totalVRam"), f"{at}: totalVRam"),
        number(given.get("totalCompute"), f"{at}: totalCompute"),
        str(given.get("model") or vendor.word)[:253],
        max(0, given["numa"]) if isinstance(given.get("numa"), int) else 0,
        healthy=given.get("healthy") is True,
        info={
            "qosPolicy": str(given.get("qosPolicy") or ""),
            "linkZone": given.get("linkZone") if isinstance(given.get("linkZone"), int) else 0,
        },
    )


def _of_class(card: Card, wanted: str) -> str | None:
    if not card.slots:
        return None
    kinds = {one.get(CLASS, "") for one in card.holders}
    if bool(kinds & {ONLINE, OFFLINE}) != bool(wanted):
        return f"has pods {'with' if not wanted else 'without'} {CLASS}"
    if wanted == OFFLINE and ONLINE in kinds:
        return "has an online pod, beside which offline ones do not run"
    return None


def _of_policy(card: Card, ask: Ask, annotations: Mapping[str, str]) -> str | None:
    if not card.slots or ask.cores == WHOLE or annotations.get(CLASS) == ONLINE:
        return None
    there = next((one[POLICY] for one in card.holders if one.get(POLICY)), "")
    there = there or str(card.device.info.get("qosPolicy") or "")
    wanted = annotations.get(POLICY, "")
    if there and there != wanted:
        return f"has {POLICY} {there}, not {wanted or 'none'}"
    return None


def _crowd(card: Card) -> tuple[bool, int, int]:
    online = sum(one.get(CLASS) == ONLINE for one in card.holders)
    offline = sum(one.get(CLASS) == OFFLINE for one in card.holders)
    return (not online and offline > 0, online, offline)


SGPU: Final = Sgpu()
