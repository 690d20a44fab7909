"""A vendor as a row of names and numbers, and HAMi's common rules, which most vendors follow.

A vendor with further rules has a subclass of `Rules` in a file of its own. Rules are stateless: a
choice is made from a node's registered devices and the allocations of its pods.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from queuecontroller.gpushares.vendors.asks import Ask, AskError, Container, Document
from queuecontroller.gpushares.vendors.devices import (
    MAX_DEVICES,
    BadRegister,
    Card,
    Device,
    Given,
    Part,
    name,
    number,
    read_register,
)
from queuecontroller.scheduler.placement.weights import EVEN, WEIGHTS, weights

GPU_POLICY: Final = "hami.io/gpu-scheduler-policy"
CORDON: Final = "hami.io/device-cordon"
"""Annotation of a node: devices that get no new pods."""
WHOLE: Final = 100


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes to a container and its pod at admission."""

    limits: Mapping[str, int] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    runtime_class: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    """A kind of device of a vendor."""

    section: str
    """Section of HAMi's device-config.yaml."""
    title: str
    """Name shown to users."""
    word: str
    """Name of the devices in allocations."""
    count: str
    """Resource name for the number of devices."""
    memory: str = ""
    """Resource name for memory per device, in units of `unit_mib`; empty: the vendor has none. The
    same holds for the next two."""
    percent: str = ""
    cores: str = ""
    unit_mib: int = 1
    default_cores: int = 0
    """Cores of a pod that requests none: 100 is a whole device, 0 no guarantee."""
    register: str = ""
    """Annotation of the node with the devices; empty: the node's capacity gives their number."""
    handshake: str = ""
    to_allocate: str = ""
    allocated: str = ""
    """Annotation of the pod, as is `to_allocate`."""
    use_types: str = ""
    nouse_types: str = ""
    use_ids: str = ""
    nouse_ids: str = ""
    """Annotation of the pod with a list, as are the three above."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Data for the vendor's rules, for example a chip's templates."""
    rules: Rules = field(default_factory=lambda: Rules())

    @property
    def resources(self) -> tuple[str, ...]:
        return tuple(one for one in (self.count, self.memory, self.percent, self.cores) if one)

    @property
    def selecting(self) -> tuple[str, ...]:
        """Annotations of pods that select devices."""
        named = (self.use_types, self.nouse_types, self.use_ids, self.nouse_ids)
        return tuple(one for one in (*named, *self.rules.annotations) if one)

    @property
    def written(self) -> tuple[str, ...]:
        """Annotations that record an allocation; only the scheduler writes them."""
        return tuple(one for one in (self.to_allocate, self.allocated) if one)


class Rules:
    """HAMi's common rules for devices shared by slots, memory and cores."""

    annotations: tuple[str, ...] = ()
    """Annotations of pods in addition to those of the row."""

    def hides(self, vendor: Vendor) -> bool:
        """True if `admit` changes containers that request no such devices as well."""
        return False

    def devices(self, vendor: Vendor, node: Document) -> tuple[Device, ...]:
        """Devices registered on a node; empty if none. Raises BadRegister."""
        text = node_annotation(node, vendor.register)
        return read_register(text) if text else ()

    def ask(self, vendor: Vendor, container: Container) -> Ask | None:
        """The container's request; None if there is none. Raises AskError."""
        if not container.has(vendor.count):
            return None
        count = container.amount(vendor.count)
        if count < 1:
            return None
        if count > MAX_DEVICES:
            raise AskError(
                f"container {container.name}: {vendor.count}: {count} exceed the limit of"
                f" {MAX_DEVICES} per node"
            )
        memory = container.amount(vendor.memory) * vendor.unit_mib
        percent = container.amount(vendor.percent)
        if percent > WHOLE:
            raise AskError(
                f"container {container.name}: {vendor.percent}: {percent} is more than 100"
            )
        cores = container.amount(vendor.cores, vendor.default_cores)
        return Ask(count, memory, 0 if memory else percent or WHOLE, cores)

    def admit(
        self, vendor: Vendor, container: Container, annotations: Mapping[str, str]
    ) -> Changes:
        """Changes at admission to a container that requests such devices. Raises AskError."""
        self.ask(vendor, container)
        return Changes()

    def choose(
        self, vendor: Vendor, cards: Sequence[Card], ask: Ask, annotations: Mapping[str, str]
    ) -> tuple[Part, ...] | str:
        """Parts for one container, or the reason why there is no room."""
        fitting, why = self.fitting(vendor, cards, ask, annotations)
        if len(fitting) < ask.count:
            return too_few(ask.count, len(fitting), why)
        picked = self.pick(vendor, fitting, ask, annotations)
        return tuple(self.part(vendor, card, ask, annotations) for card in picked)

    def fitting(
        self, vendor: Vendor, cards: Sequence[Card], ask: Ask, annotations: Mapping[str, str]
    ) -> tuple[list[Card], Counter[str]]:
        """Devices with room, best first, and the counted obstacles of the others."""
        why: Counter[str] = Counter()
        found = []
        for card in self.ordered(cards, annotations):
            reason = self.obstacle(vendor, card, ask, annotations)
            if reason is None:
                found.append(card)
            else:
                why[reason] += 1
        return found, why

    def ordered(self, cards: Sequence[Card], annotations: Mapping[str, str]) -> list[Card]:
        """Devices in order of preference: the emptiest first, HAMi's default; with `binpack` the
        fullest."""
        sign = -1 if "binpack" in policies(annotations) else 1
        weighed = weights_of(annotations)
        return sorted(cards, key=lambda card: (sign * fullness(card, weighed), card.device.index))

    def obstacle(
        self, vendor: Vendor, card: Card, ask: Ask, annotations: Mapping[str, str]
    ) -> str | None:
        """Reason why a device cannot take the part; None if it can."""
        return (
            unwanted(vendor, card.device, annotations)
            or taken(card, annotations)
            or self.too_full(card, self.part(vendor, card, ask, annotations))
        )

    def too_full(self, card: Card, part: Part) -> str | None:
        device = card.device
        free = device.memory_mib - card.memory_mib
        if free < part.memory_mib:
            return f"has {max(0, free)} of {part.memory_mib} MiB free"
        free = device.cores - card.cores
        if free < part.cores:
            return f"has {max(0, free)} of {part.cores} cores free"
        if part.cores == WHOLE == device.cores and card.slots:
            return "is shared, and all of its cores are requested"
        if part.cores == 0 and device.cores and card.cores >= device.cores:
            return "has all of its cores allocated"
        return None

    def part(self, vendor: Vendor, card: Card, ask: Ask, annotations: Mapping[str, str]) -> Part:
        device = card.device
        memory = ask.memory_mib or device.memory_mib * ask.memory_percent // 100
        return Part(device.id, device.index, vendor.word, memory, min(WHOLE, ask.cores))

    def pick(
        self, vendor: Vendor, cards: Sequence[Card], ask: Ask, annotations: Mapping[str, str]
    ) -> Sequence[Card]:
        """Choose among the fitting devices; overridden where links between devices matter."""
        return cards[: ask.count]

    def restored(self, vendor: Vendor, device: Device, part: Part) -> Part:
        """Complete a part that was read from an annotation, which lacks some fields."""
        return replace(part, index=device.index)

    def both(self, one: Part, other: Part, at_once: bool) -> Part:
        """Combine two parts of one device that a pod has at once or one after the other."""
        if at_once:
            memory, cores = one.memory_mib + other.memory_mib, one.cores + other.cores
            slots = one.slots + other.slots
        else:
            memory, cores = max(one.memory_mib, other.memory_mib), max(one.cores, other.cores)
            slots = max(one.slots, other.slots)
        return replace(one, memory_mib=memory, cores=cores, slots=slots)

    def extras(
        self, vendor: Vendor, pod: Document, given: Given, node: str, now_ns: int
    ) -> dict[str, str]:
        """Further annotations that the vendor's plugin reads."""
        return {}


class Counted(Rules):
    """Devices that a node only counts in its capacity; their IDs are generated."""

    def devices(self, vendor: Vendor, node: Document) -> tuple[Device, ...]:
        total = capacity(node, vendor.count)
        where = node_name(node)
        return tuple(self.device(vendor, where, i, total, node) for i in range(total))

    def device(self, vendor: Vendor, where: str, i: int, total: int, node: Document) -> Device:
        raise NotImplementedError


# -- helpers for rules ------------------------------------------------------------------------


def policies(annotations: Mapping[str, str]) -> frozenset[str]:
    return frozenset(part.strip() for part in annotations.get(GPU_POLICY, "").split(","))


def listed(annotations: Mapping[str, str], key: str) -> tuple[str, ...]:
    text = annotations.get(key, "") if key else ""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def weights_of(annotations: Mapping[str, str]) -> tuple[int, ...]:
    """Weights of slots, cores and memory. An invalid annotation is refused at admission and ignored
    here."""
    try:
        return weights(annotations.get(WEIGHTS, ""))
    except ValueError:
        return EVEN


def fullness(card: Card, weighed: Sequence[int] = EVEN) -> float:
    device = card.device
    parts = (
        card.slots / max(1, device.slots),
        card.cores / max(1, device.cores),
        card.memory_mib / max(1, device.memory_mib),
    )
    return sum(weight * part for weight, part in zip(weighed, parts, strict=True))


def unwanted(vendor: Vendor, device: Device, annotations: Mapping[str, str]) -> str | None:
    if not device.healthy:
        return "is not healthy"
    low = device.type.lower()
    wanted = listed(annotations, vendor.use_types)
    if wanted and not any(one.lower() in low for one in wanted):
        return f"is a {device.type}, which is not in {vendor.use_types}"
    if any(one.lower() in low for one in listed(annotations, vendor.nouse_types)):
        return f"is a {device.type}, which is in {vendor.nouse_types}"
    ids = listed(annotations, vendor.use_ids)
    if ids and device.id not in ids:
        return f"is not in {vendor.use_ids}"
    if device.id in listed(annotations, vendor.nouse_ids):
        return f"is in {vendor.nouse_ids}"
    return None


def taken(card: Card, annotations: Mapping[str, str]) -> str | None:
    if card.device.slots <= card.slots:
        return f"has all of its {card.device.slots} slots taken"
    if card.slots and "mutex" in policies(annotations):
        return f"is shared, and {GPU_POLICY} is mutex"
    return None


def too_few(wanted: int, found: int, why: Counter[str]) -> str:
    """Reasons with their counts, so that eight devices full for one reason take one line."""
    lines = [f"{n} {reason}" for reason, n in why.most_common(4)]
    has = f"{found} of {wanted} devices fit"
    return "; ".join([has, *lines])


def node_annotation(node: Document, key: str) -> str:
    if not key:
        return ""
    found = (node.get("metadata") or {}).get("annotations") or {}
    value = found.get(key) if isinstance(found, Mapping) else None
    return value if isinstance(value, str) else ""


def node_name(node: Document) -> str:
    return name((node.get("metadata") or {}).get("name"), "node")


def capacity(node: Document, resource: str) -> int:
    """Number of a resource in a node's capacity. Raises BadRegister."""
    found = (node.get("status") or {}).get("capacity") or {}
    value = found.get(resource) if isinstance(found, Mapping) else None
    total = number(value, resource)
    if total > MAX_DEVICES * 1024:
        raise BadRegister(f"{resource}: {total} exceed the limit per node")
    return total


def grouped(cards: Iterable[Card], key: Callable[[Card], object]) -> dict[object, list[Card]]:
    """Cards by key, in their given order."""
    groups: dict[object, list[Card]] = {}
    for card in cards:
        groups.setdefault(key(card), []).append(card)
    return groups


def closest(cards: Sequence[Card], count: int, key: Callable[[Card], object]) -> list[Card]:
    """Cards of the smallest group that has enough, else of several groups, the largest first."""
    groups = sorted(grouped(cards, key).values(), key=len)
    for group in groups:
        if len(group) >= count:
            return group[:count]
    return [card for group in reversed(groups) for card in group][:count]
