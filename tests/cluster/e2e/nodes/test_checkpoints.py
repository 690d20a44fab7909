"""A real Job is preempted on real kubelets: its process's memory on the simulated card goes to the host, the other Job has the quota, and the
first one goes on where it was, in the same container, with every byte."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cluster.api import path_of
from tests.cluster.e2e.nodes.pair import KUEUE, WORKLOADS, Pair
from tests.cluster.manifests import NAMESPACE, gpu_pod, owned
from tests.cluster.queueing import condition, door, of_kueue
from tests.kit.node import until
from tests.kit.queue import queues

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
PROGRAM = """
import ctypes as c, json, random, time
cuda = c.CDLL("libcuda.so.1")
context, pointer = c.c_void_p(), c.c_uint64()
data = random.Random(1).randbytes(9 << 20)
assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate_v2(c.byref(context), 0, 0) == 0
assert cuda.cuMemAlloc_v2(c.byref(pointer), c.c_size_t(16 << 20)) == 0
assert cuda.cuMemcpyHtoD_v2(pointer, data, c.c_size_t(len(data))) == 0
back, number = c.create_string_buffer(len(data)), 0
while True:
    number += 1
    right = cuda.cuMemcpyDtoH_v2(back, pointer, c.c_size_t(len(data))) == 0 and back.raw == data
    print(json.dumps({"number": number, "right": right}), flush=True)
    time.sleep(0.2)
"""


def objects(lab: Pair) -> None:
    """Quota for one Job."""
    amounts = {queues.GPU: 1, queues.GPU_MEMORY: 8000, queues.GPU_CORES: 100}
    resources = [{"name": name, "nominalQuota": value} for name, value in amounts.items()]
    spec = {
        "namespaceSelector": {},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [
            {
                "coveredResources": list(amounts),
                "flavors": [{"name": "all", "resources": resources}],
            }
        ],
    }
    for plural, document in (
        ("resourceflavors", of_kueue("ResourceFlavor", "all", {})),
        ("clusterqueues", of_kueue("ClusterQueue", "saved", spec)),
        (f"namespaces/{NAMESPACE}/localqueues", door("saved", "saved")),
    ):
        lab.api.call("POST", f"{KUEUE}/{plural}", document)
    for name, value in (("low", 0), ("high", 100)):
        document = {**of_kueue("WorkloadPriorityClass", name, None), "value": value}
        del document["spec"]
        lab.api.call("POST", f"{KUEUE}/workloadpriorityclasses", document)


def submit(lab: Pair, name: str, **annotations: str) -> None:
    pod = gpu_pod(name, lab.image, command=f"exec python3 -c '{PROGRAM}'")
    labels = {
        "kueue.x-k8s.io/queue-name": "saved",
        "kueue.x-k8s.io/priority-class": name,
    }
    job = owned("Job", name, pod, labels=labels, annotations=annotations)
    lab.api.create("jobs", NAMESPACE, job)


def running(lab: Pair, name: str) -> dict[str, Any]:
    def found() -> dict[str, Any] | None:
        pods = [one for one in lab.pods(app=name) if one["status"].get("phase") == "Running"]
        return pods[0] if pods else None

    return dict(until(f"{name} runs", found, 120))


def last(lab: Pair, pod: dict[str, Any]) -> dict[str, Any]:
    """The last count of its program; empty before the first. Sluice says in between that it waits."""
    lines = lab.kubectl("logs", pod["metadata"]["name"], "--tail=5").splitlines()
    counts = [dict(json.loads(one)) for one in lines if one.startswith("{")]
    return counts[-1] if counts else {}


def workload(lab: Pair, name: str) -> dict[str, Any]:
    for one in lab.api.get(WORKLOADS)["items"]:
        if any(owner["name"] == name for owner in one["metadata"].get("ownerReferences", ())):
            return dict(one)
    return {}


def phase(lab: Pair, name: str) -> str:
    return str(condition(workload(lab, name), "Checkpointed").get("reason") or "")


def test_a_preempted_job_goes_on_with_every_byte(pair: Pair) -> None:
    objects(pair)
    submit(pair, "low", **{"sluice.dev/on-preemption": "checkpoint"})
    pod = running(pair, "low")
    # Ten seconds: its agent has reported it by then, and what is not reported is stopped.
    until("its program computes", lambda: last(pair, pod).get("number", 0) > 50, 60)
    submit(pair, "high")
    decided = ("Checkpointed", "CheckpointFailed")
    until("its pod is checkpointed", lambda: phase(pair, "low") in decided, 90)
    why = str(condition(workload(pair, "low"), "Checkpointed")["message"])
    if "would count in the cgroup" in why:
        pytest.skip(f"this machine has no memory for a context on a simulated card: {why}")
    assert phase(pair, "low") == "Checkpointed", why
    before = last(pair, pod)["number"]
    other = running(pair, "high")
    until("the other's program computes", lambda: last(pair, other).get("number", 0) > 5, 60)
    assert last(pair, pod)["number"] == before, "it waits"
    assert pair.used("saved")[queues.GPU] == "1"
    pair.api.delete(path_of("jobs", NAMESPACE, "high"))
    pair.api.delete(path_of("pods", NAMESPACE, other["metadata"]["name"]))
    until("its pod is restored", lambda: phase(pair, "low") == "Restored", 120)
    until("its program goes on", lambda: last(pair, pod)["number"] > before + 5, 60)
    assert last(pair, pod)["right"] is True
    now = pair.api.get(path_of("pods", NAMESPACE, pod["metadata"]["name"]))
    assert now["metadata"]["uid"] == pod["metadata"]["uid"]
    assert [one["restartCount"] for one in now["status"]["containerStatuses"]] == [0]
