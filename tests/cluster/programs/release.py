"""The chart on an API server that a test runs: installed by helm, and what its Deployment would run has the chart's own account,
certificate and configuration."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.cluster.control_plane import ControlPlane
from tests.cluster.programs import product
from tests.kit.places import REPO
from tests.kit.workplace import HOST, free_ports

CHART = REPO / "packaging" / "helm" / "sluice"
NAMESPACE = "gpu"
DEPLOYMENT = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/s-queue"
HELM_S = 600
"""Eleven definitions and what stands around them; a second or two where nothing else runs."""


class Release:
    def __init__(self, plane: ControlPlane, place: Path, *values: str) -> None:
        """`values`: of every install."""
        self.plane, self.place, self.values = plane, place, values
        self._helm = product.helm()

    def helm(self, *words: str) -> None:
        done = self.tried(*words)
        assert done.returncode == 0, done.stderr

    def tried(self, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "KUBECONFIG": str(self.plane.kubeconfig),
            "HOME": str(self.place),
        }
        return subprocess.run(
            [self._helm, *words, "--namespace", NAMESPACE],
            capture_output=True,
            text=True,
            timeout=HELM_S,
            env=environment,
        )

    def words(self, *values: str) -> list[str]:
        given = [word for one in (*self.values, *values) for word in ("--set", one)]
        return ["upgrade", "--install", "s", str(CHART), "--create-namespace", *given]

    def install(self, *values: str) -> None:
        self.helm(*self.words(*values))

    def kubeconfig(self) -> Path:
        cluster = {
            "server": self.plane.url,
            "certificate-authority": str(self.plane.pki / "ca.crt"),
        }
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "q", "user": {"token": self.plane.token(NAMESPACE, "s-queue")}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "q"}}],
            "current-context": "test",
        }
        found = self.place / "queue.kubeconfig"
        found.write_text(json.dumps(document))
        return found

    def configuration(self) -> Path:
        """Write the configuration that the pod has, with its certificate elsewhere."""
        at = f"/api/v1/namespaces/{NAMESPACE}"
        text = self.plane.api.get(f"{at}/configmaps/s-queue")["data"]["queue.toml"]
        secret = self.plane.api.get(f"{at}/secrets/s-queue-tls")["data"]
        for name in ("tls.crt", "tls.key", "ca.crt"):
            (self.place / name).write_bytes(base64.b64decode(secret[name]))
        found = self.place / "queue.toml"
        found.write_text(text.replace("/etc/sluice/tls", str(self.place)))
        return found

    def command(self, *settings: str) -> list[str]:
        """Command that the Deployment would run, as this machine runs it: each of its listeners has
        a port that is free here."""
        doors = ("server.listen", "server.metrics_listen", "server.probes_listen", "page.listen")
        here = (
            f"kubernetes.kubeconfig={self.kubeconfig()}",
            f"kubernetes.namespace={NAMESPACE}",
            *(f"{door}={HOST}:{port}" for door, port in zip(doors, free_ports(4), strict=True)),
        )
        given = [word for one in (*here, *settings) for word in ("--set", one)]
        configuration = str(self.configuration())
        return [sys.executable, "-m", "queuecontroller", "serve", "--config", configuration, *given]
