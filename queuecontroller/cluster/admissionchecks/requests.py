"""ProvisioningRequests and the PodTemplates that they name, as documents: the request to the
cluster autoscaler for a Workload (autoscaling.x-k8s.io/v1). No I/O.

Names are Kueue's, WORKLOAD-CHECK-ATTEMPT and ppt-REQUEST-PODSET, as long as they fit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from queuecontroller.cluster.cache.objects import Document, annotations_of, condition_of
from queuecontroller.frameworks import PodSetInfo
from sluicecommon.kubernetes.resources import Resource
from sluicecommon.reader import Reader, read

REQUESTS: Final = Resource(
    "autoscaling.x-k8s.io", "v1", "provisioningrequests", "ProvisioningRequest"
)
POD_TEMPLATES: Final = Resource("", "v1", "podtemplates", "PodTemplate")
CONSUMES: Final = "autoscaling.x-k8s.io/consume-provisioning-request"
CLASS: Final = "autoscaling.x-k8s.io/provisioning-class-name"
"""Annotations by which the autoscaler matches pods to the request it made nodes for."""
PARAMETERS: Final = "provreq.kueue.x-k8s.io/"
"""Prefix of a Workload's annotations that are parameters of its requests."""
LONGEST_PARAMETER: Final = 255
MAX_PARAMETERS: Final = 100
LONGEST_NAME: Final = 253
LONGEST_STEM: Final = 240
"""Longest name of a request without the number that follows it."""
_MANAGED: Final = {"kueue.x-k8s.io/managed": "true"}
_ALIKE: Final = ("resources", "nodeSelector", "tolerations", "affinity", "resourceClaims")
"""Fields of a pod's spec, besides its containers' requests, by which nodes are chosen for it."""
IDENTICAL: Final = "IdenticalPodTemplates"
SIMILAR: Final = "IdenticalWorkloadSchedulingRequirements"


@dataclass(frozen=True, slots=True)
class Config:
    """The fields of a ProvisioningRequestConfig."""

    name: str
    class_name: str
    parameters: Mapping[str, str]
    managed_resources: frozenset[str]
    """Only pods that request one of these resources are provisioned for; empty: all pods."""
    limit_count: int
    base_s: int
    max_s: int
    node_selector: tuple[tuple[str, str], ...]
    """Each label with the provisioning class detail that gives its value."""
    merge: str
    """IDENTICAL, SIMILAR, or empty: each pod set has an entry of its own."""


def read_config(document: Document) -> Config:
    """Read a ProvisioningRequestConfig. Raises ManifestError."""
    name = str(document["metadata"]["name"])
    return read(lambda reader: _config(reader, name), document, f"ProvisioningRequestConfig {name}")


def _config(reader: Reader, name: str) -> Config:
    reader.ignore(*reader.names())
    spec = reader.child("spec")
    retry = spec.child("retryStrategy")
    updates = spec.child("podSetUpdates")
    return Config(
        name=name,
        class_name=spec.required("provisioningClassName"),
        parameters=spec.labels("parameters"),
        managed_resources=frozenset(spec.texts("managedResources")),
        limit_count=retry.whole("backoffLimitCount", 3, least=0),
        base_s=retry.whole("backoffBaseSeconds", 60, least=0),
        max_s=retry.whole("backoffMaxSeconds", 1800, least=0),
        node_selector=tuple(
            (one.required("key"), one.required("valueFromProvisioningClassDetail"))
            for one in updates.children("nodeSelector")
        ),
        merge=spec.text("podSetMergePolicy"),
    )


@dataclass(frozen=True, slots=True)
class Making:
    """A request to create for a check, with its templates."""

    check: str
    request: dict[str, Any]
    templates: tuple[dict[str, Any], ...]


def stem_of(workload: str, check: str) -> str:
    return f"{_fitting(f'{workload}-{check}', LONGEST_STEM)}-"


def attempt_of(request: Document, stem: str) -> int | None:
    """Return the number of the attempt, from 1; None if the name has another stem."""
    name = str(request["metadata"]["name"])
    number = name[len(stem) :] if name.startswith(stem) else ""
    return int(number) if number.isascii() and number.isdigit() and len(number) < 10 else None


def template_name(request: str, pod_set: str) -> str:
    return _fitting(f"ppt-{request}-{pod_set}", LONGEST_NAME)


def _fitting(name: str, longest: int) -> str:
    if len(name) <= longest:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:10]
    return f"{name[: longest - 11].rstrip('-.')}-{digest}"


def has(request: Document, condition: str) -> bool:
    return condition_of(request, condition).get("status") == "True"


def is_as_configured(request: Document, config: Config) -> bool:
    """Return True if the request has the class and parameters of the config as it is now.

    It may have further parameters: the Workload's own.
    """
    spec = request.get("spec") or {}
    given = spec.get("parameters") or {}
    return spec.get("provisioningClassName") == config.class_name and all(
        given.get(name) == value for name, value in config.parameters.items()
    )


def pod_sets_needed(workload: Document, config: Config) -> list[tuple[Mapping[str, Any], int]]:
    """Return the pod sets to provision for, each with the number of pods in the admission."""
    status = workload.get("status") or {}
    given = {
        one.get("name", "main"): one.get("count")
        for one in (status.get("admission") or {}).get("podSetAssignments") or ()
    }
    made = []
    for one in (workload.get("spec") or {}).get("podSets") or ():
        name = one.get("name", "main")
        count = given.get(name)
        count = count if isinstance(count, int) else one.get("count", 1)
        if name in given and count > 0 and _asks_for(one, config.managed_resources):
            made.append((one, count))
    return made


def _asks_for(pod_set: Mapping[str, Any], resources: frozenset[str]) -> bool:
    if not resources:
        return True
    spec = (pod_set.get("template") or {}).get("spec") or {}
    return any(
        not resources.isdisjoint((one.get("resources") or {}).get(part) or ())
        for one in _containers(spec)
        for part in ("requests", "limits")
    )


def _containers(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for part in ("initContainers", "containers"):
        yield from spec.get(part) or ()


def making(
    workload: Document, check: str, attempt: int, config: Config, infos: Sequence[PodSetInfo]
) -> Making:
    """Make the request of one attempt. `infos`: settings that the flavors give each pod set."""
    head = workload["metadata"]
    name = f"{stem_of(head['name'], check)}{attempt}"
    given = {one.name: one for one in infos}
    owner = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "name": head["name"],
        "uid": head["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    common: dict[str, Any] = {
        "namespace": head["namespace"],
        "labels": _MANAGED,
        "ownerReferences": [owner],
    }
    wanted: list[tuple[str, dict[str, Any], int]] = []
    for pod_set, count in pod_sets_needed(workload, config):
        template = _placed(pod_set, given.get(pod_set.get("name", "main")))
        for at, (first, known, before) in enumerate(wanted):
            if _may_merge(known, template, config.merge):
                wanted[at] = (first, known, before + count)
                break
        else:
            wanted.append((pod_set.get("name", "main"), template, count))
    templates = tuple(
        {
            "apiVersion": "v1",
            "kind": "PodTemplate",
            "metadata": {"name": template_name(name, pod_set), **common},
            "template": template,
        }
        for pod_set, template, _ in wanted
    )
    spec: dict[str, Any] = {
        "provisioningClassName": config.class_name,
        "podSets": [
            {"podTemplateRef": {"name": template_name(name, pod_set)}, "count": count}
            for pod_set, _, count in wanted
        ],
    }
    if parameters := {**config.parameters, **_own_parameters(workload)}:
        spec["parameters"] = parameters
    request = {
        "apiVersion": REQUESTS.api_version,
        "kind": REQUESTS.kind,
        "metadata": {"name": name, **common},
        "spec": spec,
    }
    return Making(check, request, templates)


def _own_parameters(workload: Document) -> dict[str, str]:
    return {
        name[len(PARAMETERS) :]: value
        for name, value in annotations_of(workload).items()
        if name.startswith(PARAMETERS) and len(name) > len(PARAMETERS)
    }


def _placed(pod_set: Mapping[str, Any], info: PodSetInfo | None) -> dict[str, Any]:
    """Return the template as its pods will be: on the flavors' nodes, with explicit requests."""
    template = dict(pod_set.get("template") or {})
    spec = dict(template.get("spec") or {})
    for part in ("initContainers", "containers"):
        if spec.get(part):
            spec[part] = [_with_requests(one) for one in spec[part]]
    if info is not None and info.node_selector:
        spec["nodeSelector"] = {**info.node_selector, **(spec.get("nodeSelector") or {})}
    if info is not None and info.tolerations:
        known = list(spec.get("tolerations") or ())
        more = [dict(one) for one in info.tolerations if dict(one) not in known]
        spec["tolerations"] = [*known, *more]
    return {**template, "spec": spec}


def _with_requests(container: Mapping[str, Any]) -> dict[str, Any]:
    """Return the container with its limits as defaults of its requests, as Kubernetes does."""
    resources = container.get("resources") or {}
    limits = resources.get("limits")
    if not limits:
        return dict(container)
    requests = {**limits, **(resources.get("requests") or {})}
    return {**container, "resources": {**resources, "requests": requests}}


def _may_merge(one: Mapping[str, Any], other: Mapping[str, Any], policy: str) -> bool:
    if policy == IDENTICAL:
        return one == other
    return policy == SIMILAR and _needs(one["spec"]) == _needs(other["spec"])


def _needs(spec: Mapping[str, Any]) -> list[object]:
    return [
        *(
            [(one.get("resources") or {}).get("requests") for one in spec.get(part) or ()]
            for part in ("initContainers", "containers")
        ),
        *(spec.get(name) or None for name in _ALIKE),
    ]
