"""The GPUs of a node as devices of its ResourceSlices, in the form of `resource.k8s.io/v1`.

A card is one device that many claims may share: memory in steps of a MiB, cores in percent of its
time, and as many slots as grants may be on it. The scheduler adds the shares up; what others hold
here (programs of the host, queued work) is not offered. A MIG instance, and a card on a node in
exclusive mode, is for one claim at a time.

Device names contain UUIDs, because an index may be another card's after a reboot and an allocation
outlives it. Attributes appear under our own names and again under those of NVIDIA's driver, which
existing selectors use.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from nodeagent.core.dra.partitions import Partition, consumed
from nodeagent.core.gpus.health import Health
from nodeagent.core.grants.placement import Load
from nodeagent.ports.dra.claims import DRIVER
from nodeagent.ports.mig import MigProfile
from nodeagent.units import MIB, WHOLE_PPM, GpuUuid

NVIDIA: Final = "gpu.nvidia.com"
STANDARD: Final = "resource.kubernetes.io"
TAINT: Final = f"{DRIVER}/health"
LONGEST_TEXT: Final = 64
"""Longest value of an attribute (DeviceAttributeMaxValueLength)."""
_NOT_SCHEDULED: Final = frozenset({Health.RECOVERING})
_EVICTED: Final = frozenset({Health.UNHEALTHY, Health.LOST})

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DeviceRules:
    whole: bool = False
    """True if each card is allocated whole, to one claim (kubelet.mode exclusive)."""
    default_memory_mib: int = 0
    """Memory of a claim that requests none; 0: all of the GPU's."""
    default_cores_percent: int = 0
    evict: bool = True
    """True if an unhealthy GPU evicts its pods (NoExecute); False if it only accepts no new
    ones."""


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """The known facts of one GPU or one MIG instance."""

    uuid: GpuUuid
    index: int
    name: str
    memory_bytes: int
    """Memory available to all claims together, see GpuCapacity."""
    largest_bytes: int
    """Memory available to one claim."""
    slots: int
    health: Health = Health.HEALTHY
    withheld: bool = False
    """True while the GPU is being repartitioned, so nothing of it may be allocated."""
    cordoned: bool = False
    """True if it gets no new pods, by the Node's annotation."""
    others: Load = field(default_factory=Load)
    """Load from grants that do not belong to claims."""
    mig_profile: str = ""
    card: GpuUuid | None = None
    """The card of a MIG instance."""
    driver_version: str | None = None
    cuda_version: str | None = None
    """CUDA version of the driver, such as 13.0."""
    architecture: str | None = None
    brand: str | None = None
    compute_capability: str | None = None
    """Such as 9.0."""
    pci_bus_id: str | None = None
    pcie_root: str | None = None
    numa_node: int | None = None


def device_name(uuid: GpuUuid) -> str:
    """Device name such as gpu-… or mig-…, a DNS label."""
    return uuid.lower()


def partition_device(
    facts: DeviceFacts, rules: DeviceRules, partition: Partition, profile: MigProfile
) -> Document:
    """Device of a MIG instance that is created when a claim is prepared.

    `facts` are those of its card, with the name, profile and memory of the instance.
    """
    document: dict[str, Any] = {
        "name": partition.name,
        "attributes": {
            **_attributes(facts),
            "placement": {"string": str(partition.place.span)},
        },
        "capacity": {"memory": {"value": mib(profile.memory_bytes)}},
        "consumesCounters": consumed(partition, profile),
    }
    taints = _taints(facts, rules)
    if taints:
        document["taints"] = taints
    return document


def device(facts: DeviceFacts, rules: DeviceRules) -> Document | None:
    """The device of a GPU; None if nothing of it can be allocated to a claim."""
    if facts.others.closed:
        return None
    document: dict[str, Any] = {
        "name": device_name(facts.uuid),
        "attributes": _attributes(facts),
    }
    taints = _taints(facts, rules)
    if taints:
        document["taints"] = taints
    if facts.mig_profile or rules.whole:
        if facts.others.grants:
            return None
        document["capacity"] = {"memory": {"value": mib(facts.largest_bytes)}}
        return document
    memory = (facts.memory_bytes - facts.others.memory_bytes) // MIB
    cores = 100 - -(-facts.others.hard_ppm * 100 // WHOLE_PPM)
    slots = facts.slots - facts.others.grants
    if memory < 1 or cores < 0 or slots < 1:
        return None
    most = min(memory, facts.largest_bytes // MIB)
    default = min(most, rules.default_memory_mib or most)
    document["allowMultipleAllocations"] = True
    document["capacity"] = {
        "memory": {
            "value": _mib(memory),
            "requestPolicy": {
                "default": _mib(default),
                "validRange": {"min": "1Mi", "max": _mib(most), "step": "1Mi"},
            },
        },
        "cores": {
            "value": str(cores),
            "requestPolicy": {
                "default": str(min(cores, rules.default_cores_percent)),
                "validRange": {"min": "0", "max": str(cores), "step": "1"},
            },
        },
        "slots": {
            "value": str(slots),
            "requestPolicy": {"default": "1", "validValues": ["1"]},
        },
    }
    if cores == 0:  # The API server refuses a step that is larger than the range.
        document["capacity"]["cores"]["requestPolicy"] = {"default": "0", "validValues": ["0"]}
    if memory == 1:
        policy = {"default": "1Mi", "validValues": ["1Mi"]}
        document["capacity"]["memory"]["requestPolicy"] = policy
    return document


def _attributes(facts: DeviceFacts) -> dict[str, Any]:
    kind = "mig" if facts.mig_profile else "gpu"
    texts = {
        "type": kind,
        "uuid": facts.uuid,
        "productName": facts.name,
        "architecture": facts.architecture,
        "brand": facts.brand,
    }
    if facts.mig_profile:
        texts |= {"profile": facts.mig_profile, "parentUUID": facts.card}
    versions = {
        "driverVersion": facts.driver_version,
        "cudaDriverVersion": facts.cuda_version,
        "cudaComputeCapability": facts.compute_capability,
    }
    both: dict[str, Any] = {
        name: {"string": value[:LONGEST_TEXT]} for name, value in texts.items() if value
    }
    both |= {
        name: {"version": version}
        for name, value in versions.items()
        if value and (version := semantic(value)) is not None
    }
    found = {**both, **{f"{NVIDIA}/{name}": value for name, value in both.items()}}
    found["index"] = {"int": facts.index}
    found["health"] = {"string": facts.health.value}
    if facts.pci_bus_id:
        found[f"{STANDARD}/pciBusID"] = {"string": pci_address(facts.pci_bus_id)}
    if facts.pcie_root:
        found[f"{STANDARD}/pcieRoot"] = {"string": facts.pcie_root[:LONGEST_TEXT]}
    if facts.numa_node is not None and facts.numa_node >= 0:
        found[f"{STANDARD}/numaNode"] = {"int": facts.numa_node}
    return found


def _taints(facts: DeviceFacts, rules: DeviceRules) -> list[Document]:
    if facts.health in _EVICTED:
        effect = "NoExecute" if rules.evict else "NoSchedule"
        return [{"key": TAINT, "value": facts.health.value, "effect": effect}]
    if facts.health in _NOT_SCHEDULED:
        return [{"key": TAINT, "value": facts.health.value, "effect": "NoSchedule"}]
    if facts.withheld:
        return [{"key": TAINT, "value": "withheld", "effect": "NoSchedule"}]
    if facts.cordoned:
        return [{"key": TAINT, "value": "cordoned", "effect": "NoSchedule"}]
    return []


def semantic(text: str) -> str | None:
    """Normalise a driver version: 580.65.06 becomes the semantic version 580.65.6. None if it is
    not a version."""
    parts = re.match(r"(\d+)(?:\.(\d+))?(?:\.(\d+))?", text)
    if parts is None:
        return None
    return ".".join(str(int(part or 0)) for part in parts.groups())


def pci_address(bus_id: str) -> str:
    """Convert NVML's 00000000:65:00.0 to the kernel's 0000:65:00.0."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def mib(amount_bytes: int) -> str:
    return _mib(amount_bytes // MIB)


def _mib(amount: int) -> str:
    """Format MiB as the API server normalises them."""
    for unit, size in (("Ti", 1 << 20), ("Gi", 1 << 10)):
        if amount and amount % size == 0:
            return f"{amount // size}{unit}"
    return f"{amount}Mi"
