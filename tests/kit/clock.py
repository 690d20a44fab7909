"""A clock that stands until a test moves it."""

from __future__ import annotations

from nodeagent.units import NS_PER_S, Nanoseconds


class ManualClock:
    """`nodeagent.ports.Clock`; both of its times move together."""

    def __init__(self, now_ns: int = 10**12) -> None:
        self.now_ns = now_ns

    def monotonic_ns(self) -> Nanoseconds:
        return Nanoseconds(self.now_ns)

    def unix_s(self) -> float:
        return self.now_ns / NS_PER_S

    def advance(self, seconds: float) -> None:
        self.now_ns += int(seconds * NS_PER_S)
