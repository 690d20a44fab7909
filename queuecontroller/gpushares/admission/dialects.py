"""Translation of other schedulers' GPU requests into HAMi's resources: annotations of KAI and
Run:ai, resources of Volcano.

A fraction is a fraction of memory. Those schedulers guarantee no compute time, so the translation
requests none: `gpucores: 0`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from queuecontroller.gpushares.admission.names import VOLCANO_ANNOTATIONS, VOLCANO_RESOURCES
from queuecontroller.gpushares.vendors.asks import AskError, table
from queuecontroller.gpushares.vendors.config import Nvidia
from sluicecommon.kai.fractions import (
    FRACTION_MEMORY,
    FractionError,
    check_sharing_mode,
    read_fraction,
)
from sluicecommon.kai.waiting import WaitingError, preemption_delay
from sluicecommon.kubernetes.names import QUEUE_LABEL
from sluicecommon.reader import shown

Container = dict[str, Any]
WHOLE: Final = 100
POD_SET: Final = "kueue.x-k8s.io/podset"
"""Label of the pods of a queue's Workload."""


def fractions(
    annotations: dict[str, str],
    containers: list[Container],
    names: Nvidia,
    init_containers: list[Container] | None = None,
    claims: bool = False,
) -> bool:
    """Translate KAI's and Run:ai's annotations into limits of the container they name, in place,
    and into the annotation for its guaranteed part. `claims`: the limits become claims. True if
    there were any. Raises AskError."""
    every = [*containers, *(init_containers or ())]
    try:
        check_sharing_mode(annotations)
        found = read_fraction(annotations, [str(one.get("name")) for one in every])
    except FractionError as error:
        raise AskError(str(error)) from None
    if found is None:
        return False
    if claims and found.percent not in (None, WHOLE):
        raise AskError(
            f"{found.key}: a claim has no part of a card that is not chosen yet: write"
            f" {FRACTION_MEMORY}"
        )
    if claims and found.guaranteed is not None:
        raise AskError(f"{found.key}: a claim guarantees all of its memory: write one amount")
    container = next(one for one in every if str(one.get("name")) == found.container)
    for resource in names.resources:
        if resource in limits_of(container):
            raise AskError(
                f"{found.key}: container {container.get('name')} requests {resource} as well: leave"
                " one out"
            )
    limits = {names.count: found.gpus, names.cores: 0}
    if found.percent is not None:
        limits[names.memory_percent] = found.percent
    else:
        limits[names.memory] = -(-(found.mib or 0) // names.memory_factor)
    set_limits(container, limits)
    own = found.request_annotation(names.memory_factor)
    if own is not None and annotations.setdefault(*own) != own[1]:
        raise AskError(
            f"{own[0]}: {shown(annotations[own[0]])} is another amount than {found.key} has: leave"
            " one out"
        )
    return True


def check_waiting(
    annotations: Mapping[str, str], labels: Mapping[str, Any], claims: bool = False
) -> None:
    """Check KAI's preemption delay. The extender keeps it; the queue does not, nor does
    kube-scheduler for claims. Raises AskError."""
    try:
        found = preemption_delay(annotations, labels)
    except WaitingError as error:
        raise AskError(str(error)) from None
    if found is not None and claims:
        raise AskError(
            f"{found.key}: kube-scheduler preempts for claims without a delay: leave it out"
        )
    if found is not None and {QUEUE_LABEL, POD_SET} & labels.keys():
        raise AskError(
            f"{found.key}: a pod of a queue ({QUEUE_LABEL}) preempts by the rules of its"
            " ClusterQueue (spec.preemption): leave one of the two out"
        )


def volcano(annotations: dict[str, str], containers: list[Container], names: Nvidia) -> bool:
    """Rename Volcano's resources and annotations to HAMi's, in place. True if there were any.
    Raises AskError."""
    found = False
    for container in containers:
        for kind in ("limits", "requests"):
            amounts = table(container, "resources").get(kind)
            if not isinstance(amounts, dict):
                continue
            for resource, field in VOLCANO_RESOURCES.items():
                if resource not in amounts:
                    continue
                ours = getattr(names, field)
                if ours in amounts:
                    raise AskError(
                        f"container {container.get('name')}: {resource}: is requested together"
                        f" with {ours}: leave one out"
                    )
                amounts[ours] = amounts.pop(resource)
                found = True
    for theirs, ours in VOLCANO_ANNOTATIONS.items():
        if theirs in annotations and found:
            annotations.setdefault(ours, annotations[theirs])
    return found


# -- containers -----------------------------------------------------------------------------------


def limits_of(container: Mapping[str, Any]) -> dict[str, Any]:
    """The container's limits, and its requests where a resource has no limit."""
    resources = container.get("resources")
    found: dict[str, Any] = {}
    for kind in ("requests", "limits"):
        amounts = resources.get(kind) if isinstance(resources, Mapping) else None
        found |= amounts if isinstance(amounts, Mapping) else {}
    return found


def set_limits(container: Container, limits: Mapping[str, int]) -> None:
    """Set limits, and equal requests if the container has requests: for extended resources both
    must be equal."""
    resources = container["resources"] = container.get("resources") or {}
    for kind in ("limits", "requests"):
        amounts = resources.get(kind)
        if kind == "limits" or isinstance(amounts, dict):
            amounts = resources[kind] = dict(amounts or {})
            amounts |= {key: str(value) for key, value in limits.items()}
