"""Submissions as workload records: Kueue Workloads, Jobs and Pods by manifest, and processes that
wait under `sluice run --queue`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from queuecontroller.kueueapi.manifests.jobs import copies_of, workloads_of
from queuecontroller.kueueapi.manifests.workloads import read_workload
from queuecontroller.scheduler.model.objects import PodSet, Workload
from queuecontroller.scheduler.placement.request import AskError
from queuecontroller.state.objects.asks import ask_of, requests_of
from queuecontroller.state.objects.catalogue import (
    USERS,
    Catalogue,
    Identity,
    read_consolidation,
    read_on_preemption,
)
from queuecontroller.state.records import GpuAsk, OnPreemption, WorkloadRecord
from sluicecommon.kubernetes.names import wrong_name, wrong_namespace
from sluicecommon.reader import ManifestError, Problem


class Refused(Exception):
    """Raised for a refused request; callers act on `kind`."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        """invalid, not_found, exists, conflict, denied or exhausted."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A process or a pod that requests a share."""

    namespace: str
    queue: str
    ask: GpuAsk
    name: str = ""
    priority_class: str = ""
    node: str = ""
    user: str = ""
    command: str = ""
    on_preemption: OnPreemption | None = None
    max_execution_s: int | None = None
    token: str = ""


def records_of(
    document: Mapping[str, Any], who: Identity, catalogue: Catalogue, most: int
) -> list[WorkloadRecord] | None:
    """The workloads of a manifest, empty if it names no queue; None if there are more than `most`.
    Raises ManifestError."""
    change = catalogue.transformations
    on_preemption = read_on_preemption(document, str(who))
    consolidation = read_consolidation(document, str(who))
    if who.kind == "Workload":
        workload = read_workload(document, str(who), change)
        workload = replace(workload, namespace=workload.namespace or who.namespace)
        name = workload.priority_class
        if name is not None and "priority" not in (document.get("spec") or {}):
            priority = catalogue.priorities().of(name, name)
            workload = replace(workload, priority=priority)
        found = [workload]
    elif copies_of(document) > most:  # Checked before they are created.
        return None
    else:
        found = workloads_of(document, str(who), change, catalogue.priorities())
    if len(found) > most:
        return None
    manifest = json.dumps(document, separators=(",", ":"), default=str)
    return [
        WorkloadRecord(
            workload=one,
            asks=_asks(one, str(who)),
            on_preemption=on_preemption,
            consolidation=consolidation,
            kind=who.kind,
            manifest=manifest,
        )
        for one in found
    ]


def _asks(workload: Workload, path: str) -> dict[str, GpuAsk]:
    found = {}
    for pod_set in workload.pod_sets:
        try:
            ask = ask_of(pod_set)
        except AskError as error:
            raise ManifestError([Problem(f"{path}: pod set {pod_set.name}", str(error))]) from None
        if ask is not None:
            found[pod_set.name] = ask
    return found


def record_of(submission: Submission, uid: str, catalogue: Catalogue) -> WorkloadRecord:
    """The record of a submission. Raises Refused."""
    asked = submission
    name = asked.name or f"run-{uid[:13]}"
    for what, wrong in (
        ("namespace", wrong_namespace(asked.namespace)),
        ("name", wrong_name(name)),
        ("queue", wrong_name(asked.queue)),
    ):
        if wrong:
            raise Refused("invalid", f"{what} {wrong}")
    local = catalogue.local_queue(asked.namespace, asked.queue)
    if local is None:
        raise Refused(
            "not_found",
            f"no LocalQueue {asked.namespace}/{asked.queue}{_others(asked, catalogue)}",
        )
    check_user(asked.user, asked.namespace, asked.queue, catalogue)
    priorities = catalogue.priorities()
    if asked.priority_class and asked.priority_class not in priorities.workload_classes:
        known = ", ".join(sorted(priorities.workload_classes)) or "none"
        raise Refused(
            "not_found", f"no WorkloadPriorityClass {asked.priority_class} (known: {known})"
        )
    asks, pod_sets = catalogue.remember(  # Equal requests share one value.
        ("pod sets", asked.ask, local.cluster_queue),
        lambda: ({"main": asked.ask}, (_pod_set(asked.ask, local.cluster_queue, catalogue),)),
    )
    workload = Workload(
        namespace=asked.namespace,
        name=name,
        uid=uid,
        pod_sets=pod_sets,
        queue_name=asked.queue,
        priority=priorities.of(asked.priority_class or None, None),
        priority_class=asked.priority_class or None,
        max_execution_s=asked.max_execution_s,
    )
    return WorkloadRecord(
        workload=workload,
        asks=asks,
        node=asked.node,
        user=asked.user,
        command=asked.command,
        token=asked.token,
        on_preemption=asked.on_preemption,
    )


def _pod_set(ask: GpuAsk, cluster_queue: str, catalogue: Catalogue) -> PodSet:
    requests = catalogue.transformations.of_container(requests_of(ask))
    covered = catalogue.covered(cluster_queue)
    if covered is not None:
        # `sluice run` requests all resources; the queue decides which of them it counts.
        requests = {name: amount for name, amount in requests.items() if name in covered}
    return PodSet("main", 1, requests)


def check_user(user: str, namespace: str, queue: str, catalogue: Catalogue) -> None:
    """Check a LocalQueue's list of users, for every way to submit. Raises Refused."""
    users = catalogue.annotation(("LocalQueue", namespace, queue), USERS)
    if users is None:
        return
    allowed = [one.strip() for one in users.split(",") if one.strip()]
    if user not in allowed:
        raise Refused(
            "denied",
            f"{user or 'an unnamed user'} may not use LocalQueue {namespace}/{queue}; allowed"
            f" users: {', '.join(allowed) or 'none'}",
        )


def _others(asked: Submission, catalogue: Catalogue) -> str:
    every = [(r.namespace, r.name) for r in catalogue.of_kind("LocalQueue")]
    elsewhere = [f"{where}/{name}" for where, name in every if name == asked.queue]
    if elsewhere:
        return f"; did you mean {elsewhere[0]}?"
    here = sorted(name for where, name in every if where == asked.namespace)
    return f" (there: {', '.join(here[:10])})" if here else f" ({asked.namespace} has none)"
