"""The AdmissionCheck `sluice.dev/placement`: finds nodes with the GPU shares that a Workload
requests. For clusters in which Kueue itself assigns quota. No I/O.

A Ready answer reserves the shares. The reservation lasts as long as the Workload holds quota,
except for pods whose grants the nodes report: those are counted on the node. It is not stored: a
Ready answer names nodes and GPUs, and the next leader makes the reservation again from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from queuecontroller.cluster.admissionchecks.states import (
    Answer,
    State,
    checks_of,
    state_of,
    tries_of,
)
from queuecontroller.cluster.cache.objects import Document, has_condition, is_leaving
from queuecontroller.kueueapi.manifests.kueue import read_flavor
from queuecontroller.kueueapi.manifests.workloads import read_workload
from queuecontroller.scheduler.model.objects import PodSet, ResourceFlavor, Workload
from queuecontroller.scheduler.placement.capacity import NodeCapacity
from queuecontroller.scheduler.placement.choose import (
    Chosen,
    NoPlace,
    PodToPlace,
    Topology,
    place,
    why_infeasible,
)
from queuecontroller.scheduler.placement.request import AskError
from queuecontroller.scheduler.placement.stock import Stock
from queuecontroller.state.objects.asks import ask_of, pod_of, topology_of
from sluicecommon.hami.names import USE_UUID
from sluicecommon.reader import ManifestError

CONTROLLER: Final = "sluice.dev/placement"
PLACED_FOR: Final = "sluice.dev/placed-for"
"""Label of pods: the UID of the Workload that their shares are reserved for."""
POD_SET: Final = "sluice.dev/pod-set"
"""Label of pods: their pod set in that Workload."""
HOSTNAME: Final = "kubernetes.io/hostname"
FIRST_S: Final = 10
"""Seconds to requeue after the first Retry; doubled with each further one. Shares come free every
second, and Kueue's own queueing adds to it."""
LONGEST_S: Final = 300
MAX_PODS: Final = 4096
"""Per Workload; more would block the loop that answers all Workloads for over a second."""
NO_NODES: Final = "No node has reported its GPUs yet"
NOT_ALL: Final = "Some nodes may not have reported their GPUs yet"
NEVER: Final = "Too large for every node it may use, even if empty"
_NOT_NEEDED: Final = "No GPU shares are requested"

Seen = Mapping[tuple[str, str], int]
"""Number of pods whose grants the nodes report, by pod set and node."""


@dataclass(slots=True)
class _Reservation:
    chosen: list[Chosen]
    held: dict[str, Chosen] = field(default_factory=dict)
    """Reservations of pods that the nodes do not report yet; by pod."""


@dataclass(frozen=True, slots=True)
class _Requested:
    pods: tuple[PodToPlace, ...]
    topology: Topology


class Placer:
    def __init__(self) -> None:
        self.stock = Stock()
        self._empty: Stock | None = None
        """The nodes without any grants; None if they must be built again because nodes changed."""
        self._capacities: dict[str, NodeCapacity] = {}
        self._reservations: dict[str, _Reservation] = {}
        """Reservations by the Workload's UID."""

    def follow(self, nodes: Mapping[str, NodeCapacity]) -> bool:
        """Take in the reports of all usable nodes; returns True if anything has changed."""
        before = self.stock.changes
        for name in self._capacities.keys() - nodes.keys():
            self.stock.forget(name)
        for name, capacity in nodes.items():
            if self._capacities.get(name) is not capacity:
                self.stock.report(name, capacity)
        self._capacities = dict(nodes)
        if self.stock.changes == before:
            return False
        self._empty = None
        return True

    def knows(self, uid: str) -> bool:
        """Return True if shares are reserved for this Workload."""
        return uid in self._reservations

    def forget(self, uid: str) -> None:
        reservation = self._reservations.pop(uid, None)
        for pod in reservation.held if reservation is not None else ():
            self.stock.release((uid, pod))

    def waits(self, workload: Document, check: str) -> bool:
        """Return True if reports of nodes may change the answer or the reservation.

        Other Workloads are evaluated again once Kueue has reserved quota for them again.
        """
        current = checks_of(workload).get(check)
        state = state_of(current) if current is not None else State.REJECTED
        if state == State.READY:
            return not self.knows(str(workload["metadata"]["uid"]))
        return state == State.PENDING

    def look(
        self,
        workload: Document,
        check: str,
        flavors: Mapping[str, Document],
        seen: Seen,
        settled: bool = True,
    ) -> Answer | None:
        """Answer a check and update the Workload's reservation; None: the check stays as it is.

        `settled`: every node has had the time to report; until then no Workload gets a Retry.
        """
        uid = str(workload["metadata"]["uid"])
        current = checks_of(workload).get(check)
        over = has_condition(workload, "Finished") or has_condition(workload, "Evicted")
        reserved = bool((workload.get("status") or {}).get("admission"))
        state = state_of(current) if current is not None else State.REJECTED
        if current is None or over or not reserved or is_leaving(workload):
            self.forget(uid)
            return None
        if state not in (State.PENDING, State.READY):
            self.forget(uid)  # Kueue takes its quota away.
            return None
        try:
            read, requested = _requested_of(workload, flavors)
        except (ManifestError, AskError) as error:
            self.forget(uid)
            return Answer(State.REJECTED, str(error)) if state == State.PENDING else None
        if state == State.READY:
            self._keep(uid, current, read, requested, seen)
            return None
        self.forget(uid)
        if not requested.pods:
            return Answer(State.READY, _NOT_NEEDED)
        if not self.stock.nodes:
            return Answer(State.PENDING, NO_NODES)
        found = place(self.stock, requested.pods, requested.topology)
        if isinstance(found, NoPlace):
            if not settled:
                return Answer(State.PENDING, f"{NOT_ALL}: {found.reason}")
            if never := self._never(requested.pods):
                return Answer(State.REJECTED, f"{NEVER}: {never}")
            pause_s = min(FIRST_S << min(tries_of(current), 10), LONGEST_S)
            return Answer(State.RETRY, found.reason, again_s=pause_s)
        self._reserve(uid, found)
        return Answer(State.READY, _where(found), tuple(_updates(uid, read, found)))

    def _never(self, pods: Sequence[PodToPlace]) -> str:
        """Return why one of the pods fits on no node even if it were empty; "" if each fits on one.

        Pods that may use none of the nodes wait for a new node, and so do more pods than fit.
        """
        if self._empty is None:
            self._empty = Stock()
            for name, capacity in self._capacities.items():
                self._empty.report(name, _emptied(capacity))
        for pod in {_pod_set(one.pod): one for one in pods}.values():
            rooms = self._empty.nodes.values()
            mine = [one for one in rooms if why_infeasible(one, pod, None) is None]
            if any(_offers(one.capacity, pod) for one in mine):
                found = place(self._empty, [pod])
                if isinstance(found, NoPlace):
                    return found.reason
        return ""

    def _reserve(self, uid: str, chosen: list[Chosen]) -> None:
        reservation = self._reservations[uid] = _Reservation(chosen)
        for one in chosen:
            self.stock.hold((uid, one.pod), one.node, one.shares, uid)
            reservation.held[one.pod] = one

    def _keep(
        self,
        uid: str,
        current: Mapping[str, Any],
        read: Workload,
        requested: _Requested,
        seen: Seen,
    ) -> None:
        """Keep the reservation of a Ready answer for the pods that the nodes do not report."""
        if uid not in self._reservations and requested.pods:
            pinned = _pinned(requested.pods, current)
            found = place(self.stock, pinned, requested.topology)
            if isinstance(found, NoPlace):
                return  # Its pods run already, or their nodes do not report yet.
            self._reserve(uid, found)
        reservation = self._reservations.get(uid)
        if reservation is None:
            return
        left = {one.pod: one for one in _left(reservation.chosen, read, seen)}
        for pod in [one for one in reservation.held if one not in left]:
            self.stock.release((uid, pod))
            del reservation.held[pod]
        for pod, one in left.items():
            if pod not in reservation.held:
                self.stock.hold((uid, pod), one.node, one.shares, uid)
                reservation.held[pod] = one


def _emptied(capacity: NodeCapacity) -> NodeCapacity:
    """Return the capacity as it would be without grants and with healthy GPUs."""
    gpus = tuple(
        replace(
            one,
            health="healthy",
            outside_memory_bytes=0,
            outside_share_ppm=0,
            outside_slots=0,
            outside_spans=(),
        )
        for one in capacity.gpus
    )
    return NodeCapacity(gpus, capacity.labels, other=capacity.other)


def _offers(capacity: NodeCapacity, pod: PodToPlace) -> bool:
    """Return True if one of the GPUs is of a kind that the pod accepts."""
    request = pod.request
    return any(
        request.wants(one) is None and one.mig_enabled == bool(request.mig) for one in capacity.gpus
    )


def _requested_of(
    workload: Document, flavors: Mapping[str, Document]
) -> tuple[Workload, _Requested]:
    """Read a Workload's pods that request GPUs. Raises ManifestError, AskError."""
    read = read_workload({**workload, "status": _counted_status(workload)})
    assert read.admission is not None
    given = {one.name: one for one in read.admission.pod_sets}
    pods: list[PodToPlace] = []
    asking: list[PodSet] = []
    for one in read.pod_sets:
        ask = ask_of(one)
        assigned = given.get(one.name)
        if ask is None or assigned is None:
            continue
        asking.append(one)
        if len(pods) + assigned.count > MAX_PODS:
            raise AskError(f"more than {MAX_PODS} pods request GPUs: split the job")
        mine = [
            _flavor(flavors[name])
            for name in dict.fromkeys(assigned.flavors.values())
            if name in flavors
        ]
        pods += [pod_of(_pod(one.name, at), ask, one, mine) for at in range(assigned.count)]
    topology = topology_of(asking)
    if not topology.required:  # A node selector can name one node, not several.
        topology = replace(topology, preferred=(HOSTNAME, *topology.preferred))
    return read, _Requested(tuple(pods), topology)


def _counted_status(workload: Document) -> dict[str, Any]:
    """Return the parts of the status that count: the admission and the reclaimable pods."""
    status = workload.get("status") or {}
    return {name: status[name] for name in ("admission", "reclaimablePods") if name in status}


def _flavor(document: Document) -> ResourceFlavor:
    return read_flavor(document, f"ResourceFlavor {document['metadata']['name']}")


def _pod(pod_set: str, number: int) -> str:
    return f"{pod_set}/{number}"


def _pod_set(pod: str) -> str:
    return pod.rpartition("/")[0]


def _left(chosen: Iterable[Chosen], read: Workload, seen: Seen) -> list[Chosen]:
    """Return the reservations left after pods that are done and pods that the nodes report.

    A reported pod cancels a reservation on its own node first, else one on any node.
    """
    every = list(chosen)
    for name, count in read.reclaimable_pods.items():
        for one in [each for each in every if _pod_set(each.pod) == name][:count]:
            every.remove(one)
    elsewhere: Counter[str] = Counter()
    for (name, node), count in seen.items():
        here = [one for one in every if _pod_set(one.pod) == name and one.node == node][:count]
        for one in here:
            every.remove(one)
        elsewhere[name] += count - len(here)
    for name, count in elsewhere.items():
        for one in [each for each in every if _pod_set(each.pod) == name][:count]:
            every.remove(one)
    return every


def _pinned(pods: Sequence[PodToPlace], current: Mapping[str, Any]) -> list[PodToPlace]:
    """Return the pods fixed to the node and GPUs that the Ready answer named."""
    updates = {one.get("name"): one for one in current.get("podSetUpdates") or ()}
    made = []
    for pod in pods:
        update = updates.get(_pod_set(pod.pod)) or {}
        node = (update.get("nodeSelector") or {}).get(HOSTNAME) or ""
        uuids = (update.get("annotations") or {}).get(USE_UUID) or ""
        request = pod.request
        if uuids:
            request = replace(request, use_uuids=tuple(uuids.split(",")))
        made.append(replace(pod, node=node or pod.node, request=request))
    return made


def _where(chosen: Sequence[Chosen]) -> str:
    """Describe the placement for the check's message."""
    by_node = Counter(one.node for one in chosen)
    if len(chosen) == 1:
        gpus = ", ".join(share.uuid for share in chosen[0].shares)
        return f"on {chosen[0].node}: {gpus}"
    return ", ".join(f"{count} on {node}" for node, count in sorted(by_node.items()))


def _updates(uid: str, read: Workload, chosen: Sequence[Chosen]) -> list[dict[str, Any]]:
    """Return the podSetUpdates, one for each pod set that was placed.

    A node selector can name only one node: pods of a set that needs several are spread by the
    scheduler.
    """
    made = []
    for pod_set in read.pod_sets:
        mine = [one for one in chosen if _pod_set(one.pod) == pod_set.name]
        if not mine:
            continue
        update: dict[str, Any] = {
            "name": pod_set.name,
            "labels": {PLACED_FOR: uid, POD_SET: pod_set.name},
        }
        nodes = {one.node for one in mine}
        if len(nodes) == 1:
            update["nodeSelector"] = {HOSTNAME: nodes.pop()}
            if USE_UUID not in pod_set.annotations:
                uuids = dict.fromkeys(share.uuid for one in mine for share in one.shares)
                update["annotations"] = {USE_UUID: ",".join(uuids)}
        made.append(update)
    return made
