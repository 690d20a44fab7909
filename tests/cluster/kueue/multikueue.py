"""A MultiKueue fleet of real API servers: a manager and two workers, each with a queue controller of its own, or with Kueue's."""

from __future__ import annotations

import base64
import json
import signal
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from queuecontroller.cluster.setup import rbac
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kueue.manager import NAMESPACE, define_kueue, kueue_runs
from tests.cluster.queueing import (
    DEADLINE_S,
    JOBS,
    KUEUE,
    WORKLOADS,
    Replica,
    apply,
    define,
    is_true,
    of_kueue,
    quota,
    serving,
    workload_of,
)
from tests.kit.node import until

CONTROLLER = "kueue.x-k8s.io/multikueue"
CHECK = f"{KUEUE}/admissionchecks/elsewhere"
MANAGER = "manager"
WORKERS = ("w1", "w2")
FEATURES = {"MultiKueueOrchestratedPreemption": True}
"""Kueue's features that are on in 0.20 and off in 0.19."""
STRATEGY = {"admissionChecksStrategy": {"admissionChecks": [{"name": "elsewhere"}]}}
"""Part of a manager's ClusterQueue that sends its jobs to the workers."""


@dataclass
class Fleet:
    manager: ControlPlane
    workers: dict[str, ControlPlane]

    def limit(self, worker: str, cpu: int) -> None:
        """Set a worker's quota."""
        apply(self.workers[worker], quota("team", cpu))

    def copies(self, worker: str) -> list[str]:
        return [one["metadata"]["name"] for one in self.workers[worker].api.get(WORKLOADS)["items"]]

    def is_at(self, worker: str, name: str) -> bool:
        return self.workers[worker].api.find(f"{JOBS}/{name}") is not None

    def check(self, name: str) -> dict[str, Any]:
        status = (workload_of(self.manager, name) or {}).get("status") or {}
        return dict(next(iter(status.get("admissionChecks") or ()), {}))

    def cluster(self, name: str) -> str:
        status = (workload_of(self.manager, name) or {}).get("status") or {}
        return str(status.get("clusterName") or "")


def access(plane: ControlPlane) -> dict[str, Any]:
    """A kubeconfig of a manager's account in a worker, with the rights that the product documents."""
    apply(plane, *rbac.worker_documents("sluice", "multikueue"))
    authority = base64.b64encode((plane.pki / "ca.crt").read_bytes()).decode()
    cluster = {"server": plane.url, "certificate-authority-data": authority}
    user = {"token": plane.token("sluice", "multikueue", seconds=7200)}
    return kubeconfig(cluster, user)


def kubeconfig(cluster: dict[str, Any], user: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "worker", "cluster": cluster}],
        "users": [{"name": "manager", "user": user}],
        "contexts": [{"name": "worker", "context": {"cluster": "worker", "user": "manager"}}],
        "current-context": "worker",
    }


def secret(name: str, content: dict[str, Any], namespace: str = "sluice") -> dict[str, Any]:
    head = {"name": name, "namespace": namespace}
    text = {"kubeconfig": json.dumps(content)}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": head, "stringData": text}


def member(name: str, location: str = "", kind: str = "Secret") -> dict[str, Any]:
    source = {"kubeConfig": {"location": location or name, "locationType": kind}}
    return of_kueue("MultiKueueCluster", name, {"clusterSource": source})


def readable(*names: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The right to read these Secrets alone, as the chart gives it."""
    head = {"name": "multikueue-kubeconfigs", "namespace": "sluice"}
    rule = {
        "apiGroups": [""],
        "resources": ["secrets"],
        "verbs": ["get"],
        "resourceNames": [*names],
    }
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": head["name"]}
    subject = {"kind": "ServiceAccount", "name": "sluice-queue", "namespace": "sluice"}
    api = "rbac.authorization.k8s.io/v1"
    return (
        {"apiVersion": api, "kind": "Role", "metadata": head, "rules": [rule]},
        {
            "apiVersion": api,
            "kind": "RoleBinding",
            "metadata": head,
            "roleRef": ref,
            "subjects": [subject],
        },
    )


@contextmanager
def started(plane: ControlPlane, place: Path) -> Iterator[Replica]:
    """A worker's controller. An API server that has just been started denies for a moment what it
    allows, so that `serving` would count that as a missing right."""
    replica = Replica(plane, place / "queue.log")
    replica.start()
    try:
        yield replica
        assert "defect" not in replica.text, replica.text[-4000:]
    finally:
        if replica.process is not None:
            replica.end(signal.SIGKILL)


@contextmanager
def running_fleet(
    directory: Path,
    configuration: str,
    prepare: Callable[[ControlPlane, str], None],
    others: Sequence[str] = (),
    durable: bool = False,
    kueues: Collection[str] = (),
    controllers: bool = False,
) -> Iterator[Fleet]:
    """`configuration`: the manager's, in Kueue's words. `prepare` makes the queues of a cluster, named `manager`, `w1` or `w2`,
    before anything decides there. `others`: more Secrets that the manager may read. `durable`: etcd waits for the disk.
    `kueues`: clusters in which Kueue decides. `controllers`: Jobs make pods, which nobody runs, and owners' objects are deleted
    with them."""
    with ExitStack() as stack:
        planes = {
            name: stack.enter_context(
                ControlPlane(directory / name, controllers=controllers, durable=durable)
            )
            for name in (MANAGER, *WORKERS)
        }
        for name, plane in planes.items():
            if name in kueues:
                define_kueue(plane)
                head = {"name": "sluice"}
                apply(plane, {"apiVersion": "v1", "kind": "Namespace", "metadata": head})
            else:
                define(plane)
            apply(plane, of_kueue("ResourceFlavor", "plain", {}))
            prepare(plane, name)
            (directory / f"queue-{name}").mkdir()
        for name in WORKERS:
            place = directory / f"queue-{name}"
            if name in kueues:
                stack.enter_context(kueue_runs(planes[name], place, **FEATURES))
            else:
                replica = stack.enter_context(started(planes[name], place))
                until(f"{name} decides", replica.leads, DEADLINE_S)
        manager = planes[MANAGER]
        namespace = NAMESPACE if MANAGER in kueues else "sluice"
        parameters = {"apiGroup": "kueue.x-k8s.io", "kind": "MultiKueueConfig", "name": "fleet"}
        apply(
            manager,
            *(secret(name, access(planes[name]), namespace) for name in WORKERS),
            *(member(name) for name in WORKERS),
            of_kueue("MultiKueueConfig", "fleet", {"clusters": [*WORKERS]}),
            of_kueue(
                "AdmissionCheck",
                "elsewhere",
                {"controllerName": CONTROLLER, "parameters": parameters},
            ),
        )
        place = directory / f"queue-{MANAGER}"
        if MANAGER in kueues:
            stack.enter_context(kueue_runs(manager, place, **FEATURES))
        else:
            given = directory / "kueue.yaml"
            given.write_text(configuration)
            setting = f"kubernetes.kueue_configuration={given}"
            replica = stack.enter_context(serving(manager, place, setting))
            apply(manager, *readable(*WORKERS, *others))
            until("the manager decides", replica.leads, DEADLINE_S)
        until(
            "both workers are connected",
            lambda: is_true(manager.api.get(CHECK), "Active"),
            DEADLINE_S,
        )
        yield Fleet(manager, {name: planes[name] for name in WORKERS})
