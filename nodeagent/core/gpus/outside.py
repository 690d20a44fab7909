"""Users of the GPUs that grants do not contain: graphics programs, and clients of an MPS server.

Pure; `sluice doctor` shows what is found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from nodeagent.core.grants.placement import Load
from nodeagent.core.grants.quantities import format_bytes
from nodeagent.ports.gpus import GpuReading, ProcessReading
from nodeagent.ports.views import Finding
from nodeagent.units import Bytes, GpuUuid

MPS_SERVER: Final = "nvidia-cuda-mps-server"
_COMM_CHARACTERS: Final = 15
"""The kernel keeps that many of a program's name."""
_SHOWN: Final = 5
MPS_REMEDY: Final = (
    "its clients share one context: their memory is not in NVML's figures by process, turns"
    " serialise what MPS would overlap, one client's fault ends all, and they cannot be spilled;"
    " end it (`echo quit | nvidia-cuda-mps-control`), keep grants off this node, or keep its"
    " clients in one trusted group (docs/node/trusted-groups.md)"
)
_NO_SERVER: Final = (
    "its programs have no windows, so the hardware's slices divide them; start the server in their"
    " CUDA_MPS_PIPE_DIRECTORY before them, or leave the group out"
)
_GRAPHICS_REMEDY: Final = (
    "their memory and time are in no grant; leave room with grants.memory_reserve_mib, or run"
    " graphics on another GPU"
)


def findings(
    gpus: Sequence[GpuReading],
    name_of: Callable[[int], str],
    loads: Mapping[GpuUuid, Load],
) -> list[Finding]:
    """`name_of` maps a PID to its program's name as the kernel has it; empty if unknown. `loads`:
    the grants on each GPU, by their trusted groups."""
    groups = {gpu: sorted(load.groups - {""}) for gpu, load in loads.items()}
    found = []
    servers: dict[str, list[str]] = {}
    serving: set[GpuUuid] = set()
    for gpu in gpus:
        for one in (*gpu.processes, *gpu.graphics):
            if name_of(one.pid)[:_COMM_CHARACTERS] == MPS_SERVER[:_COMM_CHARACTERS]:
                trusted = ", ".join(groups.get(gpu.uuid, ()))
                serving.add(gpu.uuid)
                servers.setdefault(trusted, []).append(f"pid {one.pid} on GPU {gpu.index}")
    if strange := servers.pop("", []):
        text = f"an MPS server runs: {', '.join(strange)}"
        found.append(Finding("mps", "warning", text, MPS_REMEDY))
    for group, pids in servers.items():
        text = f"MPS server of trusted group {group}: {', '.join(pids)}"
        found.append(Finding(f"trusted group {group}", "ok", text))
    for gpu in gpus:
        for group in groups.get(gpu.uuid, ()):
            if gpu.uuid not in serving:
                text = f"{group} is on GPU {gpu.index}, where no MPS server runs (yet)"
                found.append(Finding(f"trusted group {group}", "warning", text, _NO_SERVER))
    for gpu in gpus:
        drawing = sorted(gpu.graphics, key=lambda one: -(one.memory_bytes or 0))
        if drawing:
            total = Bytes(sum(one.memory_bytes or 0 for one in drawing))
            shown = ", ".join(_shown(one, name_of(one.pid)) for one in drawing[:_SHOWN])
            more = f" and {len(drawing) - _SHOWN} more" if len(drawing) > _SHOWN else ""
            text = (
                f"GPU {gpu.index}: {len(drawing)} graphics programs with {format_bytes(total)},"
                f" outside of all grants: {shown}{more}"
            )
            found.append(Finding(f"graphics on GPU {gpu.index}", "warning", text, _GRAPHICS_REMEDY))
    return found


def _shown(one: ProcessReading, name: str) -> str:
    memory = "?" if one.memory_bytes is None else format_bytes(one.memory_bytes)
    return f"{name or '?'} (pid {one.pid}, {memory})"
