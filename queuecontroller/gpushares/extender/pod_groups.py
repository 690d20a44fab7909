"""Pod groups in the words of Kubernetes, Volcano, KAI and the coscheduling plugin, whose label HAMi
reads: a pod's group, how many of its pods must start together, and the rules for their places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sluicecommon.kubernetes.resources import Resource

RULES: Final = "sluice.dev/group-rules"
"""Annotation of the pods of a group: a list of the rules below, separated by commas."""
SEPARATE_GPUS: Final = "separate-gpus"
"""No two pods of the group on one GPU."""
ONE_NODE: Final = "one-node"
SAME_FABRIC: Final = "same-fabric"
"""All nodes in one NVLink fabric."""
SAME: Final = "same="
"""Followed by a node label: all nodes have one value of it."""
HOSTNAME: Final = "kubernetes.io/hostname"
FABRIC: Final = "nvidia.com/gpu.clique"
"""Label that NVIDIA's GPU feature discovery sets: the NVLink domain and clique of the node."""

VOLCANO_NAMES: Final = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
"""Annotations."""
COSCHEDULING_NAME: Final = "scheduling.x-k8s.io/pod-group"
"""Label."""
KAI_NAME: Final = "pod-group-name"
"""Annotation."""

_GROUP: Final = "scheduling.k8s.io"
KUBERNETES: Final = tuple(
    Resource(_GROUP, version, "podgroups", "PodGroup")
    for version in ("v1beta1", "v1alpha3", "v1alpha2")
)
"""Kubernetes 1.37 and 1.36."""
KUBERNETES_1_35: Final = (Resource(_GROUP, "v1alpha1", "workloads", "Workload"),)
VOLCANO: Final = (Resource("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup"),)
COSCHEDULING: Final = (Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup"),)
KAI: Final = (Resource("scheduling.run.ai", "v2alpha2", "podgroups", "PodGroup"),)
KINDS: Final = (*KUBERNETES, *KUBERNETES_1_35, *VOLCANO, *COSCHEDULING, *KAI)
LEAST_TIMEOUT_S: Final = 10.0
MOST_TIMEOUT_S: Final = 600.0
Document = Mapping[str, Any]


class GroupKey(NamedTuple):
    kinds: tuple[Resource, ...]
    """The group's object, in the versions in which it may be served."""
    namespace: str
    name: str
    part: str = ""
    """A group within the object, and its replica: of Kubernetes 1.35 only."""
    replica: str = ""

    @property
    def label(self) -> str:
        parts = [self.namespace, self.name, self.part, self.replica]
        return f"pod group {'/'.join(part for part in parts if part)}"


@dataclass(frozen=True, slots=True)
class Group:
    minimum: int
    """Number of pods that must be placed together."""
    created: str
    """RFC 3339."""
    timeout_s: float | None = None
    topology: tuple[str, ...] = ()
    """Node labels of which all nodes of the group have one value."""


@dataclass(frozen=True, slots=True)
class Rules:
    separate_gpus: bool = False
    labels: tuple[str, ...] = ()
    """Node labels of which all nodes of the group have one value."""

    def __bool__(self) -> bool:
        return self.separate_gpus or bool(self.labels)


class RuleError(ValueError):
    """An invalid annotation; the text names the valid values."""


def group_of(pod: Document) -> GroupKey | None:
    """The pod's group; None if it names none."""
    head, spec = pod["metadata"], pod["spec"]
    namespace = str(head.get("namespace") or "default")
    native = spec.get("schedulingGroup")
    if isinstance(native, Mapping) and (name := _text(native, "podGroupName")):
        return GroupKey(KUBERNETES, namespace, name)
    older = spec.get("workloadRef")
    if isinstance(older, Mapping) and (name := _text(older, "name")):
        replica = _text(older, "podGroupReplicaKey")
        return GroupKey(KUBERNETES_1_35, namespace, name, _text(older, "podGroup"), replica)
    annotations, labels = head.get("annotations") or {}, head.get("labels") or {}
    for key in VOLCANO_NAMES:
        if name := _text(annotations, key):
            return GroupKey(VOLCANO, namespace, name)
    if name := _text(labels, COSCHEDULING_NAME):
        return GroupKey(COSCHEDULING, namespace, name)
    if name := _text(annotations, KAI_NAME):
        return GroupKey(KAI, namespace, name)
    return None


def _text(table: Mapping[str, Any], name: str) -> str:
    found = table.get(name)
    return found if isinstance(found, str) else ""


def read_group(key: GroupKey, document: Document) -> Group:
    """Read a group's object. A group without a minimum has 1."""
    spec = document.get("spec") or {}
    created = str(document["metadata"].get("creationTimestamp") or "")
    if key.kinds == KUBERNETES:
        constraints = spec.get("schedulingConstraints") or {}
        topology = tuple(str(one.get("key")) for one in constraints.get("topology") or ())
        return Group(_of_policy(spec.get("schedulingPolicy")), created, None, topology)
    if key.kinds == KUBERNETES_1_35:
        every = spec.get("podGroups") or ()
        part = next((one for one in every if one.get("name") == key.part), None)
        return Group(_of_policy((part or {}).get("policy")), created)
    timeout_s = spec.get("scheduleTimeoutSeconds")
    if type(timeout_s) is not int or timeout_s <= 0:
        return Group(_count(spec.get("minMember")), created)
    limited_s = min(max(float(timeout_s), LEAST_TIMEOUT_S), MOST_TIMEOUT_S)
    return Group(_count(spec.get("minMember")), created, limited_s)


def _of_policy(policy: Any) -> int:
    gang = policy.get("gang") if isinstance(policy, Mapping) else None
    return _count(gang.get("minCount")) if isinstance(gang, Mapping) else 1


def _count(value: Any) -> int:
    return max(1, value) if type(value) is int else 1


def rules_of(pod: Document) -> Rules:
    """The rules in a pod's annotation. Raises RuleError."""
    text = (pod["metadata"].get("annotations") or {}).get(RULES)
    separate, labels = False, []
    for word in str(text or "").split(","):
        word = word.strip()
        if word == SEPARATE_GPUS:
            separate = True
        elif word in (ONE_NODE, SAME_FABRIC):
            labels.append(HOSTNAME if word == ONE_NODE else FABRIC)
        elif word.startswith(SAME) and len(word) > len(SAME):
            labels.append(word.removeprefix(SAME))
        elif word:
            allowed = f"{SEPARATE_GPUS}, {ONE_NODE}, {SAME_FABRIC} or {SAME}NODE-LABEL"
            raise RuleError(f"{RULES}: must be a list of {allowed}, got {word[:60]!r}")
    return Rules(separate, tuple(labels))
