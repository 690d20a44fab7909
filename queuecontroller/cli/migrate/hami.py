"""Reads the allocations of a running HAMi from its annotations, and reports which of them Sluice
would not grant. No I/O.

Nothing is imported: containers that HAMi started keep its library until they end. The report is
for planning before nodes are drained one by one (docs/hami.md).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from queuecontroller.cluster.cache.objects import Document, annotations_of, key_of

REGISTER: Final = "hami.io/node-nvidia-register"
ALLOCATED: Final = "hami.io/vgpu-devices-allocated"
NODE: Final = "hami.io/vgpu-node"
MIG: Final = "hami.io/vgpu-mig-allocations"
LONGEST: Final = 256 << 10
"""Characters; Kubernetes' limit for all annotations of an object."""
_OVER: Final = ("Succeeded", "Failed")
_CSV: Final = 7
"""Least number of fields of a GPU in the older, comma-separated form."""


@dataclass(frozen=True, slots=True)
class Gpu:
    node: str
    uuid: str
    memory_mib: int
    cores: int
    """Percent; more than 100 where HAMi is configured to overcommit."""
    slots: int
    type: str
    mode: str
    health: bool


@dataclass(frozen=True, slots=True)
class Grant:
    """One container's part of one GPU."""

    pod: str
    """NAMESPACE/NAME."""
    container: str
    node: str
    uuid: str
    memory_mib: int
    cores: int
    """Percent; 0: no limit."""


@dataclass(frozen=True, slots=True)
class Found:
    gpus: tuple[Gpu, ...]
    grants: tuple[Grant, ...]
    refused: tuple[str, ...] = ()
    """Allocations that could not be granted, each with its object's name and the reason."""
    notes: tuple[str, ...] = field(default=())
    """Differences between HAMi's behaviour and Sluice's."""


def look(nodes: Iterable[Document], pods: Iterable[Document]) -> Found:
    gpus: dict[str, Gpu] = {}
    refused: list[str] = []
    notes: list[str] = []
    for node in nodes:
        text = annotations_of(node).get(REGISTER)
        if text is None:
            continue
        try:
            for gpu in registered(key_of(node), text):
                gpus[gpu.uuid] = gpu
        except ValueError as error:
            refused.append(f"Node/{key_of(node)}: {REGISTER}: {error}")
    grants: list[Grant] = []
    for pod in pods:
        if (pod.get("status") or {}).get("phase") in _OVER:
            continue
        try:
            grants += allocated(pod)
        except ValueError as error:
            refused.append(f"Pod/{key_of(pod)}: {error}")
    refused += _too_much(gpus, grants)
    for gpu in gpus.values():
        if gpu.mode == "mps":
            notes.append(
                f"GPU {gpu.uuid} of {gpu.node}: MPS is not supported; it would be shared by time"
            )
        if gpu.cores > 100:
            notes.append(
                f"GPU {gpu.uuid} of {gpu.node}: HAMi offers {gpu.cores} % of its time, Sluice 100 %"
            )
    return Found(tuple(gpus.values()), tuple(grants), tuple(refused), tuple(notes))


def registered(node: str, text: str) -> list[Gpu]:
    """The GPUs in a node's annotation, in either form. Raises ValueError."""
    if len(text) > LONGEST:
        raise ValueError(f"is longer than {LONGEST} characters")
    if text.lstrip().startswith("["):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"is not JSON: {str(error)[:100]}") from error
        return [_gpu(node, one) for one in found]
    made = []
    for part in filter(None, text.split(":")):
        fields = part.split(",")
        if len(fields) < _CSV:
            raise ValueError(f"{part[:80]!r} is not UUID,COUNT,MIB,CORES,TYPE,NUMA,HEALTH")
        uuid, count, memory, cores, kind, _, health = fields[:_CSV]
        mode = fields[8] if len(fields) > 8 else "hami-core"
        whole = [_whole(one, "count, memory or cores") for one in (count, memory, cores)]
        made.append(
            Gpu(node, uuid, whole[1], whole[2], whole[0], kind, mode, health.lower() == "true")
        )
    return made


def _gpu(node: str, one: Any) -> Gpu:
    if not isinstance(one, Mapping) or not isinstance(one.get("id"), str) or not one["id"]:
        raise ValueError("has a GPU without an id")
    numbers = [one.get(name, 0) for name in ("devmem", "devcore", "count")]
    if not all(type(number) is int and 0 <= number < 1 << 40 for number in numbers):
        raise ValueError(f"{one['id'][:80]}: devmem, devcore and count must be whole numbers")
    memory_mib, cores, slots = numbers
    return Gpu(
        node,
        one["id"],
        memory_mib,
        cores,
        slots,
        str(one.get("type") or ""),
        str(one.get("mode") or "hami-core"),
        one.get("health") is True,
    )


def allocated(pod: Document) -> list[Grant]:
    """The GPU shares that HAMi's scheduler allocated to a pod. Raises ValueError."""
    text = annotations_of(pod).get(ALLOCATED)
    if text is None:
        return []
    if len(text) > LONGEST:
        raise ValueError(f"{ALLOCATED}: is longer than {LONGEST} characters")
    spec = pod.get("spec") or {}
    containers = [
        str(one.get("name"))
        for part in ("initContainers", "containers")
        for one in spec.get(part) or ()
    ]
    node = str(spec.get("nodeName") or annotations_of(pod).get(NODE) or "")
    made = []
    for at, of_container in enumerate(text.split(";")):
        for part in filter(None, of_container.split(":")):
            fields = part.split(",")
            if len(fields) != 4:
                raise ValueError(f"{ALLOCATED}: {part[:80]!r} is not UUID,TYPE,MIB,CORES")
            if at >= len(containers):
                raise ValueError(f"{ALLOCATED}: has more containers than the pod")
            uuid, kind, memory, cores = fields
            if kind != "NVIDIA":
                raise ValueError(f"{ALLOCATED}: {kind[:40]!r}: only NVIDIA GPUs are supported")
            amounts = _whole(memory, ALLOCATED), _whole(cores, ALLOCATED)
            made.append(Grant(key_of(pod), containers[at], node, uuid, *amounts))
    if made and annotations_of(pod).get(MIG):
        raise ValueError(f"{MIG}: its MIG instance was created by HAMi: let it finish")
    return made


def _whole(text: str, what: str) -> int:
    if text.isascii() and text.isdigit() and len(text) < 13:
        return int(text)
    raise ValueError(f"{what}: expected a whole number, got {text[:40]!r}")


def _too_much(gpus: Mapping[str, Gpu], grants: Sequence[Grant]) -> list[str]:
    found = []
    memory: dict[str, int] = {}
    time: dict[str, int] = {}
    for one in grants:
        gpu = gpus.get(one.uuid)
        if gpu is None:
            found.append(f"Pod/{one.pod}: {one.container}: no node registers GPU {one.uuid}")
            continue
        if not gpu.health:
            found.append(f"Pod/{one.pod}: {one.container}: GPU {one.uuid} is not healthy")
        memory[one.uuid] = memory.get(one.uuid, 0) + one.memory_mib
        time[one.uuid] = time.get(one.uuid, 0) + one.cores
    for uuid, total in memory.items():
        if total > gpus[uuid].memory_mib:
            found.append(
                f"GPU {uuid} of {gpus[uuid].node}: {total} MiB are allocated of"
                f" {gpus[uuid].memory_mib}: Sluice does not overcommit memory"
            )
    for uuid, total in time.items():
        if total > 100:
            found.append(
                f"GPU {uuid} of {gpus[uuid].node}: {total} % of its time are allocated: request"
                " less, or no guaranteed share (sluice.dev/share-policy: elastic)"
            )
    return found
