"""The ClusterQueue `claims`, which counts devices by claims, on a control plane with the stock scheduler and controllers."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.control_plane import ControlPlane
from tests.cluster.dra.published import claims
from tests.cluster.queueing import JOBS, apply, asked, door, of_kueue
from tests.kit.node import until

PODS = "/api/v1/namespaces/default/pods"


@contextmanager
def scheduled(minor: int, lacks: str) -> Iterator[ControlPlane]:
    """A control plane of Kubernetes 1.`minor` or later; an earlier one `lacks` what the tests need."""
    with (
        tempfile.TemporaryDirectory(prefix="control-plane-") as directory,
        ControlPlane(Path(directory), controllers=True) as plane,
    ):
        if int(plane.programs.version.split(".")[1]) < minor:
            pytest.skip(f"Kubernetes {plane.programs.version} has no {lacks}")
        yield plane


@contextmanager
def counting(
    plane: ControlPlane,
    place: Path,
    mappings: Sequence[Mapping[str, Any]],
    quotas: Mapping[str, Any],
    gates: Mapping[str, bool] | None = None,
    **spec: Any,
) -> Iterator[None]:
    """A controller with these mappings of device classes and feature gates, and the ClusterQueue."""
    path = place / "kueue.yaml"
    document = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "integrations": {"frameworks": ["batch/job", "pod"]},
        "featureGates": dict(gates or {}),
        "resources": {"deviceClassMappings": [*mappings]},
    }
    path.write_text(json.dumps(document))
    resources = [{"name": name, "nominalQuota": amount} for name, amount in quotas.items()]
    groups = [
        {"coveredResources": [*quotas], "flavors": [{"name": "plain", "resources": resources}]}
    ]
    with asked(plane, place, f"kubernetes.kueue_configuration={path}"):
        apply(
            plane,
            of_kueue("ResourceFlavor", "plain", {}),
            of_kueue(
                "ClusterQueue",
                "claims",
                {"resourceGroups": groups, "namespaceSelector": {}, **spec},
            ),
            door("claims", "claims"),
        )
        yield


def clear(plane: ControlPlane) -> None:
    """Delete all jobs and pods, and wait until no claim is left."""
    for plural in (JOBS, PODS):
        for one in plane.api.get(plural)["items"]:
            plane.api.delete(f"{plural}/{one['metadata']['name']}", 0)
    until("no claim is left", lambda: not claims(plane), 60)
