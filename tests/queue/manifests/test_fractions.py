"""Pod templates in KAI's words: counted as the pods that they become, and refused where no webhook makes them so."""

from __future__ import annotations

from typing import Any

import pytest

from queuecontroller.kueueapi.manifests.workloads import read_workload
from queuecontroller.scheduler.placement.request import AskError
from queuecontroller.state.objects.asks import ask_of

GPU, MEM, PCT = "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpumem-percentage"
REQUEST, LIMIT = (
    "nvidia.com/container.side.gpu-memory.request",
    "nvidia.com/container.side.gpu-memory.limit",
)


def read(annotations: dict[str, str], resources: dict[str, Any] | None = None) -> Any:
    containers = [
        {"name": "main", "resources": resources or {"requests": {"cpu": "1"}}},
        {"name": "side"},
    ]
    template = {"metadata": {"annotations": annotations}, "spec": {"containers": containers}}
    head = {"name": "w", "namespace": "t"}
    spec = {"queueName": "q", "podSets": [{"name": "main", "count": 2, "template": template}]}
    found = read_workload(
        {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "Workload", "metadata": head, "spec": spec}
    )
    (pod_set,) = found.pod_sets
    return pod_set


@pytest.mark.parametrize(
    ("annotations", "counts", "containers"),
    [
        ({"gpu-fraction": "0.5"}, {GPU: 1, PCT: 50}, [{GPU: 1, PCT: 50}, {}]),
        (
            {"gpu-memory": "3000", "gpu-fraction-num-devices": "2"},
            {GPU: 2, MEM: 3000},
            [{GPU: 2, MEM: 3000}, {}],
        ),
        ({REQUEST: "1Gi", LIMIT: "2Gi"}, {GPU: 1, MEM: 2048}, [{}, {GPU: 1, MEM: 2048}]),
        ({"gpu-fraction": "lots"}, {}, [{}, {}]),
        ({"note": "x"}, {}, [{}, {}]),
    ],
)
def test_a_workload_is_counted_with_its_pods_fractions(
    annotations: dict[str, str], counts: dict[str, int], containers: list[dict[str, int]]
) -> None:
    found = read(annotations)
    assert found.requests == {"cpu": 1000, **counts}
    assert [
        {name: n for name, n in one.items() if name != "cpu"} for one in found.containers
    ] == containers


def test_a_pod_that_the_webhook_has_changed_is_counted_once() -> None:
    changed = {"limits": {GPU: "1", PCT: "50"}, "requests": {GPU: "1", PCT: "50", "cpu": "1"}}
    assert read({"gpu-fraction": "0.5"}, changed).requests == {"cpu": 1000, GPU: 1, PCT: 50}


@pytest.mark.parametrize(
    ("annotations", "why"),
    [
        (
            {"gpu-fraction": "0.5"},
            f"gpu-fraction: no effect on this pod, .* write {GPU}: 1 and {PCT}: 50 in the limits of the first container",
        ),
        ({REQUEST: "1Gi"}, f"{REQUEST}: no effect on this pod, .* in the limits of container side"),
        ({"gpu-fraction": "2"}, "gpu-fraction: expected a number above 0"),
    ],
)
def test_where_no_webhook_changes_pods_a_fraction_is_refused_with_what_to_write(
    annotations: dict[str, str], why: str
) -> None:
    with pytest.raises(AskError, match=why):
        ask_of(read(annotations))
    assert (
        ask_of(read({**annotations, "sluice.dev/admitted-as": "t"}, {"limits": {GPU: "1"}}))
        is not None
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("kai.scheduler/preemption-delay", "5m"),
        ("kai.scheduler/gpu-compute-sharing-mode", "sm-sharing"),
    ],
)
def test_so_are_the_other_words_of_a_pod_that_has_gpus(key: str, value: str) -> None:
    with pytest.raises(AskError, match=f"^{key}: "):
        ask_of(read({key: value}, {"limits": {GPU: "1"}}))
    assert ask_of(read({key: value})) is None
