"""Answers to the page's requests about one object: why it is pending, its history and its YAML; and
the manifests with which `simulate` simulates the queue in its present state."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import yaml

from queuecontroller.kueueapi.manifests.nodes import CAPACITY
from queuecontroller.scheduler.explain import explain
from queuecontroller.scheduler.model.objects import PodSet
from queuecontroller.scheduler.model.reasons import FINISHED
from queuecontroller.scheduler.placement.capacity import NodeCapacity
from queuecontroller.state.objects.asks import ASKED, asked_of
from queuecontroller.state.objects.submission import Refused
from queuecontroller.state.records import ObjectId, WorkloadRecord
from queuecontroller.state.shell import Shell
from queuecontroller.state.status import amounts, stamp
from sluicecommon.plain import write_plain

MAX_EVENTS: Final = 50
MAX_SIMULATED: Final = 2_000
"""Workloads in a what-if, which take a second or two of a processor."""
API: Final = "kueue.x-k8s.io/v1beta1"


def explained(shell: Shell, namespace: str, name: str) -> dict[str, Any]:
    """A workload's status, its explanation while it is pending, and its events. Raises Refused."""
    record = shell.book.find(namespace, name)
    now_ns = shell.now_ns()
    status = shell.views.status(record.key, now_ns, fresh=True)
    found: dict[str, Any] = {
        "phase": status.phase,
        "reason": status.reason,
        "message": status.message,
        "clusterQueue": status.cluster_queue,
        "position": status.position,
        "waiting": status.waiting,
        "estimateSeconds": status.estimate_s,
        "events": [
            {"at": one.at_ns / 1e9, "kind": one.kind, "text": one.text}
            for one in shell.store.events(f"Workload/{record.key}", MAX_EVENTS)
        ],
        "conditions": [
            {
                "type": one.type,
                "status": one.status,
                "reason": one.reason,
                "message": one.message,
                "at": one.changed_ns / 1e9,
            }
            for one in record.workload.conditions
        ],
        "checks": [
            {"name": one.name, "state": str(one.state), "message": one.message}
            for one in record.workload.admission_checks
        ],
    }
    if record.workload.admission is None and status.phase in ("Pending", "Paused"):
        ahead = max(0, status.position - 1)
        answer = explain(
            shell.book.engine,
            record.workload,
            status.cluster_queue,
            status.reason,
            status.message,
            now_ns,
            ahead,
            shell.book.new_nodes.get(record.key, ""),
        )
        found["explanation"] = answer.as_dict()
    return found


def as_yaml(document: Mapping[str, Any]) -> str:
    return yaml.safe_dump(json.loads(json.dumps(document, default=str)), sort_keys=False)


def without_command(shown: dict[str, Any]) -> dict[str, Any]:
    """The object without its command line, which may contain passwords."""
    shown.get("sluice", {}).pop("command", None)
    return shown


# -- manifests for simulate -----------------------------------------------------------------------


def manifests_of(shell: Shell) -> list[dict[str, Any]]:
    """The present state of the queue as objects: the applied objects, the ready nodes, and all
    running and pending workloads. Raises Refused for more than MAX_SIMULATED workloads."""
    book = shell.book
    found = [json.loads(one.body) for one in book.catalogue.records.values()]
    nodes = book.nodes.each_ready(shell.now_ns()) if book.room is not None else ()
    offered = {one.name: book.nodes_room.offered(one) for one in nodes if one.capacity.gpus}
    found += [node_manifest(name, capacity) for name, capacity in offered.items()]
    played = 0
    for record in book.workloads.records.values():
        if record.workload.is_true(FINISHED):
            continue
        played += 1
        if played > MAX_SIMULATED:
            raise Refused(
                "exhausted",
                f"more than {MAX_SIMULATED} workloads are running or pending: simulate them with"
                " `sluice-queue simulate` on another machine",
            )
        found.append(workload_manifest(record))
    return found


def node_manifest(name: str, capacity: NodeCapacity) -> dict[str, Any]:
    """A Node with all that it reported: GPUs, MIG instances, links, and use by others. The names of
    the other pods are omitted, since a simulation does not use them."""
    reported = json.dumps(write_plain(replace(capacity, pods=())), separators=(",", ":"))
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": dict(capacity.labels),
            "annotations": {CAPACITY: reported},
        },
        "spec": {
            "unschedulable": capacity.unschedulable,
            "taints": [
                {"key": one.key, "value": one.value, "effect": str(one.effect)}
                for one in capacity.taints
            ],
        },
    }


def workload_manifest(record: WorkloadRecord) -> dict[str, Any]:
    workload = record.workload
    return {
        "apiVersion": API,
        "kind": "Workload",
        "metadata": {
            "namespace": workload.namespace,
            "name": workload.name,
            "creationTimestamp": stamp(workload.created_ns),
        },
        "spec": {
            "queueName": workload.queue_name,
            "priority": workload.priority,
            "active": workload.active,
            "podSets": [_pod_set(record, one) for one in workload.pod_sets],
        },
    }


def _pod_set(record: WorkloadRecord, one: PodSet) -> dict[str, Any]:
    """A pod set whose requests are the amounts that quota counts. The GPU request is an annotation
    beside them: work of `sluice run` requests exact bytes on one node, which quota may not
    count."""
    containers = one.containers or (one.requests,)
    ask = record.asks.get(one.name)
    request = {ASKED: asked_of(ask, record.node)} if ask is not None else {}
    return {
        "name": one.name,
        "count": one.count,
        "template": {
            "metadata": {"annotations": {**one.annotations, **request}},
            "spec": {
                "nodeSelector": dict(one.node_selector),
                "containers": [
                    {"name": f"c{number}", "resources": {"requests": amounts(asked)}}
                    for number, asked in enumerate(containers)
                ],
            },
        },
    }


def replaced(
    documents: list[dict[str, Any]], changes: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The objects with each changed one replaced, or appended if it is new."""
    merged = {_identity(one): one for one in documents}
    for one in changes:
        merged[_identity(one)] = one
    return list(merged.values())


def _identity(document: Mapping[str, Any]) -> ObjectId:
    head = document.get("metadata")
    head = head if isinstance(head, Mapping) else {}
    kind = str(document.get("kind"))
    namespace = str(head.get("namespace") or "")
    if not namespace and kind in ("Workload", "LocalQueue", "Job"):
        namespace = "default"
    return kind, namespace, str(head.get("name"))


def compared(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The differences between two reports of `simulate`: workloads that start, stop, or are pending
    for another reason."""

    def sets(report: Mapping[str, Any]) -> tuple[set[str], dict[str, str]]:
        return set(report.get("admitted") or ()), dict(report.get("pending") or {})

    (was_in, was_out), (is_in, is_out) = sets(before), sets(after)
    return {
        "admittedBefore": len(was_in),
        "admittedAfter": len(is_in),
        "starts": sorted(is_in - was_in)[:500],
        "stops": [
            {"name": key, "why": is_out.get(key, "")} for key in sorted(was_in - is_in)[:500]
        ],
        "stillWaits": [
            {"name": key, "before": was_out[key], "after": is_out[key]}
            for key in sorted(was_out.keys() & is_out.keys())[:500]
            if was_out[key] != is_out[key]
        ],
        "usedBefore": before.get("used"),
        "usedAfter": after.get("used"),
        "gpusBefore": _gpus(before),
        "gpusAfter": _gpus(after),
        "notes": list(dict.fromkeys(after.get("notes") or ()))[:50],
    }


def _gpus(report: Mapping[str, Any]) -> Any:
    gpus = report.get("gpus")
    if not isinstance(gpus, Mapping):
        return None
    return {name: one.get("end") for name, one in (gpus.get("fragmentation") or {}).items()}


def each_namespace(shell: Shell) -> Iterator[str]:
    """The namespaces that have a LocalQueue."""
    seen: set[str] = set()
    for kind, namespace, _ in shell.book.catalogue.records:
        if kind == "LocalQueue" and namespace not in seen:
            seen.add(namespace)
            yield namespace
