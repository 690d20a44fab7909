"""Nodes and the pods on them, as topology-aware placement needs them.

Heartbeats of nodes change nothing here. A pod is kept as its node, its requests, and the workload
that counts for it, if that was assigned its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from queuecontroller.cluster.cache.kinds import WORKLOADS
from queuecontroller.cluster.cache.objects import (
    Document,
    ObjectCache,
    annotations_of,
    condition_of,
    labels_of,
)
from queuecontroller.frameworks.names import POD_SET, WORKLOAD
from queuecontroller.kueueapi.manifests.pods import pod_requests, read_taints
from queuecontroller.scheduler.placement.topology.ground import PODS, Ground, NodeFacts
from sluicecommon.reader import Reader

ON_NODES: Final = (
    ("fieldSelector", "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"),
)
"""Field selector of pods that use resources of a node."""


def is_on_a_node(pod: Mapping[str, Any]) -> bool:
    """Return True for a pod that ON_NODES selects."""
    on = bool((pod.get("spec") or {}).get("nodeName"))
    return on and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")


def slim_node(document: Mapping[str, Any], annotations: tuple[str, ...] = ()) -> dict[str, Any]:
    """The fields that are read, and these annotations."""
    head, status = document["metadata"], document.get("status") or {}
    kept = ("name", "uid", "resourceVersion", "labels")
    ready = [one for one in status.get("conditions") or () if one.get("type") == "Ready"]
    spec = document.get("spec") or {}
    noted = annotations_of(document)
    mine = {name: noted[name] for name in annotations if name in noted}
    return {
        "metadata": {
            **{name: head[name] for name in kept if name in head},
            **({"annotations": mine} if mine else {}),
        },
        "spec": {name: spec[name] for name in ("taints", "unschedulable") if name in spec},
        "status": {"allocatable": status.get("allocatable") or {}, "conditions": ready},
    }


def slim_pod(document: Mapping[str, Any]) -> dict[str, Any]:
    head, spec = document["metadata"], document.get("spec") or {}
    mine = {name: head[name] for name in ("name", "namespace", "uid", "resourceVersion")}
    if workload := annotations_of(document).get(WORKLOAD):
        mine["annotations"] = {WORKLOAD: workload}
        mine["labels"] = {POD_SET: labels_of(document).get(POD_SET) or "main"}
    asked = {**pod_requests(Reader(spec)), PODS: 1}
    return {"metadata": mine, "node": spec.get("nodeName") or "", "asked": asked}


def facts_of(node: Document) -> NodeFacts:
    spec = Reader(node.get("spec"))
    allocatable = Reader(node.get("status")).child("allocatable").amounts_here()
    return NodeFacts(
        node["metadata"]["name"],
        dict(labels_of(node)),
        allocatable,
        read_taints(spec, "taints"),
        takes_pods(node),
    )


def takes_pods(node: Document) -> bool:
    return is_ready(node) and not (node.get("spec") or {}).get("unschedulable")


def is_ready(node: Document) -> bool:
    return condition_of(node, "Ready").get("status") == "True"


class NodeContext:
    """Keeps the Ground of topology-aware placement up to date."""

    def __init__(self, cache: ObjectCache, changed: Callable[[], None]) -> None:
        """`changed` is called when free resources may have changed."""
        self.ground = Ground()
        self._cache = cache
        self._changed = changed
        self._waiting: dict[str, dict[str, Document]] = {}
        """Pods by the workload that their annotation names; it may or may not count for them."""
        self._of_pod: dict[str, str] = {}

    def labels(self, node: str) -> Mapping[str, str]:
        facts = self.ground.nodes.get(node)
        return facts.labels if facts is not None else {}

    def node(self, name: str, document: Document | None) -> None:
        if document is None:
            changed = self.ground.drop_node(name)
        else:
            changed = self.ground.put_node(facts_of(document))
        if changed:
            self._changed()

    def pod(self, key: str, document: Document | None) -> None:
        """Take in a pod on a node; None: it is gone from there."""
        workload = self._of_pod.pop(key, "")
        if workload:
            self._waiting[workload].pop(key, None)
            if not self._waiting[workload]:
                del self._waiting[workload]
        if document is None:
            if self.ground.drop_pod(key):
                self._changed()
            return
        name = annotations_of(document).get(WORKLOAD)
        if name:
            workload = f"{document['metadata']['namespace']}/{name}"
            self._of_pod[key] = workload
            self._waiting.setdefault(workload, {})[key] = document
        self._count(key, document, workload if name else "")

    def workload(self, key: str) -> None:
        """Count a workload's pods again: it was assigned places, or has lost them."""
        for pod, document in list(self._waiting.get(key, {}).items()):
            self._count(pod, document, key)

    def _count(self, key: str, document: Document, workload: str) -> None:
        """Count a pod, unless its workload's assigned places count for it already."""
        if workload and self._has_places(workload, labels_of(document).get(POD_SET)):
            changed = self.ground.drop_pod(key)
        else:
            changed = self.ground.put_pod(key, document["node"], document["asked"])
        if changed:
            self._changed()

    def _has_places(self, workload: str, pod_set: str | None) -> bool:
        document = self._cache.get(WORKLOADS, workload)
        status = (document or {}).get("status") or {}
        admission = status.get("admission") or status.get("checkpointed") or {}
        return any(
            one.get("topologyAssignment") or one.get("gpuPlaces")
            for one in admission.get("podSetAssignments") or ()
            if one.get("name", "main") == pod_set
        )
