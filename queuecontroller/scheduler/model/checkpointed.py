"""Keepers: they hold for a workload whose pods are checkpointed what it keeps meanwhile.

The pods run on without their GPUs, so their CPU, memory and places among the pods stay in use. A
workload without an admission holds nothing in Kueue's model, so a second one beside it holds that:
its keeper, which exists in the scheduler only. It has the quota but for the GPUs', may be preempted
like any other, and the workload takes it over when it is admitted again, as a slice of an elastic
job does with an earlier one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, TypeVar

from queuecontroller.scheduler.model.objects import (
    Admission,
    Condition,
    PodSet,
    Workload,
    WorkloadKey,
)
from queuecontroller.scheduler.model.reasons import (
    ADMITTED,
    CHECKPOINTED,
    EVICTED,
    PODS_READY,
    QUOTA_RESERVED,
)

V = TypeVar("V")
_MARK: Final = "+checkpointed"
"""Ends a keeper's name; no name in Kubernetes has a plus sign."""


def keeper_of(key: WorkloadKey) -> WorkloadKey:
    return WorkloadKey(f"{key}{_MARK}")


def kept_for(key: WorkloadKey) -> WorkloadKey | None:
    """The workload of a keeper; None for a workload of its own."""
    return WorkloadKey(key.removesuffix(_MARK)) if key.endswith(_MARK) else None


def without_gpus(admission: Admission, domain: str) -> Admission:
    """An admission without the quota of all resources of a domain, such as `nvidia.com`."""
    return replace(
        admission,
        pod_sets=tuple(
            replace(one, usage=_rest(one.usage, domain), flavors=_rest(one.flavors, domain))
            for one in admission.pod_sets
        ),
    )


def _rest(amounts: Mapping[str, V], domain: str) -> dict[str, V]:
    return {name: one for name, one in amounts.items() if name.partition("/")[0] != domain}


def keeper(workload: Workload) -> Workload:
    """The keeper of a checkpointed workload. It is evicted while that one's pods are stopped."""
    given = workload.checkpointed
    assert given is not None
    kept = {one.name: one for one in given.pod_sets}
    since = workload.condition(CHECKPOINTED)
    at_ns = since.changed_ns if since is not None else 0
    true = [QUOTA_RESERVED, ADMITTED, PODS_READY, *([EVICTED] if workload.is_given_up else [])]
    return Workload(
        workload.namespace,
        f"{workload.name}{_MARK}",
        tuple(_alike(one, kept[one.name].usage) for one in workload.pod_sets if one.name in kept),
        workload.queue_name,
        workload.priority,
        workload.priority_class,
        workload.uid,
        workload.created_ns,
        admission=given,
        conditions=tuple(Condition(kind, True, CHECKPOINTED, "", at_ns) for kind in true),
        owner_uid=workload.owner_uid,
    )


def _alike(pod_set: PodSet, kept: Mapping[str, int]) -> PodSet:
    """The pods as they are on their nodes, without devices: what has a domain is one."""
    requests = {name: one for name, one in pod_set.requests.items() if name in kept}
    on_node = {name: one for name, one in pod_set.pod_requests.items() if "/" not in name}
    return PodSet(pod_set.name, pod_set.count, requests, pod_requests=on_node)
