"""Kueue's own manager as a process beside an API server, with the definitions it comes with.

No webhook of it is asked: the API server has no way to a Service. Jobs are to be made suspended, and v1beta2 is all that is served.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.api import ApiError
from tests.cluster.control_plane import ControlPlane
from tests.cluster.programs import build
from tests.kit.node import until
from tests.kit.workplace import free_ports

NAMESPACE = "kueue-system"
SECRET = "/api/v1/namespaces/kueue-system/secrets/kueue-webhook-server-cert"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kueue-system/leases/c1f6bfd2.kueue.x-k8s.io"
KUEUE = "/apis/kueue.x-k8s.io/v1beta2"


def define_kueue(plane: ControlPlane) -> None:
    """Kueue's own definitions, as they come with it, without a conversion webhook: only v1beta2 is served."""
    items: list[Any] = []
    for file in sorted(build.kueue_definitions().glob("kueue.x-k8s.io_*.yaml")):
        definition = yaml.safe_load(file.read_text())
        spec = definition["spec"]
        for version in spec["versions"]:
            version["served"] = version["storage"]
        client = {"url": "https://127.0.0.1:9/convert"}
        webhook = {"clientConfig": client, "conversionReviewVersions": ["v1"]}
        spec["conversion"] = {"strategy": "Webhook", "webhook": webhook}
        items.append(definition)
    items.append({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    # It fills this in; it does not make it.
    head = {"name": "kueue-webhook-server-cert", "namespace": NAMESPACE}
    items.append({"apiVersion": "v1", "kind": "Secret", "metadata": head})
    for kind in ("Validating", "Mutating"):
        items.append(
            {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": f"{kind}WebhookConfiguration",
                "metadata": {"name": f"kueue-{kind.lower()}-webhook-configuration"},
            }
        )
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    plane.kubectl("apply", "--server-side", "-f", "-", given=text)

    def is_served() -> bool:
        try:
            return len(plane.api.get(KUEUE)["resources"]) >= 11
        except ApiError:
            return False

    until("Kueue's kinds are served", is_served, 120)


class Kueue:
    def __init__(self, plane: ControlPlane, place: Path, **features: bool) -> None:
        self.plane = plane
        self._features = features
        self.log = place / "kueue.log"
        self._place = place
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = threading.Event()

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def start(self) -> None:
        certificates = self._place / "kueue-certs"
        certificates.mkdir(exist_ok=True)
        probes, webhooks = free_ports(2)
        configuration = {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "namespace": NAMESPACE,
            "health": {"healthProbeBindAddress": f"127.0.0.1:{probes}"},
            "metrics": {"bindAddress": "0"},
            "webhook": {"port": webhooks, "host": "127.0.0.1", "certDir": str(certificates)},
            "leaderElection": {
                "leaderElect": True,
                "resourceName": "c1f6bfd2.kueue.x-k8s.io",
                "resourceNamespace": NAMESPACE,
            },
            "integrations": {"frameworks": ["batch/job"]},
            # It wants to be in a pod, and a directory at the root of the machine.
            "featureGates": {"VisibilityOnDemand": False, **self._features},
        }
        file = self._place / "kueue.yaml"
        file.write_text(json.dumps(configuration))
        environment = {**os.environ, "KUBECONFIG": str(self.plane.kubeconfig)}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [build.kueue(), "--config", file, "--zap-log-level", "2"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self._place,
            )
        self._ended.clear()
        threading.Thread(target=self._mount, args=(certificates,), daemon=True).start()

    def _mount(self, certificates: Path) -> None:
        """Copy the Secret with the webhook server's certificates into a directory, as a kubelet
        mounts it."""
        while not self._ended.wait(0.2):
            try:
                found = self.plane.api.find(SECRET)
            except OSError:
                continue
            for name, value in ((found or {}).get("data") or {}).items():
                wanted = base64.b64decode(value)
                path = certificates / name
                if not path.exists() or path.read_bytes() != wanted:
                    path.with_suffix(".new").write_bytes(wanted)
                    path.with_suffix(".new").rename(path)

    def decides(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"Kueue ended: {self.text[-4000:]}")
        lease = self.plane.api.find(LEASE)
        return bool(lease and lease["spec"].get("holderIdentity"))

    def end(self, with_signal: int = signal.SIGTERM) -> None:
        """Politely it gives its Lease back."""
        process, self._process = self._process, None
        self._ended.set()
        if process is None:
            return
        process.send_signal(with_signal)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(60)


@contextmanager
def kueue_runs(plane: ControlPlane, place: Path, **features: bool) -> Iterator[Kueue]:
    """`features`: feature gates of Kueue's Configuration."""
    made = Kueue(plane, place, **features)
    made.start()
    try:
        until("Kueue leads", made.decides, 300)
        yield made
    finally:
        made.end(signal.SIGKILL)
