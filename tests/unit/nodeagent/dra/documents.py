"""Claims as the API server has them, for tests."""

from __future__ import annotations

from typing import Any

POOL = "node-1"
GPU_0 = "gpu-00000000-1111-2222-3333-444444444444"
GPU_1 = "gpu-11111111-1111-2222-3333-444444444444"


def result(request: str = "gpu", device: str = GPU_0, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "request": request,
        "driver": "sluice.dev",
        "pool": POOL,
        "device": device,
        "shareID": "0a0b",
        "consumedCapacity": {"memory": "24Gi", "cores": "30", "slots": "1"},
    }
    return {name: value for name, value in {**found, **more}.items() if value is not None}


def opaque(
    requests: list[str] | None = None, source: str = "FromClaim", **parameters: Any
) -> dict[str, Any]:
    return {
        "source": source,
        "requests": requests or [],
        "opaque": {
            "driver": "sluice.dev",
            "parameters": {"apiVersion": "sluice.dev/v1", "kind": "ShareConfig", **parameters},
        },
    }


def claim(
    *results: dict[str, Any], config: list[Any] | None = None, **metadata: Any
) -> dict[str, Any]:
    return {
        "metadata": {"name": "c", "namespace": "default", "uid": "u-1", **metadata},
        "status": {
            "allocation": {"devices": {"results": list(results), "config": config or []}},
            "reservedFor": [{"resource": "pods", "name": "p", "uid": "pod-1"}],
        },
    }
