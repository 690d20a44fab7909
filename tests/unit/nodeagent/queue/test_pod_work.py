"""The decision that a pod takes, whatever made the pod; and the pods without a decision."""

from __future__ import annotations

import pytest

from nodeagent.core.queue import pod_work
from nodeagent.ports.kubelet import OwnerRef
from nodeagent.ports.queue import Decision, Desired, Work, WorkKey, WorkState


def work(workload: str, pod: str = "", state: WorkState = WorkState.OFFERED) -> Work:
    return Work(Decision(workload, pod, "u", 1, 1, Desired.RUN), state)


def owner(kind: str, name: str) -> OwnerRef:
    return OwnerRef("v1", kind, name, "uid")


WORKS = [
    work("ns/pod-alone"),
    work("ns/job-j", "main-1"),
    work("ns/job-j", "main-0"),
    work("ns/job-j-2"),
    work("ns/deployment-d-0"),
    work("ns/deployment-d-1"),
    work("ns/deployment-d-10"),
    work("ns/deployment-d-x-0"),
    work("ns/statefulset-s-0"),
    work("ns/statefulset-s-1"),
    work("other/deployment-d-0"),
]


@pytest.mark.parametrize(
    ("pod", "owners", "wanted"),
    [
        ("j-abcde", [owner("Job", "j")], [("ns/job-j", "main-0"), ("ns/job-j", "main-1")]),
        ("c-1-abcde", [owner("Job", "c-1"), owner("CronJob", "c")], []),
        (
            "d-55-x",
            [owner("ReplicaSet", "d-55"), owner("Deployment", "d")],
            [("ns/deployment-d-0", ""), ("ns/deployment-d-1", ""), ("ns/deployment-d-10", "")],
        ),
        ("s-1", [owner("StatefulSet", "s")], [("ns/statefulset-s-1", "")]),
        ("s-2", [owner("StatefulSet", "s")], []),
        ("s", [owner("StatefulSet", "s")], []),
        ("main-0", [], []),
        ("x", [owner("RayCluster", "d")], []),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_pod_takes_what_was_decided_for_its_owner(
    pod: str, owners: list[OwnerRef], wanted: list[tuple[str, str]]
) -> None:
    found = pod_work.of_owners(WORKS, "ns", pod, owners)
    assert [tuple(one.key) for one in found] == wanted


def test_a_pod_takes_what_was_made_of_itself_and_not_what_is_called_like_it() -> None:
    assert pod_work.named(WORKS, "ns", "alone") is WORKS[0]
    assert pod_work.named(WORKS, "other", "alone") is None
    assert pod_work.named(WORKS, "ns", "main-0") is None, "a replica of another Job"


def test_replicas_that_are_taken_or_told_to_stop_are_not_free() -> None:
    stopped = Work(Decision("ns/deployment-d-1", "", "u", 1, 1, Desired.STOP))
    mine = [WORKS[4], stopped, work("ns/deployment-d-2", state=WorkState.RUNNING), WORKS[6]]
    assert pod_work.free(mine, {WorkKey("ns/deployment-d-0")}) is WORKS[6]
    assert pod_work.free(mine, {one.key for one in mine}) is None


def test_a_replica_sets_deployment_is_known_from_the_pods_own_label() -> None:
    first = owner("ReplicaSet", "d-x-55ab")
    found = pod_work.owners_by_name(first, (("pod-template-hash", "55ab"),))
    assert [(one.kind, one.name) for one in found] == [
        ("ReplicaSet", "d-x-55ab"),
        ("Deployment", "d-x"),
    ]
    assert pod_work.owners_by_name(first, ()) == (first,)
    assert pod_work.owners_by_name(None, ()) == ()
