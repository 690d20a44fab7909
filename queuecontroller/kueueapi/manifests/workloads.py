"""Readers of Kueue's Workload, in any of its API versions, and of a pod template as a pod set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

from queuecontroller.frameworks.annotations.ready_timeouts import ready_timeouts
from queuecontroller.frameworks.annotations.topology import SPREADING
from queuecontroller.frameworks.names import WAIT_FOR_PODS_READY
from queuecontroller.gpushares.claims.counting import Known, claims_of, device_requests
from queuecontroller.gpushares.claims.extended import extended_requests, extended_usage
from queuecontroller.kueueapi.manifests.checking import read_kind
from queuecontroller.kueueapi.manifests.pods import (
    AS_GIVEN,
    NO_DEFAULTS,
    PodDefaults,
    container_requests,
    over_limit,
    pod_requests,
    read_node_affinity,
    read_tolerations,
    requests_of_containers,
    with_fractions,
)
from queuecontroller.scheduler.model.objects import (
    Admission,
    AdmissionCheckStatus,
    CheckState,
    Condition,
    DeviceChoice,
    PlacedPods,
    PodSet,
    PodSetAssignment,
    RequeueState,
    TopologyAssignment,
    Workload,
    WorkloadKey,
)
from queuecontroller.scheduler.model.spreading import read_spreading
from queuecontroller.scheduler.model.transformations import Transformations
from queuecontroller.scheduler.placement.topology.slices import domains_of
from sluicecommon.kubernetes.quantity import saturate
from sluicecommon.reader import ManifestError, Reader

REPLACEMENT_FOR: Final = "kueue.x-k8s.io/workload-slice-replacement-for"
ALLOWED_FLAVORS: Final = "kueue.x-k8s.io/workload-allowed-resource-flavors"
GATED_BY: Final = "kueue.x-k8s.io/admission-gated-by"
REQUIRED_TOPOLOGY: Final = "kueue.x-k8s.io/podset-required-topology"
PREFERRED_TOPOLOGY: Final = "kueue.x-k8s.io/podset-preferred-topology"
"""Annotations of the pod template, where a job has what a Workload has in topologyRequest."""
Counting: TypeAlias = Callable[[Reader, Transformations, PodDefaults], PodSet]
"""Reads a pod set with the devices that its pods get by claims."""
GPU_ANNOTATIONS: Final = ("nvidia.com/", "hami.io/", "sluice.dev/", "kai.scheduler/", "gpu-")
"""Prefixes of the annotations that placement reads."""


def read_workload(
    value: object,
    path: str = "Workload",
    change: Transformations = AS_GIVEN,
    claims: Known | None = None,
    defaults: PodDefaults = NO_DEFAULTS,
) -> Workload:
    """Read a Workload. `claims`: requests of its pods' claims; None: claims do not count.
    `defaults`: amounts that its pods will have besides."""

    def build(reader: Reader) -> Workload:
        namespace = reader.child("metadata").text("namespace")
        counting = (
            None if claims is None else partial(_with_devices, namespace=namespace, known=claims)
        )
        return _workload(reader, lambda spec: _pod_sets(spec, change, counting, defaults))

    return read_kind(build, "Workload", value, path)


def read_workload_again(value: object, path: str, known: Workload) -> Workload:
    """Read an object again whose generation is unchanged: its spec is reused, which saves most of
    the work. Raises ManifestError."""
    reader = Reader(value, path)
    result = _workload(reader, lambda spec: known.pod_sets)
    if reader.problems:
        raise ManifestError(reader.problems)
    return result


def _pod_sets(
    spec: Reader, change: Transformations, counting: Counting | None, defaults: PodDefaults
) -> tuple[PodSet, ...]:
    read = read_pod_set if counting is None else counting
    return tuple(read(one, change, defaults) for one in spec.children("podSets"))


def _with_devices(
    reader: Reader, change: Transformations, defaults: PodDefaults, namespace: str, known: Known
) -> PodSet:
    """Read a pod set with the devices that its pods get by claims."""
    pod = reader.child("template").child("spec")
    extended = extended_of(pod, defaults, known)
    made = read_pod_set(reader, change, defaults, frozenset(extended))
    requests = _with(made.requests, claims_of(pod, namespace, known))
    requests = _with(requests, extended_usage(pod, extended, known))
    devices = devices_of(pod, namespace, known, defaults)
    return replace(made, requests=requests, device_requests=devices)


def devices_of(
    spec: Reader, namespace: str, known: Known, defaults: PodDefaults = NO_DEFAULTS
) -> tuple[tuple[DeviceChoice, ...], ...]:
    """Requests of a pod for devices, by its claims and its extended resources."""
    by_name = device_requests(spec, namespace, known)
    return by_name + extended_requests(extended_of(spec, defaults, known), known)


def extended_of(spec: Reader, defaults: PodDefaults, known: Known) -> dict[str, int]:
    """The extended resources that a pod's containers request of which kube-scheduler allocates the
    devices by claims."""
    if not known.extended:
        return {}
    pod = Reader({name: spec.raw(name) for name in spec.names()})  # Its problems are known.
    requested = requests_of_containers(pod, defaults=defaults)
    return {name: amount for name, amount in requested.items() if amount and name in known.extended}


def read_pod_set(
    reader: Reader,
    change: Transformations = AS_GIVEN,
    defaults: PodDefaults = NO_DEFAULTS,
    by_claims: frozenset[str] = frozenset(),
) -> PodSet:
    """Read a pod set. `by_claims`: resources of which kube-scheduler allocates devices instead."""
    template = reader.child("template")
    topology = reader.child("topologyRequest")
    count = reader.whole("count", 1, least=0)
    least = reader.optional_whole("minCount", least=0)
    name = reader.text("name", "main")
    made = pod_set_of(template, name, count, least, change, defaults, by_claims)
    return replace(
        made,
        group=topology.optional_text("podSetGroupName"),
        required_topology=topology.optional_text("required") or made.required_topology,
        preferred_topology=topology.optional_text("preferred") or made.preferred_topology,
        unconstrained_topology=topology.flag("unconstrained"),
        slice_topology=topology.optional_text("podSetSliceRequiredTopology"),
        slice_size=topology.optional_whole("podSetSliceSize", least=1),
        slice_layers=_layers(topology),
    )


def _with(requests: Mapping[str, int], more: Mapping[str, int]) -> Mapping[str, int]:
    if not more:
        return requests
    names = (*requests, *(name for name in more if name not in requests))
    return {name: saturate(requests.get(name, 0) + more.get(name, 0)) for name in names}


def _layers(topology: Reader) -> tuple[tuple[str, int], ...]:
    return tuple(
        (one.required("topology"), one.whole("size", 1, least=1))
        for one in topology.children("podsetSliceRequiredTopologyConstraints")
    )


def pod_set_of(
    template: Reader,
    name: str,
    count: int,
    least: int | None,
    change: Transformations,
    defaults: PodDefaults = NO_DEFAULTS,
    by_claims: frozenset[str] = frozenset(),
) -> PodSet:
    """Pods of one template; `least` are enough to begin with."""
    annotations = template.child("metadata").labels("annotations")
    spec = with_fractions(template.child("spec"), annotations)
    of_node = AS_GIVEN
    if by_claims:
        change = replace(change, excluded_names=by_claims)
        of_node = Transformations(excluded_names=by_claims)
    return PodSet(
        name=name,
        count=count,
        min_count=least,
        requests=pod_requests(spec, change, defaults),
        pod_requests=pod_requests(spec, of_node, defaults),
        node_selector=spec.labels("nodeSelector"),
        affinity=read_node_affinity(spec),
        tolerations=read_tolerations(spec, "tolerations"),
        required_topology=annotations.get(REQUIRED_TOPOLOGY),
        preferred_topology=annotations.get(PREFERRED_TOPOLOGY),
        spreading=read_spreading(annotations[SPREADING]) if SPREADING in annotations else None,
        annotations={
            name: value for name, value in annotations.items() if name.startswith(GPU_ANNOTATIONS)
        },
        containers=tuple(container_requests(spec, defaults)),
        over_limit=over_limit(spec, defaults),
    )


def _assignment(reader: Reader) -> PodSetAssignment:
    return PodSetAssignment(
        name=reader.text("name", "main"),
        count=reader.whole("count", 1, least=0),
        flavors=reader.labels("flavors"),
        usage=reader.amounts("resourceUsage"),
        topology=_topology(reader),
        places=tuple(
            PlacedPods(one.required("place"), one.whole("count", 1, least=1))
            for one in reader.children("gpuPlaces")
        ),
    )


def _topology(reader: Reader) -> TopologyAssignment | None:
    """The assignment in either version's form."""
    if not reader.has("topologyAssignment"):
        return None
    given = reader.child("topologyAssignment")
    levels = given.texts("levels")
    old, slices = given.raw("domains"), given.raw("slices")
    domains: list[object] = old if isinstance(old, list) else []
    if isinstance(slices, list):
        domains = [*domains, *domains_of(slices)]
    found = tuple(
        (tuple(map(str, one["values"])), one["count"])
        for one in domains
        if isinstance(one, dict)
        and isinstance(one.get("values"), list)
        and isinstance(one.get("count"), int)
        and len(one["values"]) == len(levels)
    )
    return TopologyAssignment(levels, found) if levels and found else None


def _admission(status: Reader, name: str) -> Admission | None:
    if not status.has(name):
        return None
    reader = status.child(name)
    return Admission(
        reader.required("clusterQueue"),
        tuple(_assignment(one) for one in reader.children("podSetAssignments")),
    )


def _condition(reader: Reader) -> Condition:
    return Condition(
        type=reader.required("type"),
        status=reader.text("status") == "True",
        reason=reader.text("reason"),
        message=reader.text("message"),
        changed_ns=reader.time_ns("lastTransitionTime") or 0,
    )


def _check(reader: Reader) -> AdmissionCheckStatus:
    return AdmissionCheckStatus(
        reader.required("name"),
        reader.choice("state", CheckState, CheckState.PENDING, {}),
        reader.text("message"),
        reader.optional_whole("requeueAfterSeconds", least=0),
    )


def _workload(reader: Reader, pod_sets: Callable[[Reader], tuple[PodSet, ...]]) -> Workload:
    head = reader.child("metadata")
    spec, status = reader.child("spec"), reader.child("status")
    requeue = status.child("requeueState")
    annotations = head.child("annotations")
    allowed = annotations.optional_text(ALLOWED_FLAVORS)
    namespace = head.text("namespace")
    priority_class = spec.child("priorityClassRef").optional_text("name")
    return Workload(
        namespace=namespace,
        name=head.required("name"),
        uid=head.text("uid"),
        created_ns=head.time_ns("creationTimestamp") or 0,
        pod_sets=pod_sets(spec),
        queue_name=spec.text("queueName"),
        priority=spec.whole("priority"),
        priority_class=priority_class or spec.optional_text("priorityClassName"),
        active=spec.flag("active", True),
        max_execution_s=spec.optional_whole("maximumExecutionTimeSeconds", least=1),
        past_execution_s=status.whole("accumulatedPastExecutionTimeSeconds", least=0),
        preemption_gates=_closed_gates(spec, status),
        admission=_admission(status, "admission"),
        conditions=tuple(_condition(one) for one in status.children("conditions")),
        admission_checks=tuple(_check(one) for one in status.children("admissionChecks")),
        reclaimable_pods=read_reclaimable(status, "reclaimablePods"),
        requeue_state=RequeueState(requeue.whole("count", least=0), requeue.time_ns("requeueAt")),
        replaces=_replaced(annotations.text(REPLACEMENT_FOR), namespace),
        owner_uid=_controller_uid(head),
        allowed_flavors=tuple(one.strip() for one in allowed.split(",")) if allowed else None,
        ready_timeouts_s=_ready_timeouts(annotations.text(WAIT_FOR_PODS_READY)),
        gated_by=annotations.text(GATED_BY),
        checkpointed=_admission(status, "checkpointed"),
    )


def _replaced(text: str, namespace: str) -> WorkloadKey | None:
    """The Workload that ends when this one starts. Only one of the same namespace does: a user of a
    namespace must not end another one's."""
    return WorkloadKey(text) if text.partition("/")[0] == (namespace or "default") else None


def _ready_timeouts(text: str) -> tuple[int, int] | None:
    """The timeouts in the annotation; None: it has none, or cannot be read."""
    found = ready_timeouts(text)
    return None if found is None else (found.timeout_s, found.recovery_timeout_s)


def read_reclaimable(reader: Reader, key: str) -> dict[str, int]:
    return {one.required("name"): one.whole("count", least=0) for one in reader.children(key)}


def _closed_gates(spec: Reader, status: Reader) -> tuple[str, ...]:
    opened = {
        gate.text("name")
        for gate in status.children("preemptionGates")
        if gate.text("position", gate.text("state", "Open")) == "Open"
    }
    names = [gate.required("name") for gate in spec.children("preemptionGates")]
    return tuple(name for name in names if name not in opened)


def _controller_uid(head: Reader) -> str:
    for owner in head.children("ownerReferences"):
        if owner.flag("controller"):
            return owner.text("uid")
    return ""
