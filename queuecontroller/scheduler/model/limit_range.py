"""Kubernetes' LimitRange: bounds a namespace sets on every container or pod.

The API server would refuse the pods only after the workload was admitted; a workload whose pods
cannot be created must not hold quota, so it is refused before. Defaults of a LimitRange are not
applied here: the pods contain them by the time a workload is made of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from queuecontroller.scheduler.model.objects import PodSet
from sluicecommon.kubernetes.quantity import format_amount


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of one `type`, Container or Pod; other types are ignored."""

    type: str
    minimum: Mapping[str, int] = field(default_factory=dict)
    maximum: Mapping[str, int] = field(default_factory=dict)

    def violation(self, requests: Mapping[str, int]) -> str | None:
        for resource, most in self.maximum.items():
            if requests.get(resource, 0) > most:
                return f"{resource} must be at most {format_amount(resource, most)}"
        for resource, least in self.minimum.items():
            if requests.get(resource, least) < least:
                return f"{resource} must be at least {format_amount(resource, least)}"
        return None


@dataclass(frozen=True, slots=True)
class LimitRange:
    bounds: tuple[Bounds, ...]

    def violation(self, pod_sets: Iterable[PodSet]) -> str | None:
        """The first bound that a pod set violates, as text, else None."""
        for pod_set in pod_sets:
            for bounds in self.bounds:
                for requests in _what_is_bound(bounds, pod_set):
                    broken = bounds.violation(requests)
                    if broken is not None:
                        return (
                            "resources didn't satisfy LimitRange constraints: pod set "
                            f"{pod_set.name}: {bounds.type} {broken}"
                        )
        return None


def _what_is_bound(bounds: Bounds, pod_set: PodSet) -> Iterator[Mapping[str, int]]:
    if bounds.type == "Container":
        yield from pod_set.containers
    elif bounds.type == "Pod":
        yield pod_set.requests
