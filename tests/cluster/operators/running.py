"""An operator as a process beside the API server, with its own definitions and webhooks.

The API server reaches its webhooks by a Service that is another name for the loopback address. It runs with the administrator's
rights: what its own roles allow is not ours to test.
"""

from __future__ import annotations

import base64
import os
import signal
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import yaml

from tests.cluster.control_plane import ControlPlane
from tests.cluster.operators.table import CERTIFICATES, NAMESPACE, OPERATORS, Operator, Ports
from tests.cluster.programs.pki import Authority
from tests.cluster.queueing import apply
from tests.kit.node import until
from tests.kit.workplace import HOST, free_ports

READY_S = 240.0
FIXED_CERTIFICATES = Path("/tmp", CERTIFICATES)
"""Directory where an operator that renews its certificates looks for them, whatever its flags say."""
ISOLATED = "-m" if os.geteuid() == 0 else "-rm"
"""Mounts of its own; other than root needs a user namespace for them."""
BIND = 'mkdir -p "$1" && mount --bind "$0" "$1" && shift && exec "$@"'


class Process:
    def __init__(self, operator: Operator, plane: ControlPlane, place: Path) -> None:
        self.operator, self.plane = operator, plane
        self.place = place / operator.name
        self.log = place / f"{operator.name}.log"
        self.certificates = self.place / CERTIFICATES
        self.certificates.mkdir(parents=True, exist_ok=True)
        health, webhooks = free_ports(2)
        self.ports = Ports(operator.fixed_health or health, operator.fixed_webhooks or webhooks)
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = threading.Event()

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def configure(self) -> None:
        """Apply what its installation applies besides its definitions, without its Deployment."""
        if self.operator.settings is not None:
            apply(self.plane, self.operator.settings(self.ports, self.certificates))
        if self.operator.webhooks:
            self._configure_webhooks()

    def certify(self) -> str:
        """A certificate for its webhooks; the bundle to verify it with, empty where it writes one itself."""
        if self.operator.secret:
            head = {"name": self.operator.secret, "namespace": NAMESPACE}
            apply(self.plane, {"apiVersion": "v1", "kind": "Secret", "metadata": head})
            return ""
        name = f"{self.operator.service}.{NAMESPACE}.svc"
        authority = Authority(self.certificates).create("operators")
        authority.issue("tls", f"/CN={name}", "serverAuth", [f"DNS:{name}"])
        return base64.b64encode(authority.certificate.read_bytes()).decode()

    def _configure_webhooks(self) -> None:
        bundle = self.certify()
        head = {"name": self.operator.service, "namespace": NAMESPACE}
        spec = {"type": "ExternalName", "externalName": "localhost"}
        apply(self.plane, {"apiVersion": "v1", "kind": "Service", "metadata": head, "spec": spec})
        file = self.operator.source / self.operator.webhooks
        for document in yaml.safe_load_all(file.read_text()):
            kind = document["kind"].removesuffix("WebhookConfiguration")
            document["metadata"] = {"name": self.operator.webhook_names[kind]}
            for one in document["webhooks"]:
                service = one["clientConfig"]["service"]
                service |= {**head, "port": self.ports.webhooks}
                if bundle:
                    one["clientConfig"]["caBundle"] = bundle
                if "pods" in one["rules"][0]["resources"]:
                    having = {"key": self.operator.pods_label, "operator": "Exists"}
                    one["objectSelector"] = {"matchExpressions": [having]}
            apply(self.plane, document)

    def start(self) -> None:
        for port in (self.operator.fixed_health, self.operator.fixed_webhooks):
            if port:
                until(f"port {port} is free", lambda port=port: _is_free(port), READY_S)  # type: ignore[misc]
        command = [
            str(self.operator.program),
            *self.operator.arguments(self.ports, self.place),
        ]
        if self.operator.secret:
            bound = [str(self.certificates), str(FIXED_CERTIFICATES)]
            command = ["unshare", ISOLATED, "sh", "-c", BIND, *bound, *command]
            threading.Thread(target=self._mount, daemon=True).start()
        environment = {
            **os.environ,
            "KUBECONFIG": str(self.plane.kubeconfig),
            "TMPDIR": str(self.place),
            **self.operator.environment,
        }
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self.place,
            )
        until(f"{self.operator.name} is ready", self.is_ready, READY_S)

    def is_ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"{self.operator.name} ended: {self.text[-4000:]}")
        path = "healthz" if self.operator.fixed_health else "readyz"
        url = f"http://127.0.0.1:{self.ports.health}/{path}"
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)

    def _mount(self) -> None:
        """Copy the Secret with its certificates into the directory, as a kubelet mounts it."""
        path = f"/api/v1/namespaces/{NAMESPACE}/secrets/{self.operator.secret}"
        while not self._ended.wait(0.2):
            try:
                found = self.plane.api.find(path)
            except OSError:
                continue
            for name, value in ((found or {}).get("data") or {}).items():
                wanted = base64.b64decode(value)
                file = self.certificates / name
                if not file.exists() or file.read_bytes() != wanted:
                    file.with_suffix(".new").write_bytes(wanted)
                    file.with_suffix(".new").rename(file)

    def end(self) -> None:
        self._ended.set()
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(60)
        for kind, name in self.operator.webhook_names.items():
            self.plane.api.delete(
                f"/apis/admissionregistration.k8s.io/v1/{kind.lower()}webhookconfigurations/{name}"
            )


def define_operators(plane: ControlPlane, names: Iterable[str]) -> None:
    """Apply the definitions of these operators and of those that they need, and wait until the
    kinds are served."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    apply(plane, namespace)
    every = {one for name in names for one in (name, *OPERATORS[name].needs)}
    for name in sorted(every):
        operator = OPERATORS[name]
        files = [
            file
            for pattern in operator.definitions
            for file in sorted(operator.source.glob(pattern))
        ]
        assert files, f"{name} has no definitions"
        plane.kubectl("apply", "--server-side", *(f"--filename={one}" for one in files))
    plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")


def _is_free(port: int) -> bool:
    with suppress(OSError), socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        return True
    return False


@contextmanager
def running(plane: ControlPlane, place: Path, name: str) -> Iterator[dict[str, Process]]:
    """The operator of that name and those that it needs, by name."""
    made: dict[str, Process] = {}
    with ExitStack() as stack:
        for one in (*OPERATORS[name].needs, name):
            process = made[one] = Process(OPERATORS[one], plane, place)
            stack.callback(process.end)
            process.configure()
            process.start()
        yield made
