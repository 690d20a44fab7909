"""The users' manifests: pods that ask for shares of a GPU, by HAMi's resources."""

from __future__ import annotations

from typing import Any

NAMESPACE = "default"
JOB = "exec sluice-sim-job --seconds 3600 --report 0.5"
"""Keeps its GPU as busy as its share lets it, and says twice a second how much that was."""
READ = """
import ctypes, json, os, time
cuda, nvml = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1")
def ok(result):
    assert result == 0, result
ok(cuda.cuInit(0)); ok(nvml.nvmlInit_v2())
count, context = ctypes.c_int(), ctypes.c_void_p()
ok(cuda.cuDeviceGetCount(ctypes.byref(count)))
ok(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)); ok(cuda.cuCtxSetCurrent(context))
free, total = ctypes.c_size_t(), ctypes.c_size_t()
ok(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
cards, device = ctypes.c_uint(), ctypes.c_void_p()
ok(nvml.nvmlDeviceGetCount_v2(ctypes.byref(cards)))
ok(nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)))
memory = (ctypes.c_ulonglong * 3)()
ok(nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)))
uuid = ctypes.create_string_buffer(96)
ok(nvml.nvmlDeviceGetUUID(device, uuid, 96))
name, pointer, taken, step = uuid.value.decode(), ctypes.c_uint64(), 0, 64 << 20
while cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(step)) == 0:
    taken += step
print(json.dumps({"at_s": time.time(), "gpus": count.value, "cards": cards.value, "uuid": name,
    "total_mib": total.value >> 20, "nvml_total_mib": memory[0] >> 20, "taken_mib": taken >> 20}))
"""
"""How many GPUs and how much memory a program is shown, and how much it can take in steps of 64 MiB."""


def gpu_pod(
    name: str,
    image: str,
    *,
    gpus: int = 1,
    memory_mib: int | None = 4000,
    cores: int | None = 10,
    command: str = JOB,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    restart: str = "Never",
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": labels or {},
            "annotations": annotations or {},
        },
        "spec": {
            "restartPolicy": restart,
            "terminationGracePeriodSeconds": 1,
            "containers": [container("main", image, command, gpus, memory_mib, cores)],
        },
    }


def container(
    name: str,
    image: str,
    command: str,
    gpus: int = 1,
    memory_mib: int | None = None,
    cores: int | None = None,
) -> dict[str, Any]:
    limits: dict[str, int] = {}
    if gpus:
        limits["nvidia.com/gpu"] = gpus
    if memory_mib is not None:
        limits["nvidia.com/gpumem"] = memory_mib
    if cores is not None:
        limits["nvidia.com/gpucores"] = cores
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/bash", "-c", command],
        "resources": {"limits": limits},
    }


def owned(
    kind: str, name: str, pod: dict[str, Any], count: int = 1, **metadata: Any
) -> dict[str, Any]:
    """A Job, Deployment or StatefulSet that makes pods like this one."""
    labels = {"app": name, **pod["metadata"]["labels"]}
    template = {"metadata": {"labels": labels}, "spec": dict(pod["spec"])}
    head = {"metadata": {"name": name, "namespace": NAMESPACE, **metadata}, "kind": kind}
    if kind == "Job":
        spec = {"completions": count, "parallelism": count, "backoffLimit": 0, "template": template}
        return {"apiVersion": "batch/v1", **head, "spec": spec}
    template["spec"]["restartPolicy"] = "Always"
    spec = {"replicas": count, "selector": {"matchLabels": {"app": name}}, "template": template}
    if kind == "StatefulSet":
        spec |= {"serviceName": name, "podManagementPolicy": "Parallel"}
    return {"apiVersion": "apps/v1", **head, "spec": spec}
