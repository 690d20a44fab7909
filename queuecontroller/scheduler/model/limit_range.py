"""Kubernetes' LimitRange: bounds a namespace sets on every container or pod.

The API server would refuse the pods only after the workload was admitted; a workload whose pods
cannot be created must not hold quota, so it is refused before. Its defaults count as requests: the
API server adds them to pods, and a workload is made of the pod template of a job.
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
    limits: Mapping[str, int] = field(default_factory=dict)
    """Limits of containers that have none."""
    requests: Mapping[str, int] = field(default_factory=dict)
    """Requests of containers that have none."""

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


def container_defaults(
    limit_ranges: Iterable[LimitRange],
) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Requests and limits that containers of a namespace get where they name none: of several
    LimitRanges the smallest, as in Kueue. The API server has filled in a default by the maximum,
    and a request by the default."""
    requests: dict[str, int] = {}
    limits: dict[str, int] = {}
    for one in (bounds for each in limit_ranges for bounds in each.bounds):
        if one.type != "Container":
            continue
        default = {**one.maximum, **one.limits}
        _keep_least(limits, default)
        _keep_least(requests, {**one.minimum, **default, **one.requests})
    return requests, limits


def _keep_least(known: dict[str, int], more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        known[name] = min(known.get(name, amount), amount)


def _what_is_bound(bounds: Bounds, pod_set: PodSet) -> Iterator[Mapping[str, int]]:
    if bounds.type == "Container":
        yield from pod_set.containers
    elif bounds.type == "Pod":
        yield pod_set.requests
