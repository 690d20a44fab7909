"""Requests and node constraints of a pod template.

A pod template is Kubernetes' own and much larger than what queueing needs, so unknown fields are
accepted here. Totals follow the Kubernetes page on sidecar containers: containers and restartable
init containers run together, other init containers one at a time before them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from queuecontroller.scheduler.model.selectors import (
    NodeSelectorTerm,
    Requirement,
    Taint,
    Toleration,
)
from queuecontroller.scheduler.model.transformations import Transformations
from sluicecommon.hami.names import GPU, GPU_MEMORY, GPU_MEMORY_PERCENT
from sluicecommon.kai.fractions import FractionError, asking, read_fraction
from sluicecommon.kubernetes.quantity import saturate
from sluicecommon.reader import Reader


def read_tolerations(reader: Reader, key: str) -> tuple[Toleration, ...]:
    return tuple(
        Toleration(
            one.text("key"), one.text("operator", "Equal"), one.text("value"), one.text("effect")
        )
        for one in reader.children(key)
    )


def read_taints(reader: Reader, key: str) -> tuple[Taint, ...]:
    return tuple(
        Taint(one.required("key"), one.text("value"), one.text("effect", "NoSchedule"))
        for one in reader.children(key)
    )


def read_requirements(reader: Reader, key: str) -> tuple[Requirement, ...]:
    return tuple(
        Requirement(one.required("key"), one.required("operator"), one.texts("values"))
        for one in reader.children(key)
    )


def read_node_affinity(spec: Reader) -> tuple[NodeSelectorTerm, ...] | None:
    required = spec.child("affinity").child("nodeAffinity")
    if not required.has("requiredDuringSchedulingIgnoredDuringExecution"):
        return None
    terms = required.child("requiredDuringSchedulingIgnoredDuringExecution")
    return tuple(
        NodeSelectorTerm(read_requirements(term, "matchExpressions"))
        for term in terms.children("nodeSelectorTerms")
    )


def with_fractions(spec: Reader, annotations: Mapping[str, str]) -> Reader:
    """The spec with KAI's annotations for parts of GPUs as limits: the webhook of mode kubernetes
    changes the pods so when they are created, and the quota has to count it before. Wrong ones are
    left out, because those pods are refused."""
    if not asking(annotations):
        return spec
    given = {kind: spec.raw(kind) for kind in ("containers", "initContainers")}
    every = [one for each in given.values() if isinstance(each, list) for one in each]
    names = [str(one.get("name")) for one in every if isinstance(one, Mapping)]
    try:
        found = read_fraction(annotations, names)
    except FractionError:
        return spec
    if found is None:
        return spec
    limits = {GPU: found.gpus, GPU_MEMORY: found.mib, GPU_MEMORY_PERCENT: found.percent}
    more = {name: amount for name, amount in limits.items() if amount is not None}

    def changed(one: object) -> object:
        if not isinstance(one, Mapping) or str(one.get("name")) != found.container:
            return one
        resources = one.get("resources") or {}
        known = resources.get("limits") or {} if isinstance(resources, Mapping) else {}
        if not isinstance(known, Mapping) or GPU in known:  # The pod has been changed already.
            return one
        return {**one, "resources": {**resources, "limits": {**known, **more}}}

    made = {name: spec.raw(name) for name in spec.names()}
    for kind, each in given.items():
        if isinstance(each, list):
            made[kind] = [changed(one) for one in each]
    return Reader(made, spec.path, spec.problems)


AS_GIVEN: Final = Transformations()


@dataclass(frozen=True, slots=True)
class PodDefaults:
    """Amounts that the API server adds to pods when they are created, and that the template of a
    job does not have yet."""

    requests: Mapping[str, int] = field(default_factory=dict)
    """Requests of containers that name none, by LimitRanges of the namespace."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """Limits of containers that name none."""
    overheads: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Overhead of a pod by RuntimeClass."""


NO_DEFAULTS: Final = PodDefaults()


def _requests_and_limits(
    resources: Reader, defaults: PodDefaults = NO_DEFAULTS
) -> tuple[dict[str, int], dict[str, int]]:
    """Requests and limits; a limit without a request is the request, as Kubernetes has it."""
    limits = resources.amounts("limits")
    requests = {**limits, **resources.amounts("requests")}
    return {**defaults.requests, **requests}, {**defaults.limits, **limits}


def _container_requests(
    container: Reader, change: Transformations, defaults: PodDefaults
) -> dict[str, int]:
    requests, _ = _requests_and_limits(container.child("resources"), defaults)
    return requests if change is AS_GIVEN else change.of_container(requests)


def _add(total: dict[str, int], more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        total[name] = saturate(total.get(name, 0) + amount)


def _raise_to(total: dict[str, int], floor: Mapping[str, int]) -> None:
    for name, amount in floor.items():
        total[name] = max(total.get(name, 0), amount)


def container_requests(spec: Reader, defaults: PodDefaults = NO_DEFAULTS) -> list[dict[str, int]]:
    """Requests of each container, init containers first."""
    every = [*spec.children("initContainers"), *spec.children("containers")]
    return [_container_requests(one, AS_GIVEN, defaults) for one in every]


def pod_requests(
    spec: Reader, change: Transformations = AS_GIVEN, defaults: PodDefaults = NO_DEFAULTS
) -> dict[str, int]:
    """The most one pod holds at any time: at least what its containers request, whatever the pod
    itself does."""
    together = requests_of_containers(spec, change, defaults)
    pod_level, _ = _requests_and_limits(spec.child("resources"))
    _raise_to(together, pod_level if change is AS_GIVEN else change.of_container(pod_level))
    overhead = spec.child("overhead").amounts_here()
    _add(together, overhead or defaults.overheads.get(spec.text("runtimeClassName"), {}))
    return together


def requests_of_containers(
    spec: Reader, change: Transformations = AS_GIVEN, defaults: PodDefaults = NO_DEFAULTS
) -> dict[str, int]:
    """The most that the containers of one pod hold at any time."""
    together: dict[str, int] = {}
    for container in spec.children("containers"):
        _add(together, _container_requests(container, change, defaults))
    before: dict[str, int] = {}
    sidecars: dict[str, int] = {}
    for container in spec.children("initContainers"):
        requests = _container_requests(container, change, defaults)
        if container.text("restartPolicy") == "Always":
            _add(sidecars, requests)
            _add(together, requests)
            _raise_to(before, sidecars)
        else:
            at_once = dict(sidecars)
            _add(at_once, requests)
            _raise_to(before, at_once)
    _raise_to(together, before)
    return together


def over_limit(spec: Reader, defaults: PodDefaults = NO_DEFAULTS) -> str | None:
    """The first container whose request is above its own limit, as text, or the pod if its requests
    are above its limits, else None."""
    every = [*spec.children("initContainers"), *spec.children("containers")]
    for holder, added in (*((one, defaults) for one in every), (spec, NO_DEFAULTS)):
        requests, limits = _requests_and_limits(holder.child("resources"), added)
        wrong = sorted(n for n, amount in requests.items() if n in limits and amount > limits[n])
        if wrong:
            return f"{holder.path}: requests of {', '.join(wrong)} exceed the limits"
    return None
