"""A grant's mounts and an installed driver, for tests of what is written for the runtime."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from nodeagent.ports.containers import DriverLibrary, GivenFiles, GrantMounts
from nodeagent.units import GpuUuid, GrantId

GPU_A = GpuUuid("GPU-aaaaaaaa-0000-0000-0000-00000000000a")
GPU_B = GpuUuid("GPU-bbbbbbbb-0000-0000-0000-00000000000b")
NONCE = "0123456789abcdef0123456789abcdef"
CUDA = "/usr/lib64/libcuda.so.570.86.15"
NVML = "/usr/lib64/libnvidia-ml.so.570.86.15"
OTHER = "/usr/lib64/libnvidia-ptxjitcompiler.so.570.86.15"
LIBRARIES = {CUDA: CUDA, NVML: NVML, OTHER: OTHER}


def library(name: str, real: str, *others: str) -> DriverLibrary:
    return DriverLibrary(
        name, real, (real, *others), f"/opt/sluice/shim/{name}", f"/run/sluice/driver/{name}"
    )


FILES = GivenFiles(
    preload_path="/opt/sluice/preload/libsluice.so",
    hook_path="/opt/sluice/hook/sluice-container-hook",
    preload_list_path="/opt/sluice/preload/ld.so.preload",
    libraries=(library("libcuda.so.1", CUDA), library("libnvidia-ml.so.1", NVML)),
)


def grant(root: Path = Path("/run/sluice/grants/c1"), **changes: Any) -> GrantMounts:
    """`changes` by name, those of the files we give among them."""
    of_files = {name for name in changes if hasattr(FILES, name)}
    files = replace(FILES, **{name: changes.pop(name) for name in of_files})
    made = GrantMounts(
        grant=GrantId("11111111-2222-3333-4444-555555555555"),
        gpus=(GPU_A,),
        region_dir=str(root),
        policy_path=f"{root}/policy.shm",
        usage_path=f"{root}/usage.shm",
        socket_path=f"{root}/register.sock",
        container_dir="/run/sluice/grant",
        files=files,
        counted_gpus=(GPU_A,),
        pod_uid="7a1d0c1e-0000-4000-8000-000000000001",
        namespace="team-a",
        pod="train-0",
        container="main",
    )
    return replace(made, **changes)
