"""Kubernetes on one machine, or on two: the first has the control plane, and both have a kubelet. Several clusters can run
side by side, one for each directory.

    with Cluster(directory) as cluster, Worker(cluster, other) as second:
        cluster.kubectl("apply", "-f", "pod.yaml")
        cluster.api.items("pods", "default")
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tests.cluster.api import Api, ApiError
from tests.cluster.machine import settings
from tests.cluster.machine.machine import ClusterError, Machine
from tests.cluster.programs import pki

__all__ = ["GPUS", "Cluster", "ClusterError", "Worker"]
GPUS = "2xh100-80gb"


class Cluster(Machine):
    def __init__(
        self,
        directory: Path,
        *,
        minor: str | None = None,
        gpus: str = GPUS,
        driver: bool = True,
        gates: Mapping[str, bool] | None = None,
        lost_s: int = 0,
    ) -> None:
        """`gpus`: as the simulator names them. `driver=False`: a node without a GPU's driver, device nodes and label.
        `gates`: feature gates of the kubelet. `lost_s`: as in NodeSettings."""
        super().__init__(
            directory,
            settings.FIRST,
            minor=minor,
            gpus=gpus,
            driver=driver,
            gates=gates,
            lost_s=lost_s,
        )
        if self._made():
            self._reach()

    def _reach(self) -> None:
        self.api = Api("127.0.0.1", settings.API_PORT, self.pki.directory, self._connect)

    # --- how it starts ---

    def _certify(self) -> None:
        names = [f"IP:{one}" for one in (self._api_host, self.place.ip, settings.SERVICE_IP)]
        names += [
            f"DNS:{one}"
            for one in ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
        ]
        server = f"https://{self._api_host}:{settings.API_PORT}"
        pki.create(self.pki.directory, server, names, self.place.hostname)
        self._reach()

    def _others(self) -> dict[str, str]:
        return {settings.SECOND.hostname: settings.SECOND.ip}

    @property
    def _api_host(self) -> str:
        return "127.0.0.1"

    def _start_all(self, begin_s: float) -> None:
        if self.driver:
            self.install_driver()
        for name in ("etcd", "containerd", "kube-apiserver"):
            self.start(name)
        self._wait("/readyz", lambda: self.api.get("/readyz") == "ok")
        self.started_s["apiserver"] = time.monotonic() - begin_s
        for name in ("kube-controller-manager", "kube-scheduler", "services"):
            self.start(name)
        self._start_kubelet()
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        self._wait("the default service account", lambda: self.api.find(account) is not None)
        if self.driver:
            self._label()
            # Of NVIDIA's operator; it may be there since an earlier time.
            runtime = {"metadata": {"name": "nvidia"}, "handler": "nvidia"}
            with suppress(ApiError):
                self.api.create("runtimeclasses", "", runtime)
        self.started_s["ready"] = time.monotonic() - begin_s

    def _connect(self) -> socket.socket:
        return self.dial("127.0.0.1", settings.API_PORT)

    def _made(self) -> bool:
        return self.pki.kubeconfig("admin").exists()


class Worker(Machine):
    """A second node, in namespaces and directories of its own, with a link to the first."""

    def __init__(self, cluster: Cluster, directory: Path, *, gpus: str = GPUS) -> None:
        super().__init__(
            directory,
            settings.SECOND,
            minor=cluster._minor,
            gpus=gpus,
            driver=cluster.driver,
            gates=cluster.gates,
            lost_s=cluster.lost_s,
        )
        self.cluster = cluster
        self.api = cluster.api

    def _certify(self) -> None:
        server = f"https://{self._api_host}:{settings.API_PORT}"
        pki.join(self.pki.directory, self.cluster.pki, server, self.place.hostname)

    def _others(self) -> dict[str, str]:
        return {settings.FIRST.hostname: settings.FIRST.ip}

    @property
    def _api_host(self) -> str:
        return settings.FIRST.ip

    def _start_all(self, begin_s: float) -> None:
        self._link()
        if self.driver:
            self.install_driver()
        for name in ("containerd", "services"):
            self.start(name)
        self._start_kubelet()
        if self.driver:
            self._label()
        self.started_s["ready"] = time.monotonic() - begin_s

    def _link(self) -> None:
        """A pair of virtual network interfaces, which goes with the network of either node; and a route to the other's pods."""
        ends = ((self.cluster, "to-second"), (self, "to-first"))
        first, second = (
            ("name", name, "netns", str(machine._number("init.pid"))) for machine, name in ends
        )
        subprocess.run(["ip", "link", "add", *first, "type", "veth", "peer", *second], check=True)
        for (machine, name), (other, _) in zip(ends, reversed(ends), strict=True):
            machine.run("ip", "addr", "add", f"{machine.place.link}/30", "dev", name)
            machine.run("ip", "link", "set", name, "up")
            machine.run("ip", "route", "add", other.place.pods, "via", other.place.link)
