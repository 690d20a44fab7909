"""Nodes and their GPUs: a Kubernetes Node whose labels or annotation describe its GPUs.

`sluice.dev/gpus`, a JSON list of kinds of GPUs, is complete by itself; without it the labels of
NVIDIA's GPU feature discovery (`nvidia.com/gpu.count`, `.memory` in MiB, `.product`) are used.
`sluice.dev/capacity` is the exact report of a node's agent, as a what-if passes it to `simulate`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from queuecontroller.kueueapi.manifests.pods import read_taints
from queuecontroller.scheduler.placement.capacity import (
    NOTHING,
    GpuCapacity,
    MigProfile,
    NodeCapacity,
)
from queuecontroller.scheduler.placement.mig import known_spans
from sluicecommon.plain import read_plain
from sluicecommon.reader import ManifestError, Reader

GPUS: Final = "sluice.dev/gpus"
CAPACITY: Final = "sluice.dev/capacity"
COUNT: Final = "nvidia.com/gpu.count"
MEMORY: Final = "nvidia.com/gpu.memory"
PRODUCT: Final = "nvidia.com/gpu.product"
MIB: Final = 1 << 20
MAX_GPUS: Final = 64
DEFAULT_SLOTS: Final = 10
"""Default limit of shares per GPU, as in the node agent."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """A number of equal GPUs of a node."""

    count: int
    model: str
    memory_bytes: int
    slots: int = DEFAULT_SLOTS
    numa_node: int | None = None
    linked: bool = False
    mig: tuple[str, ...] = ()
    health: str = "healthy"


def read_node(body: Mapping[str, object], path: str = "") -> NodeCapacity:
    """Read a Kubernetes Node. Its `gpus` are empty where neither annotation nor labels are
    complete. Raises ManifestError."""
    reader = Reader(body, path)
    head, spec, status = reader.child("metadata"), reader.child("spec"), reader.child("status")
    name = head.required("name")
    labels = head.labels("labels")
    annotations = head.child("annotations")
    status.amounts("capacity")
    allocatable = status.amounts("allocatable")
    if annotations.has(CAPACITY):
        reported = _reported(annotations)
        if reader.problems:
            raise ManifestError(reader.problems)
        return reported
    kinds: list[_Kind] = []
    if annotations.has(GPUS):
        kinds = _kinds(_listed(annotations))
    elif labels.get(COUNT, "").isdigit() and labels.get(MEMORY, "").isdigit():
        count = int(labels[COUNT][:9])
        product = labels.get(PRODUCT, "").replace("-", " ")
        kinds = [_Kind(count, product, int(labels[MEMORY][:12]) * MIB)]
        if count > MAX_GPUS:
            head.child("labels").problem(COUNT, f"{count} is more than {MAX_GPUS}", "correct it")
            kinds = []
    capacity = _capacity(name, kinds, labels, spec, allocatable)
    if reader.problems:
        raise ManifestError(reader.problems)
    return capacity


def _reported(annotations: Reader) -> NodeCapacity:
    """The annotation's capacity; an invalid one is a problem."""
    try:
        found: NodeCapacity = read_plain(NodeCapacity, json.loads(annotations.text(CAPACITY)))
    except (ValueError, TypeError, RecursionError) as error:
        problem = f"is not what a node reports: {str(error)[:200]}"
        annotations.problem(CAPACITY, problem, f"remove it and write {GPUS}")
        return NOTHING
    return found


def read_report(given: Mapping[str, object], name: str) -> NodeCapacity:
    """Read a report with `gpus`, `labels`, `taints` and `unschedulable` alone. Raises
    ManifestError."""
    reader = Reader(given)
    kinds = _kinds(reader)
    capacity = _capacity(name, kinds, reader.labels("labels"), reader, {})
    reader.done()
    if reader.problems:
        raise ManifestError(reader.problems)
    return capacity


def _listed(annotations: Reader) -> Reader:
    """The annotation's text as if it were an object with the list in `gpus`."""
    try:
        given = json.loads(annotations.text(GPUS))
    except (ValueError, RecursionError):
        annotations.problem(GPUS, "is not valid JSON", 'write a list such as [{"memory": "80Gi"}]')
        given = []
    return Reader({"gpus": given}, annotations.path, annotations.problems)


def _kinds(reader: Reader) -> list[_Kind]:
    found = []
    for one in reader.children("gpus"):
        memory = one.amount("memory", "memory")
        if memory is None or memory < MIB:
            one.problem("memory", "at least 1Mi is needed", "write how much each GPU has: 80Gi")
        kind = _Kind(
            one.whole("count", 1, least=1, most=MAX_GPUS),
            one.text("model"),
            memory or MIB,
            one.whole("slots", DEFAULT_SLOTS, least=1, most=1024),
            one.whole("numaNode", 0, least=0) if one.has("numaNode") else None,
            one.flag("linked"),
            one.texts("mig"),
            one.text("health", "healthy"),
        )
        for profile in kind.mig:
            if not known_spans(profile, kind.mig):
                one.problem(
                    "mig", f"expected a MIG profile, got {profile!r}", "write such as 1g.10gb"
                )
        one.done()
        found.append(kind)
    return found


def _capacity(
    name: str,
    kinds: list[_Kind],
    labels: Mapping[str, str],
    spec: Reader,
    other: Mapping[str, int],
) -> NodeCapacity:
    gpus: list[GpuCapacity] = []
    for kind in kinds:
        first = len(gpus)
        uuids = [f"GPU-{name}-{first + i}" for i in range(kind.count)]
        for index, uuid in enumerate(uuids, first):
            peers = {peer: 1 for peer in uuids if peer != uuid} if kind.linked else {}
            gpus.append(
                GpuCapacity(
                    uuid,
                    index,
                    kind.model,
                    kind.memory_bytes,
                    slots=kind.slots,
                    numa_node=kind.numa_node,
                    nvlinks=peers,
                    mig_enabled=bool(kind.mig),
                    mig_profiles=_profiles(kind),
                    health=kind.health,
                )
            )
    return NodeCapacity(
        tuple(gpus), labels, read_taints(spec, "taints"), spec.flag("unschedulable"), other
    )


def _profiles(kind: _Kind) -> tuple[MigProfile, ...]:
    """MIG profiles, each with its slices' part of the GPU's memory."""
    spans = {name: known_spans(name, kind.mig) for name in kind.mig}
    slices = max((s.start + s.size for found in spans.values() for s in found), default=1)
    return tuple(
        MigProfile(name, len(found), len(found), kind.memory_bytes * found[0].size // slices)
        for name, found in spans.items()
        if found
    )
