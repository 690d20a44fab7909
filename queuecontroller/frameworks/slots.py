"""The pod sets of a job as slots of its document: each with its template, its number of pods, and
the paths of its pods' labels, node selector and tolerations.

Everything that reads a job's pods, starts it or stops it uses these; a new form of job is a shape
in the table and one function below. The file is long because it has all of them: they share most of
their code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Final, TypeAlias

from queuecontroller.frameworks import names
from queuecontroller.frameworks.patches import Document, Path
from queuecontroller.frameworks.patches import at as value_at
from queuecontroller.frameworks.table import (
    Components,
    Framework,
    OfRuntime,
    OnePod,
    OneTemplate,
    RayGroups,
    ReplicaSpecs,
    ReplicatedJobs,
    Roles,
    framework_for,
)
from sluicecommon.kubernetes.names import LABEL
from sluicecommon.reader import MOST, ManifestError, Reader, shown

MAX_POD_SETS: Final = 18
"""Limit of a Workload's pod sets, as in Kueue."""
DEEPEST: Final = 8
"""Limit of nested AppWrappers."""

_JOB_LABELS: Final = (
    "job-name",
    "controller-uid",
    "batch.kubernetes.io/job-name",
    "batch.kubernetes.io/controller-uid",
)
"""The job controller's own, which change with each job."""
_COMPLETION_INDEX: Final = "batch.kubernetes.io/job-completion-index"
_JOB_INDEX: Final = "jobset.sigs.k8s.io/job-index"
_REPLICA_INDEX: Final = "training.kubeflow.org/replica-index"
_STEP: Final = "trainer.kubeflow.org/trainjob-ancestor-step"
RUNTIME_PATCHES: Final = ("spec", "runtimePatches")
"""Changes that a TrainJob makes in its runtime, a list by manager. Trainer 2.2 and later."""
PATCHED_JOBS: Final = ("trainingRuntimeSpec", "template", "spec", "replicatedJobs")
_SUBMITTER: Final = {
    "limits": {"cpu": "1", "memory": "1Gi"},
    "requests": {"cpu": "500m", "memory": "200Mi"},
}
"""Resources that KubeRay gives a submitter without a template."""
_AUTOSCALER: Final = {
    "limits": {"cpu": "500m", "memory": "512Mi"},
    "requests": {"cpu": "500m", "memory": "512Mi"},
}
"""Resources that KubeRay gives the autoscaler without options."""
_LEAST_OVERHEAD_MIB: Final = 384
_JVM_OVERHEAD: Final = Fraction(1, 10)
_OTHER_OVERHEAD: Final = Fraction(4, 10)
"""Parts of the memory that Spark adds for what is outside of the heap; more if it is not a JVM."""


@dataclass(frozen=True, slots=True)
class Places:
    """Paths to which a start writes."""

    labels: Path
    annotations: Path
    node_selector: Path
    tolerations: Path
    gates: Path = ()
    """Path of the scheduling gates; empty: the template has none."""


def pod_places(pod: Path) -> Places:
    """Paths of a pod, or of a pod template."""
    return Places(
        (*pod, "metadata", "labels"),
        (*pod, "metadata", "annotations"),
        (*pod, "spec", "nodeSelector"),
        (*pod, "spec", "tolerations"),
        (*pod, "spec", "schedulingGates"),
    )


def _flat_places(at: Path, gates: bool = False) -> Places:
    return Places(
        (*at, "labels"),
        (*at, "annotations"),
        (*at, "nodeSelector"),
        (*at, "tolerations"),
        (*at, "schedulingGates") if gates else (),
    )


@dataclass(frozen=True, slots=True)
class Slot:
    name: str
    count: int
    template: Mapping[str, Any]
    """Pod template as the Workload has it. Shared with the document, so not to be changed."""
    places: Places
    min_count: int | None = None
    counted: tuple[Path, ...] = ()
    """Paths of its count, written when fewer pods are admitted."""
    first: tuple[tuple[Path, Any], ...] = ()
    """Values that must exist before anything is written to the places."""
    of_template: bool = True
    """True if the places are those of the template, so that its original values can be restored."""
    index_labels: Mapping[str, Any] = field(default_factory=dict)
    """Labels by which a topology distinguishes its pods, in the form of a topologyRequest."""


Runtime: TypeAlias = Document | None


def slots(fw: Framework, document: Document, runtime: Runtime = None) -> list[Slot]:
    """Slots of a job. Raises ManifestError. `runtime` is the object that a TrainJob refers to."""
    reader = Reader(document)
    found = slots_in(fw, reader, runtime)
    if reader.problems:
        raise ManifestError(reader.problems)
    return found


def slots_in(fw: Framework, reader: Reader, runtime: Runtime = None) -> list[Slot]:
    """Slots of the document of a reader; errors are added to its problems."""
    found = _slots(fw, reader, (), runtime, 0)
    _check(found, fw, reader)
    return found


def _slots(fw: Framework, reader: Reader, at: Path, runtime: Runtime, depth: int) -> list[Slot]:
    match fw.pods:
        case OneTemplate(job):
            return [_job(reader, _to(reader, job), (*at, *job))]
        case ReplicaSpecs(specs, roles):
            return _replica_specs(_to(reader, specs), (*at, *specs), roles)
        case ReplicatedJobs(jobs):
            return _replicated(_to(reader, jobs[:-1]), (*at, *jobs))
        case RayGroups(cluster, submitter):
            return _ray(reader, _to(reader, cluster), at, cluster, submitter)
        case Components(components):
            return _components(reader, (*at, *components), depth)
        case Roles():
            return _spark(reader, at)
        case OfRuntime():
            return _of_runtime(reader, at, runtime)
        case OnePod(pod):
            return [_slot(_to(reader, pod), (*at, *pod), "main", 1)]


def _check(found: list[Slot], fw: Framework, reader: Reader) -> None:
    at = "spec" if len(found) != 1 else ""
    if not found:
        reader.problem("spec", f"a {fw.kind} without pods", "give it at least one pod template")
    if len(found) > MAX_POD_SETS:
        what = f"has {len(found)} pod sets, more than {MAX_POD_SETS}"
        reader.problem(at, what, "put some of them into one")
    seen: set[str] = set()
    for slot in found:
        if slot.name in seen:
            reader.problem(at, f"two pod sets are named {shown(slot.name)}", "rename one of them")
        seen.add(slot.name)
        if not LABEL.fullmatch(slot.name) and not isinstance(fw.pods, Components):
            what = f"pod set {shown(slot.name)}: its name is not a valid label value"
            reader.problem(at, what, "use at most 63 lower-case letters, digits and '-'")
        if slot.count > MOST:
            what = f"pod set {shown(slot.name)} has {slot.count} pods, more than {MOST}"
            reader.problem(at, what, "take fewer")


def _to(reader: Reader, path: Path) -> Reader:
    for step in path:
        reader = reader.child(str(step))
    return reader


def _mapping(reader: Reader, key: str) -> dict[str, Any]:
    """The mapping at a key, to be extended but not changed inside; an error is added to the
    problems."""
    reader.child(key)
    found = reader.raw(key)
    return dict(found) if isinstance(found, Mapping) else {}


def _slot(
    reader: Reader,
    pod: Path,
    name: str,
    count: int,
    *,
    min_count: int | None = None,
    counted: tuple[Path, ...] = (),
    index_labels: Mapping[str, Any] | None = None,
) -> Slot:
    """The slot of a reader at a pod or a template."""
    template = {part: _mapping(reader, part) for part in ("metadata", "spec") if reader.has(part)}
    head = reader.child("metadata")
    head.labels("labels")
    head.labels("annotations")
    spec = reader.child("spec")
    spec.labels("nodeSelector")
    spec.entries("tolerations")
    labels = template.get("metadata", {}).get("labels")
    if isinstance(labels, Mapping) and any(one in labels for one in _JOB_LABELS):
        kept = {name: value for name, value in labels.items() if name not in _JOB_LABELS}
        template["metadata"]["labels"] = kept
    return Slot(
        name,
        count,
        template,
        pod_places(pod),
        min_count,
        counted,
        index_labels=index_labels or {},
    )


def template_slot(
    reader: Reader,
    pod: Path,
    name: str,
    count: int = 1,
    index_labels: Mapping[str, Any] | None = None,
) -> Slot:
    """The slot of one template, for kinds without a shape in the table."""
    return _slot(reader, pod, name, count, index_labels=index_labels)


def _pods_of_job(spec: Reader) -> int:
    count = spec.whole("parallelism", 1, least=0)
    if spec.has("completions"):
        count = min(count, spec.whole("completions", 1, least=0))
    return count


def _job(reader: Reader, spec: Reader, at: Path) -> Slot:
    count = _pods_of_job(spec)
    annotations = reader.child("metadata").child("annotations")
    least = annotations.optional_text(names.MIN_PARALLELISM)
    counted: tuple[Path, ...] = ()
    if least is not None:
        counted = ((*at, "parallelism"),)
        if annotations.raw(names.COMPLETIONS_FOLLOW) == "true":
            counted += ((*at, "completions"),)
    indexed = spec.raw("completionMode") == "Indexed"
    return _slot(
        spec.child("template"),
        (*at, "template"),
        "main",
        count,
        min_count=_least(annotations, least, count),
        counted=counted,
        index_labels={"podIndexLabel": _COMPLETION_INDEX} if indexed else {},
    )


def _least(annotations: Reader, least: str | None, count: int) -> int | None:
    if least is None:
        return None
    if least.isascii() and least.isdigit() and int(least[:10]) <= max(1, count):
        return int(least)
    what = f"expected a whole number up to parallelism ({count}), got {shown(least)}"
    annotations.problem(names.MIN_PARALLELISM, what, "write a valid number, in quotes")
    return None


def _replica_specs(specs: Reader, at: Path, roles: tuple[str, ...]) -> list[Slot]:
    found = []
    for role in roles:
        if specs.has(role):
            one = specs.child(role)
            count = one.whole("replicas", 1, least=0)
            labels = {"podIndexLabel": _REPLICA_INDEX}
            pod = (*at, role, "template")
            found.append(
                _slot(one.child("template"), pod, role.lower(), count, index_labels=labels)
            )
    return found


def _replicated(parent: Reader, at: Path) -> list[Slot]:
    found = []
    for i, one in enumerate(parent.children(str(at[-1]))):
        replicas = one.whole("replicas", 1, least=0)
        spec = one.child("template").child("spec")
        found.append(
            _slot(
                spec.child("template"),
                (*at, i, "template", "spec", "template"),
                one.required("name"),
                replicas * _pods_of_job(spec),
                index_labels={
                    "podIndexLabel": _COMPLETION_INDEX,
                    "subGroupIndexLabel": _JOB_INDEX,
                    "subGroupCount": replicas,
                },
            )
        )
    return found


def _ray(reader: Reader, cluster: Reader, at: Path, below: Path, submitter: bool) -> list[Slot]:
    path = (*at, *below)
    head = cluster.child("headGroupSpec").child("template")
    found = [_slot(head, (*path, "headGroupSpec", "template"), "head", 1)]
    found[0] = replace(found[0], template=_with_sidecars(reader, cluster, found[0].template))
    for i, group in enumerate(cluster.children("workerGroupSpecs")):
        count = group.whole("replicas", 1, least=0) * max(1, group.whole("numOfHosts", 1, least=0))
        pod = (*path, "workerGroupSpecs", i, "template")
        found.append(
            _slot(group.child("template"), pod, group.required("groupName").lower(), count)
        )
    spec = reader.child("spec")
    if submitter and spec.text("submissionMode", "K8sJobMode") == "K8sJobMode":
        found.append(_submitter(spec, found[0], (*at, "spec", "submitterPodTemplate")))
    return found


def _with_sidecars(
    reader: Reader, cluster: Reader, template: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The head's template with the containers that KubeRay adds to it: they are counted, too."""
    added: list[dict[str, Any]] = []
    if cluster.flag("enableInTreeAutoscaling"):
        options = cluster.child("autoscalerOptions")
        own = options.raw("resources")
        resources = own if isinstance(own, Mapping) and own else _AUTOSCALER
        added.append({"name": "autoscaler", "resources": deepcopy(resources)})
    if reader.child("spec").raw("submissionMode") == "SidecarMode":
        added.append({"name": "ray-job-submitter", "resources": deepcopy(_SUBMITTER)})
    spec = template.get("spec")
    if not added or not isinstance(spec, Mapping):
        return template
    known = spec.get("containers")
    containers = [*(known if isinstance(known, list) else []), *added]
    return {**template, "spec": {**spec, "containers": containers}}


def _submitter(spec: Reader, head: Slot, pod: Path) -> Slot:
    if spec.has("submitterPodTemplate"):
        return _slot(spec.child("submitterPodTemplate"), pod, "submitter", 1)
    containers = head.template.get("spec", {}).get("containers")
    first = containers[0] if isinstance(containers, list) and containers else {}
    image = first.get("image") if isinstance(first, Mapping) else None
    container = {"name": "ray-job-submitter", "resources": deepcopy(_SUBMITTER)}
    if isinstance(image, str):
        container["image"] = image
    template = {"spec": {"containers": [container], "restartPolicy": "Never"}}
    return Slot(
        "submitter", 1, template, pod_places(pod), first=((pod, template),), of_template=False
    )


def _components(reader: Reader, at: Path, depth: int) -> list[Slot]:
    name = reader.child("metadata").text("name")
    found: list[Slot] = []
    for i, component in enumerate(_to(reader, ("spec",)).children("components")):
        inner = component.child("template")
        for j, (count, template) in enumerate(_pods_in(component, inner, depth)):
            found.append(
                Slot(
                    f"{name}-{len(found)}",
                    count,
                    template,
                    _flat_places((*at, i, "podSetInfos", j), gates=True),
                    first=(((*at, i, "podSetInfos", j), {}),),
                    of_template=False,
                )
            )
    return found


def _pods_in(component: Reader, inner: Reader, depth: int) -> list[tuple[int, Mapping[str, Any]]]:
    """Counts and templates of the objects that an AppWrapper wraps: as it declares them, or else by
    the kind's row in this table."""
    declared = component.children("podSets")
    if declared:
        found = []
        for one in declared:
            path = one.required("path")
            pod = inner
            for step in path.split(".")[1:]:
                pod = pod.child(step)
            if path and not pod.names():
                one.problem("path", f"{shown(path)}: there is no pod template", "correct it")
            found.append((one.whole("replicas", 1, least=0), _slot(pod, (), "", 1).template))
        return found
    fw = framework_for(inner.raw("apiVersion"), inner.raw("kind"))
    if fw is None or isinstance(fw.pods, OfRuntime):
        return []
    if depth == DEEPEST:
        inner.problem("", f"AppWrappers in more than {DEEPEST} AppWrappers", "take some out")
        return []
    replicas = 1
    if isinstance(fw.pods, OnePod) and fw.pods.pod:
        replicas = inner.child("spec").whole("replicas", 1, least=0)
    return [(replicas * one.count, one.template) for one in _slots(fw, inner, (), None, depth + 1)]


def _spark(reader: Reader, at: Path) -> list[Slot]:
    spec = reader.child("spec")
    found = []
    for role, container in (("driver", "spark-kubernetes-driver"), ("executor", "executor")):
        one = spec.child(role)
        count = 1 if role == "driver" else _executors(reader, spec, one)
        places = _flat_places((*at, "spec", role))
        if spec.has("nodeSelector"):  # then the roles must not have one
            places = Places(
                places.labels,
                places.annotations,
                (*at, "spec", "nodeSelector"),
                places.tolerations,
            )
        template = _spark_template(one, container, _overhead_factor(spec))
        if spec.has("nodeSelector"):
            _update(template["spec"], "nodeSelector", spec.labels("nodeSelector"))
        found.append(Slot(role, count, template, places, of_template=False))
    return found


def _executors(reader: Reader, spec: Reader, executor: Reader) -> int:
    """Executors that count: the most that an application with dynamic allocation may have, if its
    annotation states that it is elastic."""
    count = executor.whole("instances", 0, least=0)
    dynamic = spec.child("dynamicAllocation")
    noted = reader.child("metadata").child("annotations").raw(names.ELASTIC)
    if noted == "true" and dynamic.raw("enabled") is True:
        count = max(count, dynamic.whole("maxExecutors", 0, least=0))
    return count


def _overhead_factor(spec: Reader) -> Fraction:
    """The part of a role's memory that Spark adds to it."""
    text = spec.optional_text("memoryOverheadFactor")
    if text is not None:
        try:
            return max(Fraction(0), Fraction(text[:32]))
        except (ValueError, ZeroDivisionError):
            what = f"{shown(text)} is not a number"
            spec.problem("memoryOverheadFactor", what, "write such as 0.4, in quotes")
    return _OTHER_OVERHEAD if spec.text("type") in ("Python", "R") else _JVM_OVERHEAD


def _spark_memory(role: Reader, factor: Fraction) -> str | None:
    """Memory of a role's pods: what the role names, and what Spark adds to it."""
    mine, more = (_mib(role, key) for key in ("memory", "memoryOverhead"))
    if mine is None:
        return None
    if more is None:
        more = max(_LEAST_OVERHEAD_MIB, int(mine * factor))
    return f"{mine + more}Mi"


def _mib(role: Reader, key: str) -> int | None:
    """Spark's memory in MiB: 512m, 2g, or bytes; None if there is none."""
    text = role.optional_text(key)
    if text is None:
        return None
    found = _SPARK_MEMORY.fullmatch(text.strip().lower())
    if found is None:
        what = f"{shown(text)} is not Spark's notation of memory"
        role.problem(key, what, "write such as 512m or 2g")
        return None
    unit = _SPARK_UNITS[found["unit"] or ""]
    return -(-int(found["number"]) * unit // (1 << 20))


_SPARK_MEMORY: Final = re.compile(r"(?P<number>[0-9]{1,15})(?P<unit>[kmgtp]?)b?", re.ASCII)
_SPARK_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50}


def _spark_template(role: Reader, container: str, factor: Fraction) -> dict[str, Any]:
    """Pod template that the operator makes from a role's fields, as far as it decides where pods
    may run."""
    base = role.child("template")
    spec, head = deepcopy(_mapping(base, "spec")), _mapping(base, "metadata")
    _update(head, "labels", role.labels("labels"))
    _update(head, "annotations", role.labels("annotations"))
    _update(spec, "nodeSelector", role.labels("nodeSelector"))
    for key in ("tolerations", "initContainers"):
        if role.has(key) and role.entries(key):
            spec[key] = [*_list(spec.get(key)), *deepcopy(_list(role.raw(key)))]
    for key in ("affinity", "priorityClassName"):
        if role.has(key):
            spec[key] = deepcopy(role.raw(key))
    containers = [one for one in _list(spec.get("containers")) if isinstance(one, dict)]
    mine = next((one for one in containers if one.get("name") == container), None)
    if mine is None:
        mine = {"name": container}
        containers.insert(0, mine)
    containers += deepcopy(_list(role.raw("sidecars"))) if role.entries("sidecars") else []
    spec["containers"] = containers
    resources = mine.get("resources")
    resources = mine["resources"] = resources if isinstance(resources, dict) else {}
    cores = role.optional_text("coreRequest")
    if cores is None and role.has("cores"):
        cores = str(role.whole("cores", 1, least=0))
    gpu = role.child("gpu")
    gpu_name = gpu.optional_text("name")
    for key, resource, amount in (
        ("requests", "cpu", cores),
        ("limits", "cpu", role.optional_text("coreLimit")),
        ("requests", "memory", _spark_memory(role, factor)),
        ("limits", "memory", _java_memory(role.optional_text("memoryLimit"))),
        ("limits", gpu_name, str(gpu.whole("quantity", 0, least=0)) if gpu_name else None),
    ):
        if resource and amount is not None:
            _update(resources, key, {resource: amount})
    return {"metadata": head, "spec": spec} if head else {"spec": spec}


def _java_memory(text: str | None) -> str | None:
    """Java's 512m is 512 MiB, which Kubernetes writes 512Mi."""
    if text is None:
        return None
    number = text.rstrip("bB").rstrip("kKmMgGtTpP")
    unit = text[len(number) :].rstrip("bB").upper()
    return f"{number}{'Ki' if unit == 'K' else f'{unit}i'}" if unit else number


def _update(parent: dict[str, Any], key: str, more: Mapping[str, Any]) -> None:
    if more:
        known = parent.get(key)
        parent[key] = {**(known if isinstance(known, Mapping) else {}), **more}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def runtime_of(fw: Framework, document: Document) -> tuple[str, str] | None:
    """Kind and name of the object that defines a TrainJob's pods; None: none is needed. Raises
    ManifestError."""
    if not isinstance(fw.pods, OfRuntime):
        return None
    reader = Reader(document)
    ref = reader.child("spec").child("runtimeRef")
    found = ref.text("kind", "ClusterTrainingRuntime"), ref.required("name")
    if reader.problems:
        raise ManifestError(reader.problems)
    return found


def _of_runtime(reader: Reader, at: Path, runtime: Runtime) -> list[Slot]:
    spec = reader.child("spec")
    if runtime is None:
        what = f"{shown(spec.child('runtimeRef').text('name'))} does not exist"
        spec.problem("runtimeRef", what, "create it, or name one that is")
        return []
    described = Reader(runtime, "runtime", reader.problems).child("spec")
    trainer = spec.child("trainer")
    nodes = described.child("mlPolicy").whole("numNodes", 1, least=0)
    nodes = trainer.whole("numNodes", nodes, least=0)
    jobs = described.child("template").child("spec").children("replicatedJobs")
    found = []
    for i, job in enumerate(jobs):
        template = job.child("template")
        step = template.child("metadata").labels("labels").get(_STEP)
        pods = _pods_of_job(template.child("spec"))
        name = job.required("name")
        pod = _slot(template.child("spec").child("template"), (), name, 1)
        made = deepcopy(dict(pod.template))
        if step == "trainer":
            pods = nodes
            _resources(made, trainer)
        places, first = _trainer_places(spec, at, name, i)
        _trainer_changes(made, spec, name)
        found.append(
            Slot(
                name,
                job.whole("replicas", 1, least=0) * pods,
                made,
                places,
                first=first,
                of_template=False,
                index_labels={"podIndexLabel": _COMPLETION_INDEX},
            )
        )
    return found


def _resources(template: dict[str, Any], trainer: Reader) -> None:
    """Move the trainer's resources to the container `node`."""
    if trainer.has("resourcesPerNode"):
        wanted = _mapping(trainer, "resourcesPerNode")
        for one in _list(template.get("spec", {}).get("containers")):
            if isinstance(one, dict) and one.get("name") == "node":
                one["resources"] = wanted


def own_runtime_patch(patches: object) -> int | None:
    """Index of the entry of a TrainJob's spec.runtimePatches to which an admission is written."""
    for i, one in enumerate(_list(patches)):
        if isinstance(one, Mapping) and one.get("manager") == names.PATCHES_MANAGER:
            return i
    return None


def _trainer_places(
    spec: Reader, at: Path, name: str, number: int
) -> tuple[Places, tuple[tuple[Path, Any], ...]]:
    """Places of a replicated job, the `number`-th of its runtime, and what must exist before: in
    runtimePatches, or in the overrides of a Trainer before 2.2, if the TrainJob has those."""
    for key, flat in (("podSpecOverrides", True), ("podTemplateOverrides", False)):
        if spec.has(key):
            new = (*at, "spec", key, spec.entries(key) + number)
            places = _flat_places(new, gates=True) if flat else pod_places(new)
            return places, ((new, {"targetJobs": [{"name": name}]}),)
    patches = spec.raw("runtimePatches")
    mine = own_runtime_patch(patches)
    entry = (*at, *RUNTIME_PATCHES, spec.entries("runtimePatches") if mine is None else mine)
    there = 0 if mine is None else len(_list(value_at(patches, (mine, *PATCHED_JOBS))))
    job = (*entry, *PATCHED_JOBS, there + number)
    first = ((entry, {"manager": names.PATCHES_MANAGER}), (job, {"name": name}))
    return pod_places((*job, "template", "spec", "template")), first


def _trainer_changes(template: dict[str, Any], spec: Reader, name: str) -> None:
    """Apply to a pod template what the TrainJob changes in it, as far as it decides where pods may
    run."""
    for key in ("podSpecOverrides", "podTemplateOverrides"):
        for one in spec.children(key):
            _overridden(template, one, name, key == "podSpecOverrides")
    for patch in spec.children("runtimePatches"):
        described = patch.child("trainingRuntimeSpec").child("template").child("spec")
        for job in described.children("replicatedJobs"):
            if job.text("name") == name:
                changed = job.child("template").child("spec").child("template")
                _pod_patched(template, changed)


def _pod_patched(template: dict[str, Any], changed: Reader) -> None:
    """Apply the patch of a pod template. As in a strategic merge patch, labels and the like are
    added, and tolerations replaced."""
    for part, key in (
        ("metadata", "labels"),
        ("metadata", "annotations"),
        ("spec", "nodeSelector"),
    ):
        more = changed.child(part).labels(key)
        if more:
            _update(template.setdefault(part, {}), key, more)
    spec = changed.child("spec")
    for key in ("tolerations", "affinity"):
        if spec.has(key):
            template.setdefault("spec", {})[key] = deepcopy(spec.raw(key))


def _overridden(template: dict[str, Any], override: Reader, name: str, flat: bool) -> None:
    targets = [one.text("name") for one in override.children("targetJobs")]
    if name not in targets:
        return
    spec = template.setdefault("spec", {})
    over = override if flat else override.child("spec")
    _update(spec, "nodeSelector", over.labels("nodeSelector"))
    if over.has("tolerations") and over.entries("tolerations"):
        spec["tolerations"] = [
            *_list(spec.get("tolerations")),
            *deepcopy(_list(over.raw("tolerations"))),
        ]
    if not flat:
        head = template.setdefault("metadata", {})
        _update(head, "labels", override.child("metadata").labels("labels"))
        _update(head, "annotations", override.child("metadata").labels("annotations"))
