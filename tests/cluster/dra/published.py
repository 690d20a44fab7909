"""Nodes with GPUs for claims, of which there are only objects: the stock scheduler allocates, no kubelet prepares."""

from __future__ import annotations

from typing import Any

from tests.cluster.control_plane import ControlPlane
from tests.cluster.queueing import apply
from tests.kit.node import until

DRIVER = "sluice.dev"
OURS = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
RESOURCE = "/apis/resource.k8s.io/v1"


def device_class(name: str) -> dict[str, Any]:
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass"}
    return {**kind, "metadata": {"name": name}, "spec": {"selectors": [OURS]}}


def slice_of(node: str, *memory: str) -> dict[str, Any]:
    """A card for each amount, as an agent publishes them."""
    devices = [
        {
            "name": f"gpu-{at}",
            "allowMultipleAllocations": True,
            "attributes": {"index": {"int": at}, "uuid": {"string": f"GPU-{node}-{at}"}},
            "capacity": {
                "memory": _capacity(amount, amount, "1Mi"),
                "cores": _capacity("100", "0", "1", "0"),
            },
        }
        for at, amount in enumerate(memory)
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
    return {**kind, "metadata": {"name": f"{node}-slice"}, "spec": spec}


def _capacity(value: str, default: str, step: str, least: str = "1Mi") -> dict[str, Any]:
    span = {"min": least, "step": step, "max": value}
    return {"value": value, "requestPolicy": {"default": default, "validRange": span}}


def gpu_node(plane: ControlPlane, name: str, *memory: str) -> None:
    apply(plane, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    amounts = {"cpu": "16", "memory": "64Gi", "pods": "110"}
    ready = [{"type": "Ready", "status": "True", "reason": "r"}]
    status = {"allocatable": amounts, "capacity": amounts, "conditions": ready}
    plane.api.patch(f"/api/v1/nodes/{name}/status", {"status": status})
    apply(plane, slice_of(name, *memory))


def claims(plane: ControlPlane, namespace: str = "default") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = plane.api.get(
        f"{RESOURCE}/namespaces/{namespace}/resourceclaims"
    )["items"]
    return found


def claims_of(plane: ControlPlane, owner: str, namespace: str = "default") -> list[dict[str, Any]]:
    """Claims of the pods whose names begin with `owner`."""
    return [
        one
        for one in claims(plane, namespace)
        if any(
            each["name"].startswith(owner) for each in one["metadata"].get("ownerReferences", ())
        )
    ]


def allocated(plane: ControlPlane, owner: str, namespace: str = "default") -> list[dict[str, Any]]:
    """Devices that the scheduler allocated to the owner's claims, once there are any."""

    def results() -> list[dict[str, Any]]:
        return [
            result
            for one in claims_of(plane, owner, namespace)
            for result in (
                ((one.get("status") or {}).get("allocation") or {}).get("devices") or {}
            ).get("results")
            or ()
        ]

    return until(f"{owner} has its devices", results, 60)
