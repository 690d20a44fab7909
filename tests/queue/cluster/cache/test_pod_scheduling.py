"""Which admitted Workloads have all their pods on nodes."""

from __future__ import annotations

from typing import Any

import pytest

from queuecontroller.cluster.cache.pod_scheduling import PodScheduling, read_scheduled
from queuecontroller.scheduler.model.objects import WorkloadKey
from sluicecommon.kubernetes.reflector import Changed, Item, Removed, Synced

KEY = WorkloadKey("team/w")


class Pods:
    def __init__(self) -> None:
        self.scheduling = PodScheduling()
        self.told: list[str] = []
        self.scheduling.on_change = self.told.append

    def put(self, name: str, node: str = "", role: str = "main", workload: str = "w") -> None:
        head: dict[str, Any] = {"labels": {"kueue.x-k8s.io/podset": role}}
        if workload:
            head["annotations"] = {"kueue.x-k8s.io/workload": workload}
        pod = {"metadata": head, "spec": {"nodeName": node} if node else {}}
        item = Item(f"team/{name}", "1", read_scheduled(pod))
        self.scheduling.changed(Changed(item))

    def all_bound(self, **counts: int) -> bool:
        return self.scheduling.all_bound(KEY, counts)


@pytest.fixture
def pods() -> Pods:
    return Pods()


def test_pods_that_do_not_exist_yet_are_on_no_node(pods: Pods) -> None:
    assert not pods.all_bound(main=1)
    assert pods.all_bound(main=0)


def test_all_pods_of_each_pod_set_have_to_be_on_nodes(pods: Pods) -> None:
    pods.put("a", "n1")
    pods.put("b")
    pods.put("l", "n1", "leader")
    assert not pods.all_bound(main=2, leader=1)
    pods.put("b", "n2")
    assert pods.all_bound(main=2, leader=1)
    assert not pods.all_bound(main=3, leader=1)
    pods.scheduling.changed(Removed("team/b"))
    assert not pods.all_bound(main=2, leader=1)
    assert pods.told == [KEY] * 5
    pods.put("a", "n1")
    pods.scheduling.changed(Synced())
    pods.scheduling.changed(Removed("team/unknown"))
    assert pods.told == [KEY] * 5, "nothing has changed"


def test_pods_of_others_do_not_count(pods: Pods) -> None:
    pods.put("a", "n1", workload="other")
    pods.put("b", "n1", workload="")
    assert not pods.all_bound(main=1)
    pods.put("a", "n1", workload="w")
    assert pods.all_bound(main=1)
