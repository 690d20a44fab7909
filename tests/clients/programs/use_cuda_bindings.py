"""cuda.bindings: NVIDIA's driver API for Python, as it is."""

from __future__ import annotations

from typing import Any

import numpy as np
from cuda.bindings import driver
from job import KERNEL_NS, run


class Refused(Exception):
    """CUDA_ERROR_OUT_OF_MEMORY, as a result and not as an exception of the library's."""


def check(answer: Any) -> Any:
    if answer[0] == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
        raise Refused(answer[0].name)
    if answer[0] != driver.CUresult.CUDA_SUCCESS:
        raise SystemExit(f"cuda.bindings: {answer[0].name}")
    return answer[1] if len(answer) == 2 else answer[1:]


class Bindings:
    kernel_ns = KERNEL_NS
    refusal = Refused

    def __init__(self) -> None:
        check(driver.cuInit(0))
        self.context = check(driver.cuDevicePrimaryCtxRetain(check(driver.cuDeviceGet(0))))
        check(driver.cuCtxSetCurrent(self.context))
        module = check(driver.cuModuleLoadData(b"an image of no kind\0"))
        self.kernel = check(driver.cuModuleGetFunction(module, b"sim_busy_ns"))
        self.duration = np.array([KERNEL_NS], dtype=np.uint64)
        self.params = np.array([self.duration.ctypes.data], dtype=np.uint64)
        self.stream = check(driver.cuStreamCreate(0))

    def memory(self) -> tuple[int, int]:
        free, total = check(driver.cuMemGetInfo())
        return int(free), int(total)

    def take(self, size: int) -> Any:
        return check(driver.cuMemAlloc(size))

    def give(self, memory: Any) -> None:
        check(driver.cuMemFree(memory))

    def launch(self) -> None:
        check(
            driver.cuLaunchKernel(
                *(self.kernel, 64, 1, 1, 256, 1, 1, 0, self.stream, self.params.ctypes.data, 0)
            )
        )

    def wait(self) -> None:
        check(driver.cuCtxSynchronize())


run(Bindings())
