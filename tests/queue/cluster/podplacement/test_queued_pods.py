"""Requests of a Workload's future pods, by its templates; and the owner of a pod that claims to
belong to a Workload."""

from __future__ import annotations

from typing import Any

import pytest

from queuecontroller.cluster.cache.kinds import WORKLOADS
from queuecontroller.cluster.cache.objects import ObjectCache
from queuecontroller.cluster.podplacement.queued_pods import SPARE, QueuedAsks, QueuedPods
from queuecontroller.gpushares.admission import Rules
from queuecontroller.gpushares.extender.answers import Defaults
from queuecontroller.gpushares.extender.ledger import PodLedger
from queuecontroller.gpushares.extender.pods import PodPlace
from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.placement.stock import Stock
from sluicecommon.kubernetes.resources import Resource
from tests.queue.gpushares.extender.rooms import MIB, container, node, pod, share

KEY = WorkloadKey("t/w")
JOB = Resource("batch", "v1", "jobs", "Job")
JOB_SET = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")
RULES = Rules(scheduler="sluice-scheduler")


def owner(kind: Resource, name: str) -> dict[str, Any]:
    made = {"kind": kind.kind, "name": name, "uid": f"u-{name}", "controller": True}
    return {**made, "apiVersion": f"{kind.group}/{kind.version}"}


def job(kind: Resource, name: str, *above: dict[str, Any]) -> dict[str, Any]:
    head = {"name": name, "namespace": "t", "uid": f"u-{name}", "resourceVersion": "1"}
    return {"metadata": {**head, "ownerReferences": list(above)}}


def workload(
    *owners: dict[str, Any], generation: int = 1, annotations: Any = None, **spec: Any
) -> dict[str, Any]:
    asked = container("main", 0, {"gpumem": 1000})
    template = {
        "metadata": {"annotations": annotations or {}},
        "spec": {"containers": [asked], **spec},
    }
    head = {"name": "w", "namespace": "t", "uid": "u-w", "resourceVersion": str(generation)}
    head |= {"generation": generation, "ownerReferences": list(owners)}  # type: ignore[dict-item]
    return {"metadata": head, "spec": {"podSets": [{"name": "main", "template": template}]}}


def asks(document: dict[str, Any], rules: Rules = RULES) -> Any:
    world = ObjectCache()
    world.take(WORKLOADS, document)
    return QueuedAsks(world, lambda: rules, Defaults()).of(KEY)


def test_pods_are_judged_as_they_will_be_when_they_are_made() -> None:
    """The count is what the webhook fills in, and the scheduler, too."""
    (one,) = asks(workload())["main"].containers
    assert (one.request.count, one.request.memory_bytes) == (1, 1000 * MIB)
    assert not one.request.hard


def test_pods_that_another_scheduler_places_are_not_ours() -> None:
    assert asks(workload(schedulerName="volcano")) == {}
    assert asks(workload(), Rules()) == {}, "no user changes the owner that they name"
    assert asks(workload(schedulerName="hami-scheduler"), Rules()).keys() == {"main"}
    bare = workload()
    bare["spec"]["podSets"][0]["template"]["spec"]["containers"] = [{"name": "main"}]
    assert asks(bare) == {}
    elastic = workload()
    elastic["metadata"]["annotations"] = {"kueue.x-k8s.io/elastic-job": "true"}
    assert asks(elastic) == {}, "its slices hand pods on"
    assert asks({**workload(), "spec": {"podSets": [{"template": {"spec": 3}}]}}) == {}


def test_pods_that_would_be_refused_have_no_place_and_it_is_said_why() -> None:
    wrong = workload(schedulerName="sluice-scheduler", annotations={"sluice.dev/placement": "{}"})
    wrong["spec"]["podSets"][0]["template"]["spec"]["containers"] = [container("main", 1, {})]
    assert "records an allocation" in asks(wrong)["main"].wrong


def test_a_pod_that_is_queued_itself_was_changed_already() -> None:
    made = workload(schedulerName="sluice-scheduler", annotations={"sluice.dev/admitted-as": "x"})
    assert not asks(made)["main"].wrong


def test_templates_are_read_once_for_each_generation_and_forgotten_with_their_workload() -> None:
    world = ObjectCache()
    world.take(WORKLOADS, workload())
    found = QueuedAsks(world, lambda: RULES, Defaults())
    first = found.of(KEY)
    assert found.of(KEY) is first
    world.take(WORKLOADS, workload(generation=2))
    assert found.of(KEY) is not first
    world.drop(WORKLOADS, "t/w", "u-w")
    assert found.of(KEY) == {}
    for number in range(3 * SPARE):
        one = workload()
        one["metadata"] |= {"name": f"w{number}", "uid": f"u{number}"}
        world.take(WORKLOADS, one)
        found.of(WorkloadKey(f"t/w{number}"))
        world.drop(WORKLOADS, f"t/w{number}", f"u{number}")
    assert len(found._known) <= SPARE + 1


class Lab:
    """One place is kept for w."""

    def __init__(self, *documents: tuple[Resource, dict[str, Any]]) -> None:
        self.world = ObjectCache()
        for kind, document in documents:
            self.world.take(kind, document)
        stock = Stock()
        stock.report("a", node("a", 1))
        self.ledger = PodLedger(stock)
        made = PodPlace("a", {"main": (share("GPU-a-0", 1000 * MIB),)}, workload=KEY)
        self.ledger.reserve(KEY, {"main": [made]})
        self.queued = QueuedPods(self.world, self.ledger.reserved, Defaults(), lambda _: True)

    def place(self, name: str, *owners: dict[str, Any], workload: str = "w", **asked: Any) -> Any:
        document = pod(name, **(asked or {"gpumem": 1000}))
        document["metadata"]["annotations"]["kueue.x-k8s.io/workload"] = workload
        document["metadata"]["ownerReferences"] = list(owners)
        return self.queued.place(document, ["a"])


def test_a_pod_of_the_workloads_job_has_its_place() -> None:
    lab = Lab((WORKLOADS, workload(owner(JOB, "j"))), (JOB, job(JOB, "j")))
    assert lab.place("p", owner(JOB, "j")).node == "a"
    assert "all 1 places reserved" in lab.place("q", owner(JOB, "j"))
    assert lab.place("p", owner(JOB, "j")).node == "a", "the pod that has it keeps it"


def test_owners_of_owners_count_and_those_that_are_not_known_are_believed() -> None:
    every = (
        (WORKLOADS, workload(owner(JOB_SET, "s"))),
        (JOB_SET, job(JOB_SET, "s")),
        (JOB, job(JOB, "j", owner(JOB_SET, "s"))),
    )
    assert Lab(*every).place("p", owner(JOB, "j")).node == "a"
    strange = Resource("example.com", "v1", "strangers", "Stranger")
    assert Lab(*every).place("p", owner(strange, "x")).node == "a"


@pytest.mark.parametrize("owners", [(), (owner(JOB, "other"),)])
def test_a_pod_of_somebody_else_has_none(owners: Any) -> None:
    lab = Lab((WORKLOADS, workload(owner(JOB, "j"))), (JOB, job(JOB, "other")))
    assert lab.place("p", *owners) is None


def test_a_pod_that_is_queued_itself_is_its_workloads_owner() -> None:
    lab = Lab((WORKLOADS, workload({"kind": "Pod", "name": "p", "uid": "u-p"})))
    assert lab.place("q") is None
    assert lab.place("p").node == "a"


def test_who_asks_for_other_than_is_kept_is_told_so() -> None:
    lab = Lab((WORKLOADS, workload(owner(JOB, "j"))))
    assert "requests 2000 MiB, 1000 MiB are reserved" in lab.place(
        "p", owner(JOB, "j"), gpumem=2000
    )
    why = lab.place("p", owner(JOB, "j"), gpumem=1000, gpucores=30)
    assert "another share of the time" in why
    why = lab.place("p", owner(JOB, "j"), gpumem=1000, side={"gpumem": 1})
    assert "reserved for the containers main, not main, side" in why


def test_others_are_placed_like_plain_pods() -> None:
    lab = Lab((WORKLOADS, workload(owner(JOB, "j"))))
    assert lab.place("p", owner(JOB, "j"), workload="x") is None
    assert lab.place("p", owner(JOB, "j"), count=0) is None
    bare = pod("p", gpumem=1000)
    assert lab.queued.place(bare, ["a"]) is None
