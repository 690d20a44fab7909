"""One API server with controllers, our controller, and nodes: what the operators' tests share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster.api import ApiError
from tests.cluster.control_plane import ControlPlane
from tests.cluster.operators.kubelet import (
    PODS,
    POOL,
    Document,
    Kubelets,
    cpus,
    cpus_of,
    occupies,
)
from tests.cluster.operators.running import define_operators
from tests.cluster.queueing import (
    JOBS,
    KUEUE,
    WORKLOADS,
    Replica,
    apply,
    asked,
    door,
    is_true,
    job,
    of_kueue,
    quota,
)
from tests.kit.node import until

QUEUE = "team"
HIGH = "high"
STEP_S = 120.0
NOT_YET_S = 1.5
"""How long a held job is watched. A fault may need longer than that and be missed; a right one is never blamed."""
EMPTIED = (
    "/api/v1/namespaces/default/services",
    "/api/v1/namespaces/default/pods",
    "/apis/batch/v1/namespaces/default/jobs",
)


@dataclass
class Lab:
    plane: ControlPlane
    replica: Replica
    kubelets: Kubelets
    place: Path
    room: list[float]
    """CPUs of the queue; one entry, since the nodes read it."""
    seen: set[str] = field(default_factory=set)
    """UIDs of every Workload seen since `queue`."""

    # -- the queue --------------------------------------------------------------------------------
    def queue(self, cpus: int, hold: bool = False) -> None:
        self.seen.clear()
        self.room[0] = cpus
        self.set_queue(cpus, "Hold" if hold else "None")

    def set_queue(self, cpus: int, policy: str) -> None:
        preemption = {"withinClusterQueue": "LowerPriority"}
        apply(self.plane, quota(QUEUE, cpus, stopPolicy=policy, preemption=preemption))

    def release(self) -> None:
        self.set_queue(int(self.room[0]), "None")

    # -- what is there ----------------------------------------------------------------------------
    def workloads(self) -> list[Document]:
        found: list[Document] = self.plane.api.get(WORKLOADS)["items"]
        self.seen |= {one["metadata"]["uid"] for one in found}
        return found

    def pods(self) -> list[Document]:
        return list(self.plane.api.get(PODS)["items"])

    def running(self) -> list[Document]:
        return [one for one in self.pods() if occupies(one) and one["status"]["phase"] == "Running"]

    def reserved(self) -> float:
        """CPUs that the Workloads hold by their own status."""
        return sum(held(one) for one in self.workloads())

    def counted(self) -> float:
        """CPUs that the ClusterQueue counts as reserved."""
        status = self.plane.api.get(f"{KUEUE}/clusterqueues/{QUEUE}").get("status") or {}
        flavors = status.get("flavorsReservation") or []
        return sum(cpus(one["total"]) for flavor in flavors for one in flavor["resources"])

    def check(self) -> None:
        assert not self.kubelets.wrong, self.kubelets.wrong

    def wait(self, what: str, condition: Callable[[], Any], deadline_s: float = STEP_S) -> None:
        try:
            until(what, condition, deadline_s)
        except Exception as error:
            raise AssertionError(f"{error}\n{self.report()}") from error
        self.check()

    def wait_held(self, cpus: float) -> None:
        """The quota is exactly this, by the Workloads and by the queue."""
        self.wait(
            f"{cpus:g} CPUs are held",
            lambda: self.reserved() == cpus and self.counted() == cpus,
        )

    def wait_running(self, pods: int) -> None:
        """They have what the admission adds to pods of this flavor, in whatever form their kind takes it."""
        self.wait(f"{pods} pods run", lambda: len(self.running()) == pods)
        selectors = {name_of(one): one["spec"].get("nodeSelector") or {} for one in self.running()}
        assert all(POOL.items() <= one.items() for one in selectors.values()), selectors

    # -- steps ------------------------------------------------------------------------------------
    def create(self, document: Document, path: str) -> None:
        """Tried again while a webhook is not there yet."""

        def made() -> bool:
            try:
                self.plane.api.call("POST", path, document)
            except ApiError as error:
                if "failed calling webhook" in str(error) or error.status == 404:
                    return False
                raise AssertionError(str(error)) from error
            return True

        until(f"{path} is created", made, STEP_S)

    def stays_held(self) -> None:
        end_s = time.monotonic() + NOT_YET_S
        while time.monotonic() < end_s:
            assert self.reserved() == 0
            for pod in self.pods():
                assert pod["spec"].get("schedulingGates"), pod["metadata"]["name"]
            time.sleep(0.1)

    def preempt(self) -> None:
        """A job of higher priority that needs the whole queue runs, and ends."""
        high = job(HIGH, QUEUE, cpu=str(int(self.room[0])))
        high["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = HIGH
        self.plane.api.call("POST", JOBS, high)
        self.wait("the job of higher priority runs", lambda: names(self.running()) == {HIGH})
        self.wait_held(self.room[0])

    def end_high(self) -> None:
        self.kubelets.done = lambda pod: name_of(pod) == HIGH
        self.wait(
            "the job of higher priority is done",
            lambda: is_true(self.plane.api.get(f"{JOBS}/{HIGH}"), "Complete"),
        )
        self.kubelets.done = lambda pod: False
        self.plane.api.delete(f"{JOBS}/{HIGH}")

    def empty(self) -> None:
        self.wait("its Workloads are gone", lambda: not self.workloads())
        self.wait("its pods are gone", lambda: not self.pods())
        self.wait_held(0)

    def clear(self) -> None:
        """Delete the objects that a failed test left."""
        self.kubelets.done = lambda pod: False
        for path in EMPTIED:
            for one in self.plane.api.get(path)["items"]:
                self.plane.api.delete(f"{path}/{one['metadata']['name']}")

    def report(self) -> str:
        first = f"room {self.room[0]:g}, {len(self.seen)} Workloads seen"
        return "\n".join([first, described(self.plane), *self.kubelets.wrong])


def described(plane: ControlPlane) -> str:
    """Workloads, pods and the last events, for the report of a failure."""
    lines = []
    for one in plane.api.get(WORKLOADS)["items"]:
        conditions = (one.get("status") or {}).get("conditions") or []
        said = [f"{c['type']}={c['status']}:{c.get('reason')}" for c in conditions]
        lines.append(f"Workload {one['metadata']['name']} holds {held(one):g} {said}")
    for one in plane.api.get(PODS)["items"]:
        head, spec = one["metadata"], one["spec"]
        gates = [gate["name"] for gate in spec.get("schedulingGates") or ()]
        going = head.get("deletionTimestamp", "stays")
        where = f"{one['status'].get('phase')} on {spec.get('nodeName')}"
        lines.append(f"pod {head['name']} {where} {gates} {going} {head.get('finalizers')}")
    for one in plane.api.items("events", "default")[-25:]:
        about, said = one["involvedObject"], one["message"][:160]
        lines.append(f"event {about['kind']} {about['name']} {one['reason']} {said}")
    return "\n".join(lines)


def held(workload: Document) -> float:
    if is_true(workload, "Finished"):
        return 0
    admission = (workload.get("status") or {}).get("admission") or {}
    sets = admission.get("podSetAssignments") or ()
    return sum(cpus((one.get("resourceUsage") or {}).get("cpu", "0")) for one in sets)


def name_of(pod: Document) -> str:
    """Name of the pod's Job, else of the pod."""
    labels = pod["metadata"].get("labels") or {}
    return str(labels.get("job-name") or pod["metadata"]["name"])


def names(pods: list[Document]) -> set[str]:
    return {name_of(one) for one in pods}


def priority_class() -> Document:
    document = of_kueue("WorkloadPriorityClass", HIGH, None)
    del document["spec"]
    return {**document, "value": 1000}


@contextmanager
def labs(place: Path, operators: Iterable[str]) -> Iterator[Lab]:
    """`operators`: those whose kinds are served."""
    room = [0.0]
    with ExitStack() as stack:
        plane = stack.enter_context(ControlPlane(place / "plane", controllers=True))
        define_operators(plane, operators)
        replica = stack.enter_context(asked(plane, place))
        apply(plane, of_kueue("ResourceFlavor", "plain", {"nodeLabels": POOL}), priority_class())
        apply(plane, quota(QUEUE, 0), door(QUEUE, QUEUE))
        kubelets = stack.enter_context(Kubelets(plane, lambda: room[0]))
        yield Lab(plane, replica, kubelets, place, room)


__all__ = ["Lab", "cpus_of", "labs"]
