"""The AdmissionCheck `sluice.dev/placement`: whether the shares of GPUs that a Workload asks for
are there, and where. For clusters in which Kueue itself gives quota. No I/O.

Who is answered Ready is promised its shares: nobody else gets them. A promise lasts as long as the
Workload holds quota, but for pods whose grants the nodes report by now: those count there. It is
not stored; a Ready answer says on which node and GPUs, and whoever leads next promises that again.
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
from queuecontroller.scheduler.placement.request import USE_UUID, AskError
from queuecontroller.scheduler.placement.stock import Stock
from queuecontroller.state.objects.asks import ask_of, pod_of, topology_of
from sluicecommon.reader import ManifestError

CONTROLLER: Final = "sluice.dev/placement"
PLACED_FOR: Final = "sluice.dev/placed-for"
"""Label of pods: the UID of the Workload that was promised their shares."""
POD_SET: Final = "sluice.dev/pod-set"
"""Label of pods: which of its pod sets they are of."""
HOSTNAME: Final = "kubernetes.io/hostname"
FIRST_S: Final = 10
"""After the first Retry; twice that after each further one. Shares come free by the second, and
Kueue's own queueing comes on top."""
LONGEST_S: Final = 300
MOST_PODS: Final = 4096
"""Of one Workload: a second of the one loop that answers everybody."""
NO_NODES: Final = "No node has reported its GPUs yet"
NOT_ALL: Final = "Not every node may have reported its GPUs yet"
NEVER: Final = "Too large for every node that it may use, were they empty"
_NOT_NEEDED: Final = "No shares of GPUs are asked for"

Seen = Mapping[tuple[str, str], int]
"""Pods whose grants the nodes report by now, by pod set and node."""


@dataclass(slots=True)
class _Promise:
    chosen: list[Chosen]
    held: dict[str, Chosen] = field(default_factory=dict)
    """Of it, what the nodes do not report yet; by pod."""


@dataclass(frozen=True, slots=True)
class _Wish:
    pods: tuple[PodToPlace, ...]
    topology: Topology


class Placer:
    def __init__(self) -> None:
        self.stock = Stock()
        self._empty: Stock | None = None
        """The same nodes with nothing on them; None: not made since a node came, went or changed
        its GPUs."""
        self._capacities: dict[str, NodeCapacity] = {}
        self._promises: dict[str, _Promise] = {}
        """By the Workload's UID."""

    def follow(self, nodes: Mapping[str, NodeCapacity]) -> bool:
        """What the nodes that may be given work report now; whether anything has changed."""
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
        """Whether something is promised to it."""
        return uid in self._promises

    def forget(self, uid: str) -> None:
        promise = self._promises.pop(uid, None)
        for pod in promise.held if promise is not None else ():
            self.stock.release((uid, pod))

    def waits(self, workload: Document, check: str) -> bool:
        """Whether what nodes report may change its answer, or what is promised to it: others are
        asked again by Kueue, once they have quota again."""
        asked = checks_of(workload).get(check)
        state = state_of(asked) if asked is not None else State.REJECTED
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
        """What to answer; None: nothing new. Keeps the Workload's promise up to date. `settled`:
        every node that is there has had the time to report; before that nobody is sent away."""
        uid = str(workload["metadata"]["uid"])
        asked = checks_of(workload).get(check)
        over = has_condition(workload, "Finished") or has_condition(workload, "Evicted")
        reserved = bool((workload.get("status") or {}).get("admission"))
        state = state_of(asked) if asked is not None else State.REJECTED
        if asked is None or over or not reserved or is_leaving(workload):
            self.forget(uid)
            return None
        if state not in (State.PENDING, State.READY):
            self.forget(uid)  # Kueue takes its quota for that
            return None
        try:
            read, wish = _wish_of(workload, flavors)
        except (ManifestError, AskError) as error:
            self.forget(uid)
            return Answer(State.REJECTED, str(error)) if state == State.PENDING else None
        if state == State.READY:
            self._keep(uid, asked, read, wish, seen)
            return None
        self.forget(uid)
        if not wish.pods:
            return Answer(State.READY, _NOT_NEEDED)
        if not self.stock.nodes:
            return Answer(State.PENDING, NO_NODES)
        found = place(self.stock, wish.pods, wish.topology)
        if isinstance(found, NoPlace):
            if not settled:
                return Answer(State.PENDING, f"{NOT_ALL}: {found.reason}")
            if never := self._never(wish.pods):
                return Answer(State.REJECTED, f"{NEVER}: {never}")
            pause_s = min(FIRST_S << min(tries_of(asked), 10), LONGEST_S)
            return Answer(State.RETRY, found.reason, again_s=pause_s)
        self._promise(uid, found)
        return Answer(State.READY, _where(found), tuple(_updates(uid, read, found)))

    def _never(self, pods: Sequence[PodToPlace]) -> str:
        """Why one of them fits on no node, whoever leaves; empty: that is not so. Who may use none
        of the nodes waits for one that may come; so do more pods than there is room for."""
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

    def _promise(self, uid: str, chosen: list[Chosen]) -> None:
        promise = self._promises[uid] = _Promise(chosen)
        for one in chosen:
            self.stock.hold((uid, one.pod), one.node, one.shares, uid)
            promise.held[one.pod] = one

    def _keep(
        self, uid: str, asked: Mapping[str, Any], read: Workload, wish: _Wish, seen: Seen
    ) -> None:
        """Of a Ready answer, what the nodes do not report themselves."""
        if uid not in self._promises and wish.pods:
            pinned = _pinned(wish.pods, asked)
            found = place(self.stock, pinned, wish.topology)
            if isinstance(found, NoPlace):
                return  # its pods are on their nodes already, or these do not report yet
            self._promise(uid, found)
        promise = self._promises.get(uid)
        if promise is None:
            return
        left = {one.pod: one for one in _left(promise.chosen, read, seen)}
        for pod in [one for one in promise.held if one not in left]:
            self.stock.release((uid, pod))
            del promise.held[pod]
        for pod, one in left.items():
            if pod not in promise.held:
                self.stock.hold((uid, pod), one.node, one.shares, uid)
                promise.held[pod] = one


def _emptied(capacity: NodeCapacity) -> NodeCapacity:
    """As it would be with nobody on it, and nothing wrong with it."""
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
    """Whether one of its GPUs is of the kind that the pod takes."""
    request = pod.request
    return any(
        request.wants(one) is None and one.mig_enabled == bool(request.mig) for one in capacity.gpus
    )


def _wish_of(workload: Document, flavors: Mapping[str, Document]) -> tuple[Workload, _Wish]:
    """Raises ManifestError, AskError."""
    read = read_workload({**workload, "status": _without_words(workload)})
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
        if len(pods) + assigned.count > MOST_PODS:
            raise AskError(f"more than {MOST_PODS} pods ask for GPUs: make several jobs of it")
        mine = [
            _flavor(flavors[name])
            for name in dict.fromkeys(assigned.flavors.values())
            if name in flavors
        ]
        pods += [pod_of(_pod(one.name, at), ask, one, mine) for at in range(assigned.count)]
    topology = topology_of(asking)
    if not topology.required:  # one node can be told to the scheduler; several cannot
        topology = replace(topology, preferred=(HOSTNAME, *topology.preferred))
    return read, _Wish(tuple(pods), topology)


def _without_words(workload: Document) -> dict[str, Any]:
    """Of the status what counts: its admission, and the pods that are done."""
    status = workload.get("status") or {}
    return {name: status[name] for name in ("admission", "reclaimablePods") if name in status}


def _flavor(document: Document) -> ResourceFlavor:
    return read_flavor(document, f"ResourceFlavor {document['metadata']['name']}")


def _pod(pod_set: str, number: int) -> str:
    return f"{pod_set}/{number}"


def _pod_set(pod: str) -> str:
    return pod.rpartition("/")[0]


def _left(chosen: Iterable[Chosen], read: Workload, seen: Seen) -> list[Chosen]:
    """What was promised less the pods that are done, and those that the nodes report: first where
    they are, then wherever one of them should have been."""
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


def _pinned(pods: Sequence[PodToPlace], asked: Mapping[str, Any]) -> list[PodToPlace]:
    """As the answer said it."""
    said = {one.get("name"): one for one in asked.get("podSetUpdates") or ()}
    made = []
    for pod in pods:
        update = said.get(_pod_set(pod.pod)) or {}
        node = (update.get("nodeSelector") or {}).get(HOSTNAME) or ""
        uuids = (update.get("annotations") or {}).get(USE_UUID) or ""
        request = pod.request
        if uuids:
            request = replace(request, use_uuids=tuple(uuids.split(",")))
        made.append(replace(pod, node=node or pod.node, request=request))
    return made


def _where(chosen: Sequence[Chosen]) -> str:
    """For people."""
    by_node = Counter(one.node for one in chosen)
    if len(chosen) == 1:
        gpus = ", ".join(share.uuid for share in chosen[0].shares)
        return f"on {chosen[0].node}: {gpus}"
    return ", ".join(f"{count} on {node}" for node, count in sorted(by_node.items()))


def _updates(uid: str, read: Workload, chosen: Sequence[Chosen]) -> list[dict[str, Any]]:
    """One for each pod set that was placed. A node selector can name one node alone: pods of a set
    that need several are spread by the scheduler."""
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
