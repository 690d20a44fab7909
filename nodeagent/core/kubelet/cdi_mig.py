"""CDI edits for MIG instances that are newer than the installed CDI specification.

An instance has no device node of its own: a program opens its card's, and the driver gives it
access to the instances whose two capability nodes (of the GPU instance and of the compute instance)
it can open. /proc/driver/nvidia-caps/mig-minors lists those nodes; everything else is the card's in
the specification. Source: NVIDIA's MIG user guide, "Device nodes and capabilities".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from nodeagent.core.kubelet.cdi_base import GENERATE, BaseSpec, Edits, device_of
from nodeagent.units import GpuUuid

_CARD_NODE: Final = re.compile(r"/dev/nvidia(\d+)")
_NODES: Final = "/dev/nvidia-caps/nvidia-cap"


@dataclass(frozen=True, slots=True)
class InstanceOf:
    """Card and instance numbers of a MIG device, as NVML numbers them."""

    card: GpuUuid
    gpu_instance: int
    compute_instance: int


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capability nodes of the driver."""

    major: int
    minors: Mapping[str, int]
    """Minor number by capability: gpu0/gi7/access, gpu0/gi7/ci0/access."""


def parse_minors(text: str) -> dict[str, int]:
    """Parse mig-minors, which has lines such as `gpu0/gi7/ci0/access 67`; lines for other
    capabilities are skipped."""
    found = {}
    for line in text.splitlines():
        name, _, minor = line.strip().rpartition(" ")
        if name.startswith("gpu") and minor.isdecimal():
            found[name] = int(minor)
    return found


def completed(
    specs: Sequence[BaseSpec],
    gpus: Sequence[GpuUuid],
    indexes: Mapping[GpuUuid, int],
    instances: Mapping[GpuUuid, InstanceOf],
    capabilities: Capabilities | None,
) -> Sequence[BaseSpec]:
    """Add the missing MIG instances among `gpus` to the specifications of their cards.

    `capabilities` is None if this driver has no capability nodes. Raises ValueError if the driver
    has none for one of the instances.
    """
    found = list(specs)
    for gpu in gpus:
        of = instances.get(gpu)
        if of is None or device_of(found, gpu, indexes) is not None:
            continue
        card = device_of(found, of.card, indexes)
        if card is None:
            continue  # The request for it fails later with the reason that it is missing.
        spec, name = card
        edits = _edits(spec.devices[name], gpu, of, capabilities)
        at = found.index(spec)
        found[at] = replace(spec, devices={**spec.devices, str(gpu): edits})
    return found


def _edits(card: Edits, gpu: GpuUuid, of: InstanceOf, capabilities: Capabilities | None) -> Edits:
    nodes: list[Mapping[str, Any]] = []
    number = None
    for node in card.get("deviceNodes") or ():
        if match := _CARD_NODE.fullmatch(str(node.get("path"))):
            nodes.append(node)  # Nodes for graphics have no use with MIG.
            number = match[1]
    if number is None:
        raise ValueError(
            f"{gpu}: the CDI specification names no node /dev/nvidiaN for its card {of.card}: run"
            f" `{GENERATE}` again"
        )
    if capabilities is not None:
        instance = f"gpu{number}/gi{of.gpu_instance}"
        for name in (f"{instance}/access", f"{instance}/ci{of.compute_instance}/access"):
            minor = capabilities.minors.get(name)
            if minor is None:
                raise ValueError(f"{gpu}: the driver has no capability {name} (mig-minors)")
            nodes.append(
                {
                    "path": f"{_NODES}{minor}",
                    "type": "c",
                    "major": capabilities.major,
                    "minor": minor,
                }
            )
    return {"deviceNodes": nodes}
