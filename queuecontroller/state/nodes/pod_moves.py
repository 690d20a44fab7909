"""Moves of queued pods that Kubernetes runs: which of them may be moved to other GPUs, and what it
costs. The implementation of the port `placement.topology.moves.Moving`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Protocol

from queuecontroller.gpushares.extender.ledger import HeldPod, PlainPod
from queuecontroller.gpushares.extender.pods import PodAsk, read_place
from queuecontroller.gpushares.extender.queued_room import Asks
from queuecontroller.gpushares.extender.reservations import Slot
from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.model.reasons import ADMITTED, EVICTED, FINISHED
from queuecontroller.scheduler.placement.choose import Chosen, PodToPlace
from queuecontroller.scheduler.placement.consolidation import Movable, cost_mib
from queuecontroller.scheduler.placement.new_nodes import size_of
from queuecontroller.scheduler.placement.request import GpuRequest
from queuecontroller.scheduler.placement.stock import Stock
from queuecontroller.scheduler.placement.topology.devices import Places
from queuecontroller.scheduler.placement.topology.moves import RunningPod
from queuecontroller.state.nodes.moves import owner_of
from queuecontroller.state.nodes.nodes_room import NodesRoom
from queuecontroller.state.records import Consolidation, WorkloadRecord


class Restarts(Protocol):
    """Restarts of running workloads, as the API server's objects describe and permit them."""

    def is_restarted(self, key: WorkloadKey) -> bool:
        """True if its job makes its pod again after an eviction."""

    def permission(self, key: WorkloadKey) -> Consolidation | None:
        """The annotation of the Workload, its job or its pods; None: they have none."""

    def is_guarded(self, pod: HeldPod) -> bool:
        """True if a PodDisruptionBudget permits no disruption of the pod now."""


class PodMoves:
    def __init__(
        self,
        room: NodesRoom,
        find: Callable[[WorkloadKey], WorkloadRecord | None],
        asks: Callable[[WorkloadKey], Asks],
        restarts: Restarts,
    ) -> None:
        self._room = room
        self._find = find
        self._asks = asks
        self._restarts = restarts

    @property
    def stock(self) -> Stock:
        return self._room.stock

    def requests(self, key: WorkloadKey) -> Mapping[str, Sequence[GpuRequest]]:
        return {name: _together(ask) for name, ask in self._asks(key).items() if not ask.wrong}

    def running(self, key: WorkloadKey) -> RunningPod | None:
        record, slot = self._find(key), self._slot_of(key)
        if record is None or slot is None or not self._restarts.is_restarted(key):
            return None
        workload = record.workload
        admitted = workload.condition(ADMITTED)
        if admitted is None or not admitted.status or workload.admission is None:
            return None
        if workload.is_true(EVICTED) or workload.is_true(FINISHED):
            return None
        if workload.admission_checks:
            return None  # They would start again, for new nodes or in another cluster.
        if len(workload.pod_sets) != 1 or workload.admission.pod_sets[0].count != 1:
            return None
        [pod_set] = workload.pod_sets
        requests = self.requests(key).get(pod_set.name, ())
        # Claims name devices of a node, and where others of its service are counts with spreading.
        if not requests or pod_set.device_requests or pod_set.spreading is not None:
            return None
        memory = sum(share.memory_bytes for share in slot.place.held)
        cost = cost_mib(memory, self._room.now_ns - admitted.changed_ns)
        largest = PodToPlace("", max(requests, key=size_of))
        return RunningPod(workload, Movable(key, largest, cost, owner_of(record)))

    def may_move(self, key: WorkloadKey) -> bool:
        record, slot = self._find(key), self._slot_of(key)
        if record is None or slot is None:
            return False
        if self._restarts.is_guarded(self._room.pods.pods[slot.pod]):
            return False
        return self._room.permits_move(record, self._restarts.permission(key))

    def leaving(self) -> Collection[Hashable]:
        return [PlainPod(uid) for uid, pod in self._room.pods.pods.items() if pod.leaving]

    def chosen(self, places: Places) -> list[Chosen]:
        read = [read_place(one.place) for each in places.values() for one in each]
        return [Chosen("", one.node, one.held) for one in read if one is not None]

    def _slot_of(self, key: WorkloadKey) -> Slot | None:
        """The only place of a workload, if its pod is bound there and not being deleted."""
        pods = self._room.pods
        slots = pods.reserved.slots(key)
        if len(slots) != 1 or not slots[0].firm or not slots[0].held:
            return None
        pod = pods.pods.get(slots[0].pod)
        return slots[0] if pod is not None and not pod.leaving else None


def _together(ask: PodAsk) -> tuple[GpuRequest, ...]:
    """Requests of the containers that run at the same time; of the others if these have none."""
    last = tuple(one.request for one in ask.containers if not one.before)
    return last or tuple(one.request for one in ask.containers)
