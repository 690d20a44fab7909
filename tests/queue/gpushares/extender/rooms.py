"""Nodes, pods and documents for tests of the extender."""

from __future__ import annotations

import json
import random
from typing import Any

from queuecontroller.gpushares.extender.answers import Defaults, Extender
from queuecontroller.gpushares.extender.ledger import PodLedger
from queuecontroller.gpushares.extender.pods import PodPlace
from queuecontroller.scheduler.placement.capacity import GpuCapacity, NodeCapacity
from queuecontroller.scheduler.placement.stock import Share, Stock
from sluicecommon.pod_annotations import PLACEMENT

GIB = 1 << 30
MIB = 1 << 20


def node(
    name: str,
    gpus: int = 4,
    memory: int = 80 * GIB,
    model: str = "NVIDIA H100 80GB HBM3",
    links: bool = False,
    **fields: Any,
) -> NodeCapacity:
    """A node; with `links`, every two neighbours are linked: 0 and 1, 2 and 3."""
    return NodeCapacity(
        tuple(
            GpuCapacity(
                f"GPU-{name}-{index}",
                index,
                model,
                memory,
                numa_node=index // 2,
                nvlinks={f"GPU-{name}-{index ^ 1}": 4} if links else {},
                **fields,
            )
            for index in range(gpus)
        )
    )


def pod(
    name: str = "p",
    *,
    count: int = 1,
    priority: int = 0,
    annotations: dict[str, str] | None = None,
    before: dict[str, int] | None = None,
    side: dict[str, int] | None = None,
    bound: PodPlace | None = None,
    **amounts: int,
) -> dict[str, Any]:
    """`amounts` by HAMi's names, `_` for `-`; `before` of an init container, `side` of another."""
    head: dict[str, Any] = {"name": name, "namespace": "t", "uid": f"u-{name}"}
    head["annotations"] = dict(annotations or {})
    spec: dict[str, Any] = {"containers": [container("main", count, amounts)], "priority": priority}
    if side is not None:
        spec["containers"].append(container("side", 1, side))
    if before is not None:
        spec["initContainers"] = [container("first", 1, before)]
    if bound is not None:
        spec["nodeName"] = bound.node
        head["annotations"][PLACEMENT] = bound.text()
    return {"metadata": head, "spec": spec, "status": {}}


def container(name: str, count: int, amounts: dict[str, int]) -> dict[str, Any]:
    limits = {f"nvidia.com/{key.replace('_', '-')}": str(value) for key, value in amounts.items()}
    if count:
        limits["nvidia.com/gpu"] = str(count)
    return {"name": name, "resources": {"limits": limits}}


def extender(nodes: dict[str, NodeCapacity], **defaults: Any) -> Extender:
    stock = Stock()
    for name, capacity in nodes.items():
        stock.report(name, capacity)
    return Extender(stock, PodLedger(stock), Defaults(**defaults))


def bind(one: Extender, document: dict[str, Any], where: str) -> PodPlace:
    """Bind a pod, as if the API server had recorded it."""
    place = one.place(document, where)
    assert isinstance(place, PodPlace), place
    document["spec"]["nodeName"] = where
    document["metadata"]["annotations"][PLACEMENT] = place.text()
    one.ledger.take(document)
    return place


def random_pod(rng: random.Random, number: int) -> dict[str, Any]:
    amounts: dict[str, int] = {}
    if rng.random() < 0.8:
        amounts["gpumem"] = rng.choice([1000, 8000, 20_000, 40_000, 79_000])
    elif rng.random() < 0.5:
        amounts["gpumem_percentage"] = rng.choice([10, 25, 50, 100])
    if rng.random() < 0.6:
        amounts["gpucores"] = rng.choice([5, 10, 30, 50, 60, 100])
    annotations = {}
    if rng.random() < 0.3:
        key = "hami.io/gpu-scheduler-policy"
        annotations[key] = rng.choice(["spread", "topology-aware", "mutex", "numa", "binpack,numa"])
    if rng.random() < 0.1:
        annotations["nvidia.com/numa-bind"] = "true"
    several = {"gpumem": rng.choice([1000, 30_000])} if rng.random() < 0.2 else None
    first = {"gpumem": rng.choice([1000, 60_000])} if rng.random() < 0.2 else None
    return pod(
        f"p{number}",
        count=rng.choice([1, 1, 1, 2, 3, 4]),
        priority=rng.choice([0, 10, 20]),
        annotations=annotations,
        side=several,
        before=first,
        **amounts,
    )


def contradictions(stock: Stock) -> list[str]:
    """Cards that promise more than they have."""
    return [
        f"{uuid}: {gpu.memory_bytes} bytes, {gpu.share_ppm} ppm, {gpu.slots} slots left"
        for room in stock.nodes.values()
        for uuid, gpu in room.gpus.items()
        if gpu.memory_bytes < 0 or gpu.share_ppm < 0 or gpu.slots < 0
    ]


def with_company(ledger: PodLedger) -> list[str]:
    """Cards of pods that want no company and have some."""
    pods: dict[str, set[str]] = {}
    alone: set[str] = set()
    for uid in ledger.pods:
        _, shares = ledger.holding(uid) or ("", ())
        for one in shares:
            pods.setdefault(one.uuid, set()).add(uid)
            if one.alone:
                alone.add(one.uuid)
    return sorted(uuid for uuid in alone if len(pods[uuid]) > 1)


def free(stock: Stock) -> dict[str, tuple[int, int, int, int, int]]:
    return {
        uuid: (gpu.memory_bytes, gpu.share_ppm, gpu.slots, gpu.holders, gpu.alone)
        for room in stock.nodes.values()
        for uuid, gpu in room.gpus.items()
    }


def dumped(document: Any) -> bytes:
    return json.dumps(document).encode()


def share(uuid: str, memory: int, ppm: int = 0, alone: bool = False) -> Share:
    return Share(uuid, memory, ppm, alone)
