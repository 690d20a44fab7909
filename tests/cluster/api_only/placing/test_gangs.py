"""Groups of pods with a real kube-scheduler: all are bound or none, also while two compete and while the leader is killed."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import control_plane
from tests.cluster.queueing import Replica, define
from tests.cluster.scheduling import (
    PODS,
    Accountant,
    Fleet,
    Service,
    bound,
    clear,
    gpu_pod,
    placement,
    replicas,
    scheduler,
    wait_bound,
    wait_refused,
)
from tests.kit.node import until

__all__ = ["control_plane"]
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
NODES, CARDS = 3, 4
WHOLE: dict[str, Any] = {"gpumem": 80 * 1024}
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GROUPS = {
    "coscheduling": ("scheduling.x-k8s.io", "v1alpha1"),
    "volcano": ("scheduling.volcano.sh", "v1beta1"),
    "kai": ("scheduling.run.ai", "v2alpha2"),
}


def definition(group: str, version: str) -> dict[str, Any]:
    """A CRD of PodGroups, as far as they are read here."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    served = {"name": version, "served": True, "storage": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"podgroups.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": "podgroups", "singular": "podgroup", "kind": "PodGroup"},
            "versions": [{**served, "schema": {"openAPIV3Schema": schema}}],
        },
    }


def member(kind: str, group: str) -> dict[str, dict[str, str]]:
    """Metadata of a pod of the group."""
    if kind == "coscheduling":
        return {"labels": {"scheduling.x-k8s.io/pod-group": group}}
    key = "scheduling.k8s.io/group-name" if kind == "volcano" else "pod-group-name"
    return {"annotations": {key: group}}


@dataclass
class Lab:
    plane: ControlPlane
    both: list[Replica]
    fleet: Fleet

    def group(self, name: str, minimum: int, kind: str = "coscheduling", **spec: Any) -> None:
        api_group, version = GROUPS[kind]
        path = f"/apis/{api_group}/{version}/namespaces/default/podgroups"
        made = {"apiVersion": f"{api_group}/{version}", "kind": "PodGroup"}
        spec = {"minMember": minimum, **spec}
        self.plane.api.call("POST", path, {**made, "metadata": {"name": name}, "spec": spec})

    def create(
        self,
        name: str,
        group: str = "",
        kind: str = "coscheduling",
        rules: str = "",
        **how: Any,
    ) -> None:
        pod = gpu_pod(name, **how)
        if group:
            for field, words in member(kind, group).items():
                pod["metadata"].setdefault(field, {}).update(words)
        if rules:
            pod["metadata"]["annotations"]["sluice.dev/group-rules"] = rules
        self.plane.api.call("POST", PODS, pod)

    def pods(self, prefix: str = "") -> list[dict[str, Any]]:
        every = self.plane.api.get(PODS)["items"]
        return [one for one in every if one["metadata"]["name"].startswith(prefix)]

    def bound(self, prefix: str = "") -> int:
        return sum(bool(bound(one)) for one in self.pods(prefix))

    def events(self, reason: str) -> list[str]:
        every = self.plane.api.get("/api/v1/namespaces/default/events")["items"]
        return [one["message"] for one in every if one["reason"] == reason]

    def leader(self) -> Replica:
        return next(one for one in self.both if is_leading(one))


def is_leading(replica: Replica) -> bool:
    return replica.process is not None and "placing pods" in replica.life


@pytest.fixture(scope="module")
def lab(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    plane = control_plane
    define(plane)
    for group, version in GROUPS.values():
        plane.api.call("POST", CRDS, definition(group, version))
    for group, version in GROUPS.values():
        path = f"/apis/{group}/{version}/namespaces/default/podgroups"
        until(f"{group} is served", lambda path=path: "items" in plane.api.get(path), 60)  # type: ignore[misc]
    place: Path = tmp_path_factory.mktemp("gangs")
    with replicas(plane, place, 2) as both:
        fleet = Fleet(plane, {place / f"{n}.sock": one for n, one in enumerate(both)}, gpus=CARDS)
        for n in range(NODES):
            labels: dict[str, Any] = {"nvidia.com/gpu.clique": f"fabric.{min(n, 1)}"}
            fleet.add(f"gpu-{n}", zone=f"z{n}", **labels)
        until("one decides", lambda: any(map(is_leading, both)), 60)
        with (
            fleet,
            Service([one.asked_port for one in both]) as service,
            scheduler(plane, place, service.port),
        ):
            until("all report", lambda: fleet.sessions_total >= NODES, 60)
            yield Lab(plane, both, fleet)


@pytest.fixture(autouse=True)
def empty(lab: Lab) -> Iterator[None]:
    yield
    clear(lab.plane)


@pytest.mark.parametrize("kind", GROUPS)
def test_the_pods_wait_for_the_last_one_and_are_bound_together(lab: Lab, kind: str) -> None:
    lab.group(f"g-{kind}", 3, kind)
    for n in range(2):
        lab.create(f"{kind}-{n}", f"g-{kind}", kind, **WHOLE)
    told = f"pod group default/g-{kind}: 2 of at least 3 pods exist"
    until("they wait", lambda: told in wait_refused(lab.plane, f"{kind}-1"), 60)
    assert lab.bound() == 0
    lab.create(f"{kind}-2", f"g-{kind}", kind, **WHOLE)
    for n in range(3):
        wait_bound(lab.plane, f"{kind}-{n}")


def test_a_group_that_does_not_fit_holds_nothing_and_is_bound_once_it_does(lab: Lab) -> None:
    for n in range(5):
        lab.create(f"single-{n}", **WHOLE)
    for n in range(5):
        wait_bound(lab.plane, f"single-{n}")
    lab.group("large", 8)
    for n in range(8):
        lab.create(f"large-{n}", "large", **WHOLE)
    told = "GPU shares for 7 of 8 pods"
    until("it says why", lambda: told in wait_refused(lab.plane, "large-0"), 60)
    assert any(told in one for one in lab.events("FailedScheduling"))
    lab.create("small", **WHOLE)
    wait_bound(lab.plane, "small")
    for name in ("single-0", "small"):
        lab.plane.api.call("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")
    for n in range(8):
        wait_bound(lab.plane, f"large-{n}", 120)


def test_of_two_groups_that_compete_one_is_bound_and_then_the_other(lab: Lab) -> None:
    for group in ("left", "right"):
        lab.group(group, 7)
    with Accountant(lab.plane, lab.fleet.memory) as accountant:
        for n in range(7):
            for group in ("left", "right"):
                lab.create(f"{group}-{n}", group, **WHOLE)
        until("one is bound", lambda: max(lab.bound("left"), lab.bound("right")) == 7, 120)
        winner = "left" if lab.bound("left") else "right"
        other = "right" if winner == "left" else "left"
        time.sleep(3)
        assert lab.bound(other) == 0
        for n in range(7):
            lab.plane.api.call("DELETE", f"{PODS}/{winner}-{n}?gracePeriodSeconds=0")
        until("the other is bound", lambda: lab.bound(other) == 7, 120)
        assert accountant.wrong == []


def test_a_pod_that_kube_scheduler_cannot_place_keeps_all_from_being_bound(lab: Lab) -> None:
    lab.group("short", 2, scheduleTimeoutSeconds=10)
    lab.create("short-0", "short", cpu="1000", **WHOLE)
    lab.create("short-1", "short", **WHOLE)
    until("it is given back", lambda: lab.events("GroupGivenBack"), 60)
    assert (
        "its reservation ended after 10 s: 1 of at least 2 pods" in lab.events("GroupGivenBack")[0]
    )
    assert lab.bound() == 0
    lab.create("single", count=CARDS, **WHOLE)
    wait_bound(lab.plane, "single")


def test_rules_of_a_group_are_kept(lab: Lab) -> None:
    lab.group("apart", 4)
    lab.group("fabric", 5)
    for n in range(4):
        lab.create(f"apart-{n}", "apart", rules="separate-gpus,one-node", gpumem=1000)
    for n in range(4):
        wait_bound(lab.plane, f"apart-{n}")
    assert len({bound(one) for one in lab.pods("apart")}) == 1
    cards = [placement(one)["containers"]["main"][0]["uuid"] for one in lab.pods("apart")]
    assert len(set(cards)) == 4
    for n in range(5):
        lab.create(f"fabric-{n}", "fabric", rules="same-fabric", gpumem=60_000)
    for n in range(5):
        wait_bound(lab.plane, f"fabric-{n}")
    assert {bound(one) for one in lab.pods("fabric")} <= {"gpu-1", "gpu-2"}


def test_a_leader_that_is_killed_in_the_middle_is_followed_by_one_that_binds_all_or_none(
    lab: Lab,
) -> None:
    """A pod without GPUs is placed only after a node has its label: until then the others wait."""
    count = NODES * CARDS + 1
    lab.group("killed", count, scheduleTimeoutSeconds=600)
    lab.create("killed-0", "killed", count=0, spec={"nodeSelector": {"late": "yes"}})
    with Accountant(lab.plane, lab.fleet.memory) as accountant:
        for n in range(1, count):
            lab.create(f"killed-{n}", "killed", **WHOLE)

        def nominated() -> dict[str, str]:
            every = {
                one["metadata"]["name"]: str(one["status"].get("nominatedNodeName") or "")
                for one in lab.pods("killed")
                if one["metadata"]["name"] != "killed-0"
            }
            return every if all(every.values()) else {}

        until("the reservation is stored", nominated, 60)
        leader = lab.leader()
        other = next(one for one in lab.both if one is not leader)
        leader.end(signal.SIGKILL)
        until("the other takes over", lambda: is_leading(other), 120)
        leader.start()
        time.sleep(3)
        assert lab.bound("killed") == 0
        labels = {"metadata": {"labels": {"late": "yes"}}}
        lab.plane.api.patch("/api/v1/nodes/gpu-0", labels)
        for n in range(count):
            wait_bound(lab.plane, f"killed-{n}", 240)
        assert accountant.wrong == []
