"""PyCUDA: a module from PTX, contexts of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pycuda.driver as cuda
from job import KERNEL_NS, run

PTX = b""".version 8.0
.target sm_80
.address_size 64
.global .align 4 .b8 counter[16];
.visible .entry sim_busy_ns(.param .u64 ns) { ret; }
"""


class PyCuda:
    kernel_ns = KERNEL_NS
    refusal = cuda.MemoryError

    def __init__(self) -> None:
        cuda.init()
        self.context = cuda.Device(0).make_context()
        self.module = cuda.module_from_buffer(PTX)
        self.kernel = self.module.get_function("sim_busy_ns")
        assert self.module.get_global("counter")[1] == 16
        assert self.kernel.num_regs > 0

    def memory(self) -> tuple[int, int]:
        free, total = cuda.mem_get_info()
        return int(free), int(total)

    def take(self, size: int) -> Any:
        return cuda.mem_alloc(size)

    def give(self, memory: Any) -> None:
        memory.free()

    def launch(self) -> None:
        self.kernel(np.uint64(KERNEL_NS), grid=(64, 1), block=(256, 1, 1))

    def wait(self) -> None:
        self.context.synchronize()


client = PyCuda()
run(client)
client.context.pop()
