"""cuda.core: a kernel compiled by NVRTC, memory of the device's pool."""

from __future__ import annotations

from typing import Any

import numpy as np
from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch
from cuda.core._utils.cuda_utils import CUDAError
from job import KERNEL_NS, run

CODE = """
extern "C" __global__ void sim_busy_ns(unsigned long long ns, float *out) { if (out) out[threadIdx.x] = ns; }
template <typename T> __global__ void scale(T *x, T by, size_t n)
{
	size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
	if (i < n)
		x[i] *= by;
}
"""


class Core:
    kernel_ns = KERNEL_NS
    refusal = CUDAError

    def __init__(self) -> None:
        self.device = Device(0)
        self.device.set_current()
        self.stream = self.device.create_stream()
        options = ProgramOptions(std="c++17", arch=f"sm_{self.device.arch}")
        program = Program(CODE, code_type="c++", options=options)
        code = program.compile("cubin", name_expressions=("scale<float>",))
        self.kernel = code.get_kernel("sim_busy_ns")
        scale = code.get_kernel("scale<float>")
        # What the driver says of compiled code is what the compiler wrote into it.
        assert [tuple(p) for p in scale.arguments_info] == [(0, 8), (8, 4), (16, 8)]
        assert scale.attributes.binary_version == int(self.device.arch)
        assert scale.occupancy.max_active_blocks_per_multiprocessor(256, 0) == 8
        self.config = LaunchConfig(grid=64, block=256)

    def memory(self) -> tuple[int, int]:
        from cuda.bindings import driver

        _, free, total = driver.cuMemGetInfo()
        return int(free), int(total)

    def take(self, size: int) -> Any:
        return self.device.allocate(size, stream=self.stream)

    def give(self, memory: Any) -> None:
        memory.close()
        self.stream.sync()

    def launch(self) -> None:
        launch(self.stream, self.config, self.kernel, np.uint64(KERNEL_NS), np.intp(0))

    def wait(self) -> None:
        self.stream.sync()


run(Core())
