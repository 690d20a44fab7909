"""The operators that are run, each with the parts of its module that an installation of it applies: definitions, webhooks, and how it
is started. Versions are in the module files beside this one.

An operator's kustomizations are not applied as such: its definitions are, and its webhooks with the names and the selector of pods
that its kustomization gives them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from tests.cluster.programs import build
from tests.cluster.programs.pins import HERE, required

CERTIFICATES: Final = "k8s-webhook-server/serving-certs"
"""Directory of an operator's certificates, below its own."""
NAMESPACE: Final = "operators"
"""Namespace in which an installation would have them."""


@dataclass(frozen=True)
class Ports:
    """Free ports for one process."""

    health: int
    webhooks: int


Arguments = Callable[[Ports, Path], list[str]]
"""Command line, from the ports and a directory of the operator's own."""


@dataclass(frozen=True)
class Operator:
    name: str
    module: str
    package: str
    """Package of its main program, below the module."""
    definitions: tuple[str, ...]
    """Patterns of files, below the module."""
    arguments: Arguments
    pinned: str = "go.mod"
    webhooks: str = ""
    """File with its webhook configurations, below the module."""
    webhook_names: Mapping[str, str] = field(default_factory=dict)
    """Names of these configurations, by kind, as its kustomization gives them."""
    service: str = ""
    pods_label: str = ""
    """Label of the pods that its webhooks are called for."""
    settings: Callable[[Ports, Path], dict[str, Any]] | None = None
    """An object with its settings, from the ports and the directory of its certificates."""
    secret: str = ""
    """Secret into which it writes its certificate; empty: it is given one."""
    fixed_health: int = 0
    """Port of its health check where no argument changes it."""
    fixed_webhooks: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()

    @property
    def version(self) -> str:
        return required(HERE / "operators" / self.pinned, self.module)

    @property
    def program(self) -> Path:
        return build.operator(self.name, self.module, self.package, self.pinned)

    @property
    def source(self) -> Path:
        return build.module_source(HERE / "operators", self.module, self.pinned)


def _configured(version: str, names_certificates: bool = True, **more: Any) -> Arguments:
    """An operator that reads a file of controller-runtime's settings. `names_certificates`: false if
    it looks for them below TMPDIR, as controller-runtime does by itself."""

    def arguments(ports: Ports, place: Path) -> list[str]:
        named = {"certDir": str(place / CERTIFICATES)} if names_certificates else {}
        document = {
            "apiVersion": version,
            "kind": "Configuration",
            "health": {"healthProbeBindAddress": f"127.0.0.1:{ports.health}"},
            "metrics": {"bindAddress": "0"},
            "webhook": {"port": ports.webhooks, "host": "127.0.0.1", **named},
            "leaderElection": {"leaderElect": False},
            **more,
        }
        file = place / "configuration.yaml"
        file.write_text(json.dumps(document))
        return [f"--config={file}"]

    return arguments


def _kuberay(ports: Ports, place: Path) -> list[str]:
    return [
        f"--health-probe-bind-address=127.0.0.1:{ports.health}",
        *("--metrics-addr=0", "--enable-leader-election=false"),
    ]


def _training(ports: Ports, place: Path) -> list[str]:
    schemes = ("tfjob", "pytorchjob", "xgboostjob", "paddlejob", "jaxjob")
    return [
        f"--health-probe-bind-address=127.0.0.1:{ports.health}",
        *("--metrics-bind-address=0", f"--webhook-server-port={ports.webhooks}"),
        *(f"--enable-scheme={one}" for one in schemes),
    ]


def _mpi(ports: Ports, place: Path) -> list[str]:
    return [f"--lock-namespace={NAMESPACE}", "--kube-api-qps=50", "--kube-api-burst=100"]


def _appwrapper(ports: Ports, place: Path) -> list[str]:
    """Its settings are a ConfigMap, which takes no port of the webhooks."""
    return [f"--config={APPWRAPPER_SETTINGS}"]


def appwrapper_settings(ports: Ports, certificates: Path) -> dict[str, Any]:
    settings = {
        "controllerManager": {
            "health": {"bindAddress": f"127.0.0.1:{ports.health}"},
            "metrics": {"bindAddress": "0"},
        },
        "certManagement": {"certificateDir": str(certificates)},
    }
    head = {"name": APPWRAPPER_SETTINGS, "namespace": NAMESPACE}
    data = {"config.yaml": json.dumps(settings)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": head, "data": data}


APPWRAPPER_SETTINGS: Final = "appwrapper-operator-config"
_UNCERTIFIED: Final[dict[str, Any]] = {"internalCertManagement": {"enable": False}}
_BOTH: Final = ("Mutating", "Validating")
OPERATORS: Final = MappingProxyType(
    {
        one.name: one
        for one in (
            Operator(
                name="jobset",
                module="sigs.k8s.io/jobset",
                package="",
                definitions=("config/components/crd/bases/*.yaml",),
                arguments=_configured("config.jobset.x-k8s.io/v1alpha1", **_UNCERTIFIED),
                webhooks="config/components/webhook/manifests.yaml",
                webhook_names={one: f"jobset-{one.lower()}-webhook-configuration" for one in _BOTH},
                service="jobset-webhook-service",
                pods_label="jobset.sigs.k8s.io/jobset-name",
            ),
            Operator(
                name="lws",
                module="sigs.k8s.io/lws",
                package="cmd",
                definitions=("config/crd/bases/*.yaml",),
                arguments=_configured("config.lws.x-k8s.io/v1alpha1", **_UNCERTIFIED),
                webhooks="config/webhook/manifests.yaml",
                webhook_names={one: f"lws-{one.lower()}-webhook-configuration" for one in _BOTH},
                service="lws-webhook-service",
                pods_label="leaderworkerset.sigs.k8s.io/name",
            ),
            Operator(
                name="kuberay",
                module="github.com/ray-project/kuberay/ray-operator",
                package="",
                definitions=("config/crd/bases/*.yaml",),
                arguments=_kuberay,
                pinned="kuberay.mod",
            ),
            Operator(
                name="training",
                module="github.com/kubeflow/training-operator",
                package="cmd/training-operator.v1",
                definitions=tuple(
                    f"manifests/base/crds/kubeflow.org_{one}jobs.yaml"
                    for one in ("tf", "pytorch", "xgboost", "paddle", "jax")
                ),
                arguments=_training,
                pinned="training.mod",
                webhooks="manifests/base/webhook/manifests.yaml",
                webhook_names={"Validating": "validator.training-operator.kubeflow.org"},
                service="training-operator",
                secret="training-operator-webhook-cert",
                environment={"MY_POD_NAMESPACE": NAMESPACE},
            ),
            Operator(
                name="mpi",
                module="github.com/kubeflow/mpi-operator",
                package="cmd/mpi-operator",
                definitions=("manifests/base/kubeflow.org_mpijobs.yaml",),
                arguments=_mpi,
                fixed_health=8080,
            ),
            Operator(
                name="trainer",
                module="github.com/kubeflow/trainer/v2",
                package="cmd/trainer-controller-manager",
                definitions=("manifests/base/crds/trainer.kubeflow.org_*.yaml",),
                arguments=_configured(
                    "config.trainer.kubeflow.org/v1alpha1", False, certManagement={"enable": False}
                ),
                webhooks="manifests/base/webhook/manifests.yaml",
                webhook_names={
                    "Mutating": "defaulter.trainer.kubeflow.org",
                    "Validating": "validator.trainer.kubeflow.org",
                },
                service="kubeflow-trainer-controller-manager",
                needs=("jobset",),
            ),
            Operator(
                name="appwrapper",
                module="github.com/project-codeflare/appwrapper",
                package="cmd",
                definitions=("config/crd/bases/*.yaml",),
                arguments=_appwrapper,
                webhooks="config/webhook/manifests.yaml",
                webhook_names={
                    one: f"appwrapper-{one.lower()}-webhook-configuration" for one in _BOTH
                },
                service="appwrapper-webhook-service",
                secret="appwrapper-webhook-server-cert",
                settings=appwrapper_settings,
                fixed_webhooks=9443,
                environment={"NAMESPACE": NAMESPACE},
            ),
        )
    }
)
