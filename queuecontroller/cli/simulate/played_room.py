"""Room on the nodes of a simulation: an admitted workload starts at once and a preempted one ends
at once, so that a workload's reservation is its use."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping

from queuecontroller.scheduler.model.objects import ResourceFlavor, Workload, WorkloadKey
from queuecontroller.scheduler.placement.consolidation import Movable
from queuecontroller.scheduler.placement.request import AskError
from queuecontroller.scheduler.placement.stock import Stock
from queuecontroller.scheduler.placement.stock_room import GivenPods, RoomRequest, StockRoom
from queuecontroller.state.objects.asks import pod_of, read_asked, topology_of


class PlayedRoom(StockRoom):
    def __init__(self, flavors: Mapping[str, ResourceFlavor]) -> None:
        super().__init__(Stock(), self)
        self._flavors = flavors

    def room_request(self, workload: Workload, given: Iterable[GivenPods]) -> RoomRequest:
        pod_sets = {one.name: one for one in workload.pod_sets}
        pods = []
        try:
            for one in given:
                pod_set = pod_sets[one.name]
                ask, node = read_asked(pod_set)
                if ask is None:
                    continue
                names = dict.fromkeys(one.flavors.values())
                flavors = [self._flavors[name] for name in names if name in self._flavors]
                pods += [
                    pod_of(f"{one.name}-{index}", ask, pod_set, flavors, node)
                    for index in range(one.count)
                ]
        except AskError as error:
            return RoomRequest(wrong=str(error))
        return RoomRequest(tuple(pods), topology_of(pod_sets.values()))

    def shape(self, workload: Workload) -> Hashable:
        return tuple(
            (
                tuple(tuple(sorted(one.items())) for one in pod_set.containers),
                tuple(sorted(pod_set.annotations.items())),
            )
            for pod_set in workload.pod_sets
        )

    def pauses(self, key: WorkloadKey) -> bool:
        return False

    def yields(self, key: WorkloadKey, priority: int) -> bool:
        return False

    def movable(self, owner: Hashable) -> Movable | None:
        return None

    def resting(self, priority: int) -> Collection[WorkloadKey]:
        return ()
