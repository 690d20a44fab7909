"""`sluice-queue serve` in mode kubernetes, as a process beside an API server, and small objects for it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakSet

from queuecontroller.cluster.setup import rbac
from queuecontroller.kueueapi import GROUP
from queuecontroller.kueueapi.crds import Webhook, definitions
from tests.cluster.api import ApiError
from tests.cluster.control_plane import ControlPlane, ControlPlaneError
from tests.kit.node import until
from tests.kit.workplace import free_port
from tests.queue.kueueapi.serving import certify

KUEUE = f"/apis/{GROUP}/v1beta2"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
WORKLOADS = f"{KUEUE}/namespaces/default/workloads"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/sluice/leases/sluice-queue"
LEASE_S = 3.0
DEADLINE_S = 240.0
"""Deadline for steps that take a second on an idle machine: a new one may build beside it."""
UNANSWERED = "failed calling webhook"


def define(plane: ControlPlane) -> None:
    """Kueue's kinds without a conversion webhook: only v1beta2 is used."""
    items: list[Any] = []
    for one in definitions(Webhook()):
        one["spec"]["versions"] = [
            version for version in one["spec"]["versions"] if version["storage"]
        ]
        one["spec"]["conversion"] = {"strategy": "None"}
        items.append(one)
    items.append({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "sluice"}})
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    plane.kubectl("apply", "--server-side", "-f", "-", given=text)
    until("Kueue's kinds are served", lambda: is_served(plane), DEADLINE_S)


def define_all(plane: ControlPlane) -> None:
    """Apply Kueue's kinds as a user does: in all versions, without a conversion webhook yet."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "sluice"}}
    items = [*definitions(Webhook()), namespace]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    plane.kubectl("apply", "--server-side", "-f", "-", given=text)
    until("Kueue's kinds are served", lambda: is_served(plane), DEADLINE_S)


def is_served(plane: ControlPlane) -> bool:
    try:
        plane.api.get(WORKLOADS)
        return len(plane.api.get(KUEUE)["resources"]) >= 11
    except ApiError:
        return False


def serves(plane: ControlPlane, definition: Mapping[str, Any]) -> bool:
    """True if the objects of a CRD can be listed."""
    spec = definition["spec"]
    version = spec["versions"][0]["name"]
    try:
        plane.api.get(f"/apis/{spec['group']}/{version}/{spec['names']['plural']}")
    except ApiError:
        return False
    return True


def account(plane: ControlPlane, place: Path, beside: bool = False) -> Path:
    """The kubeconfig of a service account that may exactly what the written roles say; `beside`: those of that mode."""
    found = place / "queue.kubeconfig"
    if found.exists():
        return found
    head = {"name": "sluice-queue", "namespace": "sluice"}
    service_account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": head}
    apply(plane, service_account, *rbac.documents("sluice", "sluice-queue", beside))
    cluster = {"server": plane.url, "certificate-authority": str(plane.pki / "ca.crt")}
    user = {"token": plane.token("sluice", "sluice-queue", seconds=7200)}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "queue", "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "queue"}}],
        "current-context": "test",
    }
    found.write_text(json.dumps(document))
    return found


class Replica:
    """One process."""

    every: ClassVar[WeakSet[Replica]] = WeakSet()
    """All replicas; the logs of those still running become part of a failure's report."""

    def __init__(
        self,
        plane: ControlPlane,
        log: Path,
        settings: Sequence[str] = (),
        server: str = "",
        nodes_socket: str = "none",
        mode: str = "kubernetes",
    ) -> None:
        """`server`: where it finds the API server, if not at its own address; `nodes_socket`: where nodes find it."""
        self.plane = plane
        self.log = log
        kubeconfig = account(plane, log.parent, mode == "beside")
        if server:
            text = kubeconfig.read_text().replace(plane.url, server)
            kubeconfig = log.with_suffix(".kubeconfig")
            kubeconfig.write_text(text)
        self.port = free_port()
        self.asked_port = 0
        """Port of its webhooks, when a test configured them."""
        self.near_port = 0
        """Port of its extender over the loopback, without TLS."""
        every = (
            f"kubernetes.mode={mode}",
            f"kubernetes.kubeconfig={kubeconfig}",
            "kubernetes.namespace=sluice",
            f"kubernetes.leader_lease_s={LEASE_S:g}",
            "kubernetes.drain_s=0",
            *settings,
        )
        self.command = [
            *(sys.executable, "-m", "queuecontroller", "serve", "--socket", nodes_socket),
            *("--metrics-listen", f"127.0.0.1:{self.port}"),
            *(word for one in every for word in ("--set", one)),
        ]
        self.process: subprocess.Popen[bytes] | None = None
        self.began = 0
        Replica.every.add(self)

    def start(self) -> None:
        self.began = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ}
            )

    def end(self, with_signal: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(with_signal)
        status = self.process.wait(timeout=60)
        self.process = None
        return status

    def leads(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            said = self.life.strip() or "nothing"
            raise AssertionError(f"it ended: {said.splitlines()[-1]}\n{said[-4000:]}")
        return "deciding" in self.life

    @property
    def is_ready(self) -> bool:
        """It decides, or could at once."""
        with contextlib.suppress(OSError):
            url = f"http://127.0.0.1:{self.port}/readyz"
            with urllib.request.urlopen(url, timeout=5) as answer:
                return bool(answer.status == 200)
        return False

    @property
    def life(self) -> str:
        """Text logged since the replica was last started."""
        return self.log.read_bytes()[self.began :].decode(errors="replace")

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""


def leader_of(plane: ControlPlane, replicas: list[Replica]) -> Replica | None:
    lease: Any = plane.api.find(LEASE)
    holder = lease["spec"]["holderIdentity"] if lease else ""
    for one in replicas:
        if holder and one.process is not None and f"as {holder}" in one.life:
            return one
    return None


@contextmanager
def running(made: Sequence[Replica]) -> Iterator[None]:
    """They are started, say of no defect and of no right that they lack, and are killed at the end."""
    for one in made:
        one.start()
    try:
        yield
        for one in made:
            assert "defect" not in one.text, one.text[-4000:]
            assert "Forbidden" not in one.text, one.text[-4000:]
    finally:
        for one in made:
            if one.process is not None:
                one.end(signal.SIGKILL)


@contextmanager
def serving(plane: ControlPlane, place: Path, *settings: str) -> Iterator[Replica]:
    replica = Replica(plane, place / "queue.log", settings)
    replica.start()
    try:
        yield replica
        assert "defect" not in replica.text, replica.text[-4000:]
        assert "Forbidden" not in replica.text, replica.text[-4000:]
    finally:
        if replica.process is not None:
            replica.end(signal.SIGKILL)


def webhook_settings(place: Path, port: int, url_port: int = 0) -> list[str]:
    """Settings of a replica's webhooks with the certificates in `place`. `url_port`: where the API
    server reaches them, if not at the replica's own port."""
    authority = next(one for one in place.glob("*.crt") if one.name != "server.crt")
    return [
        f"kubernetes.webhooks_listen=127.0.0.1:{port}",
        f"kubernetes.webhooks_url=https://127.0.0.1:{url_port or port}",
        f"kubernetes.webhooks_certificate={place}/server.crt",
        f"kubernetes.webhooks_key={place}/server.key",
        f"kubernetes.webhooks_ca={authority}",
    ]


@contextmanager
def asked(
    plane: ControlPlane, place: Path, *settings: str, leads: bool = True
) -> Iterator[Replica]:
    """A replica with its webhooks, which the API server reaches by address. The definitions are as
    a user applies them: they contain no CA bundle. `leads`: false if another one holds the lease."""
    certify(place)
    if not is_served(plane):
        define_all(plane)
    port = free_port()
    with serving(plane, place, *webhook_settings(place, port), *settings) as replica:
        if leads:
            until("it decides", replica.leads, DEADLINE_S)
        until("jobs are asked about", lambda: is_asked(plane), DEADLINE_S)
        yield replica


def is_asked(plane: ControlPlane) -> bool:
    """The API server takes a moment to know of a webhook and of a converter."""
    asked = job("try", "none", suspend=False)
    bare = {"apiVersion": "v1", "kind": "Pod", **asked["spec"]["template"]}
    bare["metadata"] = asked["metadata"]
    try:
        held: Any = plane.api.call("POST", f"{JOBS}?dryRun=All", asked)
        gated: Any = plane.api.call("POST", "/api/v1/namespaces/default/pods?dryRun=All", bare)
        plane.api.get(f"/apis/{GROUP}/v1beta1/resourceflavors")
    except ApiError:
        return False
    return bool(held["spec"]["suspend"] or gated["spec"].get("schedulingGates"))


def quota(name: str, cpu: int | str, **spec: Any) -> dict[str, Any]:
    """A ClusterQueue of one flavor for CPU."""
    flavors = [{"name": "plain", "resources": [{"name": "cpu", "nominalQuota": cpu}]}]
    made = {
        "resourceGroups": [{"coveredResources": ["cpu"], "flavors": flavors}],
        "namespaceSelector": {},
    }
    return of_kueue("ClusterQueue", name, {**made, **spec})


def of_kueue(kind: str, name: str, spec: Any, **head: Any) -> dict[str, Any]:
    return {
        "apiVersion": f"{GROUP}/v1beta2",
        "kind": kind,
        "metadata": {"name": name, **head},
        "spec": spec,
    }


def door(name: str, cluster_queue: str) -> dict[str, Any]:
    return of_kueue("LocalQueue", name, {"clusterQueue": cluster_queue}, namespace="default")


def apply(plane: ControlPlane, *documents: dict[str, Any]) -> str:
    """Once more where the API server had no answer in time from who judges: a busy machine is no mistake of the objects."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(documents)})
    end_s = time.monotonic() + DEADLINE_S
    while True:
        try:
            return plane.kubectl("apply", "-f", "-", given=text)
        except ControlPlaneError as error:
            if UNANSWERED not in str(error) or time.monotonic() > end_s:
                raise
        time.sleep(0.5)


def job(name: str, queue: str, cpu: str = "1", pods: int = 1, **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": cpu}}}
    labels = {"kueue.x-k8s.io/queue-name": queue} if queue else {}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "spec": {
            "suspend": True,
            "parallelism": pods,
            "completions": pods,
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
            **spec,
        },
    }


def finish(plane: ControlPlane, name: str, failed: bool = False) -> None:
    """Write the status that the controller-manager would write on a Job whose pods are done."""
    at = "2026-11-22T10:00:00Z"
    kind = "Failed" if failed else "Complete"
    criteria = {"type": "FailureTarget" if failed else "SuccessCriteriaMet", "status": "True"}
    done = {"type": kind, "status": "True", "reason": "r", "message": "m"}
    conditions = [
        {**one, "lastTransitionTime": at, "lastProbeTime": at} for one in (criteria, done)
    ]
    status: dict[str, Any] = {"conditions": conditions, "startTime": at, "active": 0, "ready": 0}
    if not failed:
        status |= {
            "completionTime": at,
            "succeeded": plane.api.get(f"{JOBS}/{name}")["spec"]["completions"],
        }
    plane.api.patch(f"{JOBS}/{name}/status", {"status": status})


def workload_of(plane: ControlPlane, name: str) -> dict[str, Any] | None:
    """The Workload of the Job of that name."""
    for one in plane.api.get(WORKLOADS)["items"]:
        if any(owner["name"] == name for owner in one["metadata"].get("ownerReferences", ())):
            return dict(one)
    return None


def wait_done_pods(plane: ControlPlane, name: str, count: int) -> None:
    """Wait until the Job's Workload reports that number of finished pods; others may have been
    given their places just before."""
    wanted = [{"name": "main", "count": count}]

    def said() -> object:
        return ((workload_of(plane, name) or {}).get("status") or {}).get("reclaimablePods")

    until(f"{name} says that {count} of its pods are done", lambda: said() == wanted, 30)


def condition(document: dict[str, Any] | None, kind: str) -> dict[str, Any]:
    status = (document or {}).get("status") or {}
    return next((one for one in status.get("conditions") or () if one["type"] == kind), {})


def is_true(document: dict[str, Any] | None, kind: str) -> bool:
    return bool(condition(document, kind).get("status") == "True")


def suspended(plane: ControlPlane, name: str) -> bool:
    return bool(plane.api.get(f"{JOBS}/{name}")["spec"].get("suspend"))
