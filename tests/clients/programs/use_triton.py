"""Triton without PyTorch: its compiler and assembler make a real cubin, its own utilities load and launch it. Which device
and stream are current it asks PyTorch for, and here the program."""

from __future__ import annotations

from typing import Any

import triton
from cuda.bindings import driver as cuda
from job import KERNEL_NS, run
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import CudaDriver, CudaLauncher, CudaUtils
from triton.compiler import ASTSource


@triton.jit
def sim_busy_ns(ns):
    pass


class Refused(Exception):
    """An error of cuMemAlloc; Triton allocates nothing itself."""


def done(answer: tuple[Any, ...]) -> Any:
    if answer[0] == cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
        raise Refused(answer[0].name)
    if answer[0] != cuda.CUresult.CUDA_SUCCESS:
        raise SystemExit(f"cuda.bindings: {answer[0].name}")
    return answer[1] if len(answer) == 2 else answer[1:]


class Driver(CudaDriver):
    def __init__(self) -> None:
        self.utils = CudaUtils()
        self.launcher_cls = CudaLauncher

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


class Triton:
    kernel_ns = KERNEL_NS
    refusal = Refused

    def __init__(self) -> None:
        done(cuda.cuInit(0))
        done(cuda.cuCtxSetCurrent(done(cuda.cuDevicePrimaryCtxRetain(0))))
        driver = Driver()
        triton.runtime.driver.set_active(driver)
        assert driver.utils.get_device_properties(0)["multiprocessor_count"] == 132
        source = ASTSource(fn=sim_busy_ns, signature={"ns": "i64"})
        self.kernel = triton.compile(source, target=driver.get_current_target())
        assert len(self.kernel.asm["cubin"]) > 1000

    def memory(self) -> tuple[int, int]:
        free, total = done(cuda.cuMemGetInfo())
        return int(free), int(total)

    def take(self, size: int) -> Any:
        return done(cuda.cuMemAlloc(size))

    def give(self, memory: Any) -> None:
        done(cuda.cuMemFree(memory))

    def launch(self) -> None:
        self.kernel[(64, 1, 1)](KERNEL_NS)

    def wait(self) -> None:
        done(cuda.cuCtxSynchronize())


run(Triton())
