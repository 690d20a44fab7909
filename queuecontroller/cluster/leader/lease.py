"""Who leads: a Lease in the API server, taken and kept by conditional writes.

Pure: a document and a monotonic time go in, what to write comes out. The holder counts its time
from the moment before it asked for the renewal that was granted, by its own clock, and stops well
before it is over; the others count from the moment they first saw the renewal, by theirs. So clocks
need not agree, only run at about the same speed.

A holder whose time was over for a moment has left things undone in it. It leads again in a new
term, whoever held the lease meanwhile, and so begins anew from the objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

MARGIN: Final = 2 / 3
"""The part of its lease for which a holder that cannot renew still writes. What it has sent by then
is refused or stored before the lease ends."""
RENEWALS: Final = 5
"""How often it renews in one lease."""


@dataclass(frozen=True, slots=True)
class Write:
    """The Lease as it is to be stored; where there is one, over exactly this version."""

    spec: Mapping[str, Any]
    resource_version: str = ""
    is_renewal: bool = False
    """Of a lease that was held when it was looked at."""


class Elector:
    def __init__(self, identity: str, lease_s: float) -> None:
        self.identity = identity
        self.lease_s = lease_s
        self.term = 0
        """How often the lease has changed hands, of the time we hold it."""
        self._held_until_s: float | None = None
        self._seen: tuple[object, object] = (None, None)
        self._seen_s = 0.0

    @property
    def retry_s(self) -> float:
        return self.lease_s / RENEWALS

    @property
    def holder(self) -> str:
        """Who else held it when it was last looked at; empty: nobody, or we."""
        return str(self._seen[0] or "")

    def leads(self, now_s: float) -> bool:
        return self._held_until_s is not None and now_s < self._held_until_s

    def look(self, lease: Mapping[str, Any] | None, now_s: float, stamp: str) -> Write | None:
        """What to write now that the Lease is this; None: somebody else leads. `stamp` is the wall
        clock's time, for people to read."""
        if lease is None:
            return Write(self._spec(None, 0, stamp))
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        version = str(lease["metadata"].get("resourceVersion") or "")
        terms = int(spec.get("leaseTransitions") or 0)
        if holder == self.identity:
            if self.leads(now_s):
                return Write(self._spec(spec.get("acquireTime"), terms, stamp), version, True)
            return Write(self._spec(None, terms + 1, stamp), version)
        self.lost()
        seen = (holder, spec.get("renewTime"))
        if seen != self._seen:
            self._seen, self._seen_s = seen, now_s
        length_s = float(spec.get("leaseDurationSeconds") or self.lease_s)
        if holder and now_s < self._seen_s + length_s:
            return None
        return Write(self._spec(None, terms + 1, stamp), version)

    def _spec(self, acquired: object, terms: int, stamp: str) -> dict[str, Any]:
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": max(1, round(self.lease_s)),
            "acquireTime": acquired or stamp,
            "renewTime": stamp,
            "leaseTransitions": terms,
        }

    def written(self, write: Write, asked_s: float, now_s: float) -> None:
        """It was stored; `asked_s` is when it was asked for. A renewal that comes too late renews
        nothing."""
        if write.is_renewal and not self.leads(now_s):
            return
        self.term = int(write.spec["leaseTransitions"])
        self._held_until_s = asked_s + self.lease_s * MARGIN

    def lost(self) -> None:
        self._held_until_s = None

    def released(self) -> Mapping[str, Any]:
        """The spec with which it is given back: the next need not wait."""
        return {"holderIdentity": "", "leaseDurationSeconds": 1}
