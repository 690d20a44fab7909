"""The connections of an HTTP listener, bounded so that no client can keep the others out.

A new connection is accepted even when the listener is full. The oldest connection of the address
with the most connections is closed for it, a silent one before one that has sent its request. So
silent clients displace each other, and a scrape or a probe, which sends at once, is answered.
"""

from __future__ import annotations

import itertools
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
    """The open connections of one listener. Entering and leaving costs little however many there
    are, since a client without credentials causes both."""

    def __init__(
        self,
        most: int = MOST,
        most_per_address: int = MAX_PER_ADDRESS,
        keeps_asked: bool = False,
        most_silent: int | None = None,
    ) -> None:
        """With `keeps_asked` no connection that has sent a request is closed for a new one: a full
        listener then closes the new one instead. `most_silent` limits the connections that have not
        sent one; each of them costs the buffers of a TLS handshake."""
        self._most = most
        self._most_per_address = most_per_address
        self._keeps_asked = keeps_asked
        self._most_silent = most if most_silent is None else most_silent
        self._silent: dict[str, dict[Client, None]] = {}
        """The connections without a request by origin, the oldest first."""
        self._asked: dict[str, dict[Client, None]] = {}
        self._silent_number = 0
        self._asked_number = 0
        self.dropped_total = 0
        """Connections closed because a limit was reached."""

    def __len__(self) -> int:
        return self._silent_number + self._asked_number

    def enter(self, address: str, drop: Callable[[], object]) -> Client:
        """Add a connection; where there is no room, another one is closed for it."""
        new = Client(origin_of(address), drop)
        self._put(new)
        if self._count(new.origin) > self._most_per_address:
            self._make_room(new, new.origin)
        elif len(self) > self._most:
            origins = {*self._silent, *self._asked}
            largest = max(origins, key=lambda one: (self._count(one), one == new.origin))
            self._make_room(new, largest)
        elif self._silent_number > self._most_silent:
            largest = max(self._silent, key=lambda one: (len(self._silent[one]), one == new.origin))
            first = next((one for one in self._silent[largest] if one is not new), None)
            self._drop(first or self._oldest_of_all(new))
        return new

    def mark(self, client: Client, asked: bool) -> None:
        """Record whether the connection has sent a request that is being answered."""
        if client.asked != asked:
            known = self._take(client)
            client.asked = asked
            if known:
                self._put(client)

    def leave(self, client: Client) -> None:
        self._take(client)

    def drop_all(self) -> None:
        """Close every connection."""
        for of_origin in (*self._silent.values(), *self._asked.values()):
            for client in list(of_origin):
                client.drop()

    def _count(self, origin: str) -> int:
        return len(self._silent.get(origin, ())) + len(self._asked.get(origin, ()))

    def _put(self, client: Client) -> None:
        where = self._asked if client.asked else self._silent
        where.setdefault(client.origin, {})[client] = None
        if client.asked:
            self._asked_number += 1
        else:
            self._silent_number += 1

    def _take(self, client: Client) -> bool:
        """Remove a connection; returns False if it is not there."""
        where = self._asked if client.asked else self._silent
        of_origin = where.get(client.origin, {})
        if client not in of_origin:
            return False
        del of_origin[client]
        if not of_origin:
            del where[client.origin]
        if client.asked:
            self._asked_number -= 1
        else:
            self._silent_number -= 1
        return True

    def _make_room(self, new: Client, origin: str) -> None:
        victim = self._oldest(origin, new) or self._oldest_of_all(new)
        self._drop(new if victim.asked and self._keeps_asked else victim)

    def _drop(self, victim: Client) -> None:
        self._take(victim)
        self.dropped_total += 1
        victim.drop()

    def _oldest(self, origin: str, new: Client) -> Client | None:
        for where in (self._silent, self._asked):
            for client in where.get(origin, ()):
                if client is not new:
                    return client
        return None

    def _oldest_of_all(self, new: Client) -> Client:
        for where in (self._silent, self._asked):
            oldest = [
                one
                for of_origin in where.values()
                if (one := next((client for client in of_origin if client is not new), None))
            ]
            if oldest:
                return min(oldest, key=lambda client: client.number)
        return new


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
