"""A driver-API program whose access to the driver is not ours: NVIDIA's own Python bindings, which dlopen
libcuda.so.1 and resolve every function through cuGetProcAddress. Allocates 1 GiB at a time until the driver says no,
then keeps the GPU busy; prints what it got as one JSON object.
"""

import json
import sys
import time

import numpy as np
from cuda.bindings import driver

GIB = 2**30


def check(answer):
    if answer[0] != driver.CUresult.CUDA_SUCCESS:
        raise SystemExit(f"foreign: {answer[0].name}")
    return answer[1] if len(answer) == 2 else answer[1:]


def main() -> None:
    kernel_ns, seconds = int(sys.argv[1]), float(sys.argv[2])
    driver.cuInit(0) == (driver.CUresult.CUDA_SUCCESS,) or sys.exit("foreign: cuInit failed")
    device = check(driver.cuDeviceGet(0))
    context = check(driver.cuDevicePrimaryCtxRetain(device))
    driver.cuCtxSetCurrent(context)
    free_bytes, total_bytes = check(driver.cuMemGetInfo())

    held = 0
    while True:
        result, _ = driver.cuMemAlloc(GIB)
        if result != driver.CUresult.CUDA_SUCCESS:
            refused = result.name
            break
        held += 1

    module = check(driver.cuModuleLoadData(b"image\0"))
    kernel = check(driver.cuModuleGetFunction(module, b"sim_busy_ns"))
    duration = np.array([kernel_ns], dtype=np.uint64)
    params = np.array([duration.ctypes.data], dtype=np.uint64)
    stream = check(driver.cuStreamCreate(0))

    def launch() -> None:
        (result,) = driver.cuLaunchKernel(
            kernel, 64, 1, 1, 256, 1, 1, 0, stream, params.ctypes.data, 0
        )
        if result != driver.CUresult.CUDA_SUCCESS:
            raise SystemExit(f"foreign: {result.name}")

    warm_end = time.monotonic() + 1
    while time.monotonic() < warm_end:
        launch()
    driver.cuStreamSynchronize(stream)
    began, launches = time.monotonic(), 0
    while time.monotonic() < began + seconds:
        launch()
        launches += 1
    driver.cuStreamSynchronize(stream)
    wall = time.monotonic() - began
    print(
        json.dumps(
            {
                "total_bytes": total_bytes,
                "free_bytes": free_bytes,
                "held_gib": held,
                "refused": refused,
                "share_ratio": launches * kernel_ns / 1e9 / wall,
            }
        )
    )


main()
