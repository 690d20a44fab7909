"""Objects of a run from its short notation; data/README.md describes it.

Runs share one cluster: what has no namespace has the run's name before its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from queuecontroller.kueueapi import GROUP
from tests.conformance.kueue.cases import Document, changed
from tests.conformance.kueue.objects import is_namespaced

_SHORT: Final = {"gpu": "nvidia.com/gpu", "mem": "memory"}
QUEUE: Final = "kueue.x-k8s.io/queue-name"
PRIORITY: Final = "kueue.x-k8s.io/priority-class"
MIN_PARALLELISM: Final = "kueue.x-k8s.io/job-min-parallelism"
HOSTNAME: Final = "kubernetes.io/hostname"
_LIMITS: Final = ("nominalQuota", "borrowingLimit", "lendingLimit")


def named(value: Any, run: str) -> Any:
    """Replace `@name` by the name of the run's own object, also as a key, and `@` by the run's."""
    if isinstance(value, Mapping):
        return {named(key, run): named(one, run) for key, one in value.items()}
    if isinstance(value, list):
        return [named(one, run) for one in value]
    if isinstance(value, str) and value.startswith("@"):
        return f"{run}-{value[1:]}" if value != "@" else run
    return value


def kueue(kind: str, name: str, spec: Any, **head: Any) -> Document:
    head = {"name": name, **head}
    return {"apiVersion": f"{GROUP}/v1beta2", "kind": kind, "metadata": head, "spec": spec}


def objects_of(given: Mapping[str, Any], run: str) -> Iterator[Document]:
    """Yield the objects that exist before the first step."""
    given = named(given, run)
    yield {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": run, "labels": given.get("labels") or {}},
    }
    for name, levels in (given.get("topologies") or {}).items():
        named_levels = [{"nodeLabel": one} for one in levels]
        yield kueue("Topology", f"{run}-{name}", {"levels": named_levels})
    flavors: Any = given.get("flavors") or ["f"]
    for name in flavors:
        one = dict(flavors[name] or {}) if isinstance(flavors, Mapping) else {}
        yield kueue("ResourceFlavor", f"{run}-{name}", one)
    for name, one in (given.get("nodes") or {}).items():
        yield _node(f"{run}-{name}", one)
    for name, one in (given.get("checks") or {}).items():
        yield kueue("AdmissionCheck", f"{run}-{name}", one)
    for name, one in (given.get("cohorts") or {}).items():
        yield kueue("Cohort", f"{run}-{name}", _spec(one or {}, run))
    for name, one in (given.get("queues") or {}).items():
        spec: Document = {"namespaceSelector": {}, **_spec(one, run)}
        door = {"clusterQueue": f"{run}-{name}", **spec.pop("door", {})}
        yield kueue("ClusterQueue", f"{run}-{name}", spec)
        yield kueue("LocalQueue", name, door, namespace=run)
    for one in given.get("objects") or ():
        yield whole(one, run)


def whole(document: Mapping[str, Any], run: str) -> Document:
    """Return a document of a run with its version and namespace."""
    made = changed(named(document, run), {})
    made.setdefault("apiVersion", f"{GROUP}/v1beta2")
    if is_namespaced(made["kind"]):
        made["metadata"]["namespace"] = run
    return made


def _node(name: str, one: Mapping[str, Any]) -> Document:
    amounts = {"pods": "110", **{_SHORT.get(key, key): str(value) for key, value in one.items() if key != "labels"}}  # fmt: skip
    labels = {HOSTNAME: name, **(one.get("labels") or {})}
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "is ready",
        "lastHeartbeatTime": "2026-11-22T10:00:00Z",
        "lastTransitionTime": "2026-11-22T10:00:00Z",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"allocatable": amounts, "capacity": amounts, "conditions": [ready]},
    }


def _spec(one: Any, run: str) -> Document:
    """Spec of a ClusterQueue or a Cohort: `quota` is one group of resources, `groups` are some."""
    one = {"quota": one} if not isinstance(one, Mapping) else dict(one)
    groups = one.pop("groups", None) or ([one.pop("quota")] if "quota" in one else [])
    spec: Document = {
        {"cohort": "cohortName", "parent": "parentName"}.get(key, key): (
            f"{run}-{value}" if key in ("cohort", "parent") else value
        )
        for key, value in one.items()
    }
    if groups:
        spec["resourceGroups"] = [_group(given, run) for given in groups]
    return spec


def _group(given: Any, run: str) -> Document:
    """`5`: CPUs of the flavor f; `{F: 5}`, `{F: {RESOURCE: [QUOTA, BORROWING, LENDING]}}`."""
    flavors = given if isinstance(given, Mapping) else {"f": given}
    made = []
    covered: list[str] = []
    for name, one in flavors.items():
        quotas: Mapping[str, Any] = one if isinstance(one, Mapping) else {"cpu": one}
        covered = [_SHORT.get(key, key) for key in quotas]
        resources = []
        for key, amounts in quotas.items():
            amounts = amounts if isinstance(amounts, list) else [amounts]
            limits = {limit: value for limit, value in zip(_LIMITS, amounts, strict=False) if value is not None}  # fmt: skip
            resources.append({"name": _SHORT.get(key, key), **limits})
        made.append({"name": f"{run}-{name}", "resources": resources})
    return {"coveredResources": covered, "flavors": made}


def job(name: str, given: Mapping[str, Any], run: str) -> Document:
    """A Job; `in` is its queue, if any, `cpu`, `mem`, `gpu` what a pod requests, `pods` their number."""
    one = dict(named(given, run))
    pods = one.pop("pods", 1)
    queue = one.pop("in", "")
    labels = {**({QUEUE: queue} if queue else {}), **one.pop("labels", {})}
    notes = dict(one.pop("annotations", {}))
    if "priority" in one:
        labels[PRIORITY] = f"p{one.pop('priority')}"
    if "min" in one:
        notes[MIN_PARALLELISM] = str(one.pop("min"))
    requests = {_SHORT.get(key, key): str(one.pop(key)) for key in ("cpu", "mem", "gpu") if key in one}  # fmt: skip
    resources: Document = {"requests": requests, **one.pop("resources", {})}
    if "nvidia.com/gpu" in requests:
        resources["limits"] = {"nvidia.com/gpu": requests["nvidia.com/gpu"]}
    template: Document = {
        "metadata": {"annotations": one.pop("template", {})},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "c", "image": "i", "resources": resources}],
            **one.pop("pod", {}),
        },
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": run, "labels": labels, "annotations": notes},
        "spec": {
            "suspend": True,
            "parallelism": pods,
            "completions": pods,
            "template": template,
            **one,
        },
    }
