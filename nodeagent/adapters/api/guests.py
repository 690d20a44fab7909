"""Who is connected to the daemon's socket and what they have asked: limits for each account, with
room left for root.

No sockets and no clock here: times are arguments, and `drop` ends a connection.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from nodeagent.ports.clients import RefusalKind, Refused

MOST_CONNECTIONS: Final = 512
ROOM_FOR_ROOT: Final = 64
"""Of them, which nobody else gets."""
MOST_PER_ACCOUNT: Final = 256
"""As many jobs of one user may wait for a grant (grants.max_waiting)."""
SILENT_S: Final = 10.0
"""A connection without a request is dropped: the command sends one at once."""
IDLE_S: Final = 60.0
"""The same after its last answer."""
MOST_CALLS: Final = {"Watch": 16, "Trace": 8, "WatchEvents": 32, "CreateGrant": MOST_PER_ACCOUNT}
"""Of one account at the same time; a snapshot for each watcher costs the daemon about 1 ms."""
MOST_CALLS_ELSE: Final = 32
MOST_OF_ALL: Final = {"Watch": 128, "Trace": 32}
"""Of all accounts but root's together."""
CALLS_PER_S: Final = 100.0
CALLS_BURST: Final = 300.0
"""What comes faster waits."""
LONGEST_DELAY_S: Final = 5.0
_numbers = itertools.count(1)


@dataclass(slots=True, eq=False)
class Guest:
    account: int
    drop: Callable[[], object]
    since_s: float
    """When it came, or when its last answer was complete."""
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
        """None: there is no room, also not by ending an idle connection of who has more."""
        count = Counter(guest.account for guest in self._here)
        others = len(self._here) - count[0]
        room = True
        if account == 0:
            room = len(self._here) < MOST_CONNECTIONS or self._push_out(0)
        elif count[account] >= MOST_PER_ACCOUNT:
            room = self._push_out(account)
        elif others >= MOST_CONNECTIONS - ROOM_FOR_ROOT:
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
        """End the connections that say nothing."""
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
        """How long the call has to wait, in s; `end` follows. Raises Refused."""
        account = guest.account
        guest.called = True
        if account != 0:
            most = MOST_CALLS.get(method, MOST_CALLS_ELSE)
            if self._calls[account, method] >= most:
                raise Refused(
                    RefusalKind.EXHAUSTED, f"uid {account} has {most} calls of {method} already"
                )
            of_all = MOST_OF_ALL.get(method)
            if of_all is not None and of_all <= sum(
                number for (who, what), number in self._calls.items() if what == method and who
            ):
                raise Refused(RefusalKind.EXHAUSTED, f"{of_all} calls of {method} run already")
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
            raise Refused(RefusalKind.EXHAUSTED, f"uid {account} asks too often")
        bucket.tokens -= 1.0
        return delay_s
