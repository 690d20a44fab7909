"""Entry points for all vendors: a pod's requests, a node's free devices, the check whether a pod
fits, and the annotations of its allocation.

`fit(vendors, cards_of(vendors, node, pods), asks_of(vendors, pod))` decides for a filter;
`allocation` gives the annotations for binding a pod. An allocation is released by leaving the pod
out of `pods`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from queuecontroller.gpushares.vendors.asks import (
    Ask,
    Container,
    Document,
    PodAsk,
    annotations_of,
    containers_of,
)
from queuecontroller.gpushares.vendors.cards import Card
from queuecontroller.gpushares.vendors.handshake import is_gone
from queuecontroller.gpushares.vendors.rules import Rules, Vendor, listed, node_annotation
from sluicecommon.hami.devices import BadRegister, Given, Part, decode, encode
from sluicecommon.hami.names import ALLOCATING, BIND_PHASE, BIND_TIME, CORDON, NODE, TIME

Cards = Mapping[str, Sequence[Card]]
"""A node's cards by vendor's word."""


def asks_of(vendors: Iterable[Vendor], pod: Document) -> PodAsk:
    """Parsed requests of a pod. Raises AskError."""
    containers = containers_of(pod)
    asks: dict[str, tuple[Ask | None, ...]] = {}
    named = {resource for one in containers for resource in one.amounts}
    for vendor in vendors:
        if named.isdisjoint((vendor.count, vendor.memory, vendor.cores)):
            continue  # All rules need one of these resources, which most pods lack.
        of_each = tuple(vendor.rules.ask(vendor, one) for one in containers)
        if any(one is not None for one in of_each):
            asks[vendor.word] = of_each
    return PodAsk(containers, annotations_of(pod), asks)


def cards_of(
    vendors: Iterable[Vendor],
    node: Document,
    pods: Iterable[Document],
    problems: list[str] | None = None,
) -> Cards:
    """Registered devices of a node with the allocations of these pods. Malformed registers and
    allocations are skipped and reported in `problems`."""
    errors = [] if problems is None else problems
    there = list(pods)
    cordoned = frozenset(listed({CORDON: node_annotation(node, CORDON)}, CORDON))
    found: dict[str, Sequence[Card]] = {}
    for vendor in vendors:
        try:
            devices = vendor.rules.devices(vendor, node)
        except BadRegister as error:
            errors.append(f"{vendor.title}: {vendor.register or vendor.count}: {error}")
            continue
        if devices and is_gone(vendor, node):
            errors.append(f"{vendor.title}: {vendor.handshake}: its plugin does not reply")
            continue
        if not devices:
            continue
        cards = {one.id: Card(one) for one in devices if one.id not in cordoned}
        for pod in there:
            annotations = annotations_of(pod)
            for part in held(vendor, pod, cards, errors):
                cards[part.device].take(part, annotations)
        found[vendor.word] = tuple(cards.values())
    return found


def held(
    vendor: Vendor, pod: Document, cards: Mapping[str, Card], problems: list[str]
) -> list[Part]:
    """A pod's parts of these devices: per device the sum over its running containers, or the
    maximum of an init container if that is more."""
    text = annotations_of(pod).get(vendor.allocated)
    if not text:
        return []
    try:
        given = decode(text)
    except BadRegister as error:
        problems.append(f"{vendor.allocated}: {error}")
        return []
    containers = containers_of(pod)
    restored: list[tuple[bool, Part]] = []
    for i, parts in enumerate(given):
        before = i < len(containers) and containers[i].before
        for part in parts:
            if (card := cards.get(part.device)) is not None:
                restored.append((before, vendor.rules.restored(vendor, card.device, part)))
    return _peak(vendor.rules, restored)


def _peak(rules: Rules, parts: Iterable[tuple[bool, Part]]) -> list[Part]:
    found: dict[tuple[bool, str], Part] = {}
    for before, part in parts:
        key = before, part.device
        known = found.get(key)
        found[key] = part if known is None else rules.both(known, part, at_once=not before)
    peak: dict[str, Part] = {}
    for (_, device), part in found.items():
        known = peak.get(device)
        peak[device] = part if known is None else rules.both(known, part, at_once=False)
    return list(peak.values())


def fit(vendors: Iterable[Vendor], cards: Cards, pod: PodAsk) -> dict[str, Given] | str:
    """A pod's allocation on a node by vendor's word, or the reason why there is no room. The cards
    are not changed."""
    chosen: dict[str, Given] = {}
    for vendor in vendors:
        asks = pod.asks.get(vendor.word)
        if asks is None:
            continue
        found = _fit_one(vendor, cards.get(vendor.word, ()), asks, pod)
        if isinstance(found, str):
            return f"{vendor.title}: {found}"
        chosen[vendor.word] = found
    return chosen


def _fit_one(
    vendor: Vendor, cards: Sequence[Card], asks: Sequence[Ask | None], pod: PodAsk
) -> Given | str:
    if not cards:
        return "no device is registered"
    # Init containers that end first do not compete with the others for devices.
    running = [card.copy() for card in cards]
    given: list[tuple[Part, ...]] = []
    for container, ask in zip(pod.containers, asks, strict=True):
        if ask is None:
            given.append(())
            continue
        place = cards if container.before else running
        parts = vendor.rules.choose(vendor, place, ask, pod.annotations)
        if isinstance(parts, str):
            several = len([one for one in asks if one is not None]) > 1
            return f"container {container.name}: {parts}" if several else parts
        given.append(parts)
        if not container.before:
            by_id = {card.device.id: card for card in running}
            for part in parts:
                by_id[part.device].take(part, pod.annotations)
    return tuple(given)


def allocation(
    vendors: Iterable[Vendor],
    chosen: Mapping[str, Given],
    pod: Document,
    node: str,
    now_ns: int,
) -> dict[str, str]:
    """Annotations of a pod with this allocation on a node."""
    seconds = str(now_ns // 1_000_000_000)
    made = {
        NODE: node,
        TIME: seconds,
        BIND_PHASE: ALLOCATING,
        BIND_TIME: seconds,
    }
    for vendor in vendors:
        given = chosen.get(vendor.word)
        if given is None:
            continue
        text = encode(given)
        for key in vendor.written:
            made[key] = text
        made |= vendor.rules.extras(vendor, pod, given, node, now_ns)
    return made


def quota_of(vendors: Iterable[Vendor], pod: PodAsk) -> dict[str, int]:
    """A pod's usage of its namespace's quota by resource name, in the resource's unit: the number
    of devices; for memory and cores the amount per device times their number."""
    found: dict[str, int] = {}
    for vendor in vendors:
        asks = pod.asks.get(vendor.word)
        if not asks:
            continue
        pairs = list(zip(pod.containers, asks, strict=False))
        found[vendor.count] = _total(pairs, lambda ask: 1)
        if vendor.memory:
            found[vendor.memory] = _total(pairs, lambda ask: ask.memory_mib) // vendor.unit_mib
        if vendor.cores:
            found[vendor.cores] = _total(pairs, lambda ask: ask.cores)
    return found


def _total(pairs: Iterable[tuple[Container, Ask | None]], amount: Callable[[Ask], int]) -> int:
    """Sum over the containers that run together, or the maximum of an init container if that is
    more."""
    running = first = 0
    for container, ask in pairs:
        if ask is not None:
            of_it = ask.count * amount(ask)
            if container.before:
                first = max(first, of_it)
            else:
                running += of_it
    return max(running, first)
