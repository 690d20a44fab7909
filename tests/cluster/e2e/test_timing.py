"""How long it takes: from the creation of a pod to a program inside its grant, and from a pod's end to its devices being free."""

from __future__ import annotations

import json
import time

import pytest

from tests.cluster import manifests
from tests.cluster.figures import Figures
from tests.cluster.lab import Lab, Sample
from tests.kit.node import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
PODS = 20
BACK_S = 10.0
READY = f"python3 -c '{manifests.READ}'; sleep 3600"


def test_pods_one_after_the_other(lab: Lab, figures: Figures) -> None:
    """Created → a program in it has read its own limit from CUDA and NVML, by the clock of this machine; image present."""
    before = lab.metrics()
    for number in range(PODS):
        name = f"timed-{number}"
        begin_s = time.time()
        lab.create_pod(lab.gpu_pod(name, memory_mib=3000, cores=5, command=READY))
        told = until(f"{name} has read its limits", lambda name=name: answered(lab, name), 60)
        assert told["total_mib"] == 3000
        figures.pod_to_grant_s.append(told["at_s"] - begin_s)
    figures.agent_part_ms += agent_part_ms(before, lab.metrics())
    for number in range(PODS):
        name = f"timed-{number}"
        lab.delete(name)
        begin_s = time.monotonic()
        until(
            f"the devices of {name} are back",
            lambda name=name: not lab.grants_of(name),
            BACK_S * 2,
        )
        figures.devices_back_s.append(time.monotonic() - begin_s)
    assert max(figures.devices_back_s) <= BACK_S
    assert sorted(figures.pod_to_grant_s)[PODS // 2] <= 5.0, (
        "the budget is 2 s; a busy machine gets some more"
    )


def answered(lab: Lab, name: str) -> dict[str, float] | None:
    pod = lab.pod(name)
    if not pod or pod["status"].get("phase") != "Running":
        return None
    lines = [one for one in lab.log(name).splitlines() if one.startswith("{")]
    return json.loads(lines[-1]) if lines else None


def agent_part_ms(before: list[Sample], after: list[Sample]) -> list[float]:
    """The time in the agent's own histogram of starts, spread over its buckets as they were filled meanwhile."""
    name = "sluice_kubelet_start_seconds_bucket"
    if not any(metric == name for metric, _, _ in after):
        name = "sluice_binding_duration_seconds_bucket"
    counts = {}
    for sign, samples in ((-1, before), (1, after)):
        for metric, labels, value in samples:
            if metric == name:
                counts[float(labels["le"])] = counts.get(float(labels["le"]), 0.0) + sign * value
    found: list[float] = []
    lower_s, below = 0.0, 0.0
    for upper_s, total in sorted(counts.items()):
        times = round(total - below)
        if upper_s != float("inf"):
            found += [
                1000 * (lower_s + (upper_s - lower_s) * (one + 0.5) / times) for one in range(times)
            ]
            lower_s = upper_s
        else:
            found += [1000 * lower_s] * times
        below = total
    return found
