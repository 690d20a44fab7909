"""Fields that an admission adds to the pods of a Workload: from its flavors, its passed
AdmissionChecks, and labels that name the Workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from queuecontroller.frameworks import names
from queuecontroller.frameworks.patches import Document
from queuecontroller.frameworks.starting import PodSetInfo
from sluicecommon.reader import LEAST, MOST, ManifestError, Reader

CLUSTER_QUEUE_LABEL: Final = "kueue.x-k8s.io/cluster-queue-name"
LOCAL_QUEUE_LABEL: Final = "kueue.x-k8s.io/local-queue-name"


def pod_set_infos(
    workload: Document,
    flavors: Mapping[str, Document],
    nodes: Mapping[str, Mapping[str, str]] | None = None,
    gates: Sequence[str] = (),
) -> list[PodSetInfo]:
    """Infos of each pod set, in the order of the Workload. `flavors` are ResourceFlavors by name; a
    missing one adds nothing. `nodes` are node selectors by pod set that placement adds, `gates`
    further scheduling gates. Raises ManifestError."""
    reader = Reader(workload)
    spec, status = reader.child("spec"), reader.child("status")
    head = reader.child("metadata")
    admission = status.child("admission")
    given = {one.text("name", "main"): one for one in admission.children("podSetAssignments")}
    updates: dict[str, list[Reader]] = {}
    for check in status.children("admissionChecks"):
        for one in check.children("podSetUpdates"):
            updates.setdefault(one.text("name"), []).append(one)
    common = {
        key: value
        for key, value in (
            (CLUSTER_QUEUE_LABEL, admission.text("clusterQueue")),
            (LOCAL_QUEUE_LABEL, spec.text("queueName")),
        )
        if value and len(value) <= names.LONGEST_LABEL
    }
    made = []
    for one in spec.children("podSets"):
        name = one.text("name", "main")
        assigned = given.get(name)
        info = _Gathering(name, reader)
        info.labels |= {names.POD_SET: name, **common}
        info.annotations[names.WORKLOAD] = head.text("name")
        count = None
        if assigned is not None:
            count = assigned.whole("count", one.whole("count", 1), least=0)
            for flavor in dict.fromkeys(assigned.labels("flavors").values()):
                info.flavor(Reader(flavors.get(flavor), f"ResourceFlavor {flavor}"))
        for update in updates.get(name, ()):
            info.update(update)
        info.merge(info.node_selector, (nodes or {}).get(name, {}), "placement")
        mine = list(gates)
        if assigned is not None and assigned.has("topologyAssignment"):
            # Each pod gets its own domain once it exists.
            info.labels[names.PLACED] = "true"
            mine.append(names.TOPOLOGY_GATE)
        made.append(info.done(count, mine))
    if reader.problems:
        raise ManifestError(reader.problems)
    return made


class _Gathering:
    """Fields collected from several sources, which must not contradict each other."""

    def __init__(self, name: str, reader: Reader) -> None:
        self._name, self._reader = name, reader
        self.labels: dict[str, str] = {}
        self.annotations: dict[str, str] = {}
        self.node_selector: dict[str, str] = {}
        self.tolerations: list[Mapping[str, Any]] = []

    def flavor(self, flavor: Reader) -> None:
        spec = flavor.child("spec")
        self.merge(self.node_selector, spec.labels("nodeLabels"), flavor.path)
        self._tolerate(spec)
        self._reader.problems += flavor.problems

    def update(self, update: Reader) -> None:
        self.merge(self.labels, update.labels("labels"), update.path)
        self.merge(self.annotations, update.labels("annotations"), update.path)
        self.merge(self.node_selector, update.labels("nodeSelector"), update.path)
        self._tolerate(update)

    def merge(self, known: dict[str, str], more: Mapping[str, str], where: str) -> None:
        for key, value in more.items():
            if known.setdefault(key, value) != value:
                what = f"{where} gives {key}={value}, where it is {known[key]} already"
                self._reader.problem(f"podSets[{self._name}]", what, "remove one of them")

    def _tolerate(self, holder: Reader) -> None:
        for one in holder.children("tolerations"):
            made: dict[str, Any] = {
                key: one.text(key) for key in ("key", "operator", "value", "effect") if one.has(key)
            }
            if one.has("tolerationSeconds"):
                made["tolerationSeconds"] = one.whole("tolerationSeconds", 0, LEAST, MOST)
            if made not in self.tolerations:
                self.tolerations.append(made)

    def done(self, count: int | None, gates: Sequence[str]) -> PodSetInfo:
        return PodSetInfo(
            self._name,
            count,
            self.labels,
            self.annotations,
            self.node_selector,
            tuple(self.tolerations),
            tuple(gates),
        )
