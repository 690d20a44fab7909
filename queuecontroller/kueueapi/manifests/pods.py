"""Requests and node constraints of a pod template.

A pod template is Kubernetes' own and much larger than what queueing needs, so unknown fields are
accepted here. Totals follow the Kubernetes page on sidecar containers: containers and restartable
init containers run together, other init containers one at a time before them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from queuecontroller.scheduler.model.selectors import (
    NodeSelectorTerm,
    Requirement,
    Taint,
    Toleration,
)
from queuecontroller.scheduler.model.transformations import Transformations
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


AS_GIVEN: Final = Transformations()


def _container_requests(container: Reader, change: Transformations) -> dict[str, int]:
    """Requests of one container; a limit without a request is the request, as Kubernetes has it."""
    resources = container.child("resources")
    requests = resources.amounts("requests")
    for name, limit in resources.amounts("limits").items():
        requests.setdefault(name, limit)
    return requests if change is AS_GIVEN else change.of_container(requests)


def _add(total: dict[str, int], more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        total[name] = saturate(total.get(name, 0) + amount)


def _raise_to(total: dict[str, int], floor: Mapping[str, int]) -> None:
    for name, amount in floor.items():
        total[name] = max(total.get(name, 0), amount)


def container_requests(spec: Reader) -> list[dict[str, int]]:
    """Requests of each container as given, init containers first."""
    every = [*spec.children("initContainers"), *spec.children("containers")]
    return [_container_requests(one, AS_GIVEN) for one in every]


def pod_requests(spec: Reader, change: Transformations = AS_GIVEN) -> dict[str, int]:
    """The most one pod holds at any time."""
    together: dict[str, int] = {}
    for container in spec.children("containers"):
        _add(together, _container_requests(container, change))
    before: dict[str, int] = {}
    sidecars: dict[str, int] = {}
    for container in spec.children("initContainers"):
        requests = _container_requests(container, change)
        if container.text("restartPolicy") == "Always":
            _add(sidecars, requests)
            _add(together, requests)
            _raise_to(before, sidecars)
        else:
            at_once = dict(sidecars)
            _add(at_once, requests)
            _raise_to(before, at_once)
    _raise_to(together, before)
    pod_level = spec.child("resources").amounts("requests")
    together.update(pod_level)
    _add(together, spec.child("overhead").amounts_here())
    return together


def over_limit(spec: Reader) -> str | None:
    """The first container whose request is above its own limit, as text, else None."""
    for kind in ("initContainers", "containers"):
        for container in spec.children(kind):
            resources = container.child("resources")
            limits = resources.amounts("limits")
            wrong = sorted(
                name
                for name, amount in resources.amounts("requests").items()
                if name in limits and amount > limits[name]
            )
            if wrong:
                return f"{container.path}: requests of {', '.join(wrong)} exceed the limits"
    return None
