"""NVLink topology of a node, from what each GPU reports about the other ends of its links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nodeagent.ports.gpus import SWITCH, GpuReading
from nodeagent.units import GpuUuid


def linked(gpus: Sequence[GpuReading]) -> dict[GpuUuid, dict[str, int]]:
    """Number of NVLinks from each card to each other card.

    Two cards behind switches have as many as the one with fewer links has. MIG instances have none.
    """
    cards = [one for one in gpus if one.mig_card is None]
    by_bus = {place: one.uuid for one in cards if (place := _place(one.pci_bus_id or ""))}
    found: dict[GpuUuid, dict[str, int]] = {}
    for one in cards:
        mine = one.nvlink_peers or {}
        peers: dict[str, int] = {}
        for bus, links in mine.items():
            peer = by_bus.get(_place(bus))
            if peer is not None and peer != one.uuid:
                peers[peer] = peers.get(peer, 0) + links
        for other in cards:
            behind = min(mine.get(SWITCH, 0), _to_switch(other.nvlink_peers))
            if behind and other.uuid != one.uuid:
                peers[other.uuid] = peers.get(other.uuid, 0) + behind
        if peers:
            found[one.uuid] = peers
    return found


def _to_switch(peers: Mapping[str, int] | None) -> int:
    return (peers or {}).get(SWITCH, 0)


def _place(bus_id: str) -> tuple[int, ...]:
    """PCI address without its function, comparable although domains have four or eight digits;
    empty if it is not a PCI bus id."""
    head, _, _function = bus_id.partition(".")
    try:
        return tuple(int(part, 16) for part in head.split(":"))
    except ValueError:
        return ()
