"""Warns about what pods written for HAMi request and do not get here, before they are started.

Only resources have an effect; annotations and variables are for HAMi's scheduler and its library.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from nodeagent.settings.hami import not_served
from sluicecommon.hami.documents import HamiPart, PartKind, pod_spec
from sluicecommon.hami.names import (
    DOMAIN,
    GPU_POLICY,
    NODE_POLICY,
    NOUSE_TYPE,
    NOUSE_UUID,
    SCHEDULER,
    USE_TYPE,
    USE_UUID,
    VENDOR_DOMAINS,
    VGPU_MODE,
)

_PLACING: Final = (
    "has no effect: Kubernetes' scheduler chooses the node and this node the GPU; a queue with a"
    " ResourceFlavor per GPU type does the same"
)
_ANNOTATIONS: Final[Mapping[str, str]] = {
    USE_TYPE: _PLACING,
    NOUSE_TYPE: _PLACING,
    USE_UUID: _PLACING,
    NOUSE_UUID: _PLACING,
    VGPU_MODE: "has no effect: the mode is the node's, kubelet.mode",
    GPU_POLICY: ("has no effect: grants.strategy (pack or spread) holds for the whole node"),
    NODE_POLICY: ("has no effect: Kubernetes' scheduler chooses the node"),
}
_VARIABLES: Final[Mapping[str, str]] = {
    "GPU_CORE_UTILIZATION_POLICY": (
        "has no effect: limits never come from the environment; kubelet.cores_policy sets whether a"
        " share is a cap"
    ),
    "CUDA_TASK_PRIORITY": (
        "has no effect: limits never come from the environment; the resource nvidia.com/priority"
        " does it"
    ),
    "CUDA_DISABLE_CONTROL": "has no effect: a container cannot leave its grant",
    "CUDA_OVERSUBSCRIBE": "has no effect; kubelet.memory_scaling is the node's",
    "ACTIVE_OOM_KILLER": "has no effect: an allocation over the limit fails, nothing is killed",
    "LIBCUDA_LOG_LEVEL": "has no effect: the library in the container writes no log",
}
_LIMIT_VARIABLES: Final = ("CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_SM_LIMIT")


def review(parts: Iterable[HamiPart], ours: Collection[str]) -> tuple[str, ...]:
    """One line for each key that has no effect here, with the pods that have it. `ours` has the
    names of the resources that this node serves."""
    users_of: dict[tuple[str, str], list[str]] = {}
    for part in parts:
        if part.kind is PartKind.POD:
            name = _name(part.document)
            for key, why in _keys(part.document, ours):
                users = users_of.setdefault((f"{part.source}: {key}", why), [])
                if name not in users:
                    users.append(name)
    return tuple(f"{key}: {why} (in {', '.join(users)})" for (key, why), users in users_of.items())


def _name(document: Mapping[str, Any]) -> str:
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    return f"{document.get('kind')} {name or '(without a name)'}"


def _keys(document: Mapping[str, Any], ours: Collection[str]) -> Iterator[tuple[str, str]]:
    spec = pod_spec(document) or {}
    if spec.get("schedulerName") == SCHEDULER:
        yield (
            f"schedulerName {SCHEDULER}",
            "there is no scheduler of this name without HAMi, so the pod stays Pending",
        )
    for annotation in _annotations(document):
        if annotation in _ANNOTATIONS:
            yield f"annotation {annotation}", _ANNOTATIONS[annotation]
        elif annotation.startswith(f"{DOMAIN}/"):
            yield f"annotation {annotation}", "has no effect: it is HAMi's scheduler's"
    for container in _containers(spec):
        for name in _resources(container):
            domain = name.partition("/")[0]
            if name not in ours and domain in VENDOR_DOMAINS:
                yield f"resource {name}", not_served(VENDOR_DOMAINS[domain], ())
            elif name not in ours and domain == "nvidia.com":
                known = ", ".join(ours)
                yield f"resource {name}", f"is not served by this node, which serves {known}"
        for variable in _variables(container):
            if variable in _VARIABLES:
                yield f"variable {variable}", _VARIABLES[variable]
            elif variable.startswith(_LIMIT_VARIABLES):
                yield (
                    f"variable {variable}",
                    "has no effect: limits never come from the environment, but from resources",
                )


def _annotations(document: Mapping[str, Any]) -> Iterator[str]:
    holders: list[Any] = [document]
    while holders:
        holder = holders.pop(0)
        if not isinstance(holder, Mapping):
            continue
        metadata = holder.get("metadata")
        found = metadata.get("annotations") if isinstance(metadata, Mapping) else None
        yield from map(str, found if isinstance(found, Mapping) else ())
        spec = holder.get("spec")
        if isinstance(spec, Mapping):
            holders += [spec.get("template"), spec.get("jobTemplate")]


def _containers(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for key in ("initContainers", "containers"):
        yield from _mappings(spec.get(key))


def _mappings(value: object) -> Iterator[Mapping[str, Any]]:
    """The mappings of a list; the API server refuses anything else."""
    return (one for one in (value if isinstance(value, list) else ()) if isinstance(one, Mapping))


def _resources(container: Mapping[str, Any]) -> list[str]:
    resources = container.get("resources")
    names: dict[str, None] = {}
    for key in ("limits", "requests"):
        amounts = resources.get(key) if isinstance(resources, Mapping) else None
        names |= dict.fromkeys(map(str, amounts if isinstance(amounts, Mapping) else ()))
    return list(names)


def _variables(container: Mapping[str, Any]) -> list[str]:
    return [str(one["name"]) for one in _mappings(container.get("env")) if "name" in one]
