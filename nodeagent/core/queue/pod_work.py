"""Matches the queue's decisions to pods.

The controller creates workloads for what users submit, and names them by kind: `pod-NAME`,
`job-NAME` (one decision for each of its pods), `deployment-NAME-0` and so on, one for each replica.
Pods that a controller of Kubernetes creates have names of their own, so they are matched by owner:
a pod of Job NAME takes a decision of `job-NAME`, no matter which, because the pods of a workload
are alike. A StatefulSet's pods are numbered, and each takes its own.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from nodeagent.ports.kubelet import OwnerRef
from nodeagent.ports.queue import Desired, Work, WorkKey, WorkState

REPLICATED: Final = ("Deployment", "ReplicaSet")
_ORDINAL: Final = re.compile(r".+-(0|[1-9][0-9]{0,8})")


def named(works: Iterable[Work], namespace: str, pod: str) -> Work | None:
    """The decision for exactly this pod: its workload is named after it, or has the pod's name."""
    wanted = {f"{namespace}/{own}" for own in (pod, f"pod-{pod}")}
    for work in works:
        if work.key.workload in wanted and not work.key.pod:
            return work
    return None


def of_owners(
    works: Iterable[Work], namespace: str, pod: str, owners: Sequence[OwnerRef]
) -> list[Work]:
    """All decisions for pods of these owners, in the order in which they are taken."""
    found: list[Work] = []
    every = list(works)
    for owner in owners:
        mine = [work for work in every if _is_of(work.key, namespace, pod, owner)]
        found += sorted(mine, key=lambda work: _natural(work.key))
    return found


def free(works: Iterable[Work], taken: Collection[WorkKey]) -> Work | None:
    """The first decision to run that no pod has taken."""
    for work in works:
        offered = work.state is WorkState.OFFERED and work.decision.desired is Desired.RUN
        if offered and work.key not in taken:
            return work
    return None


def owners_by_name(
    first: OwnerRef | None, labels: Collection[tuple[str, str]]
) -> tuple[OwnerRef, ...]:
    """The pod's owners as far as the pod itself shows: a Deployment's ReplicaSet is named after the
    Deployment and the hash in the pod's labels."""
    if first is None:
        return ()
    ending = f"-{dict(labels).get('pod-template-hash', '')}"
    if first.kind == "ReplicaSet" and len(ending) > 1 and first.name.endswith(ending):
        return (
            first,
            OwnerRef(first.api_version, "Deployment", first.name.removesuffix(ending)),
        )
    return (first,)


def _is_of(key: WorkKey, namespace: str, pod: str, owner: OwnerRef) -> bool:
    kind = owner.kind.lower()
    stem = f"{namespace}/{kind}-{owner.name}"
    if owner.kind == "Job":
        return key.workload == stem
    if key.pod:
        return False
    if owner.kind == "StatefulSet":
        found = _ORDINAL.fullmatch(pod)
        return found is not None and key.workload == f"{stem}-{found[1]}"
    replica = key.workload.removeprefix(f"{stem}-")
    return owner.kind in REPLICATED and replica != key.workload and replica.isdecimal()


def _natural(key: WorkKey) -> tuple[int, str, str]:
    """Sort key that puts replica 2 before replica 10."""
    number = f"{key.workload}-{key.pod}".rstrip("-").rpartition("-")[2]
    return (int(number) if number.isdecimal() else -1, key.workload, key.pod)
