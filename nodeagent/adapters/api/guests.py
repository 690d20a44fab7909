"""Connections to the daemon's socket and their calls: limits per account, with connections reserved
for root.

This module has no sockets and no clock: times are arguments, and `drop` closes a connection.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from nodeagent.ports.clients import RefusalKind, Refused

MAX_CONNECTIONS: Final = 512
ROOM_FOR_ROOT: Final = 64
"""Connections that only root can use."""
MAX_PER_ACCOUNT: Final = 256
"""Connections per account; as many jobs of one user may wait for a grant (grants.max_waiting)."""
SILENT_S: Final = 10.0
"""Seconds until a connection without a request is closed; the command sends one at once."""
IDLE_S: Final = 60.0
"""Seconds until a connection is closed after its last answer."""
MAX_CALLS: Final = {"Watch": 16, "Trace": 8, "WatchEvents": 32, "CreateGrant": MAX_PER_ACCOUNT}
"""Concurrent calls per account; a snapshot for each watcher costs the daemon about 1 ms."""
MAX_CALLS_ELSE: Final = 32
MAX_OF_ALL: Final = {"Watch": 128, "Trace": 32}
"""Concurrent calls of all accounts together, root's excepted."""
CALLS_PER_S: Final = 100.0
CALLS_BURST: Final = 300.0
"""Calls of a burst; further ones are delayed to CALLS_PER_S."""
LONGEST_DELAY_S: Final = 5.0
_numbers = itertools.count(1)


@dataclass(slots=True, eq=False)
class Guest:
    account: int
    drop: Callable[[], object]
    since_s: float
    """Monotonic time in seconds at which it connected or its last answer was complete."""
    number: int = field(default_factory=lambda: next(_numbers))
    calls: int = 0
    called: bool = False


@dataclass(slots=True)
class _Bucket:
    tokens: float
    filled_s: float


class GuestBook:
    def __init__(self) -> None:
        self._here: set[Guest] = set()
        self._calls: Counter[tuple[int, str]] = Counter()
        self._buckets: dict[int, _Bucket] = {}
        self.turned_away_total = 0

    def __len__(self) -> int:
        return len(self._here)

    # --- connections ---

    def enter(self, account: int, drop: Callable[[], object], now_s: float) -> Guest | None:
        """Add a connection. Returns None if there are too many, and none of the account with the
        most is idle and can be closed."""
        count = Counter(guest.account for guest in self._here)
        others = len(self._here) - count[0]
        room = True
        if account == 0:
            room = len(self._here) < MAX_CONNECTIONS or self._push_out(0)
        elif count[account] >= MAX_PER_ACCOUNT:
            room = self._push_out(account)
        elif others >= MAX_CONNECTIONS - ROOM_FOR_ROOT:
            del count[0]
            biggest, most = count.most_common(1)[0]
            room = self._push_out(biggest if most > count[account] + 1 else account)
        if not room:
            self.turned_away_total += 1
            return None
        guest = Guest(account, drop, now_s)
        self._here.add(guest)
        return guest

    def leave(self, guest: Guest) -> None:
        self._here.discard(guest)

    def sweep(self, now_s: float) -> None:
        """Close the connections that are silent for too long."""
        for guest in list(self._here):
            limit_s = IDLE_S if guest.called else SILENT_S
            if guest.calls == 0 and now_s - guest.since_s > limit_s:
                self._here.discard(guest)
                guest.drop()
        full_s = CALLS_BURST / CALLS_PER_S + LONGEST_DELAY_S
        self._buckets = {
            account: bucket
            for account, bucket in self._buckets.items()
            if now_s - bucket.filled_s < full_s
        }

    def _push_out(self, account: int) -> bool:
        idle = [one for one in self._here if one.account == account and one.calls == 0]
        if not idle:
            return False
        victim = min(idle, key=lambda guest: guest.number)
        self._here.discard(victim)
        victim.drop()
        return True

    # --- calls ---

    def begin(self, guest: Guest, method: str, now_s: float) -> float:
        """Count a call and return its delay in seconds; `end` follows. Raises Refused."""
        account = guest.account
        guest.called = True
        if account != 0:
            most = MAX_CALLS.get(method, MAX_CALLS_ELSE)
            if self._calls[account, method] >= most:
                raise Refused(
                    RefusalKind.EXHAUSTED,
                    f"uid {account}: too many concurrent {method} calls (limit {most})",
                )
            of_all = MAX_OF_ALL.get(method)
            if of_all is not None and of_all <= sum(
                number for (who, what), number in self._calls.items() if what == method and who
            ):
                raise Refused(
                    RefusalKind.EXHAUSTED,
                    f"too many concurrent {method} calls on this node (limit {of_all})",
                )
        delay_s = self._delay_s(account, now_s)
        guest.calls += 1
        self._calls[account, method] += 1
        return delay_s

    def end(self, guest: Guest, method: str, now_s: float) -> None:
        guest.calls -= 1
        guest.since_s = now_s
        self._calls[guest.account, method] -= 1
        if self._calls[guest.account, method] <= 0:
            del self._calls[guest.account, method]

    def _delay_s(self, account: int, now_s: float) -> float:
        if account == 0:
            return 0.0
        bucket = self._buckets.setdefault(account, _Bucket(CALLS_BURST, now_s))
        bucket.tokens = min(
            CALLS_BURST, bucket.tokens + max(0.0, now_s - bucket.filled_s) * CALLS_PER_S
        )
        bucket.filled_s = now_s
        delay_s = max(0.0, (1.0 - bucket.tokens) / CALLS_PER_S)
        if delay_s > LONGEST_DELAY_S or math.isnan(delay_s):
            raise Refused(
                RefusalKind.EXHAUSTED,
                f"uid {account}: rate limit of {CALLS_PER_S:g} calls per second exceeded",
            )
        bucket.tokens -= 1.0
        return delay_s
