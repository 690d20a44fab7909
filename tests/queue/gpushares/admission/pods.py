"""Pods for tests of what becomes of them as they are made."""

from __future__ import annotations

from typing import Any


def pod(
    *limits: dict[str, Any], spec: dict[str, Any] | None = None, **annotations: str
) -> dict[str, Any]:
    """A container for each of the limits."""
    containers = [
        {"name": f"c{i}", "image": "none", "resources": {"limits": one}}
        for i, one in enumerate(limits)
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "team", "annotations": annotations},
        "spec": {"containers": containers, **(spec or {})},
    }


def limits_of(document: Any, container: int = 0) -> dict[str, Any]:
    return dict(document["spec"]["containers"][container]["resources"]["limits"])


def env_of(document: Any, container: int = 0) -> dict[str, str]:
    listed = document["spec"]["containers"][container].get("env") or []
    return {one["name"]: one["value"] for one in listed}
