"""Two kinds of devices as one: a pod may request parts of GPUs, devices by claims, or both."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from queuecontroller.scheduler.model.objects import PlacedPods, PodSet, Workload, WorkloadKey
from queuecontroller.scheduler.placement.topology.devices import (
    Devices,
    Picks,
    Places,
    Short,
    Trial,
)
from queuecontroller.scheduler.placement.topology.ground import Amounts


class BothDevices:
    """The port `Devices` over `first`, whose devices are places of admissions, and `second`."""

    def __init__(self, first: Devices, second: Devices) -> None:
        self._first, self._second = first, second

    @property
    def changes(self) -> int:
        return self._first.changes + self._second.changes

    @property
    def freed(self) -> int:
        return self._first.freed + self._second.freed

    @property
    def missing_input(self) -> str:
        return self._first.missing_input or self._second.missing_input

    def each(self, workload: Workload, pod_set: PodSet) -> Amounts:
        return self._first.each(workload, pod_set)

    def apart(self, workload: Workload, pod_set: PodSet) -> Amounts:
        trial = self._first.trial(workload, ())
        try:
            mine = self._first if trial.wants(pod_set.name) else self._second
        finally:
            trial.undo()
        return mine.apart(workload, pod_set)

    def trial(self, workload: Workload, gone: Collection[WorkloadKey]) -> Trial:
        return _BothTrials(self._first.trial(workload, gone), self._second.trial(workload, gone))

    def hold(self, key: WorkloadKey, places: Places, picks: Picks = None) -> None:
        self._first.hold(key, places)
        self._second.hold(key, {}, picks)

    def release(self, key: WorkloadKey) -> None:
        self._first.release(key)
        self._second.release(key)

    def restored(self, workload: Workload) -> None:
        self._first.restored(workload)
        self._second.restored(workload)

    def nodes_of(self, places: Collection[PlacedPods]) -> Mapping[str, int]:
        return self._first.nodes_of(places)

    def holders(self) -> Collection[WorkloadKey]:
        return self._second.holders()

    def holds(self, key: WorkloadKey) -> bool:
        return self._second.holds(key)

    def in_the_way(self, picks: Picks, gone: Collection[WorkloadKey]) -> set[WorkloadKey]:
        return self._second.in_the_way(picks, gone)


class _BothTrials:
    def __init__(self, first: Trial, second: Trial) -> None:
        self._first, self._second = first, second

    def _those_of(self, pod_set: str) -> list[Trial]:
        return [one for one in (self._first, self._second) if one.wants(pod_set)]

    def wants(self, pod_set: str) -> bool:
        return bool(self._those_of(pod_set))

    def named(self, pod_set: str) -> str:
        return " and ".join(one.named(pod_set) for one in self._those_of(pod_set))

    def count(self, pod_set: str, node: str, most: int, after: str = "") -> int:
        for one in self._those_of(pod_set):
            most = one.count(pod_set, node, most, after if after and one.wants(after) else "")
        return most

    def place(
        self, pod_set: str, limits: Mapping[str, int], count: int
    ) -> Mapping[str, int] | Short:
        mine = self._those_of(pod_set)
        if len(mine) == 1:
            return mine[0].place(pod_set, limits, count)
        able = {node: self._second.count(pod_set, node, limit) for node, limit in limits.items()}
        found = self._first.place(pod_set, able, count)
        return found if isinstance(found, Short) else self._second.place(pod_set, found, count)

    def why_not(self, pod_set: str, nodes: Collection[str]) -> str:
        whys = (one.why_not(pod_set, nodes) for one in self._those_of(pod_set))
        return next((why for why in whys if why), "")

    def places(self) -> Places:
        return self._first.places()

    def picks(self) -> Picks:
        return self._second.picks()

    def undo(self) -> None:
        self._second.undo()
        self._first.undo()
