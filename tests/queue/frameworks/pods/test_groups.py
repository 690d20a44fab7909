"""Pod groups that are evicted, or may lack pods."""

from __future__ import annotations

import pytest

from queuecontroller.frameworks import (
    HoldWorkload,
    PodAction,
    ResumeWorkload,
    SetPodsReady,
    Setting,
    UpdateWorkload,
    WaitForReplacements,
    reconcile_pods,
)
from queuecontroller.frameworks.comparing import condition_of, holds
from tests.queue.frameworks.pods.cluster import Cluster, group_of_three, kinds
from tests.queue.frameworks.world import evicted, made_pod


@pytest.mark.parametrize(
    ("allowed", "up", "is_ready"),
    [
        (("1", "1", "1"), 2, True),
        (("1", "1", "1"), 1, False),
        (("2", "1", "2"), 1, False),
        (("2", "2", "2"), 1, True),
        (("1", None, "1"), 2, False),
        (("3", "3", "3"), 2, False),
        (("many", "1", "1"), 2, False),
    ],
    ids=["one may lack", "not two", "the least counts", "two may", "one is silent", "not all", "no number"],
)  # fmt: skip
def test_a_group_is_ready_with_as_many_pods_as_all_of_them_allow(
    allowed: tuple[str | None, ...], up: int, is_ready: bool
) -> None:
    cluster = group_of_three()
    key = "kueue.x-k8s.io/pod-group-max-not-ready-count"
    for one, text in zip(cluster.pods.values(), allowed, strict=True):
        if text is not None:
            one["metadata"]["annotations"][key] = text
    for one in list(cluster.pods.values())[:up]:
        one.setdefault("status", {})["conditions"] = [{"type": "Ready", "status": "True"}]
    pods = list(cluster.pods.values())
    around = Setting(may_lack_pods=True)
    expected: list[PodAction] = [SetPodsReady(True)] if is_ready else []
    assert reconcile_pods(pods, cluster.workload, around) == expected
    assert reconcile_pods(pods, cluster.workload) == [], "the older line needs them all"


def evicted_group() -> Cluster:
    cluster = group_of_three()
    assert cluster.workload is not None
    cluster.workload = evicted(cluster.workload)
    cluster.settle()
    return cluster


def test_an_evicted_group_is_kept_as_failed_until_it_is_replaced() -> None:
    cluster = evicted_group()
    assert [one["status"]["phase"] for one in cluster.pods.values()] == ["Failed"] * 3
    assert cluster.workload is not None
    reserved = condition_of(cluster.workload, "QuotaReserved")
    assert (reserved["status"], reserved["reason"]) == ("False", "OnHold")
    assert holds(cluster.workload, "WaitingForReplacementPods")
    for name in "de":
        cluster.pods[name] = made_pod(name, "group", 3)
        cluster.settle()
    assert holds(cluster.workload, "WaitingForReplacementPods")
    assert sorted(cluster.pods) == ["a", "b", "c", "d", "e"]
    cluster.pods["f"] = made_pod("f", "group", 3)
    done = cluster.settle()
    assert ResumeWorkload() in done
    assert kinds(done).index(ResumeWorkload) > kinds(done).index(UpdateWorkload)
    assert sorted(cluster.pods) == ["d", "e", "f"]
    owners = cluster.workload["metadata"]["ownerReferences"]
    assert {"d", "e", "f"} <= {one["name"] for one in owners}
    cluster.admit()
    cluster.settle()
    assert sorted(cluster.running) == ["d", "e", "f"]


def test_an_evicted_group_whose_hold_is_written_late_is_queued_again() -> None:
    """The pods are replaced and their predecessors released by a reconciliation that sees the
    Workload as it was before its hold."""
    cluster = evicted_group()
    held = cluster.workload
    assert held is not None
    for name in "def":
        cluster.pods[name] = made_pod(name, "group", 3)
    cluster.set("QuotaReserved", False, reason="Pending")
    cluster.set("WaitingForReplacementPods", False)
    done = cluster.settle()
    assert ResumeWorkload() not in done
    assert sorted(cluster.pods) == ["d", "e", "f"]
    cluster.workload["status"] = held["status"]
    done = cluster.settle()
    assert done == [WaitForReplacements(False), ResumeWorkload()]
    cluster.admit()
    cluster.settle()
    assert sorted(cluster.running) == ["d", "e", "f"]


def test_an_evicted_group_keeps_its_quota_while_a_pod_of_it_ends() -> None:
    cluster = group_of_three()
    assert cluster.workload is not None
    cluster.workload = evicted(cluster.workload)
    for action in reconcile_pods(cluster.pods.values(), cluster.workload):
        cluster.carry_out(action)
    del cluster.pods["a"]["status"]["phase"]
    assert reconcile_pods(cluster.pods.values(), cluster.workload) == []
    cluster.pods["a"]["metadata"]["deletionGracePeriodSeconds"] = 0  # as one that no node has
    made = reconcile_pods(cluster.pods.values(), cluster.workload)
    assert kinds(made) == [WaitForReplacements, HoldWorkload]


def test_an_evicted_group_ends_with_its_workload() -> None:
    cluster = evicted_group()
    cluster.workload = None
    cluster.settle()
    assert (cluster.pods, cluster.workload) == ({}, None)
