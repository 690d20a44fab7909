"""etcd and the API server alone, on loopback, in seconds: a real API for tests of controllers. No root, no kubelet.

    with ControlPlane(directory) as plane:
        plane.api.create("configmaps", "default", {...})
        subprocess.run(["…"], env={**os.environ, "KUBECONFIG": str(plane.kubeconfig)})

With `controllers=True` the controller-manager and the scheduler run, too (service accounts, Jobs that make pods, garbage
collection). A program is ended with `kill`, started again with `start`; every one of them dies with this process.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.cluster.api import Api, ApiError
from tests.cluster.programs import build, pki
from tests.kit.workplace import HOST, free_ports

READY_S = 120.0
SERVICE_RANGE = "10.96.0.0/16"
AUDIENCE = "https://kubernetes.default.svc"


class ControlPlaneError(Exception):
    """Failure of a program of the control plane, with the end of its log."""


class ControlPlane:
    def __init__(
        self,
        directory: Path,
        *,
        minor: str | None = None,
        controllers: bool = False,
        apiserver_args: Sequence[str] = (),
        durable: bool = False,
    ) -> None:
        """`directory`: state, certificates and logs; what is in it from an earlier time is used. `durable`: etcd waits for the
        disk, for measurements and for tests that kill it."""
        self.directory = directory
        self.programs = build.control_plane_programs(minor)
        self.version = self.programs.version
        self._controllers = controllers
        self._more = tuple(apiserver_args)
        self._durable = durable
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.ports: dict[str, int] = {}

    def __enter__(self) -> ControlPlane:
        self.directory.mkdir(parents=True, exist_ok=True)
        names = ("kube-apiserver", "etcd", "etcd-peer", "kube-controller-manager", "kube-scheduler")
        self.ports = dict(zip(names, free_ports(len(names)), strict=True))
        self.url = f"https://{HOST}:{self.ports['kube-apiserver']}"
        place = self.directory / "pki"
        for stale in place.glob("*.kubeconfig"):  # they name the ports of another time
            stale.unlink()
        self.pki = pki.create(
            place, self.url, [f"IP:{HOST}", "DNS:localhost", "DNS:kubernetes.default.svc"]
        )
        self.kubeconfig = self.pki.kubeconfig("admin")
        self.api = Api(HOST, self.ports["kube-apiserver"], place)
        try:
            self._start_all()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def _start_all(self) -> None:
        self.start("etcd")
        self.start("kube-apiserver")
        self.wait_until_ready()
        if self._controllers:
            self.start("kube-controller-manager")
            self.start("kube-scheduler")
            account = "/api/v1/namespaces/default/serviceaccounts/default"
            self._wait("the default service account", lambda: self.api.find(account) is not None)

    def wait_until_ready(self) -> None:
        self._wait("/readyz", lambda: self.api.get("/readyz") == "ok")

    def start(self, name: str) -> None:
        """etcd, kube-apiserver, kube-controller-manager or kube-scheduler; does not wait until it is ready."""
        log = (self.directory / f"{name}.log").open("ab")
        command = [str(self.programs[name]), *self._arguments(name)]
        # `setpriv` and no preexec_fn: between fork and exec a process with gRPC's threads can die.
        with_us = ["setpriv", "--pdeathsig", "KILL", *command]
        with log:
            self._running[name] = subprocess.Popen(
                with_us, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def kill(self, name: str, with_signal: int = signal.SIGKILL) -> None:
        process = self._running.pop(name)
        process.send_signal(with_signal)
        process.wait(timeout=60)

    def close(self) -> None:
        # The API server first and hard: told to end politely, it waits for an etcd that is gone, for ever.
        for name in sorted(self._running, key=lambda one: one == "etcd"):
            with contextlib.suppress(ProcessLookupError):
                self.kill(name)

    def token(self, namespace: str, account: str, audience: str = "", seconds: int = 3600) -> str:
        return self.api.token(namespace, account, audience, seconds)

    def kubectl(self, *arguments: str, given: str | None = None) -> str:
        command = [str(self.programs["kubectl"]), "--kubeconfig", str(self.kubeconfig), *arguments]
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            raise ControlPlaneError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def memory_bytes(self, name: str) -> int:
        status = Path(f"/proc/{self._running[name].pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024

    def pid(self, name: str) -> int:
        """PID of a running program."""
        return self._running[name].pid

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text(errors="replace")

    def _wait(self, what: str, condition: Any) -> None:
        end_s = time.monotonic() + READY_S
        while True:
            for name, process in self._running.items():
                if process.poll() is not None:
                    raise ControlPlaneError(f"{name} ended: {self.log(name)[-1500:]}")
            with contextlib.suppress(OSError, ApiError):
                if condition():
                    return
            if time.monotonic() > end_s:
                raise ControlPlaneError(
                    f"not within {READY_S:g} s: {what}: {self.log('kube-apiserver')[-1500:]}"
                )
            time.sleep(0.05)

    def _arguments(self, name: str) -> list[str]:
        return {
            "etcd": self._etcd,
            "kube-apiserver": self._apiserver,
            "kube-controller-manager": self._controller_manager,
            "kube-scheduler": self._scheduler,
        }[name]()

    def _etcd(self) -> list[str]:
        clients, peers = (f"http://{HOST}:{self.ports[one]}" for one in ("etcd", "etcd-peer"))
        return [
            *(f"--data-dir={self.directory / 'etcd'}", "--log-level=warn"),
            *(f"--listen-client-urls={clients}", f"--advertise-client-urls={clients}"),
            *(f"--listen-peer-urls={peers}", f"--initial-advertise-peer-urls={peers}"),
            *(f"--initial-cluster=default={peers}",),
            *(() if self._durable else ("--unsafe-no-fsync",)),
        ]

    def _apiserver(self) -> list[str]:
        # Without the controller-manager no service account has been made that a pod could be given.
        accounts = () if self._controllers else ("--disable-admission-plugins=ServiceAccount",)
        return [
            f"--etcd-servers=http://{HOST}:{self.ports['etcd']}",
            *(f"--bind-address={HOST}", f"--secure-port={self.ports['kube-apiserver']}"),
            *(f"--advertise-address={HOST}", "--endpoint-reconciler-type=none"),
            *apiserver_identity(self.pki),
            *("--authorization-mode=RBAC", *accounts, *self._more),
        ]

    def _controller_manager(self) -> list[str]:
        port = self.ports["kube-controller-manager"]
        return [
            *controller_manager(self.pki, port),
            f"--flex-volume-plugin-dir={self.directory / 'volumes'}",
        ]

    def _scheduler(self) -> list[str]:
        return scheduler(self.pki, self.ports["kube-scheduler"])


def apiserver_identity(keys: pki.Pki) -> list[str]:
    return [
        *(
            f"--tls-cert-file={keys / 'apiserver.crt'}",
            f"--tls-private-key-file={keys / 'apiserver.key'}",
        ),
        f"--client-ca-file={keys / 'ca.crt'}",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        *(
            f"--service-account-issuer={AUDIENCE}",
            f"--service-account-key-file={keys / 'tokens.pub'}",
        ),
        f"--service-account-signing-key-file={keys / 'tokens.key'}",
        *("--allow-privileged=true", "--profiling=false"),
        # Whom it passes requests on as, for APIs that others serve.
        f"--requestheader-client-ca-file={keys / 'front.crt'}",
        "--requestheader-allowed-names=front-proxy-client",
        *(
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
        ),
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={keys / 'front-client.crt'}",
        f"--proxy-client-key-file={keys / 'front-client.key'}",
    ]


def _three_kubeconfigs(keys: pki.Pki, name: str) -> list[str]:
    path = keys.kubeconfig(name)
    return [f"--{use}kubeconfig={path}" for use in ("", "authentication-", "authorization-")]


def controller_manager(keys: pki.Pki, port: int = 10257) -> list[str]:
    return [
        *_three_kubeconfigs(keys, "controller-manager"),
        *(f"--bind-address={HOST}", f"--secure-port={port}", "--leader-elect=false"),
        *(
            f"--root-ca-file={keys / 'ca.crt'}",
            f"--service-account-private-key-file={keys / 'tokens.key'}",
        ),
        *(
            f"--cluster-signing-cert-file={keys / 'ca.crt'}",
            f"--cluster-signing-key-file={keys / 'ca.key'}",
        ),
        "--use-service-account-credentials=true",
    ]


def scheduler(keys: pki.Pki, port: int = 10259) -> list[str]:
    return [
        *_three_kubeconfigs(keys, "scheduler"),
        *(f"--bind-address={HOST}", f"--secure-port={port}", "--leader-elect=false"),
    ]
