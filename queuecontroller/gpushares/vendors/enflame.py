"""Enflame's DRS: a card is divided into parts of a few sizes, which its node lists.

A pod requests a size (`enflame.com/drs-gcu: 3`), or memory and cores, and gets the smallest part
that has both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from queuecontroller.gpushares.vendors.asks import Ask, AskError, Container, Document, containers_of
from queuecontroller.gpushares.vendors.cards import Card
from queuecontroller.gpushares.vendors.rules import (
    WHOLE,
    Changes,
    Rules,
    Vendor,
    node_annotation,
    node_name,
)
from sluicecommon.hami.devices import BadRegister, Device, Given, Part, checked, number, parsed
from sluicecommon.reader import shown

_PROFILE: Final = re.compile(r"(\d{1,4})g\.(\d{1,6})gb", re.ASCII)
BY_AMOUNTS: Final = "amounts"


class Profile(NamedTuple):
    slices: int
    memory_gib: int
    name: str
    id: str


class EnflameDrs(Rules):
    def devices(self, vendor: Vendor, node: Document) -> tuple[Device, ...]:
        text = node_annotation(node, vendor.register)
        if not text:
            return ()
        document = parsed(text)
        if not isinstance(document, dict) or not isinstance(document.get("devices"), list):
            raise BadRegister("has no list of devices")
        profiles = document.get("profiles")
        known = _profiles(profiles if isinstance(profiles, dict) else {})
        if not known:
            raise BadRegister("profiles: has none such as 3g.20gb")
        where = node_name(node)
        return checked(
            self._device(vendor, where, i, one, known)
            for i, one in enumerate(document["devices"][: 1 << 12])
        )

    def _device(
        self, vendor: Vendor, where: str, i: int, document: object, known: tuple[Profile, ...]
    ) -> Device:
        if not isinstance(document, dict):
            raise BadRegister(f"devices[{i}]: expected an object, got {shown(document)}")
        index = number(document.get("index"), f"devices[{i}].index", i)
        slices = number(document.get("capacity"), f"devices[{i}].capacity")
        if slices < 1:
            raise BadRegister(f"devices[{i}].capacity: is {slices}")
        minor = str(document.get("minor") or index)[:20]
        return Device(
            f"{where}-enflame-drs-{index}",
            index,
            slices,
            max(one.memory_gib for one in known) << 10,
            WHOLE,
            vendor.word,
            info={"minor": minor, "profiles": known},
        )

    def ask(self, vendor: Vendor, container: Container) -> Ask | None:
        if container.has(vendor.count):
            slices = container.amount(vendor.count)
            return Ask(1, cores=slices, by="slices") if slices else None
        if not container.has(vendor.memory) and not container.has(vendor.cores):
            return None
        memory = container.amount(vendor.memory)
        return Ask(1, memory, 0, container.amount(vendor.cores), by=BY_AMOUNTS)

    def admit(
        self, vendor: Vendor, container: Container, annotations: Mapping[str, str]
    ) -> Changes:
        if container.has(vendor.count):
            if container.amount(vendor.count) < 1:
                raise AskError(f"container {container.name}: {vendor.count}: request 1 or more")
            return Changes()
        if container.has(vendor.memory) and container.amount(vendor.memory) < 1:
            raise AskError(f"container {container.name}: {vendor.memory}: request 1 or more")
        cores = container.amount(vendor.cores, 1)
        if not 1 <= cores <= WHOLE:
            raise AskError(
                f"container {container.name}: {vendor.cores}: must be from 1 to {WHOLE},"
                f" got {cores}"
            )
        return Changes()

    def choose(
        self, vendor: Vendor, cards: Sequence[Card], ask: Ask, annotations: Mapping[str, str]
    ) -> tuple[Part, ...] | str:
        if cards and all(_profile(card.device, ask) is None for card in cards):
            names = sorted({one.name for card in cards for one in _known(card.device)})
            return f"no part has the requested size: available are {', '.join(names)}"
        return super().choose(vendor, cards, ask, annotations)

    def obstacle(
        self, vendor: Vendor, card: Card, ask: Ask, annotations: Mapping[str, str]
    ) -> str | None:
        profile = _profile(card.device, ask)
        if profile is None:
            return "has no part of this size"
        if card.slots and card.device.slots - card.slots < profile.slices:
            return f"has {card.device.slots - card.slots} of {profile.slices} slices free"
        return super().obstacle(vendor, card, ask, annotations)

    def part(self, vendor: Vendor, card: Card, ask: Ask, annotations: Mapping[str, str]) -> Part:
        profile = _profile(card.device, ask)
        assert profile is not None, "requested on cards that have one"
        return _part(vendor, card.device, profile)

    def restored(self, vendor: Vendor, device: Device, part: Part) -> Part:
        for profile in _known(device):
            if profile.memory_gib << 10 == part.memory_mib:
                return _part(vendor, device, profile)
        return replace(part, index=device.index)

    def extras(
        self, vendor: Vendor, pod: Document, given: Given, node: str, now_ns: int
    ) -> dict[str, str]:
        made = {
            "enflame.com/gcu-assigned": "false",
            "enflame.com/gcu-assigned-time": str(now_ns),
        }
        assigned = {}
        for container, parts in zip(containers_of(pod), given, strict=False):
            if not parts:
                continue
            profile = parts[0].info["profile"]
            assigned[container.name] = {
                "allocated": False,
                "request": profile.slices,
                "profileID": profile.id,
                "profileName": profile.name,
            }
            if len(assigned) == 1:
                made |= {
                    "enflame.com/gcu-assigned-id": str(parts[0].index),
                    "enflame.com/gcu-assigned-index": str(parts[0].index),
                    "enflame.com/gcu-assigned-minor": str(parts[0].info["minor"]),
                    "enflame.com/gcu-request-size": str(profile.slices),
                }
        return made | {"assigned-containers": json.dumps(assigned, separators=(",", ":"))}


def _part(vendor: Vendor, device: Device, profile: Profile) -> Part:
    most = max(one.slices for one in _known(device))
    cores = -(-profile.slices * WHOLE // most)
    memory = profile.memory_gib << 10
    info = {"profile": profile, "minor": device.info["minor"]}
    return Part(device.id, device.index, vendor.word, memory, cores, profile.slices, info)


def _profiles(given: Mapping[str, object]) -> tuple[Profile, ...]:
    found = []
    for key, value in list(given.items())[:256]:
        match = _PROFILE.fullmatch(str(key).strip().lower())
        if match is not None and int(match[1]) and int(match[2]):
            found.append(Profile(int(match[1]), int(match[2]), str(key), str(value)[:64]))
    return tuple(sorted(found))


def _known(device: Device) -> tuple[Profile, ...]:
    found: tuple[Profile, ...] = device.info["profiles"]
    return found


def _profile(device: Device, ask: Ask) -> Profile | None:
    known = _known(device)
    if ask.by != BY_AMOUNTS:
        return next((one for one in known if one.slices == ask.cores), None)
    most = max(one.slices for one in known)
    memory = ask.memory_mib
    if memory > 2 * max(one.memory_gib for one in known):
        # No card has that many GiB: the amount is MiB.
        memory = -(-memory // 1024)
    for one in known:
        if one.memory_gib >= memory and -(-one.slices * WHOLE // most) >= ask.cores:
            return one
    return None


DRS: Final = EnflameDrs()
