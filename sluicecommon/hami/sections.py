"""HAMi's device-config.yaml and config.json: their sections, keys and words (v2.10)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

VENDORS: Final[Mapping[str, str]] = {
    "amd": "AMD GPUs",
    "ascend": "Huawei Ascend",
    "awsneuron": "AWS Neuron",
    "biren": "Biren",
    "cambricon": "Cambricon",
    "enflame": "Enflame",
    "hygon": "Hygon DCU",
    "iluvatar": "Iluvatar",
    "iluvatars": "Iluvatar",
    "kunlun": "Kunlunxin",
    "kunlunxin": "Kunlunxin",
    "metax": "MetaX",
    "mthreads": "Moore Threads",
    "others": "Other accelerators",
    "vastai": "Vastai",
    "vnpus": "Huawei Ascend",
}
"""Sections of device-config.yaml that are not NVIDIA's."""

# -- section `nvidia`, and a node's entry in config.json ------------------------------------------

NVIDIA_KEYS: Final = (
    "resourceCountName",
    "resourceMemoryName",
    "resourceMemoryPercentageName",
    "resourceCoreName",
    "resourcePriorityName",
    "defaultMem",  # This is the chart's spelling.
    "defaultMemory",  # This is the code's spelling.
    "defaultCores",
    "defaultGPUNum",
    "memoryFactor",
    "deviceSplitCount",
    "deviceMemoryScaling",
    "deviceCoreScaling",
    "disableCoreLimit",
    "enableNumaTopology",
    "gpuCorePolicy",
    "knownMigGeometries",
    "libCudaLogLevel",
    "migProfileAllowlist",
    "overwriteEnv",
    "preConfiguredDeviceMemory",
    "runtimeClassName",
)
"""The node applies some of them and the queue others; both know all."""
CORE_POLICIES: Final = ("default", "force", "disable")
"""Values of gpuCorePolicy."""
NODE_KEYS: Final = (
    "devicecorescaling",
    "devicememoryscaling",
    "devicesplitcount",
    "enablegetpreferredallocation",
    "enablenumatopology",
    "filterdevices",
    "libcudaloglevel",
    "migstrategy",
    "operatingmode",
    "preconfigureddevicememory",
)
"""Keys of an entry of `nodeconfig` besides its name, in lower case: Go reads them in any case."""

# -- sections of other vendors --------------------------------------------------------------------

USUAL_KEYS: Final = {
    "resourceCountName": "count",
    "resourceMemoryName": "memory",
    "resourceCoreName": "cores",
}
SECTION_KEYS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "cambricon": {key: ("MLU", name) for key, name in USUAL_KEYS.items()},
    "hygon": {key: ("DCU", name) for key, name in USUAL_KEYS.items()},
    "mthreads": {key: ("Mthreads", name) for key, name in USUAL_KEYS.items()},
    "amd": {key: ("AMD", name) for key, name in USUAL_KEYS.items()},
    "vastai": {"resourceCountName": ("Vastai", "count")},
    "biren": {"resourceCountName": ("Biren", "count")},
    "awsneuron": {
        "resourceCountName": ("AWSNeuron", "count"),
        "resourceCoreName": ("AWSNeuron", "cores"),
    },
    "metax": {
        "resourceCountName": ("Metax-GPU", "count"),
        "resourceVCountName": ("Metax-SGPU", "count"),
        "resourceVMemoryName": ("Metax-SGPU", "memory"),
        "resourceVCoreName": ("Metax-SGPU", "cores"),
    },
    "enflame": {
        "resourceNameGCU": ("GCU", "count"),
        "resourceNameDRSGCU": ("Enflame", "count"),
        "resourceNameGCUMemory": ("Enflame", "memory"),
        "resourceNameGCUCore": ("Enflame", "cores"),
        "resourceNameVGCU": ("Enflame-vGCU", "count"),
        "resourceNameVGCUPercentage": ("Enflame-vGCU", "percent"),
    },
    "kunlun": {
        "resourceCountName": ("kunlun", "count"),
        "resourceVCountName": ("XPU", "count"),
        "resourceVMemoryName": ("XPU", "memory"),
    },
}
"""The field of a vendor's row that each key names, as (name in allocations, field), by section."""
SECTION_ALIASES: Final = {"kunlunxin": "kunlun"}
OLD_SECTION_KEYS: Final[Mapping[str, Mapping[str, str]]] = {
    "metax": {
        "resourceCountName": "resourceVCountName",
        "resourceMemoryName": "resourceVMemoryName",
        "resourceCoreName": "resourceVCoreName",
    },
    "enflame": {
        "resourceCountName": "resourceNameVGCU",
        "resourceMemoryPercentageName": "resourceNameVGCUPercentage",
        "resourcePercentageName": "resourceNameVGCUPercentage",
    },
}
"""Keys from before these sections had two kinds of devices, when they named the parts."""
PLUGIN_KEYS: Final = ("deviceSplitCount", "defaultMem", "defaultMemory", "defaultCores")
"""Keys of other vendors' sections that only their plugins read."""
CHIP_KEYS: Final = (
    "chipName",
    "commonWord",
    "resourceName",
    "resourceCountName",
    "resourceMemoryName",
    "resourceCoreName",
    "memoryAllocatable",
    "memoryCapacity",
    "memoryFactor",
    "aiCore",
    "aiCPU",
    "templates",
    "runtimeClassName",
    "overwriteEnv",
    "superPod",
)
"""Keys of a chip in section `vnpus`."""
VNPUS_KEYS: Final = (
    "configs",
    "hamiVnpuCore",
    "hamiVnpuMode",
    "enpuPolicy",
    "overwriteEnv",
    "runtimeClassName",
    "vnpuDeviceSplitCount",
)


def resource_names(body: object) -> list[str]:
    """All names of resources in a vendor's section, whatever its form."""
    if isinstance(body, Mapping):
        own = [
            value
            for key, value in body.items()
            if isinstance(value, str) and str(key).startswith("resource") and "/" in value
        ]
        return own + [name for value in body.values() for name in resource_names(value)]
    if isinstance(body, list):
        return [name for item in body for name in resource_names(item)]
    return []
