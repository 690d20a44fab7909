"""Conversion of HAMi's resources into ResourceClaims, for clusters that allocate GPUs by DRA.

A pod that requests parts of cards in HAMi's resource names gets one claim per container instead.
The name of the claim's template encodes the whole request. The template can therefore be created
after the pod, by any replica that sees the pod; a template created earlier would be left behind
when the pod is refused after all. The pod's usage of its namespace's quota is read from the
template's name as well.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from queuecontroller.gpushares.admission.dialects import limits_of
from queuecontroller.gpushares.admission.names import SHARE_LABEL
from queuecontroller.gpushares.vendors.asks import AskError, Container
from queuecontroller.gpushares.vendors.config import Nvidia
from sluicecommon.hami.names import CHOOSING
from sluicecommon.pod_annotations import SHARE_POLICY

CLASS: Final = "gpu.sluice.dev"
DRIVER: Final = "sluice.dev"
MAX_DEVICES: Final = 32
"""Limit of devices per claim in the Kubernetes API."""
MAX_CORES: Final = 100
_NAME: Final = re.compile(
    r"sluice-share-([1-9]\d?)-(whole|[1-9]\d{0,8}mi)-(0|[1-9]\d{0,2})", re.ASCII
)
_SELECTED_BY: Final = (*CHOOSING, SHARE_POLICY)
"""Annotations that select cards or a policy. A claim expresses them in its own selectors and
configuration instead."""


@dataclass(frozen=True, slots=True)
class Share:
    """Request for `count` cards; the amounts hold for each of them."""

    count: int
    memory_mib: int | None
    """None: all memory of the card."""
    cores: int
    """Percent of the time."""

    @property
    def name(self) -> str:
        """Name of the ResourceClaimTemplate."""
        memory = "whole" if self.memory_mib is None else f"{self.memory_mib}mi"
        return f"sluice-share-{self.count}-{memory}-{self.cores}"


def share_of(template: str) -> Share | None:
    """The share that a template's name encodes; None if the template is not one of ours."""
    match = _NAME.fullmatch(template)
    if match is None or int(match[1]) > MAX_DEVICES or int(match[3]) > MAX_CORES:
        return None
    memory = None if match[2] == "whole" else int(match[2].removesuffix("mi"))
    return Share(int(match[1]), memory, int(match[3]))


def template_of(share: Share) -> dict[str, Any]:
    """The ResourceClaimTemplate to create in the pod's namespace."""
    asked = {"cores": str(share.cores)}
    if share.memory_mib is not None:
        asked["memory"] = f"{share.memory_mib}Mi"
    exactly = {
        "deviceClassName": CLASS,
        "count": share.count,
        "capacity": {"requests": asked},
    }
    devices: dict[str, Any] = {"requests": [{"name": "gpu", "exactly": exactly}]}
    if share.count > 1:  # Two parts of one card must not satisfy a request for two cards.
        devices["constraints"] = [{"requests": ["gpu"], "distinctAttribute": f"{DRIVER}/uuid"}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": share.name, "labels": {SHARE_LABEL: "true"}},
        "spec": {"spec": {"devices": devices}},
    }


def templates_of(pod: Mapping[str, Any]) -> dict[str, str]:
    """Template names by claim name, for the pod's claims that are made from our templates."""
    spec = pod.get("spec")
    given = spec.get("resourceClaims") if isinstance(spec, Mapping) else None
    found = {}
    for one in given if isinstance(given, list) else ():
        name = one.get("resourceClaimTemplateName") if isinstance(one, Mapping) else None
        if isinstance(name, str) and share_of(name) is not None:
            found[str(one.get("name"))] = name
    return found


def as_claims(names: Nvidia, spec: dict[str, Any], annotations: Mapping[str, str]) -> bool:
    """Replace device resources by claims in a pod's spec, in place. True if there were any. Raises
    AskError."""
    claims: list[dict[str, Any]] = []
    for part in ("initContainers", "containers"):
        for container in spec.get(part) or ():
            read = Container(str(container.get("name") or ""), limits_of(container))
            if not read.has(names.count) or not read.amount(names.count):
                continue
            share = _share(names, read)
            claim = {
                "name": f"sluice-{len(claims)}",
                "resourceClaimTemplateName": share.name,
            }
            claims.append(claim)
            _use(names, container, claim["name"])
    if not claims:
        return False
    chosen = [key for key in _SELECTED_BY if annotations.get(key)]
    if chosen:
        raise AskError(
            f"metadata.annotations[{chosen[0]}]: is not supported with claims: leave it out, or"
            f" write a ResourceClaimTemplate of class {CLASS} with selectors or"
            " a ShareConfig"
        )
    there = spec.get("resourceClaims") or []
    if not isinstance(there, list) or any(
        isinstance(one, Mapping) and str(one.get("name", "")).startswith("sluice-") for one in there
    ):
        raise AskError("spec.resourceClaims: names that begin with sluice- are taken: rename them")
    spec["resourceClaims"] = [*there, *claims]
    return True


def _share(names: Nvidia, read: Container) -> Share:
    count = read.amount(names.count)
    if count > MAX_DEVICES:
        raise AskError(
            f"container {read.name}: {names.count}: {count} exceed the limit of"
            f" {MAX_DEVICES} per claim"
        )
    memory = read.amount(names.memory) * names.memory_factor if read.has(names.memory) else 0
    percent = read.amount(names.memory_percent) if read.has(names.memory_percent) else 0
    if not memory and percent not in (0, 100):
        raise AskError(
            f"container {read.name}: {names.memory_percent}: a percentage of an unknown card"
            f" cannot be expressed in a claim: request {names.memory}"
        )
    share = Share(count, memory or None, min(MAX_CORES, read.amount(names.cores)))
    if share_of(share.name) is None:
        raise AskError(f"container {read.name}: {names.memory}: {memory} MiB is out of range")
    return share


def _use(names: Nvidia, container: dict[str, Any], claim: str) -> None:
    """Give the container the claim in place of the resources that the claim covers."""
    resources = dict(container.get("resources") or {})
    for kind in ("limits", "requests"):
        amounts = resources.get(kind)
        if isinstance(amounts, Mapping):
            resources[kind] = {
                key: value for key, value in amounts.items() if key not in names.resources
            }
            if not resources[kind]:
                del resources[kind]
    known = resources.get("claims")
    resources["claims"] = [*(known if isinstance(known, list) else []), {"name": claim}]
    container["resources"] = resources


def as_asked(names: Nvidia, pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """The pod with its claims expressed in HAMi's resources again, for counting quota. A pod
    without claims from our templates is returned unchanged."""
    templates = templates_of(pod)
    if not templates:
        return pod
    spec = dict(pod["spec"])
    for part in ("initContainers", "containers"):
        given = spec.get(part)
        if isinstance(given, list):
            spec[part] = [_asked(names, one, templates) for one in given]
    return {**pod, "spec": spec}


def _asked(names: Nvidia, container: Any, templates: Mapping[str, str]) -> Any:
    resources = container.get("resources") if isinstance(container, Mapping) else None
    claims = resources.get("claims") if isinstance(resources, Mapping) else None
    limits: dict[str, str] = {}
    for one in claims if isinstance(claims, list) else ():
        template = templates.get(str(one.get("name"))) if isinstance(one, Mapping) else None
        share = share_of(template) if template is not None else None
        if share is None:
            continue
        limits = {names.count: str(share.count), names.cores: str(share.cores)}
        if share.memory_mib is not None:
            limits[names.memory] = str(-(-share.memory_mib // names.memory_factor))
    if not limits:
        return container
    assert isinstance(resources, Mapping)
    known = resources.get("limits")
    before = known if isinstance(known, Mapping) else {}
    return {**container, "resources": {**resources, "limits": {**before, **limits}}}
