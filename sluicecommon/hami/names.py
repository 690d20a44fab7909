"""HAMi's names: resources, annotations and labels, modes, and the domains of other vendors.

Annotations of another vendor's devices are in that vendor's row of the queue's table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

# -- resources ------------------------------------------------------------------------------------

GPU: Final = "nvidia.com/gpu"
GPU_MEMORY: Final = "nvidia.com/gpumem"
"""MiB of each GPU."""
GPU_MEMORY_PERCENT: Final = "nvidia.com/gpumem-percentage"
GPU_CORES: Final = "nvidia.com/gpucores"
"""Percent of each GPU's time."""
PRIORITY: Final = "nvidia.com/priority"
"""0 goes before 1."""


@dataclass(frozen=True, slots=True)
class ResourceNames:
    """Names of the resources in one cluster; HAMi lets them be configured."""

    count: str = GPU
    memory: str = GPU_MEMORY
    memory_percent: str = GPU_MEMORY_PERCENT
    cores: str = GPU_CORES
    priority: str = PRIORITY
    memory_factor: int = 1
    """MiB in one unit of `memory`."""

    @property
    def resources(self) -> tuple[str, ...]:
        return (self.count, self.memory, self.memory_percent, self.cores, self.priority)

    @property
    def parts(self) -> tuple[str, ...]:
        """Memory and time of GPUs, which no node need advertise."""
        return (self.memory, self.memory_percent, self.cores)


# -- annotations of pods that select GPUs ---------------------------------------------------------

DOMAIN: Final = "hami.io"
USE_TYPE: Final = "nvidia.com/use-gputype"
NOUSE_TYPE: Final = "nvidia.com/nouse-gputype"
USE_UUID: Final = "nvidia.com/use-gpuuuid"
NOUSE_UUID: Final = "nvidia.com/nouse-gpuuuid"
USE_INDEX: Final = "nvidia.com/use-gpuindexes"
NOUSE_INDEX: Final = "nvidia.com/nouse-gpuindexes"
NUMA_BIND: Final = "nvidia.com/numa-bind"
VGPU_MODE: Final = "nvidia.com/vgpu-mode"
HAMI_CORE: Final = "hami-core"
"""A mode: parts of GPUs, whose limits a library in the container keeps."""
MIG: Final = "mig"
MPS: Final = "mps"
MODES: Final = (HAMI_CORE, MIG, MPS)
NODE_POLICY: Final = "hami.io/node-scheduler-policy"
GPU_POLICY: Final = "hami.io/gpu-scheduler-policy"
WEIGHTS: Final = "hami.io/device-scoring-weights"
"""Weights for how full a device is: `slot=1,core=1,memory=3`."""

CHOOSING: Final = (
    USE_TYPE,
    NOUSE_TYPE,
    USE_UUID,
    NOUSE_UUID,
    USE_INDEX,
    NOUSE_INDEX,
    NUMA_BIND,
    NODE_POLICY,
    GPU_POLICY,
    VGPU_MODE,
    WEIGHTS,
)
"""Annotations by which a scheduler chooses node and GPUs; a node alone cannot."""

# -- annotations of pods that record an allocation ------------------------------------------------

NODE: Final = "hami.io/vgpu-node"
TIME: Final = "hami.io/vgpu-time"
"""Unix time in seconds, as is BIND_TIME."""
BIND_PHASE: Final = "hami.io/bind-phase"
BIND_TIME: Final = "hami.io/bind-time"
ALLOCATING: Final = "allocating"
"""A bind phase, as is BOUND."""
BOUND: Final = "success"
TO_ALLOCATE: Final = "hami.io/vgpu-devices-to-allocate"
ALLOCATED: Final = "hami.io/vgpu-devices-allocated"
MIG_ALLOCATIONS: Final = "hami.io/vgpu-mig-allocations"

# -- annotations of nodes -------------------------------------------------------------------------

REGISTER: Final = "hami.io/node-nvidia-register"
SCORE: Final = "hami.io/node-nvidia-score"
HANDSHAKE: Final = "hami.io/node-handshake"
CORDON: Final = "hami.io/device-cordon"
"""Devices that get no new pods."""
NVIDIA: Final = "NVIDIA"
"""NVIDIA's cards in an allocation."""

# -- admission and scheduling ---------------------------------------------------------------------

SCHEDULER: Final = "hami-scheduler"
OPT_OUT: Final = "hami.io/webhook"
"""Label of a pod or namespace that the webhook leaves alone; its value is IGNORE."""
IGNORE: Final = "ignore"

# -- other vendors --------------------------------------------------------------------------------

VENDOR_DOMAINS: Final[Mapping[str, str]] = {
    "amd.com": "AMD GPUs",
    "aws.amazon.com": "AWS Neuron",
    "birentech.com": "Biren",
    "cambricon.com": "Cambricon",
    "enflame.com": "Enflame",
    "huawei.com": "Huawei Ascend",
    "hygon.com": "Hygon DCU",
    "iluvatar.ai": "Iluvatar",
    "kunlunxin.com": "Kunlunxin",
    "metax-tech.com": "MetaX",
    "mthreads.com": "Moore Threads",
    "vastaitech.com": "Vastai",
}
"""Vendors by the domain of their resources."""


def devices_to_allocate(word: str) -> str:
    """The usual name of the annotation that a vendor's plugin consumes."""
    return f"hami.io/{word}-devices-to-allocate"


def devices_allocated(word: str) -> str:
    return f"hami.io/{word}-devices-allocated"


def node_register(word: str) -> str:
    """The usual name of the annotation in which a vendor's plugin registers a node's devices."""
    return f"hami.io/node-{word}-register"


def node_handshake(word: str) -> str:
    return f"hami.io/node-handshake-{word}"


def use_uuid(word: str) -> str:
    return f"hami.io/use-{word}-uuid"


def no_use_uuid(word: str) -> str:
    return f"hami.io/no-use-{word}-uuid"
