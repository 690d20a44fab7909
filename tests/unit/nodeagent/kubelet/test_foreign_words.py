"""Pods of a node whose words of KAI's nothing honours have one event that names them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from nodeagent.core.kubelet.pod_documents import read_pod
from nodeagent.shell.pods.foreign_words import ForeignWords, ignored
from nodeagent.units import PodUid

GPU = "nvidia.com/gpu"
DELAY = "kai.scheduler/preemption-delay"
MODE = "kai.scheduler/gpu-compute-sharing-mode"


def pod(
    limits: dict[str, str], labels: dict[str, str] | None = None, **annotations: str
) -> dict[str, Any]:
    return {
        "metadata": {
            "uid": "u",
            "namespace": "team",
            "name": "p",
            "labels": labels or {},
            "annotations": annotations,
        },
        "spec": {
            "initContainers": [{"name": "first"}],
            "containers": [{"name": "main", "resources": {"limits": limits}}],
        },
        "status": {},
    }


@pytest.mark.parametrize(
    ("limits", "annotations", "says"),
    [
        (
            {},
            {"gpu-fraction": "0.5"},
            "gpu-fraction: no effect on this pod, Sluice reads it in mode kubernetes (the chart's queue.mode): write nvidia.com/gpu: 1"
            " and nvidia.com/gpumem-percentage: 50 in the limits of container main",
        ),
        ({GPU: "1"}, {"gpu-memory": "5"}, "gpu-memory: no effect"),
        ({}, {"nvidia.com/container.first.gpu-memory.limit": "1Gi"}, "nvidia.com/gpumem: 1024 in the limits of container first"),
        ({}, {"gpu-memory": "2Gi"}, "gpu-memory: expected a whole number"),
        ({GPU: "1"}, {MODE: "sm-sharing"}, f"{MODE}: sm-sharing runs kernels"),
        ({GPU: "1"}, {DELAY: "5m"}, f"{DELAY}: no effect on this pod"),
        ({GPU: "1"}, {MODE: "time-slicing"}, ""),
        ({}, {MODE: "sm-sharing", DELAY: "5m"}, ""),
        ({GPU: "1"}, {DELAY: "5m", "sluice.dev/placement": "{}"}, ""),
        ({GPU: "1"}, {"gpu-fraction": "0.5", "sluice.dev/admitted-as": "t"}, ""),
        ({GPU: "1"}, {}, ""),
    ],
)  # fmt: skip
def test_what_is_not_honoured_is_named_with_the_remedy(
    limits: dict[str, str], annotations: dict[str, str], says: str
) -> None:
    found = "; ".join(ignored(read_pod(pod(limits, **annotations)), GPU))
    assert says in found
    assert bool(found) == bool(says)


def test_the_delay_may_be_a_label() -> None:
    assert DELAY in ignored(read_pod(pod({GPU: "1"}, {DELAY: "5m"})), GPU)[0]


def test_each_pod_has_one_event() -> None:
    async def main() -> None:
        events: list[tuple[PodUid, str, str]] = []

        async def record(uid: PodUid, reason: str, text: str) -> None:
            events.append((uid, reason, text))

        words = ForeignWords(record, lambda: GPU)
        facts = read_pod(pod({}, **{"gpu-fraction": "0.5", "gpu-memory": "1"}))
        for one in (facts, facts, read_pod(pod({"cpu": "1"}))):
            words.changed(one)
        await asyncio.sleep(0)
        ((uid, reason, text),) = events
        assert (uid, reason) == ("u", "SluiceAnnotationIgnored")
        assert text.startswith("gpu-fraction: is given together with gpu-memory")

    asyncio.run(main())
