"""A pod of higher priority that lacks nothing but shares of GPUs, with a real kube-scheduler: others make way for it, as few as will do,
also while the leader is killed. Pods end as their kubelets would let them: a moment after they were told to."""

from __future__ import annotations

import signal
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.api import ApiError
from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import control_plane
from tests.cluster.queueing import Replica, condition, define
from tests.cluster.scheduling import (
    MIB,
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
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]
NODES, CARDS = 3, 4
WHOLE = {"gpumem": 80 * 1024}
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"


@dataclass
class Kubelets:
    """Lets pods end that are told to."""

    plane: ControlPlane
    takes_s: float = 0.5
    seen: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Pods that were told to go, as they were last, by name."""
    failures: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Kubelets:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(60)
        assert not self.failures, self.failures

    def _run(self) -> None:
        since: dict[str, float] = {}
        try:
            while not self._ended.wait(0.1):
                for one in self.plane.api.get(PODS)["items"]:
                    head = one["metadata"]
                    if not head.get("deletionTimestamp"):
                        continue
                    self.seen[head["name"]] = one
                    began_s = since.setdefault(head["uid"], time.monotonic())
                    if time.monotonic() > began_s + self.takes_s:
                        self._end(head["name"])
        except BaseException as error:
            self.failures.append(error)

    def _end(self, name: str) -> None:
        try:
            self.plane.api.call("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")
        except ApiError as error:
            if error.status != 404:
                raise


@dataclass
class Lab:
    plane: ControlPlane
    both: list[Replica]
    fleet: Fleet
    kubelets: Kubelets

    def create(self, name: str, labels: dict[str, str] | None = None, **how: Any) -> None:
        pod = gpu_pod(name, **how)
        pod["metadata"]["labels"] = labels or {}
        self.plane.api.call("POST", PODS, pod)

    def fill(self, kept: Sequence[int] = (), **spec: Any) -> None:
        """Every card, with pods low-N, the N-th on node N % 3; those of the nodes `kept` with the label that a budget selects."""
        for n in range(NODES * CARDS):
            there = {"nodeSelector": {"zone": f"z{n % NODES}"}, **spec}
            labels = {"keep": "yes" if n % NODES in kept else "no"}
            self.create(f"low-{n}", labels, spec=there, **WHOLE)
        for n in range(NODES * CARDS):
            wait_bound(self.plane, f"low-{n}")

    def high(self, name: str, **how: Any) -> None:
        self.create(name, spec={"priorityClassName": "high"}, **how)

    @property
    def displaced(self) -> set[str]:
        names = {one["metadata"]["name"] for one in self.plane.api.get(PODS)["items"]}
        gone = {f"low-{n}" for n in range(NODES * CARDS)} - names
        return gone | (self.kubelets.seen.keys() & {f"low-{n}" for n in range(NODES * CARDS)})

    def leader(self) -> Replica:
        return next(one for one in self.both if is_leading(one))


def is_leading(replica: Replica) -> bool:
    return replica.process is not None and "placing pods" in replica.life


@pytest.fixture(scope="module")
def lab(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    plane = control_plane
    define(plane)
    place: Path = tmp_path_factory.mktemp("displacing")
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1000}
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    plane.api.call("POST", classes, {**high, "metadata": {"name": "high"}})
    patient = {**high, "metadata": {"name": "patient"}, "preemptionPolicy": "Never"}
    plane.api.call("POST", classes, patient)
    with replicas(plane, place, 2) as both:
        fleet = Fleet(plane, {place / f"{n}.sock": one for n, one in enumerate(both)}, gpus=CARDS)
        for n in range(NODES):
            fleet.add(f"gpu-{n}", zone=f"z{n}")
        until("one decides", lambda: any(map(is_leading, both)), 60)
        with (
            fleet,
            Service([one.asked_port for one in both]) as service,
            scheduler(plane, place, service.port),
            Kubelets(plane) as kubelets,
        ):
            until("all report", lambda: fleet.sessions_total >= NODES, 60)
            yield Lab(plane, both, fleet, kubelets)


@pytest.fixture(autouse=True)
def empty(lab: Lab) -> Iterator[None]:
    lab.kubelets.seen.clear()
    lab.kubelets.takes_s = 0.5
    yield
    for one in lab.plane.api.get(BUDGETS)["items"]:
        lab.plane.api.delete(f"{BUDGETS}/{one['metadata']['name']}")
    clear(lab.plane)


def test_one_makes_way_and_is_told_why(lab: Lab) -> None:
    lab.fill()
    lab.create("equal", **WHOLE)
    wait_refused(lab.plane, "equal")
    lab.kubelets.takes_s = 4.0
    lab.high("high", **WHOLE)
    until("a pod is displaced", lambda: lab.displaced, 60)
    (name,) = lab.displaced
    node = f"gpu-{int(name.rpartition('-')[2]) % NODES}"
    status = lab.plane.api.get(f"{PODS}/high")["status"]
    assert status["nominatedNodeName"] == node
    until("it says why", lambda: condition(lab.kubelets.seen[name], "DisruptionTarget"), 30)

    def why() -> str:
        return str(condition(lab.kubelets.seen[name], "DisruptionTarget")["reason"])

    until("as kube-scheduler would", lambda: why() == "PreemptionByScheduler", 30)
    place = placement(wait_bound(lab.plane, "high", 120))
    assert place["node"] == node
    assert lab.displaced == {name}, "one, and no more"
    assert not bound(lab.plane.api.get(f"{PODS}/equal")), "the room was kept"
    events = lab.plane.api.get("/api/v1/namespaces/default/events")["items"]
    (told,) = [one for one in events if one["reason"] == "Preempted"]
    assert told["involvedObject"]["name"] == name
    assert told["message"].endswith(f"on node {node}")
    url = f"http://127.0.0.1:{lab.leader().port}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        assert "sluice_queue_displaced_pods_total 1\n" in answer.read().decode()


def test_kais_delay_is_waited_for(lab: Lab) -> None:
    lab.fill()
    delay = {"kai.scheduler/preemption-delay": "8s"}
    began_s = time.monotonic()
    lab.high("patient", annotations=delay, **WHOLE)
    wait_refused(lab.plane, "patient")
    until("a pod is displaced", lambda: lab.displaced, 60)
    assert time.monotonic() - began_s > 6.5, "creationTimestamp has whole seconds"
    wait_bound(lab.plane, "patient", 120)
    assert len(lab.displaced) == 1


def budget(lab: Lab, allowed: int = 0) -> None:
    """Create a PodDisruptionBudget with the status that the disruption controller keeps: eight
    there, eight wanted."""
    head = {"name": "keep", "namespace": "default"}
    spec = {"minAvailable": 8 - allowed, "selector": {"matchLabels": {"keep": "yes"}}}
    made = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": head}
    lab.plane.api.call("POST", BUDGETS, {**made, "spec": spec})
    counted = {
        "disruptionsAllowed": allowed,
        "currentHealthy": 8,
        "desiredHealthy": 8 - allowed,
        "expectedPods": 8,
        "observedGeneration": 1,
    }
    lab.plane.api.patch(f"{BUDGETS}/keep/status", {"status": counted})


def test_budgets_are_kept_and_who_displaces_nobody_waits(lab: Lab) -> None:
    budget(lab)
    lab.fill(kept=(0, 1))
    lab.create("patient", spec={"priorityClassName": "patient"}, **WHOLE)
    wait_refused(lab.plane, "patient")
    lab.high("high", **WHOLE)
    assert placement(wait_bound(lab.plane, "high", 120))["node"] == "gpu-2"
    assert len(lab.displaced) == 1
    assert not bound(lab.plane.api.get(f"{PODS}/patient"))


def test_a_budget_with_one_disruption_left_gives_one_and_is_broken_only_by_who_has_no_other(
    lab: Lab,
) -> None:
    budget(lab, allowed=1)
    lab.fill(kept=(0, 1))
    at = "2026-11-22T10:00:00Z"
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": at, "lastProbeTime": at}
    for n in range(NODES * CARDS):  # who does not run is evicted in any case
        status = {"phase": "Running", "startTime": at, "conditions": [ready]}
        lab.plane.api.patch(f"{PODS}/low-{n}/status", {"status": status})
    there = {"priorityClassName": "high", "nodeSelector": {"zone": "z0"}}
    for n in range(2):
        lab.create(f"high-{n}", spec=there, **WHOLE)
    for n in range(2):
        wait_bound(lab.plane, f"high-{n}", 120)
    assert len(lab.displaced) == 2
    disrupted = lab.plane.api.get(f"{BUDGETS}/keep")["status"].get("disruptedPods") or {}
    assert len(disrupted) == 1, "one went by its leave"
    assert disrupted.keys() <= lab.displaced


def test_who_lacks_processors_too_is_left_to_kube_scheduler(lab: Lab) -> None:
    for n in range(NODES * CARDS):
        there = {"nodeSelector": {"zone": f"z{n % NODES}"}}
        lab.create(f"low-{n}", spec=there, cpu="14", **WHOLE)
    for n in range(NODES * CARDS):
        wait_bound(lab.plane, f"low-{n}")
    lab.high("high", cpu="20", **WHOLE)
    wait_bound(lab.plane, "high", 120)
    assert len(lab.displaced) == 1
    (name,) = lab.displaced
    messages = [str(condition(lab.kubelets.seen[name], "DisruptionTarget").get("message") or "")]
    assert any(one.startswith("sluice-scheduler: preempting") for one in messages), messages


def test_ten_at_once_displace_ten(lab: Lab) -> None:
    lab.fill()
    with Accountant(lab.plane, lab.fleet.memory) as accountant:
        for n in range(10):
            lab.high(f"high-{n}", **WHOLE)
        for n in range(10):
            wait_bound(lab.plane, f"high-{n}", 180)
        assert accountant.wrong == []
    assert len(lab.displaced) == 10


def test_pieces_of_a_card_are_cleared_where_least_has_to_go(lab: Lab) -> None:
    """kube-scheduler's sums alone would never call for preemption here: there is room enough, in
    pieces."""
    for n in range(NODES * CARDS):
        there = {"nodeSelector": {"zone": f"z{n % NODES}"}}
        lab.create(f"low-{n}", spec=there, gpumem=50_000)
    for n in range(NODES * CARDS):
        wait_bound(lab.plane, f"low-{n}")
    lab.high("high", count=2, gpumem=60_000)
    place = placement(wait_bound(lab.plane, "high", 120))
    assert {one["memory_bytes"] for one in place["containers"]["main"]} == {60_000 * MIB}
    assert len(lab.displaced) == 2


def test_a_leader_that_is_killed_in_the_middle_is_followed_by_one_that_displaces_nobody_again(
    lab: Lab,
) -> None:
    lab.fill()
    lab.kubelets.takes_s = 12.0
    names = [f"high-{n}" for n in range(3)]
    for name in names:
        lab.high(name, **WHOLE)
    until("a pod is displaced", lambda: lab.displaced, 60)
    leader = lab.leader()
    other = next(one for one in lab.both if one is not leader)
    leader.end(signal.SIGKILL)
    until("the other takes over", lambda: is_leading(other), 120)
    leader.start()
    for n in range(3):
        lab.create(f"thief-{n}", **WHOLE)
    with Accountant(lab.plane, lab.fleet.memory) as accountant:
        for name in names:
            wait_bound(lab.plane, name, 180)
        assert accountant.wrong == []
    assert len(lab.displaced) == 3


def test_leaders_that_are_killed_again_and_again_displace_one_for_each_and_no_more(
    lab: Lab,
) -> None:
    lab.fill()
    lab.kubelets.takes_s = 3.0
    count = 9
    with Accountant(lab.plane, lab.fleet.memory) as accountant:
        for n in range(count):
            lab.high(f"high-{n}", **WHOLE)
            time.sleep(0.7)
            if n % 3 != 1:
                continue
            leader = lab.leader()
            other = next(one for one in lab.both if one is not leader)
            leader.end(signal.SIGKILL)
            until("the other takes over", lambda other=other: is_leading(other), 120)
            leader.start()
        for n in range(count):
            wait_bound(lab.plane, f"high-{n}", 240)
        assert accountant.wrong == []
    assert len(lab.displaced) == count
