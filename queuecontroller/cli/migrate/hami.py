"""Reads the allocations of a running HAMi from its annotations, and reports which of them Sluice
would not grant. No I/O.

Nothing is imported: containers that HAMi started keep its library until they end. The report is
for planning before nodes are drained one by one (docs/hami.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from queuecontroller.cluster.cache.objects import Document, annotations_of, key_of
from queuecontroller.gpushares.vendors.asks import containers_of, table
from sluicecommon.hami.devices import BadRegister, decode, read_register
from sluicecommon.hami.names import ALLOCATED, HAMI_CORE, MIG_ALLOCATIONS, NODE, NVIDIA, REGISTER

_OVER: Final = ("Succeeded", "Failed")


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
    """Read the GPUs and allocations of a running HAMi from its nodes and pods."""
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
    refused += _overcommitted(gpus, grants)
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
    return [
        Gpu(
            node,
            one.id,
            one.memory_mib,
            one.cores,
            one.slots,
            one.type,
            one.mode or HAMI_CORE,
            one.healthy,
        )
        for one in read_register(text)
    ]


def allocated(pod: Document) -> list[Grant]:
    """The GPU shares that HAMi's scheduler allocated to a pod. Raises ValueError."""
    text = annotations_of(pod).get(ALLOCATED)
    if text is None:
        return []
    try:
        given = decode(text)
    except BadRegister as error:
        raise ValueError(f"{ALLOCATED}: {error}") from error
    names = [one.name for one in containers_of(pod)]
    node = str(table(pod, "spec").get("nodeName") or annotations_of(pod).get(NODE) or "")
    made = []
    for at, parts in enumerate(given):
        for part in parts:
            if at >= len(names):
                raise ValueError(f"{ALLOCATED}: has more containers than the pod")
            if part.type != NVIDIA:
                raise ValueError(f"{ALLOCATED}: {part.type[:40]!r}: only NVIDIA GPUs are supported")
            amounts = part.memory_mib, part.cores
            made.append(Grant(key_of(pod), names[at], node, part.device, *amounts))
    if made and annotations_of(pod).get(MIG_ALLOCATIONS):
        raise ValueError(f"{MIG_ALLOCATIONS}: its MIG instance was created by HAMi: let it finish")
    return made


def _overcommitted(gpus: Mapping[str, Gpu], grants: Sequence[Grant]) -> list[str]:
    """Errors for grants on unknown or unhealthy GPUs, and for GPUs with more grants than memory or
    time."""
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
