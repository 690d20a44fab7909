"""What an admission gives the pods of a job: where they may run, and whose they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from queuecontroller.jobs import PodSetInfo

from .world import Document

POD_SET: Final = "kueue.x-k8s.io/podset"
LOCAL_QUEUE: Final = "kueue.x-k8s.io/local-queue-name"
CLUSTER_QUEUE: Final = "kueue.x-k8s.io/cluster-queue-name"
LONGEST_LABEL: Final = 63


def infos_of(workload: Document, flavor: Callable[[str], Document | None]) -> list[PodSetInfo]:
    """For each pod set of an admitted Workload."""
    status = workload.get("status") or {}
    admission = status.get("admission") or {}
    spec = workload.get("spec") or {}
    counts = {one.get("name", "main"): one.get("count", 1) for one in spec.get("podSets") or ()}
    queues = {LOCAL_QUEUE: spec.get("queueName"), CLUSTER_QUEUE: admission.get("clusterQueue")}
    return [
        _info(one, counts.get(one["name"]), queues, status.get("admissionChecks") or (), flavor)
        for one in admission.get("podSetAssignments") or ()
    ]


def _info(
    given: Mapping[str, Any],
    wanted: int | None,
    queues: Mapping[str, str | None],
    checks: Sequence[Mapping[str, Any]],
    flavor: Callable[[str], Document | None],
) -> PodSetInfo:
    name = given["name"]
    labels = {POD_SET: name, **{key: value for key, value in queues.items() if value}}
    annotations: dict[str, str] = {}
    selector: dict[str, str] = {}
    tolerations: list[Mapping[str, Any]] = []
    for one in dict.fromkeys((given.get("flavors") or {}).values()):
        document = flavor(one)
        spec = (document.get("spec") or {}) if document is not None else {}
        selector |= spec.get("nodeLabels") or {}
        tolerations += spec.get("tolerations") or ()
    for update in _updates(name, checks):
        labels |= update.get("labels") or {}
        annotations |= update.get("annotations") or {}
        selector |= update.get("nodeSelector") or {}
        tolerations += update.get("tolerations") or ()
    count = given.get("count")
    return PodSetInfo(
        name=name,
        count=count if count != wanted else None,
        labels={key: value for key, value in labels.items() if len(value) <= LONGEST_LABEL},
        annotations=annotations,
        node_selector=selector,
        tolerations=tolerations,
    )


def _updates(name: str, checks: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for check in checks:
        if check.get("state") == "Ready":
            for update in check.get("podSetUpdates") or ():
                if update.get("name") == name:
                    yield update
