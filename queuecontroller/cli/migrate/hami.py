"""A running HAMi: what its annotations say is given of which GPU to whom, and what of it would be
granted here. No I/O.

Nothing is carried over: containers that HAMi started keep its library until they end. This is for
looking at before nodes are drained one by one (docs/hami.md).
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
"""Characters; Kubernetes keeps no more in all annotations of an object."""
_OVER: Final = ("Succeeded", "Failed")
_CSV: Final = 7
"""Fields of a GPU in the older form, at least."""


@dataclass(frozen=True, slots=True)
class Gpu:
    node: str
    uuid: str
    memory_mib: int
    cores: int
    """Percent; more than 100 where HAMi was told to give more than there is."""
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
    """What could not be granted so, by name."""
    notes: tuple[str, ...] = field(default=())
    """What would be otherwise here than there."""


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
            notes.append(f"GPU {gpu.uuid} of {gpu.node}: MPS is not offered; it would be shared")
        if gpu.cores > 100:
            notes.append(f"GPU {gpu.uuid} of {gpu.node}: {gpu.cores} % is told, 100 % is given")
    return Found(tuple(gpus.values()), tuple(grants), tuple(refused), tuple(notes))


def registered(node: str, text: str) -> list[Gpu]:
    """Of a node's annotation, in either form. Raises ValueError."""
    if len(text) > LONGEST:
        raise ValueError(f"is longer than {LONGEST} characters")
    if text.lstrip().startswith("["):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"is no JSON: {str(error)[:100]}") from error
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
        raise ValueError(f"{one['id'][:80]}: devmem, devcore and count are no numbers")
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
    """What HAMi's scheduler gave a pod. Raises ValueError."""
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
                raise ValueError(f"{ALLOCATED}: {kind[:40]!r}: only NVIDIA's GPUs are served here")
            amounts = _whole(memory, ALLOCATED), _whole(cores, ALLOCATED)
            made.append(Grant(key_of(pod), containers[at], node, uuid, *amounts))
    if made and annotations_of(pod).get(MIG):
        raise ValueError(f"{MIG}: its MIG instance was made by HAMi: let it finish")
    return made


def _whole(text: str, what: str) -> int:
    if text.isascii() and text.isdigit() and len(text) < 13:
        return int(text)
    raise ValueError(f"{what}: {text[:40]!r} is no whole number")


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
                f"GPU {uuid} of {gpus[uuid].node}: {total} MiB are given of"
                f" {gpus[uuid].memory_mib}: memory is granted once here"
            )
    for uuid, total in time.items():
        if total > 100:
            found.append(
                f"GPU {uuid} of {gpus[uuid].node}: {total} % of its time are promised: ask for"
                " less, or for no promise (sluice.dev/share-policy: elastic)"
            )
    return found
