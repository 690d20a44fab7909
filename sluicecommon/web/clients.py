"""Who is connected to an HTTP listener, bounded so that nobody can take it from the others.

Whoever comes is let in; who has to go for that is the oldest connection of the address that has
the most, one that has said nothing before one that is being answered. So silent clients push each
other out, and a scrape or a probe, which speaks at once, is answered.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from typing import Final

MOST: Final = 64
MOST_PER_ADDRESS: Final = 16
_numbers = itertools.count(1)


@dataclass(slots=True, eq=False)
class Client:
    origin: str
    drop: Callable[[], object]
    """Ends its connection."""
    number: int = field(default_factory=lambda: next(_numbers))
    asked: bool = False
    """Its request is here."""


class Clients:
    def __init__(self, most: int = MOST, most_per_address: int = MOST_PER_ADDRESS) -> None:
        self._most = most
        self._most_per_address = most_per_address
        self._here: set[Client] = set()
        self.dropped_total = 0

    def __len__(self) -> int:
        return len(self._here)

    def enter(self, address: str, drop: Callable[[], object]) -> Client:
        """Ends the connection of another where there is no room."""
        new = Client(origin_of(address), drop)
        count = Counter(client.origin for client in (*self._here, new))
        if count[new.origin] > self._most_per_address:
            self._push_out(new.origin)
        elif len(self._here) >= self._most:
            self._push_out(max(count, key=lambda origin: (count[origin], origin == new.origin)))
        self._here.add(new)
        return new

    def leave(self, client: Client) -> None:
        self._here.discard(client)

    def _push_out(self, origin: str) -> None:
        theirs = [client for client in self._here if client.origin == origin]
        victim = min(theirs or self._here, key=lambda client: (client.asked, client.number))
        self._here.discard(victim)
        self.dropped_total += 1
        victim.drop()


def origin_of(address: str) -> str:
    """What counts as one: an address; of IPv6 the network that one host has to itself."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(IPv6Address(int(parsed) >> 64 << 64))
