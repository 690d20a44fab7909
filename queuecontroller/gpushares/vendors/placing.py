"""The one way in: what a pod asks of any vendor, what a node has left, whether it fits, and what is
written when it was given.

`fit(vendors, cards_of(vendors, node, pods), asks_of(vendors, pod))` is the answer of a filter;
`allocation` are the annotations with which a pod is bound, and `released` gives it back by being
left out of `pods`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from queuecontroller.gpushares.vendors.asks import (
    Ask,
    Container,
    Document,
    PodAsk,
    annotations_of,
    containers_of,
)
from queuecontroller.gpushares.vendors.devices import (
    BadRegister,
    Card,
    Given,
    Part,
    decode,
    encode,
)
from queuecontroller.gpushares.vendors.handshake import is_gone
from queuecontroller.gpushares.vendors.rules import CORDON, Rules, Vendor, listed, node_annotation

NODE: Final = "hami.io/vgpu-node"
TIME: Final = "hami.io/vgpu-time"
BIND_PHASE: Final = "hami.io/bind-phase"
BIND_TIME: Final = "hami.io/bind-time"
ALLOCATING: Final = "allocating"
Cards = Mapping[str, Sequence[Card]]
"""A node's, by vendor's word."""


def asks_of(vendors: Iterable[Vendor], pod: Document) -> PodAsk:
    """Raises AskError."""
    containers = containers_of(pod)
    asks: dict[str, tuple[Ask | None, ...]] = {}
    named = {resource for one in containers for resource in one.amounts}
    for vendor in vendors:
        if named.isdisjoint((vendor.count, vendor.memory, vendor.cores)):
            continue  # most pods, for most vendors; all rules ask by one of these
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
    """What a node has registered, less what those pods hold. What cannot be read counts as not
    there, and is told in `problems`."""
    told = [] if problems is None else problems
    there = list(pods)
    cordoned = frozenset(listed({CORDON: node_annotation(node, CORDON)}, CORDON))
    found: dict[str, Sequence[Card]] = {}
    for vendor in vendors:
        try:
            devices = vendor.rules.devices(vendor, node)
        except BadRegister as error:
            told.append(f"{vendor.title}: {vendor.register or vendor.count}: {error}")
            continue
        if devices and is_gone(vendor, node):
            told.append(f"{vendor.title}: {vendor.handshake}: its plugin does not answer")
            continue
        if not devices:
            continue
        cards = {one.id: Card(one) for one in devices if one.id not in cordoned}
        for pod in there:
            annotations = annotations_of(pod)
            for part in held(vendor, pod, cards, told):
                cards[part.device].take(part, annotations)
        found[vendor.word] = tuple(cards.values())
    return found


def held(
    vendor: Vendor, pod: Document, cards: Mapping[str, Card], problems: list[str]
) -> list[Part]:
    """What a pod holds of these: of each device what its containers have together, or the most
    that one of those before them has."""
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
    """What a pod gets on a node, by vendor's word; a text says why there is no room. The cards are
    as before."""
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
    # Those that end before the others begin have the node as it is.
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
    """The annotations of a pod that was given this on a node."""
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
    """By resource, what a pod takes of a namespace's quota: how many devices, and of memory and
    cores that of each times their number, in the resource's own unit."""
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
    """Of those that run together, or the most of one that ends before."""
    running = first = 0
    for container, ask in pairs:
        if ask is not None:
            of_it = ask.count * amount(ask)
            if container.before:
                first = max(first, of_it)
            else:
                running += of_it
    return max(running, first)
