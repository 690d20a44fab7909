"""numba-cuda: Python compiled by NVVM to a kernel of its own, arrays on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
from job import BLOCKS_2MS, OTHER_NS, run
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError


@cuda.jit
def axpy(result: Any, a: Any, x: Any, y: Any) -> None:
    i = cuda.grid(1)
    if i < result.size:
        result[i] = a * x[i] + y[i]


class Numba:
    kernel_ns = OTHER_NS
    refusal = CudaAPIError

    def __init__(self) -> None:
        ones = np.ones(1 << 16, np.float32)
        self.x, self.y = cuda.to_device(ones), cuda.to_device(ones)
        self.result = cuda.device_array(1 << 16, np.float32)
        self.launch()
        cuda.synchronize()
        (registers,) = axpy.get_regs_per_thread().values()
        assert 0 < registers < 32, "as compiled, not a guess"
        assert self.x.copy_to_host()[-1] == 1

    def memory(self) -> tuple[int, int]:
        free, total = cuda.current_context().get_memory_info()
        return int(free), int(total)

    def take(self, size: int) -> Any:
        return cuda.device_array(size, np.uint8)

    def give(self, memory: Any) -> None:
        del memory
        cuda.current_context().deallocations.clear()

    def launch(self) -> None:
        axpy[BLOCKS_2MS, 256](self.result, np.float32(2), self.x, self.y)

    def wait(self) -> None:
        cuda.synchronize()
        cuda.current_context().deallocations.clear()


run(Numba())
