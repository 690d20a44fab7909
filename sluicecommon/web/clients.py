"""The connections of an HTTP listener, bounded so that no client can keep the others out.

A new connection is accepted even when the listener is full. The oldest connection of the address
with the most connections is closed for it, a silent one before one that has sent its request. So
silent clients displace each other, and a scrape or a probe, which sends at once, is answered.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from typing import Final

MOST: Final = 64
MAX_PER_ADDRESS: Final = 16
_numbers = itertools.count(1)


@dataclass(slots=True, eq=False)
class Client:
    """One connection."""

    origin: str
    """Its address, as `origin_of` returns it."""
    drop: Callable[[], object]
    """Closes the connection."""
    number: int = field(default_factory=lambda: next(_numbers))
    """Ascends in the order of acceptance."""
    asked: bool = False
    """True once the head of its request has arrived."""


class Clients:
    """The open connections of one listener."""

    def __init__(
        self,
        most: int = MOST,
        most_per_address: int = MAX_PER_ADDRESS,
        keeps_asked: bool = False,
    ) -> None:
        """With `keeps_asked` no connection that has sent a request is closed for a new one: a full
        listener then closes the new one instead."""
        self._most = most
        self._most_per_address = most_per_address
        self._keeps_asked = keeps_asked
        self._open: set[Client] = set()
        self.dropped_total = 0
        """Connections closed for want of room."""

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, address: str, drop: Callable[[], object]) -> Client:
        """Add a connection; where there is no room, another one is closed for it."""
        new = Client(origin_of(address), drop)
        count = Counter(client.origin for client in (*self._open, new))
        self._open.add(new)
        if count[new.origin] > self._most_per_address:
            self._make_room(new, new.origin)
        elif len(self._open) > self._most:
            largest = max(count, key=lambda origin: (count[origin], origin == new.origin))
            self._make_room(new, largest)
        return new

    def leave(self, client: Client) -> None:
        self._open.discard(client)

    def drop_all(self) -> None:
        """Close every connection."""
        for client in list(self._open):
            client.drop()

    def _make_room(self, new: Client, origin: str) -> None:
        others = self._open - {new}
        same = [client for client in others if client.origin == origin]
        victim = min(same or others, key=lambda client: (client.asked, client.number))
        if victim.asked and self._keeps_asked:
            victim = new
        self._open.discard(victim)
        self.dropped_total += 1
        victim.drop()


def origin_of(address: str) -> str:
    """The unit that limits count: an IPv4 address, or the /64 network of an IPv6 address, since one
    host has all of it."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(IPv6Address(int(parsed) >> 64 << 64))
