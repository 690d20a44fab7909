"""Room on the nodes of a simulation: an admitted workload starts at once and a preempted one ends
at once, so that a workload's reservation is its use."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping

from queuecontroller.scheduler.model.assignment import Assignment
from queuecontroller.scheduler.model.objects import ResourceFlavor, Workload, WorkloadKey
from queuecontroller.scheduler.model.workload_info import WorkloadInfo
from queuecontroller.scheduler.placement.consolidation import Movable, cost_mib
from queuecontroller.scheduler.placement.request import AskError
from queuecontroller.scheduler.placement.stock import Stock
from queuecontroller.scheduler.placement.stock_room import (
    GivenPods,
    RoomRequest,
    StockRoom,
    given_of,
)
from queuecontroller.scheduler.preemption.room import Verdict
from queuecontroller.state.nodes.moves import MoveLimits
from queuecontroller.state.objects.asks import pod_of, read_asked, topology_of


class PlayedRoom(StockRoom):
    def __init__(self, flavors: Mapping[str, ResourceFlavor], cooldown_ns: int = 0) -> None:
        """`cooldown_ns`: time in which a moved workload is not moved again."""
        super().__init__(Stock(), self)
        self._flavors = flavors
        self._given: dict[WorkloadKey, tuple[Workload, list[GivenPods]]] = {}
        """Workloads with a reservation, with their counts and flavors."""
        self._limits = MoveLimits(cooldown_ns)
        self._now_ns = 0
        self._started_ns: Mapping[WorkloadKey, int] = {}

    def keep(
        self, info: WorkloadInfo, assignment: Assignment, gone: Collection[WorkloadKey]
    ) -> Verdict:
        verdict = super().keep(info, assignment, gone)
        if not verdict.refusal:
            self._given[info.key] = info.workload, given_of(assignment)
        return verdict

    def release(self, key: WorkloadKey) -> None:
        super().release(key)
        self._given.pop(key, None)

    def note_move(self, key: WorkloadKey, now_ns: int) -> None:
        self._limits.note(key, _namespace(key), now_ns)

    def follow(self, now_ns: int, started_ns: Mapping[WorkloadKey, int]) -> None:
        """Take in the time and the start of each running workload, ns, and end cool-downs and moves
        that are over."""
        self._now_ns, self._started_ns = now_ns, started_ns
        if self._limits.expire(now_ns, lambda key: key not in started_ns):
            self.stock.note_freed()

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
        key = WorkloadKey(str(owner))
        pods = self.room_request(*self._given[key]).pods if key in self._given else ()
        if len(pods) != 1 or pods[0].request.mig:
            return None
        memory = sum(share.memory_bytes for one in self.kept(key) or () for share in one.shares)
        ran_ns = self._now_ns - self._started_ns.get(key, self._now_ns)
        return Movable(owner, pods[0], cost_mib(memory, ran_ns), _namespace(key))

    def may_move(self, key: WorkloadKey) -> bool:
        return self._limits.permit(key, _namespace(key))

    def resting(self, priority: int) -> Collection[WorkloadKey]:
        return ()


def _namespace(key: WorkloadKey) -> str:
    return key.partition("/")[0]
