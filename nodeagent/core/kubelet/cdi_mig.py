"""What a container needs of a MIG instance that is newer than the installed CDI specification.

An instance has no node of its own: a program opens its card's, and the driver lets it to the
instances whose two capability nodes (of the GPU instance and of the compute instance) it can open.
Which those are is the kernel driver's word (/proc/driver/nvidia-caps/mig-minors), and all else of a
container is the card's in the specification. Source: NVIDIA's MIG user guide, "Device nodes and
capabilities".
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
    """Where on which card a MIG device is, by NVML's numbers."""

    card: GpuUuid
    gpu_instance: int
    compute_instance: int


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The driver's capability nodes."""

    major: int
    minors: Mapping[str, int]
    """By what each lets to: gpu0/gi7/access, gpu0/gi7/ci0/access."""


def parse_minors(text: str) -> dict[str, int]:
    """Of mig-minors: `gpu0/gi7/ci0/access 67`. Other lines are of other things."""
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
    """The specifications with those of `gpus` that are instances and in none of them, beside
    their cards. `capabilities` None: this driver guards instances by no nodes. Raises ValueError
    where the driver has no nodes for one."""
    found = list(specs)
    for gpu in gpus:
        of = instances.get(gpu)
        if of is None or device_of(found, gpu, indexes) is not None:
            continue
        card = device_of(found, of.card, indexes)
        if card is None:
            continue  # whoever asks for it is told that it is not there
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
            nodes.append(node)  # those for graphics are of no use with MIG
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
