"""State of each answer to Allocate: a reducer, like `grants`.

An answer is an *intent* until the kubelet starts the container; then it is *bound* to a grant of
that pod, and stays so however often the container restarts. It is released when both the kubelet's
records and the cgroups show twice that the pod is gone; never by age, because a long image pull may
lie between Allocate and the first start. Any order of events is legal.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import assert_never

from nodeagent.ports.kubelet import (
    Allocation,
    AllocationState,
    Claim,
    ContainerLimits,
    Listing,
    Nonce,
    PodIdentity,
)
from nodeagent.ports.ledger import ContainerRef
from nodeagent.units import GrantId, PodUid


class Signal(StrEnum):
    """Input that moves an allocation from state to state."""

    STARTED = "started"
    """Its container starts in a grant."""
    GRANT_LOST = "grant_lost"
    """The grant ended, but the container may start again, as after a reboot or `sluice release`."""
    GONE = "gone"
    """The container will never start again."""


NEXT: Mapping[tuple[AllocationState, Signal], AllocationState] = MappingProxyType(
    {
        (AllocationState.INTENT, Signal.STARTED): AllocationState.BOUND,
        (AllocationState.INTENT, Signal.GONE): AllocationState.RELEASED,
        (AllocationState.BOUND, Signal.GRANT_LOST): AllocationState.INTENT,
        (AllocationState.BOUND, Signal.GONE): AllocationState.RELEASED,
    }
)


@dataclass(frozen=True, slots=True)
class KubeletRules:
    boot_id: str
    gone_apart_ns: int
    """Minimum time between the two looks that must both find a pod gone."""
    orphan_apart_ns: int
    """Minimum time between two such looks for answers that the kubelet never recorded."""


# --- events -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Intended:
    """These answers are durable and about to be given."""

    rows: tuple[Allocation, ...]


@dataclass(frozen=True, slots=True)
class StartAsked:
    """The kubelet starts the container that has these devices; its pod has been identified."""

    call: int
    resource: str
    device_ids: frozenset[str]
    pod: PodIdentity
    containers: tuple[Claim, ...]
    limits: ContainerLimits | None
    """Limits of the container; None if the pod has its grant already."""
    grant: GrantId
    """The id that a new grant will have; drawn outside."""
    at_unix_s: float
    occupied: frozenset[GrantId] = frozenset()
    """Grants with live processes."""
    beside: frozenset[PodUid] = frozenset()
    """Other pods to which the kubelet has given some of these devices, too, see identity.py."""


@dataclass(frozen=True, slots=True)
class GrantMade:
    call: int
    grant: GrantId


@dataclass(frozen=True, slots=True)
class GrantRefused:
    call: int
    reason: str


@dataclass(frozen=True, slots=True)
class GrantEnded:
    grant: GrantId


@dataclass(frozen=True, slots=True)
class Looked:
    """A look at the kubelet's records and the cgroups, all read without error."""

    nonces: frozenset[Nonce]
    """Allocations in the kubelet's checkpoint."""
    listings: tuple[Listing, ...]
    pods: frozenset[PodUid]
    """Pods that have a cgroup."""
    now_ns: int
    over: frozenset[PodUid] = frozenset()
    """Pods that are over according to the API server; for these one look is enough."""


@dataclass(frozen=True, slots=True)
class Restored:
    """The ledger's rows after a restart, and the containers' grants that still live."""

    rows: tuple[Allocation, ...]
    grants: tuple[tuple[GrantId, ContainerRef], ...]


Event = Intended | StartAsked | GrantMade | GrantRefused | GrantEnded | Looked | Restored


# --- instructions -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Commit:
    """Make these rows durable before carrying out what follows."""

    rows: tuple[Allocation, ...]


@dataclass(frozen=True, slots=True)
class MakeGrant:
    """Answered by GrantMade or GrantRefused."""

    call: int
    grant: GrantId
    limits: ContainerLimits
    container: ContainerRef


@dataclass(frozen=True, slots=True)
class EndGrant:
    grant: GrantId


@dataclass(frozen=True, slots=True)
class WriteCdi:
    nonce: Nonce
    grant: GrantId
    container: str
    driver: str


@dataclass(frozen=True, slots=True)
class RemoveCdi:
    nonce: Nonce


@dataclass(frozen=True, slots=True)
class KeepCdi:
    """Remove every file but these."""

    nonces: frozenset[Nonce]


@dataclass(frozen=True, slots=True)
class KeepDrivers:
    """Remove every generation of the driver's part but these and the newest."""

    drivers: frozenset[str]


@dataclass(frozen=True, slots=True)
class AnswerStart:
    call: int


@dataclass(frozen=True, slots=True)
class RefuseStart:
    """The start is refused; the kubelet retries."""

    call: int
    reason: str


Instruction = (
    Commit
    | MakeGrant
    | EndGrant
    | WriteCdi
    | RemoveCdi
    | KeepCdi
    | KeepDrivers
    | AnswerStart
    | RefuseStart
)


@dataclass(slots=True)
class _Starting:
    event: StartAsked
    ref: ContainerRef


@dataclass(frozen=True, slots=True)
class AllocationMemory:
    """The complete state of a book."""

    rules: KubeletRules
    rows: tuple[Allocation, ...]
    grants: tuple[tuple[GrantId, ContainerRef], ...]
    adopted_total: int
    starting: tuple[tuple[StartAsked, ContainerRef], ...]
    missed: tuple[tuple[str, int], ...]


class AllocationBook:
    def __init__(self, rules: KubeletRules) -> None:
        self._rules = rules
        self.rows: dict[Nonce, Allocation] = {}
        self.grants: dict[GrantId, ContainerRef] = {}
        """Grants of containers, until their end is requested."""
        self.adopted_total = 0
        """Answers that the kubelet has recorded and the ledger had lost."""
        self._starting: dict[int, _Starting] = {}
        self._missed: dict[str, int] = {}
        """Time in ns at which a grant or a nonce was first found missing."""

    def handle(self, event: Event, now_ns: int = 0) -> list[Instruction]:
        """Apply an event. Only Looked depends on the time, and it carries its own."""
        match event:
            case Intended():
                return self._intended(event)
            case StartAsked():
                return self._start_asked(event)
            case GrantMade():
                return self._grant_made(event)
            case GrantRefused():
                return self._grant_refused(event)
            case GrantEnded():
                return self._grant_ended(event)
            case Looked():
                return self._looked(event)
            case Restored():
                return self._restored(event)
            case _:
                assert_never(event)

    def memory(self) -> AllocationMemory:
        return AllocationMemory(
            self._rules,
            tuple(self.rows.values()),
            tuple(self.grants.items()),
            self.adopted_total,
            tuple((one.event, one.ref) for one in self._starting.values()),
            tuple(self._missed.items()),
        )

    @classmethod
    def of(cls, memory: AllocationMemory) -> AllocationBook:
        """Rebuild a book from its recorded state."""
        book = cls(memory.rules)
        book.rows = {row.nonce: row for row in memory.rows}
        book.grants = dict(memory.grants)
        book.adopted_total = memory.adopted_total
        book._starting = {event.call: _Starting(event, ref) for event, ref in memory.starting}
        book._missed = dict(memory.missed)
        return book

    # --- questions ----------------------------------------------------------------------------

    def grant_of(self, pod: PodUid, device_ids: Collection[str]) -> GrantId | None:
        wanted = tuple(sorted(device_ids))
        for grant, ref in self.grants.items():
            if ref.pod_uid == pod and ref.device_ids == wanted:
                return grant
        return None

    def bound(self) -> list[Allocation]:
        return [row for row in self.rows.values() if row.state is AllocationState.BOUND]

    def _keep_drivers(self) -> KeepDrivers:
        """Keep the generations that a live answer names. One that only the kubelet's checkpoint
        still names is written again when its container starts."""
        return KeepDrivers(frozenset(row.driver for row in self.rows.values() if row.driver))

    # --- answers ------------------------------------------------------------------------------

    def _intended(self, event: Intended) -> list[Instruction]:
        for row in event.rows:
            self.rows.setdefault(row.nonce, row)
        return []

    # --- starts -------------------------------------------------------------------------------

    def _start_asked(self, event: StartAsked) -> list[Instruction]:
        contradiction = self._contradiction(event)
        if contradiction:
            return [RefuseStart(event.call, contradiction)]
        self._adopt(event)
        same = self.grant_of(event.pod.uid, event.device_ids)
        out: list[Instruction] = []
        for grant, ref in list(self.grants.items()):
            if grant == same or not event.device_ids.intersection(ref.device_ids):
                continue
            if ref.pod_uid in event.beside:
                continue
            if grant in event.occupied:
                pod = f"{ref.namespace}/{ref.pod}" if ref.pod else f"pod {ref.pod_uid}"
                return [
                    RefuseStart(
                        event.call,
                        f"container {ref.container} of {pod} had these devices and still has"
                        " processes on the GPU",
                    )
                ]
            # The kubelet's checkpoint names every pod with the device, and an application container
            # gets it only when the init container is done. So the previous holder is over, even if
            # we did not see it end; only an init container of the same pod may run again.
            signal = Signal.GRANT_LOST if ref.pod_uid == event.pod.uid else Signal.GONE
            out += self._end(grant, signal)
        if same is not None:
            return out + self._bind(event, same)
        if event.limits is None:
            return [*out, RefuseStart(event.call, "its grant has just ended")]
        ref = ContainerRef(
            pod_uid=event.pod.uid,
            container="+".join(dict.fromkeys(one.container for one in event.containers)),
            device_ids=tuple(sorted(event.device_ids)),
            namespace=event.pod.namespace,
            pod=event.pod.name,
        )
        self._starting[event.call] = _Starting(event, ref)
        return [*out, MakeGrant(event.call, event.grant, event.limits, ref)]

    def _contradiction(self, event: StartAsked) -> str:
        """A contradiction between the kubelet's request and our records; empty if they agree."""
        for claim in event.containers:
            nonce, row = claim.nonce, self.rows.get(claim.nonce)
            if row is None:
                continue
            if row.device_ids != event.device_ids or row.resource != event.resource:
                return (
                    f"the kubelet's devices for allocation {nonce} differ from the requested ones"
                )
            if row.pod is not None and row.pod.uid != event.pod.uid:
                return (
                    f"allocation {nonce} is for pod {row.pod.uid}, the kubelet has pod"
                    f" {event.pod.uid}"
                )
        return ""

    def _adopt(self, event: StartAsked) -> None:
        for claim in event.containers:
            if claim.nonce not in self.rows:
                self.adopted_total += 1
                self.rows[claim.nonce] = Allocation(
                    claim.nonce,
                    event.resource,
                    event.device_ids,
                    self._rules.boot_id,
                    event.at_unix_s,
                    driver=claim.driver,
                )

    def _grant_made(self, event: GrantMade) -> list[Instruction]:
        starting = self._starting.pop(event.call, None)
        if starting is None:
            return [EndGrant(event.grant)]
        self.grants[event.grant] = starting.ref
        return self._bind(starting.event, event.grant)

    def _grant_refused(self, event: GrantRefused) -> list[Instruction]:
        if self._starting.pop(event.call, None) is None:
            return []
        return [RefuseStart(event.call, event.reason)]

    def _bind(self, event: StartAsked, grant: GrantId) -> list[Instruction]:
        changed = []
        for claim in event.containers:
            row = self.rows[claim.nonce]
            pod = event.pod if event.pod.name or row.pod is None else row.pod
            bound = replace(
                row,
                state=NEXT.get((row.state, Signal.STARTED), row.state),
                pod=pod,
                container=claim.container,
                grant=grant,
                boot_id=self._rules.boot_id,
                driver=claim.driver,  # The runtime is given what the checkpoint has.
            )
            if bound != row:
                self.rows[claim.nonce] = bound
                changed.append(bound)
        self._missed.pop(grant, None)
        commit = [Commit(tuple(changed))] if changed else []
        writes = [
            WriteCdi(claim.nonce, grant, claim.container, claim.driver)
            for claim in event.containers
        ]
        return [*commit, *writes, AnswerStart(event.call)]

    # --- the end ------------------------------------------------------------------------------

    def _end(self, grant: GrantId, signal: Signal) -> list[Instruction]:
        """End the grant. Its CDI file goes first, so that nothing starts in a grant that is
        ending."""
        del self.grants[grant]
        self._missed.pop(grant, None)
        return [*self._unbind(grant, signal), EndGrant(grant)]

    def _unbind(self, grant: GrantId, signal: Signal) -> list[Instruction]:
        changed = []
        out: list[Instruction] = []
        for row in [row for row in self.rows.values() if row.grant == grant]:
            after = replace(row, state=NEXT[row.state, signal], grant=None)
            changed.append(after)
            out.append(RemoveCdi(row.nonce))
            if after.state is AllocationState.RELEASED:
                del self.rows[row.nonce]
                self._missed.pop(row.nonce, None)
            else:
                self.rows[row.nonce] = after
        return [*out, Commit(tuple(changed))] if changed else out

    def _grant_ended(self, event: GrantEnded) -> list[Instruction]:
        if self.grants.pop(event.grant, None) is None:
            return []
        self._missed.pop(event.grant, None)
        return self._unbind(event.grant, Signal.GRANT_LOST)

    def _looked(self, event: Looked) -> list[Instruction]:
        out: list[Instruction] = []
        for grant, ref in list(self.grants.items()):
            gone = not _lives(ref, event)
            confirmed = gone and ref.pod_uid in event.over
            if confirmed or self._twice(grant, gone, event.now_ns, self._rules.gone_apart_ns):
                out += self._end(grant, Signal.GONE)
        orphans = []
        for nonce, row in list(self.rows.items()):
            if row.state is not AllocationState.INTENT:
                continue
            gone = nonce not in event.nonces
            if self._twice(nonce, gone, event.now_ns, self._rules.orphan_apart_ns):
                orphans.append(replace(row, state=NEXT[row.state, Signal.GONE]))
                del self.rows[nonce]
                self._missed.pop(nonce, None)
        commit = [Commit(tuple(orphans))] if orphans else []
        return [*out, *commit, self._keep_drivers()]

    def _twice(self, key: str, gone: bool, now_ns: int, apart_ns: int) -> bool:
        if not gone:
            self._missed.pop(key, None)
            return False
        return now_ns - self._missed.setdefault(key, now_ns) >= apart_ns > 0

    # --- after a restart ----------------------------------------------------------------------

    def _restored(self, event: Restored) -> list[Instruction]:
        self.grants = dict(event.grants)
        changed = []
        out: list[Instruction] = []
        for row in event.rows:
            if row.state is AllocationState.BOUND and row.grant not in self.grants:
                row = replace(row, state=NEXT[row.state, Signal.GRANT_LOST], grant=None)
                changed.append(row)
            self.rows[row.nonce] = row
            if row.state is AllocationState.BOUND and row.grant is not None:
                out.append(WriteCdi(row.nonce, row.grant, row.container, row.driver))
        kept = frozenset(row.nonce for row in self.bound())
        commit = [Commit(tuple(changed))] if changed else []
        return [*commit, KeepCdi(kept), self._keep_drivers(), *out]


def _lives(ref: ContainerRef, seen: Looked) -> bool:
    """True if either record has the pod: it has a cgroup, or the kubelet lists it with these
    devices."""
    if ref.pod_uid in seen.pods:
        return True
    held = frozenset(ref.device_ids)
    return any(
        one.device_ids & held
        and (not ref.pod or (one.namespace, one.pod) == (ref.namespace, ref.pod))
        for one in seen.listings
    )
