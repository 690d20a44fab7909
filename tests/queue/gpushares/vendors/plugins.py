"""A vendor's device plugin, as far as its protocol goes: it registers what a node has, and reads back what a pod was given.

Each is what that vendor's own writes and reads, in its own form; none of it goes through the reader that is tested.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Annotations = dict[str, str]
NODE = "gpu-1"


@dataclass(frozen=True)
class Simulated:
    """One vendor's plugin beside one pod of its user."""

    word: str
    limits: dict[str, Any]
    """Limits of the pod's one container."""
    annotations: Annotations = field(default_factory=dict)
    """Annotations that the plugin writes on the node."""
    capacity: dict[str, str] = field(default_factory=dict)
    """Capacity that the plugin reports to the kubelet."""
    labels: dict[str, str] = field(default_factory=dict)
    reads: Callable[[Annotations], Any] = lambda _: None
    """Function that reads a pod's annotations as the plugin does when it starts the container."""
    gets: Any = None
    fills: int = 0
    """So many such pods fill the node."""
    quota: dict[str, int] = field(default_factory=dict)
    """Quota that one such pod counts for."""

    def node(self) -> dict[str, Any]:
        head = {"name": NODE, "annotations": self.annotations, "labels": self.labels}
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": head,
            "status": {"capacity": {"cpu": "64", **self.capacity}},
        }

    def pod(self, name: str = "user", **annotations: str) -> dict[str, Any]:
        container = {"name": "main", "image": "none", "resources": {"limits": dict(self.limits)}}
        head = {"name": name, "namespace": "default", "annotations": annotations}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": head,
            "spec": {"containers": [container]},
        }


def in_json(devices: int, prefix: str, **fields: Any) -> str:
    return json.dumps(
        [{"id": f"{prefix}-{i}", "index": i, "health": True, **fields} for i in range(devices)]
    )


def in_text(count: int, prefix: str, slots: int, memory: int, cores: int, kind: str) -> str:
    return "".join(
        f"{prefix}-{i},{slots},{memory},{cores},{kind},0,true,{i},hami-core:" for i in range(count)
    )


def allocated(key: str) -> Callable[[Annotations], Any]:
    """The first container's devices, memory and cores, as any plugin of HAMi's parses them."""

    def read(annotations: Annotations) -> Any:
        first = annotations[key].split(";")[0]
        return [tuple(one.split(",")) for one in first.split(":") if one]

    return read


def _enflame(annotations: Annotations) -> Any:
    assigned = json.loads(annotations["assigned-containers"])["main"]
    return (annotations["enflame.com/gcu-assigned-minor"], assigned["profileName"], assigned["profileID"])  # fmt: skip


PLUGINS = (
    Simulated(
        "Ascend910B3",
        {"huawei.com/Ascend910B3": 1, "huawei.com/Ascend910B3-memory": 16384},
        {
            "hami.io/node-register-Ascend910B3": in_json(
                2, "Ascend910B3", count=4, devmem=65536, devcore=20, type="Ascend910B3"
            )
        },
        reads=lambda given: json.loads(given["huawei.com/Ascend910B3"]),
        gets=[{"UUID": "Ascend910B3-0", "temp": "vir05_1c_16g"}],
        fills=8,
        quota={"huawei.com/Ascend910B3-memory": 16384, "huawei.com/Ascend910B3-core": 0},
    ),
    Simulated(
        "Ascend910A",
        {"huawei.com/Ascend910A": 1},
        {
            "hami.io/node-register-Ascend910A": in_json(
                2, "Ascend910A", count=7, devmem=32768, devcore=30, type="Ascend910A"
            )
        },
        reads=lambda given: json.loads(given["huawei.com/Ascend910A"]),
        gets=[{"UUID": "Ascend910A-0"}],
        fills=2,
    ),
    Simulated(
        "MLU",
        {
            "cambricon.com/vmlu": 1,
            "cambricon.com/mlu.smlu.vmemory": 20,
            "cambricon.com/mlu.smlu.vcore": 50,
        },
        capacity={"cambricon.com/mlu.smlu.vcore": "200", "cambricon.com/mlu.smlu.vmemory": "96"},
        reads=lambda given: given["CAMBRICON_DSMLU_PROFILE"],
        gets="0_50_20",
        fills=4,
        quota={"cambricon.com/mlu.smlu.vmemory": 20, "cambricon.com/mlu.smlu.vcore": 50},
    ),
    Simulated(
        "DCU",
        {"hygon.com/dcunum": 1, "hygon.com/dcumem": 16000, "hygon.com/dcucores": 30},
        {"hami.io/node-dcu-register": in_text(2, "DCU", 4, 65520, 100, "DCU-Z100")},
        reads=allocated("hami.io/dcu-devices-to-allocate"),
        gets=[("DCU-0", "DCU", "16000", "30")],
        fills=6,
        quota={"hygon.com/dcumem": 16000, "hygon.com/dcucores": 30},
    ),
    Simulated(
        "BI-V150",
        {
            "iluvatar.ai/BI-V150-vgpu": 1,
            "iluvatar.ai/BI-V150.vMem": 64,
            "iluvatar.ai/BI-V150.vCore": 50,
        },
        {"hami.io/node-BI-V150-register": in_text(1, "GPU-bi", 10, 32768, 100, "BI-V150")},
        reads=allocated("hami.io/BI-V150-devices-to-allocate"),
        gets=[("GPU-bi-0", "BI-V150", "16384", "50")],
        fills=2,
        quota={"iluvatar.ai/BI-V150.vMem": 64, "iluvatar.ai/BI-V150.vCore": 50},
    ),
    Simulated(
        "Mthreads",
        {"mthreads.com/vgpu": 1, "mthreads.com/sgpu-memory": 32, "mthreads.com/sgpu-core": 8},
        capacity={"mthreads.com/sgpu-core": "32", "mthreads.com/sgpu-memory": "192"},
        reads=lambda given: (given["mthreads.com/gpu-index"], given["mthreads.com/predicate-node"]),
        gets=("0", NODE),
        fills=4,
        quota={"mthreads.com/sgpu-memory": 32, "mthreads.com/sgpu-core": 8},
    ),
    Simulated(
        "Metax-GPU",
        {"metax-tech.com/gpu": 2},
        capacity={"metax-tech.com/gpu": "4"},
        reads=allocated("hami.io/metax-gpu-devices-allocated"),
        gets=[
            (f"{NODE}-metax-0", "Metax-GPU", "65536", "100"),
            (f"{NODE}-metax-1", "Metax-GPU", "65536", "100"),
        ],
        fills=2,
    ),
    Simulated(
        "Metax-SGPU",
        {"metax-tech.com/sgpu": 1, "metax-tech.com/vmemory": 16, "metax-tech.com/vcore": 25},
        {
            "metax-tech.com/node-gpu-devices": json.dumps(
                [
                    {
                        "uuid": f"GPU-mx-{i}",
                        "model": "C500",
                        "totalDevCount": 16,
                        "totalCompute": 100,
                        "totalVRam": 65536,
                        "healthy": True,
                        "linkZone": 1,
                    }
                    for i in range(2)
                ]
            )
        },
        reads=lambda given: json.loads(given["metax-tech.com/gpu-devices-allocated"]),
        gets=[[{"uuid": "GPU-mx-0", "compute": 25, "vRam": 16384}]],
        fills=8,
        quota={"metax-tech.com/vmemory": 16, "metax-tech.com/vcore": 25},
    ),
    Simulated(
        "GCU",
        {"enflame.com/gcu": 1},
        capacity={"enflame.com/gcu": "2"},
        reads=allocated("hami.io/enflame-gcu-devices-to-allocate"),
        gets=[(f"{NODE}-GCU-0", "GCU", "100", "100")],
        fills=2,
    ),
    Simulated(
        "Enflame",
        {"enflame.com/drs-gcu": 3},
        {
            "enflame.com/gcu-drs-capacity": json.dumps(
                {
                    "devices": [{"index": "0", "minor": "5", "capacity": 6}],
                    "profiles": {"1g.6gb": "0", "3g.20gb": "1", "6g.40gb": "2"},
                }
            )
        },
        reads=_enflame,
        gets=("5", "3g.20gb", "1"),
        fills=2,
    ),
    Simulated(
        "Enflame-vGCU",
        {"enflame.com/vgcu": 1, "enflame.com/vgcu-percentage": 40},
        capacity={"enflame.com/gcu-count": "1", "enflame.com/shared-gcu": "6"},
        reads=lambda given: given["enflame.com/gcu-assigned-id"],
        gets="0",
        fills=2,
    ),
    Simulated(
        "kunlun",
        {"kunlunxin.com/xpu": 4},
        capacity={"kunlunxin.com/xpu": "8"},
        reads=lambda given: given["BAIDU_COM_DEVICE_IDX"],
        gets="0,1,2,3",
        fills=2,
    ),
    Simulated(
        "XPU",
        {"kunlunxin.com/vxpu": 1, "kunlunxin.com/vxpu-memory": 20000},
        {
            "hami.io/node-register-xpu": in_json(
                8, "XPU", count=4, devmem=98304, devcore=100, type="P800"
            )
        },
        reads=allocated("hami.io/xpu-devices-to-allocate"),
        gets=[("XPU-0", "XPU", "24576", "25")],
        fills=32,
        quota={"kunlunxin.com/vxpu-memory": 24576},
    ),
    Simulated(
        "AMD",
        {"amd.com/gpu": 1, "amd.com/gpumem": 65536, "amd.com/gpucores": 50},
        {
            "hami.io/node-amd-register": in_json(
                1, "AMD", count=10, devmem=196608, devcore=304, type="MI300X"
            )
        },
        reads=allocated("hami.io/amd-devices-to-allocate"),
        gets=[("AMD-0", "MI300X", "65536", "152")],
        fills=2,
        quota={"amd.com/gpumem": 65536, "amd.com/gpucores": 50},
    ),
    Simulated(
        "AWSNeuron",
        {"aws.amazon.com/neuroncore": 1},
        capacity={"aws.amazon.com/neuron": "2", "aws.amazon.com/neuroncore": "4"},
        labels={"node.kubernetes.io/instance-type": "inf2.24xlarge"},
        reads=lambda given: (given["AWS_NEURON_IDS"], given["NEURON_RESOURCE_TYPE"]),
        gets=("0", "aws.amazon.com/neuroncore"),
        fills=4,
        quota={"aws.amazon.com/neuroncore": 1},
    ),
    Simulated(
        "Vastai",
        {"vastaitech.com/va": 2},
        {
            "hami.io/node-va-register": in_json(
                4,
                "va",
                count=1,
                devmem=32768,
                type="VA16",
                custominfo={"DeviceStrategy": "die", "AIC": "card-0"},
            )
        },
        reads=allocated("hami.io/Vastai-devices-to-allocate"),
        gets=[("va-0", "Vastai", "0", "0"), ("va-1", "Vastai", "0", "0")],
        fills=2,
    ),
    Simulated(
        "Biren",
        {"birentech.com/gpu": 1},
        {"hami.io/node-biren-register": in_json(2, "BR", count=1, devmem=65536, type="BR104")},
        reads=allocated("hami.io/Biren-devices-to-allocate"),
        gets=[("BR-0", "Biren", "0", "0")],
        fills=2,
    ),
)
