"""Nodes without a kubelet, and what a kubelet would report of the pods bound to them: they run, end as a test says, and are gone a
moment after their deletion. All else (scheduler, controllers, garbage collector) is real."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from tests.cluster.api import ApiError
from tests.cluster.control_plane import ControlPlane

Document = dict[str, Any]
PODS = "/api/v1/namespaces/default/pods"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
NODES = 2
POOL = {"pool": "cpus"}
"""Label of the nodes, and of the queue's flavor."""
CPUS = "64"
TERMINATES_S = 0.5
LEASE_S = 5.0
ENDED = ("Succeeded", "Failed")
TERMINATED = 143
"""Exit status of a process that SIGTERM ended."""


class Kubelets:
    """One thread for all nodes; it looks at the pods ten times a second."""

    def __init__(self, plane: ControlPlane, most_cpus: Callable[[], float]) -> None:
        """`most_cpus`: CPUs that running pods may have together now."""
        self.plane = plane
        self.wrong: list[str] = []
        self.done: Callable[[Document], bool] = lambda pod: False
        """True for a running pod whose program has ended well."""
        self._most_cpus = most_cpus
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._address = 0

    def __enter__(self) -> Kubelets:
        for number in range(NODES):
            name = f"node-{number}"
            labels = {"kubernetes.io/hostname": name, **POOL}
            self.plane.api.create("nodes", "", {"metadata": {"name": name, "labels": labels}})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(60)

    def _run(self) -> None:
        renewed_s = 0.0
        since: dict[str, float] = {}
        while not self._ended.wait(0.1):
            try:
                if time.monotonic() > renewed_s + LEASE_S:
                    self._renew()
                    renewed_s = time.monotonic()
                pods = self.plane.api.get(PODS)["items"]
                self._count(pods)
                for pod in pods:
                    if pod["spec"].get("nodeName"):
                        self._tend(pod, since)
            except ApiError as error:
                if error.status not in (404, 409, 422):
                    self.wrong.append(repr(error))
            except OSError:
                continue
            except Exception as error:
                self.wrong.append(repr(error))
                raise

    def _count(self, pods: list[Document]) -> None:
        cpus = sum(cpus_of(one) for one in pods if occupies(one))
        if cpus > self._most_cpus():
            self.wrong.append(f"pods of {cpus} CPUs run, of {self._most_cpus()}")

    def _tend(self, pod: Document, since: dict[str, float]) -> None:
        head, phase = pod["metadata"], pod["status"].get("phase")
        path = f"{PODS}/{head['name']}"
        if head.get("deletionTimestamp"):
            began_s = since.setdefault(head["uid"], time.monotonic())
            if time.monotonic() < began_s + TERMINATES_S:
                return
            if phase not in ENDED:
                self._report(path, pod, "Failed", TERMINATED)
            with contextlib.suppress(ApiError):
                self.plane.api.delete(path, grace_s=0)
        elif phase == "Pending":
            self._report(path, pod, "Running")
        elif phase == "Running" and self.done(pod):
            self._report(path, pod, "Succeeded", 0)

    def _report(self, path: str, pod: Document, phase: str, status: int | None = None) -> None:
        runs = status is None
        at = now()
        state: Document = {"running": {"startedAt": at}}
        if not runs:
            state = {"terminated": {"exitCode": status, "finishedAt": at, "startedAt": at}}
        self._address += 1
        ready = "True" if runs else "False"
        body: Document = {
            "phase": phase,
            "startTime": pod["status"].get("startTime") or at,
            "conditions": [
                {"type": kind, "status": value, "lastTransitionTime": at}
                for kind, value in (
                    ("PodScheduled", "True"),
                    ("Initialized", "True"),
                    ("ContainersReady", ready),
                    ("Ready", ready),
                )
            ],
            "containerStatuses": [
                {
                    "name": one["name"],
                    "image": one["image"],
                    "imageID": "",
                    "ready": runs,
                    "started": runs,
                    "restartCount": 0,
                    "state": state,
                }
                for one in pod["spec"]["containers"]
            ],
        }
        if runs:
            address = f"10.200.{self._address // 250}.{self._address % 250 + 1}"
            body |= {"podIP": address, "podIPs": [{"ip": address}]}
        self.plane.api.patch(f"{path}/status", {"status": body})

    def _renew(self) -> None:
        """Renew the Leases and the status of the nodes, which keeps them ready."""
        for number in range(NODES):
            name = f"node-{number}"
            resources = {"cpu": CPUS, "memory": "256Gi", "pods": "200"}
            at = now()
            ready = {
                "type": "Ready",
                "status": "True",
                "reason": "KubeletReady",
                "lastHeartbeatTime": at,
                "lastTransitionTime": at,
            }
            status = {"capacity": resources, "allocatable": resources, "conditions": [ready]}
            self.plane.api.patch(f"/api/v1/nodes/{name}/status", {"status": status})
            spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": now_micro()}
            with contextlib.suppress(ApiError):  # its namespace is made a moment after the start
                if self.plane.api.find(f"{LEASES}/{name}"):
                    self.plane.api.patch(f"{LEASES}/{name}", {"spec": spec})
                else:
                    self.plane.api.call("POST", LEASES, {"metadata": {"name": name}, "spec": spec})


def occupies(pod: Document) -> bool:
    return bool(pod["spec"].get("nodeName")) and pod["status"].get("phase") not in ENDED


def cpus_of(pod: Document) -> float:
    requests = [(one.get("resources") or {}).get("requests") or {} for one in containers(pod)]
    return sum(cpus(one.get("cpu", "0")) for one in requests)


def containers(pod: Document) -> list[Document]:
    """Those that run as long as the pod does."""
    first = pod["spec"].get("initContainers") or []
    return [
        *(one for one in first if one.get("restartPolicy") == "Always"),
        *pod["spec"]["containers"],
    ]


def cpus(quantity: str) -> float:
    text = str(quantity)
    return int(text.removesuffix("m")) / 1000 if text.endswith("m") else float(text)


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def now_micro() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
