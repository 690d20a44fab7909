"""Which pods are ranks of a job on several nodes: by annotation, queue or labels."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nodeagent.core.kubelet.pod_documents import read_pod
from nodeagent.core.kubelet.pod_limits import DefaultLimits, merge
from nodeagent.core.kubelet.without_windows.gang import ANNOTATION, is_gang
from nodeagent.ports.clients import GrantAsk, MemoryAsk
from nodeagent.ports.kubelet import (
    ContainerRequests,
    NoPodSource,
    PermanentError,
    PodIdentity,
    RequestsUnknown,
)
from nodeagent.ports.queue import Decision, Desired, GivenShare, Work
from nodeagent.shell.pods.limits import PodLimits, QueueLimits
from nodeagent.shell.queue.waiting import ask_for
from nodeagent.units import MIB, Bytes, GpuUuid, PodUid, Ppm, SharePolicy
from sluicecommon.hami.names import ResourceNames

POD = PodIdentity(PodUid("u1"), "team-a", "p")
ASKED = (("nvidia.com/gpu", "1"), ("nvidia.com/gpucores", "30"), ("nvidia.com/gpumem", "8000"))
JOB = {"batch.kubernetes.io/job-completion-index": "1", "job-name": "train"}
SET = {"leaderworkerset.sigs.k8s.io/name": "serve"}
SIZE = "leaderworkerset.sigs.k8s.io/size"
GROUP = {"kueue.x-k8s.io/pod-group-name": "g"}
TOTAL = "kueue.x-k8s.io/pod-group-total-count"


def document(labels: dict[str, str], annotations: dict[str, str], subdomain: str) -> Any:
    head = {"uid": "u1", "namespace": "team-a", "name": "p", "labels": labels}
    containers = [{"name": "main", "resources": {"limits": dict(ASKED)}}]
    spec = {"containers": containers, **({"subdomain": subdomain} if subdomain else {})}
    return {"metadata": {**head, "annotations": annotations}, "spec": spec}


def requests(
    labels: dict[str, str], annotations: dict[str, str] | None = None, subdomain: str = ""
) -> ContainerRequests:
    """As the API server's document of a pod gives them."""
    found = read_pod(document(labels, annotations or {}, subdomain)).requests("main")
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("labels", "annotations", "subdomain", "gang"),
    [
        ({}, {}, "", False),
        (JOB, {}, "", False),
        (JOB, {}, "train", True),
        ({"app": "web"}, {}, "web", False),
        ({"jobset.sigs.k8s.io/jobset-name": "train", **JOB}, {}, "", True),
        ({"training.kubeflow.org/job-name": "train"}, {}, "", True),
        (SET, {SIZE: "4"}, "", True),
        (SET, {SIZE: "1"}, "", False),
        (SET, {}, "", False),
        (GROUP, {TOTAL: "2"}, "", True),
        (GROUP, {TOTAL: "1"}, "", False),
        ({}, {ANNOTATION: "true"}, "", True),
        (JOB, {ANNOTATION: "false"}, "train", False),
    ],
)
def test_a_pod_is_a_rank_by_its_annotation_or_else_by_its_labels(
    labels: dict[str, str], annotations: dict[str, str], subdomain: str, gang: bool
) -> None:
    asked = requests(labels, annotations, subdomain)
    assert is_gang(asked) is gang
    limits = PodLimits(ResourceNames(), DefaultLimits())
    found = asyncio.run(limits.limits(POD, "main", asked, 1))
    assert found is not None
    assert found.ask.gang is gang
    plain = replace(found, ask=replace(found.ask, gang=False))
    assert merge([plain, found]).ask.gang is gang, "an init container changes nothing about it"


def test_another_value_of_the_annotation_is_refused() -> None:
    with pytest.raises(PermanentError, match=r"sluice\.dev/gang: must be true or false"):
        is_gang(requests({}, {ANNOTATION: "yes"}))


class Manager:
    """A queue's manager with one decision."""

    trouble = ""

    def __init__(self, nodes: int) -> None:
        given = GivenShare(GpuUuid("GPU-a"), Bytes(MIB), Ppm(300_000))
        self.work = Work(Decision("a/b", "", "u", 1, 1, Desired.RUN, gpus=(given,), nodes=nodes))

    def work_of_pod(self, pod: PodIdentity, owners: object) -> Work:
        return self.work

    def may_start(self) -> bool:
        return True


async def _no_owners(namespace: str, owner: object) -> None:
    raise NoPodSource("none here")


@pytest.mark.parametrize(
    ("nodes", "annotation", "gang"),
    [(0, "", False), (1, "", False), (2, "", True), (2, "false", False), (1, "true", True)],
)
def test_what_the_queue_placed_on_several_nodes_is_a_gang_unless_the_pod_says_otherwise(
    nodes: int, annotation: str, gang: bool
) -> None:
    manager = Manager(nodes)
    source = QueueLimits(cast(Any, manager), cast(Any, SimpleNamespace(owners=_no_owners)))
    asked = requests({}, {ANNOTATION: annotation} if annotation else {})
    found = asyncio.run(source.limits(POD, "main", asked, 1))
    assert found is not None
    assert found.ask.gang is gang
    unread = asyncio.run(source.limits(POD, "main", RequestsUnknown("no API server"), 1))
    assert unread is not None
    assert unread.ask.gang is (nodes > 1)


@pytest.mark.parametrize(
    ("nodes", "own", "gang"), [(1, False, False), (2, False, True), (1, True, True)]
)
def test_a_waiting_process_has_what_it_asked_for_or_what_the_queue_decided(
    nodes: int, own: bool, gang: bool
) -> None:
    asked = GrantAsk(1, MemoryAsk(Bytes(MIB)), Ppm(300_000), SharePolicy.HARD, gang=own)
    assert ask_for(Manager(nodes).work, asked).gang is gang
