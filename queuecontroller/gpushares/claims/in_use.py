"""Published devices, and what claims take of each: whole devices, capacities of shared ones, and
the counters of the cards that they are parts of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from queuecontroller.gpushares.claims.cel import quantity
from queuecontroller.gpushares.claims.cel_parse import CelError
from queuecontroller.gpushares.claims.published import Published, qualified, rounded
from queuecontroller.scheduler.model.objects import DeviceChoice, DeviceId
from sluicecommon.budget import Budget, BudgetSpent

MAX_STEPS: Final = 2_000
"""Devices that are tried for one pod on one node."""
MAX_DEVICES: Final = 128
"""Devices per pod that are searched for."""
MAX_RESULTS: Final = 32
"""Devices per claim; the limit is the one of the Kubernetes API."""
Requests = Sequence[Sequence[DeviceChoice]]
"""Requests of one pod; any choice of each is enough."""
Name = tuple[str, str]
"""Domain and name of a capacity."""


class Use(NamedTuple):
    """One device as a claim takes it."""

    device: DeviceId
    consumed: tuple[tuple[Name, int], ...] = ()
    """Capacities, in thousandths; empty: all of the device."""


class AllocatedClaim(NamedTuple):
    """Facts that are kept of a ResourceClaim."""

    pods: tuple[str, ...]
    """NAMESPACE/NAME of the pods that it is for."""
    uses: tuple[Use, ...]


def read_claim(document: Any) -> AllocatedClaim:
    """Read a ResourceClaim. Access for administration takes nothing."""
    head, status = document["metadata"], document.get("status") or {}
    owners = (one for one in head.get("ownerReferences") or () if one.get("kind") == "Pod")
    users = (one for one in status.get("reservedFor") or () if one.get("resource") == "pods")
    names = dict.fromkeys(str(one.get("name")) for one in (*owners, *users))
    devices = (status.get("allocation") or {}).get("devices") or {}
    uses = []
    for one in devices.get("results") or ():
        if not one.get("adminAccess"):
            driver, pool, name = (str(one.get(key)) for key in ("driver", "pool", "device"))
            uses.append(Use((driver, pool, name), _consumed(one, driver)))
    return AllocatedClaim(tuple(f"{head.get('namespace')}/{one}" for one in names), tuple(uses))


def _consumed(result: Any, driver: str) -> tuple[tuple[Name, int], ...]:
    given = result.get("consumedCapacity") or {}
    try:
        return tuple(
            (qualified(key, driver), quantity(value).thousandths) for key, value in given.items()
        )
    except CelError:
        return ()  # The API server stores no such quantity.


class DevicesInUse:
    def __init__(self) -> None:
        self._known: dict[DeviceId, Published] = {}
        self._on: dict[str, list[Published]] = {}
        self._takers: Counter[DeviceId] = Counter()
        self._consumed: Counter[tuple[DeviceId, Name]] = Counter()
        self._counted: Counter[tuple[str, str, str, str]] = Counter()
        """Used counters by driver, pool, set and name, in thousandths."""

    def put(self, devices: Iterable[Published]) -> None:
        """Replace the published devices."""
        self._known = {one.identity: one for one in devices}
        self._on = {}
        for one in self._known.values():
            self._on.setdefault(one.node, []).append(one)
        self._counted.clear()
        for identity, takers in self._takers.items():
            if takers and identity in self._known:
                self._count(self._known[identity], 1)

    def node_of(self, device: DeviceId) -> str:
        """Return the node of a device; empty: none, or it is not published."""
        known = self._known.get(device)
        return known.node if known is not None else ""

    def nodes(self) -> list[str]:
        """Return the nodes that have devices."""
        return sorted(one for one in self._on if one)

    def add(self, use: Use, sign: int = 1) -> None:
        """Note a use, or with a sign of -1 its end."""
        before = self._takers[use.device]
        self._takers[use.device] = before + sign
        known = self._known.get(use.device)
        if known is not None and (before == 0) != (before + sign == 0):
            self._count(known, sign)
        for name, amount in use.consumed:
            self._consumed[use.device, name] += sign * amount

    def _count(self, one: Published, sign: int) -> None:
        driver, pool, _ = one.identity
        for group, name, amount in one.counters:
            self._counted[driver, pool, group, name] += sign * amount

    def fit(self, node: str, requests: Requests) -> tuple[Use, ...] | None:
        """Find devices on a node for all requests of a pod; None: there are none. No uses: finding
        out takes too long, kube-scheduler decides."""
        if sum(max(one.count for one in each) for each in requests) > MAX_DEVICES:
            return ()
        on = [*self._on.get(node, ()), *(self._on.get("", ()) if node else ())]
        try:
            return self._fit(on, requests, Budget(MAX_STEPS))
        except BudgetSpent:
            return ()

    def _fit(
        self, on: Sequence[Published], requests: Requests, budget: Budget
    ) -> tuple[Use, ...] | None:
        if not requests:
            return ()
        for choice in requests[0]:
            if choice.count > MAX_RESULTS:
                continue
            there = [one for one in on if one.identity in choice.devices]
            found = self._take(there, 0, choice.count, choice, (on, requests[1:], budget))
            if found is not None:
                return found
        return None

    def _take(
        self,
        there: Sequence[Published],
        begin: int,
        count: int,
        choice: DeviceChoice,
        rest: tuple[Sequence[Published], Requests, Budget],
    ) -> tuple[Use, ...] | None:
        """Take `count` of the devices from a place in their order, and those of the rest."""
        if not count:
            return self._fit(*rest)
        for at in range(begin, len(there)):
            rest[2].spend()
            one = there[at]
            use = self._use_of(one, choice)
            if use is None:
                continue
            self.add(use)
            try:
                again = at if one.device.shared else at + 1
                found = self._take(there, again, count - 1, choice, rest)
            finally:
                self.add(use, -1)
            if found is not None:
                return (use, *found)
        return None

    def _use_of(self, one: Published, choice: DeviceChoice) -> Use | None:
        """The use of a device by a request; None: it is not free, or too small."""
        identity = one.identity
        takers = self._takers[identity]
        if takers and not one.device.shared:
            return None
        driver, pool, _ = identity
        for group, name, amount in () if takers else one.counters:
            total = one.totals.get((group, name), 0)
            if self._counted[driver, pool, group, name] + amount > total:
                return None
        asked = {qualified(key, driver): amount for key, amount in choice.capacity}
        consumed = []
        for domain, amounts in one.device.capacity.items():
            for key, has in amounts.items():
                policy = one.policies[domain, key]
                wanted = asked.pop((domain, key), policy.default)
                taken = rounded(has.thousandths if wanted is None else wanted, policy)
                used = self._consumed[identity, (domain, key)]
                if taken is None or used + taken > has.thousandths:
                    return None
                if one.device.shared:
                    consumed.append(((domain, key), taken))
        if asked:
            return None  # It lacks a capacity.
        return Use(identity, tuple(consumed))
