"""Node templates of the tests."""

from __future__ import annotations

from typing import Any

from queuecontroller.cluster.autoscaling.templates import Template, read_templates
from sluicecommon.hami.names import ResourceNames

NAMES = ResourceNames()


def node(name: str = "large", **changes: Any) -> dict[str, Any]:
    labels = {
        "pool": "h100",
        "kubernetes.io/hostname": "n7",
        "nvidia.com/gpu.count": "8",
        "nvidia.com/gpu.memory": "81559",
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    }
    made: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]},
        "status": {"allocatable": {"cpu": "64", "nvidia.com/gpu": "8"}},
    }
    return {**made, **changes}


def one(body: dict[str, Any]) -> Template:
    [template] = read_templates([body], NAMES, "file")
    return template
