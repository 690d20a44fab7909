"""Claims of dynamic resource allocation as users write them, and what became of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.cluster import manifests
from tests.cluster.lab import Lab
from tests.cluster.manifests import NAMESPACE
from tests.kit.node import until

CLASS = "gpu.sluice.dev"
RESOURCE = "/apis/resource.k8s.io/v1"


def template(name: str, **asked: Any) -> dict[str, Any]:
    """`asked` as in `spec`."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"spec": spec(**asked)},
    }


def claim(name: str, **asked: Any) -> dict[str, Any]:
    """A claim that any number of pods may name."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": spec(**asked),
    }


def spec(
    *,
    memory: str | None = None,
    cores: int | None = None,
    device_class: str = CLASS,
    selector: str = "",
    parameters: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """`parameters` of ShareConfig, `selector` in CEL."""
    exactly: dict[str, Any] = {"deviceClassName": device_class}
    amounts = {"memory": memory, "cores": None if cores is None else str(cores)}
    if any(amounts.values()):
        exactly["capacity"] = {"requests": {k: v for k, v in amounts.items() if v is not None}}
    if selector:
        exactly["selectors"] = [{"cel": {"expression": selector}}]
    devices: dict[str, Any] = {"requests": [{"name": "gpu", "exactly": exactly}]}
    if parameters is not None:
        given = {"apiVersion": "sluice.dev/v1", "kind": "ShareConfig", **parameters}
        devices["config"] = [{"opaque": {"driver": "sluice.dev", "parameters": given}}]
    return {"devices": devices}


def of_two(
    name: str,
    first: Mapping[str, str],
    second: Mapping[str, str],
    configured: Sequence[str] = ("first", "second"),
) -> dict[str, Any]:
    """The template of a claim with the requests `first` of GPU 0 and `second` of GPU 1, by their capacities. `configured`:
    requests that its configuration is for."""
    given = {"apiVersion": "sluice.dev/v1", "kind": "ShareConfig", "policy": "hard"}
    configured = {
        "requests": list(configured),
        "opaque": {"driver": "sluice.dev", "parameters": given},
    }
    requests = [
        {
            "name": request,
            "exactly": {
                "deviceClassName": CLASS,
                "capacity": {"requests": dict(capacity)},
                "selectors": [
                    {"cel": {"expression": f'device.attributes["sluice.dev"].index == {index}'}}
                ],
            },
        }
        for index, (request, capacity) in enumerate((("first", first), ("second", second)))
    ]
    found = template(name)
    found["spec"]["spec"] = {"devices": {"requests": requests, "config": [configured]}}
    return found


def template_path(name: str) -> str:
    return f"{RESOURCE}/namespaces/{NAMESPACE}/resourceclaimtemplates/{name}"


def two_containers(name: str, image: str, of: str) -> dict[str, Any]:
    """A pod whose container `part` names one request of its claim, and whose container `whole` names the claim."""
    document = pod(name, image, of, "exec sleep 3600")
    (part,) = document["spec"]["containers"]
    whole = json.loads(json.dumps(part))
    part["name"], whole["name"] = "part", "whole"
    part["resources"]["claims"] = [{"name": "gpu", "request": "first"}]
    document["spec"]["containers"] = [part, whole]
    return document


def pod(
    name: str,
    image: str,
    of: str,
    command: str = manifests.JOB,
    others: Sequence[str] = (),
    **more: Any,
) -> dict[str, Any]:
    """A pod with a claim made from the template `of`, and one of each of `others`, which no
    container uses."""
    document = manifests.gpu_pod(
        name, image, gpus=0, memory_mib=None, cores=None, command=command, **more
    )
    document["spec"]["resourceClaims"] = [
        {"name": "gpu", "resourceClaimTemplateName": of},
        *(
            {"name": f"other-{at}", "resourceClaimTemplateName": one}
            for at, one in enumerate(others)
        ),
    ]
    document["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    return document


def user(name: str, image: str, of: str, command: str) -> dict[str, Any]:
    """A pod that uses the claim `of`, perhaps with others."""
    document = pod(name, image, of, command)
    document["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": of}]
    return document


def claim_of(lab: Lab, name: str) -> dict[str, Any]:
    """The ResourceClaim of a pod, once it has one."""

    def found() -> dict[str, Any] | None:
        names = names_of(lab, name)
        status = (lab.pod(name) or {}).get("status", {})
        extended = status.get("extendedResourceClaimStatus")
        names += [extended["resourceClaimName"]] if extended else []
        if not names:
            return None
        claim: dict[str, Any] | None = lab.api.find(
            f"{RESOURCE}/namespaces/{NAMESPACE}/resourceclaims/{names[0]}"
        )
        return claim

    return until(f"{name} has a claim", found, 60)


def names_of(lab: Lab, pod: str) -> list[str]:
    """Names of the claims that were made for a pod."""
    status = (lab.pod(pod) or {}).get("status", {})
    return [one["resourceClaimName"] for one in status.get("resourceClaimStatuses", [])]


def left(lab: Lab) -> list[str]:
    """Names of all claims in the tests' namespace."""
    found = lab.api.get(f"{RESOURCE}/namespaces/{NAMESPACE}/resourceclaims")["items"]
    return [str(one["metadata"]["name"]) for one in found]


def slices(lab: Lab) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = lab.api.get(f"{RESOURCE}/resourceslices")["items"]
    return [one for one in found if one["spec"]["driver"] == "sluice.dev"]


def devices(lab: Lab) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for each in slices(lab) for one in each["spec"].get("devices", [])}
