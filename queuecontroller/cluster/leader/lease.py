"""Leader election by a Lease in the API server that is acquired and renewed by conditional writes.

No I/O: it takes a document and a monotonic time, and returns what to write. The holder's lease
counts from the moment before it sent a granted renewal, by its own clock, and it stops well before
the end; other replicas count from the moment they first saw the renewal, by theirs. So clocks need
not agree, only run at about the same speed.

A holder whose lease ran out for a moment has missed changes. It leads again only in a new term,
even if no other replica held the lease meanwhile, and starts from the objects again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

MARGIN: Final = 2 / 3
"""Fraction of the lease in which a holder that cannot renew still writes. Requests sent by then are
refused or stored before the lease ends."""
RENEWALS: Final = 5
"""Renewals per lease duration."""


@dataclass(frozen=True, slots=True)
class Write:
    """A Lease to write; if one exists, only over this resource version."""

    spec: Mapping[str, Any]
    resource_version: str = ""
    is_renewal: bool = False
    """True for a renewal of a lease that was held when it was read."""


class Elector:
    def __init__(self, identity: str, lease_s: float) -> None:
        self.identity = identity
        self.lease_s = lease_s
        self.term = 0
        """Number of transitions of the lease as of the time it was acquired here."""
        self._held_until_s: float | None = None
        self._seen: tuple[object, object] = (None, None)
        self._seen_s = 0.0

    @property
    def retry_s(self) -> float:
        return self.lease_s / RENEWALS

    @property
    def holder(self) -> str:
        """Identity of the other replica that held the lease when it was last read; "" if none
        did."""
        return str(self._seen[0] or "")

    def leads(self, now_s: float) -> bool:
        return self._held_until_s is not None and now_s < self._held_until_s

    def look(self, lease: Mapping[str, Any] | None, now_s: float, stamp: str) -> Write | None:
        """Return what to write after reading the Lease; None: another replica leads.

        `stamp` is the wall clock time, which is only shown.
        """
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

    def written(self, write: Write, sent_s: float, now_s: float) -> None:
        """Record that a write was stored; `sent_s` is when it was sent. A late renewal has no
        effect."""
        if write.is_renewal and not self.leads(now_s):
            return
        self.term = int(write.spec["leaseTransitions"])
        self._held_until_s = sent_s + self.lease_s * MARGIN

    def lost(self) -> None:
        self._held_until_s = None

    def released(self) -> Mapping[str, Any]:
        """Return the spec that releases the lease, so the next leader need not wait."""
        return {"holderIdentity": "", "leaseDurationSeconds": 1}
