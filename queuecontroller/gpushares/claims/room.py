"""Free devices for the claims of queued pods: what allocated claims take, and what the pods of
admitted workloads will take that have no claims yet.

A pod's devices are searched for on one node, as kube-scheduler does. Which of several nodes and
devices it will choose is not known: a workload reserves those found here until its pods' claims are
allocated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from queuecontroller.gpushares.claims.in_use import (
    AllocatedClaim,
    DevicesInUse,
    Requests,
    Use,
)
from queuecontroller.gpushares.claims.published import Published
from queuecontroller.scheduler.model.objects import PlacedPods, PodSet, Workload, WorkloadKey
from queuecontroller.scheduler.placement.topology.devices import (
    CLAIMED,
    Picks,
    Places,
    Short,
    each_of,
)
from queuecontroller.scheduler.placement.topology.ground import Amounts
from sluicecommon.kubernetes.reflector import Change, Changed, Removed

NOT_RECEIVED: Final = "which devices claims hold already"
MAX_PODS: Final = 4096
"""Pods per pod set; more would block the scheduling loop for over a second."""


class Pick(NamedTuple):
    """Devices of one pod that is not there yet."""

    node: str
    uses: tuple[Use, ...]


class PodOf(NamedTuple):
    """The workload and the pod set of a pod."""

    workload: WorkloadKey
    pod_set: str


class AllocatedClaims:
    """ResourceClaims of the cluster, as every replica follows them."""

    def __init__(self) -> None:
        self.known: dict[str, AllocatedClaim] = {}
        self.of_pod: dict[str, set[str]] = {}
        """Claims with devices by pod."""
        self.synced = False
        self.on_change: Callable[[str, AllocatedClaim | None, AllocatedClaim | None], None] = (
            lambda key, before, after: None
        )
        """Called with each claim that was allocated, changed or released; without a name once the
        list is complete."""

    def changed(self, change: Change[AllocatedClaim]) -> None:
        match change:
            case Changed(item):
                self._put(item.key, item.value if item.value.uses else None)
            case Removed(key):
                self._put(key, None)
            case _:
                self.synced = True
                self.on_change("", None, None)

    def _put(self, key: str, after: AllocatedClaim | None) -> None:
        before = self.known.pop(key, None)
        for pod in before.pods if before is not None else ():
            self.of_pod[pod].discard(key)
            if not self.of_pod[pod]:
                del self.of_pod[pod]
        if after is not None:
            self.known[key] = after
            for pod in after.pods:
                self.of_pod.setdefault(pod, set()).add(key)
        if before != after:
            self.on_change(key, before, after)


@dataclass(slots=True)
class _Held:
    """Devices that a workload reserves for pods without claims."""

    picks: dict[str, list[Pick]] = field(default_factory=dict)
    """Devices by pod set."""
    seen: set[str] = field(default_factory=set)
    """Pods that have their devices."""
    replaces: WorkloadKey | None = None
    """The slice of an elastic job whose pods it took over."""


class ClaimedDevices:
    """Implementation of the port `placement.topology.devices.Devices`."""

    def __init__(
        self,
        allocated: AllocatedClaims,
        pods_of: Callable[[WorkloadKey], Collection[str]],
        pod: Callable[[str], PodOf | None],
    ) -> None:
        """`pods_of`: pods of an admitted workload; `pod`: the workload of a pod, if it has any."""
        self._allocated = allocated
        self._pods_of = pods_of
        self._pod = pod
        self._in_use = DevicesInUse()
        self._held: dict[WorkloadKey, _Held] = {}
        self._waiting: set[WorkloadKey] = set()
        """Workloads of which pods have no claims yet."""
        self._ended: set[str] = set()
        """Claims whose pod has ended: Kubernetes will release their devices."""
        self.changes = 0
        self.freed = 0
        self.listener: Callable[[], None] = lambda: None
        """Called when claims may have released devices."""
        for claim in allocated.known.values():
            self._add(claim.uses)
        allocated.on_change = self._claim_changed

    @property
    def missing_input(self) -> str:
        return "" if self._allocated.synced else NOT_RECEIVED

    def put_devices(self, devices: Iterable[Published]) -> None:
        """Replace the published devices."""
        self._in_use.put(devices)
        self._note_freed()

    def _note_freed(self) -> None:
        self.changes += 1
        self.freed += 1

    def _claim_changed(
        self, key: str, before: AllocatedClaim | None, after: AllocatedClaim | None
    ) -> None:
        if key in self._ended:
            if after is not None and before is not None and after.uses == before.uses:
                return
            self._ended.discard(key)
        elif before is not None:
            self._add(before.uses, -1)
        if after is not None:
            self._add(after.uses)
            for pod in after.pods:
                if (found := self._pod(pod)) is not None:
                    self._settle(found.workload)
        self.changes += 1
        if before is not None or after is None:
            self._note_freed()
            self.listener()

    def pod_ended(self, pod: str) -> None:
        """Count the devices of a queued pod as free, which has ended or is gone. Otherwise the next
        workload would need a victim besides the one whose quota it got."""
        for key in self._allocated.of_pod.get(pod, ()):
            claim = self._allocated.known[key]
            if claim.pods == (pod,) and key not in self._ended:
                self._ended.add(key)
                self._add(claim.uses, -1)
                self._note_freed()
                self.listener()

    def _add(self, uses: Iterable[Use], sign: int = 1) -> None:
        for use in uses:
            self._in_use.add(use, sign)

    def _settle(self, key: WorkloadKey) -> None:
        """Release what is reserved for pods that have their claims by now."""
        held = self._held.get(key)
        if held is None or key not in self._waiting:
            return
        for pod in self._all_pods(key, held):
            claims = self._allocated.of_pod.get(pod)
            found = self._pod(pod)
            if not claims or pod in held.seen or found is None:
                continue
            held.seen.add(pod)
            picks = held.picks.get(found.pod_set)
            if picks:
                uses = self._allocated.known[min(claims)].uses
                node = self._in_use.node_of(uses[0].device)
                same = (at for at, one in enumerate(picks) if one.node == node)
                self._add(picks.pop(next(same, -1)).uses, -1)
                self.changes += 1
        if not any(held.picks.values()):
            self._waiting.discard(key)

    def _all_pods(self, key: WorkloadKey, held: _Held | None) -> list[str]:
        more = held.replaces if held is not None else None
        return [*self._pods_of(key), *(self._pods_of(more) if more is not None else ())]

    # -- port: called by the room -----------------------------------------------------------------

    def each(self, workload: Workload, pod_set: PodSet) -> Amounts:
        return each_of(pod_set)

    def apart(self, workload: Workload, pod_set: PodSet) -> Amounts:
        return {}  # Without a topology kube-scheduler chooses the nodes for everything else.

    def trial(self, workload: Workload, gone: Collection[WorkloadKey]) -> ClaimsTrial:
        for key in list(self._waiting):
            self._settle(key)
        return ClaimsTrial(self, workload, gone)

    def hold(self, key: WorkloadKey, places: Places, picks: Picks = None) -> None:
        self._drop(key)
        if isinstance(picks, _Held):
            # Pods of before an eviction end; those of now need devices besides.
            picks.seen.update(one for one in self._pods_of(key) if one in self._allocated.of_pod)
            self._held[key] = picks
            self._waiting.add(key)
            for each in picks.picks.values():
                for one in each:
                    self._add(one.uses)
            self.changes += 1

    def release(self, key: WorkloadKey) -> None:
        if self._drop(key):
            self._note_freed()

    def _drop(self, key: WorkloadKey) -> bool:
        held = self._held.pop(key, None)
        self._waiting.discard(key)
        for each in held.picks.values() if held is not None else ():
            for one in each:
                self._add(one.uses, -1)
        return held is not None

    def restored(self, workload: Workload) -> None:
        """Reserve devices for the pods of an admitted workload that have none yet, once: an earlier
        leader's choice is not known."""
        key, admission = workload.key, workload.admission
        if admission is None or not any(one.device_requests for one in workload.pod_sets):
            return
        if key in self._held:
            self._shrink(key, {one.name: one.count for one in admission.pod_sets})
            return
        have: Counter[str] = Counter()
        for pod in self._pods_of(key):
            found = self._pod(pod)
            if found is not None and pod in self._allocated.of_pod:
                have[found.pod_set] += 1
        trial = self.trial(workload, ())
        try:
            for one in admission.pod_sets:
                done = have[one.name] + workload.reclaimable_pods.get(one.name, 0)
                if trial.wants(one.name) and one.count > done:
                    nodes = dict.fromkeys(self._in_use.nodes(), one.count)
                    trial.place(one.name, nodes, one.count - done)
            picks = trial.picks()
        finally:
            trial.undo()
        self.hold(key, {}, picks if picks is not None else _Held())

    def _shrink(self, key: WorkloadKey, counts: Mapping[str, int]) -> None:
        held = self._held[key]
        for name, picks in held.picks.items():
            while len(picks) > counts.get(name, 0):
                self._add(picks.pop().uses, -1)
                self._note_freed()

    def nodes_of(self, places: Collection[PlacedPods]) -> Mapping[str, int]:
        return {}

    def holders(self) -> Collection[WorkloadKey]:
        return self._held.keys()

    def holds(self, key: WorkloadKey) -> bool:
        return key in self._held

    def in_the_way(self, picks: Picks, gone: Collection[WorkloadKey]) -> set[WorkloadKey]:
        """Return those of the workloads that hold devices on the nodes of the picks."""
        if not isinstance(picks, _Held):
            return set()
        nodes = {one.node for each in picks.picks.values() for one in each}
        return {
            key
            for key in gone
            if any(self._in_use.node_of(use.device) in nodes for use in self._uses_of(key))
        }

    def _uses_of(self, key: WorkloadKey) -> list[Use]:
        """Uses of one workload, reserved and allocated."""
        return [*self._reserved(key), *self._allocated_to({key})]

    def _reserved(self, key: WorkloadKey) -> Iterable[Use]:
        held = self._held.get(key)
        every = held.picks.values() if held is not None else ()
        return [use for each in every for one in each for use in one.uses]

    def _allocated_to(self, gone: Collection[WorkloadKey]) -> list[Use]:
        """Uses of the claims that end with these workloads."""
        pods = {pod for key in gone for pod in self._all_pods(key, self._held.get(key))}
        claims = {claim for pod in pods for claim in self._allocated.of_pod.get(pod, ())}
        claims -= self._ended
        known = [self._allocated.known[one] for one in claims]
        return [use for claim in known if pods.issuperset(claim.pods) for use in claim.uses]


class ClaimsTrial:
    def __init__(
        self, room: ClaimedDevices, workload: Workload, gone: Collection[WorkloadKey]
    ) -> None:
        self._in_use = room._in_use
        self._requests = {
            one.name: one.device_requests for one in workload.pod_sets if one.device_requests
        }
        self._replaces = workload.replaces
        self._placed: dict[str, list[Pick]] = {}
        self._gone: list[Use] = []
        if self._requests:
            self._gone = [use for key in gone for use in room._reserved(key)]
            self._gone += room._allocated_to(gone)
        for use in self._gone:
            self._in_use.add(use, -1)

    def undo(self) -> None:
        for each in self._placed.values():
            for one in each:
                self._add(one.uses, -1)
        self._add(self._gone)

    def _add(self, uses: Iterable[Use], sign: int = 1) -> None:
        for use in uses:
            self._in_use.add(use, sign)

    def wants(self, pod_set: str) -> bool:
        return pod_set in self._requests

    def named(self, pod_set: str) -> str:
        return CLAIMED

    def count(self, pod_set: str, node: str, most: int, after: str = "") -> int:
        made: list[Use] = []
        try:
            if after in self._requests:
                first = self._in_use.fit(node, self._requests[after])
                if first is None:
                    return 0
                self._add(first)
                made += first
            for number in range(min(most, MAX_PODS)):
                found = self._in_use.fit(node, self._requests[pod_set])
                if found is None:
                    return number
                if not found:
                    break
                self._add(found)
                made += found
            return most
        finally:
            self._add(made, -1)

    def place(
        self, pod_set: str, limits: Mapping[str, int], count: int
    ) -> Mapping[str, int] | Short:
        requests: Requests = self._requests[pod_set]
        placed = self._placed.setdefault(pod_set, [])
        found: Counter[str] = Counter()
        left = count
        for node, limit in limits.items():
            while left and found[node] < limit:
                uses = self._in_use.fit(node, requests)
                if uses is None:
                    break
                if not uses:
                    found[node] += min(left, limit - found[node])
                    left = count - found.total()
                    break
                self._add(uses)
                placed.append(Pick(node, uses))
                found[node] += 1
                left -= 1
        if left:
            text = f"free devices for the claims of {count - left} of {count} pods"
            return Short(f"pod set {pod_set}: {text} on {len(limits)} nodes")
        return +found

    def why_not(self, pod_set: str, nodes: Collection[str]) -> str:
        for node in nodes:
            if self._in_use.fit(node, self._requests[pod_set]) is None:
                return f"node {node} has no free devices for the claims"
        return ""

    def places(self) -> Places:
        return {}

    def picks(self) -> _Held | None:
        if not self._requests:
            return None
        picks = {name: list(each) for name, each in self._placed.items()}
        return _Held(picks, replaces=self._replaces)
