"""`sluice selftest grant`: checks that the grant around this command is as requested.

For `helm test`, and for debugging a pod: it reads the limits in the region and from the driver,
checks that an allocation over the cap is refused and one below it is not, and measures the share of
the GPU's time that it gets. It works with any driver, since its kernel is PTX.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from nodeagent.adapters.region.layout import POLICY_FILE, POLICY_MAGIC, Policy
from nodeagent.cli.main import EXIT_REFUSED
from nodeagent.cli.session import complain
from nodeagent.ports.clients import MemoryAsk
from nodeagent.units import MIB

FIXED: Final = Path("/run/sluice/grant")
TOLERANCE: Final = 0.05
"""Tolerated difference as a ratio of the whole GPU. The measurement takes a few seconds on an
unknown card with unknown neighbours; `make test` measures the caps themselves within 0.01."""
TRIES: Final = 3
"""Measurements until a difference counts, each twice as long: on a machine whose CPUs are busy this
program comes to launch its kernels too late at times."""
OUT_OF_MEMORY: Final = 2
KERNEL_STEPS: Final = 2_000_000
"""Steps of a kernel of about 5 ms on a current card: longer than a launch, shorter than a
window."""
WARM_S: Final = 1.0
"""Warm-up in which the interposer learns the kernel's cost. Seconds."""
PTX: Final = b"""
.version 6.4
.target sm_70
.address_size 64
.visible .entry sim_busy_ns(.param .u64 steps)
{
	.reg .pred %more;
	.reg .b32 %x;
	.reg .b64 %i<3>;
	ld.param.u64 %i1, [steps];
	mov.u64 %i2, 0;
	mov.u32 %x, %tid.x;
turn:
	mad.lo.u32 %x, %x, 22695477, 1;
	add.u64 %i2, %i2, 1;
	setp.lt.u64 %more, %i2, %i1;
	@%more bra turn;
	setp.ne.u32 %more, %x, 7;
	@%more bra done;
	trap;
done:
	ret;
}
"""
"""The simulated driver takes it for nanoseconds."""


class CudaError(Exception):
    """The text has the call and its result."""


@dataclass(frozen=True, slots=True)
class Found:
    memory_limit_bytes: int
    share_ppm: int
    total_bytes: int
    over_result: int
    """Result of an allocation of the whole cap and 1 MiB."""
    below_result: int
    """Result of an allocation of half the cap."""
    share_ratio: float | None
    """Measured share of the GPU's time; None if it was not measured."""


def check(options: argparse.Namespace, environment: Mapping[str, str]) -> int:
    directory = FIXED if FIXED.exists() else Path(environment.get("SLUICE_GRANT_DIR") or FIXED)
    try:
        limit, share = read_region(directory)
        found = Found(limit, share, *_drive(limit, wanted_share(share), options.seconds))
    except (OSError, ValueError, CudaError) as error:
        complain(f"selftest: {error}")
        return EXIT_REFUSED
    wrong = judge(found, options.gpumem, options.cores)
    if options.json:
        shown = {name: getattr(found, name) for name in Found.__slots__}
        print(json.dumps({**shown, "wrong": wrong}))
    else:
        measured = "not measured" if found.share_ratio is None else f"{found.share_ratio:.3f}"
        print(f"memory: {limit // MIB} MiB by the grant, {found.total_bytes // MIB} by the driver")
        print(f"share of the GPU's time: {share / 1e6:.3f} by the grant, {measured} here")
        for line in wrong:
            print(f"WRONG: {line}")
    return EXIT_REFUSED if wrong else 0


def read_region(directory: Path) -> tuple[int, int]:
    """The first GPU's cap in bytes and share. Raises OSError, ValueError."""
    try:
        data = (directory / POLICY_FILE).read_bytes()
    except FileNotFoundError:
        raise ValueError(
            f"{directory} has no region: this program is in no grant. In a pod that requests a"
            " GPU, another plugin allocated it; elsewhere start it with `sluice run`"
        ) from None
    if len(data) < ctypes.sizeof(Policy):
        raise ValueError(f"{directory / POLICY_FILE}: expected a region, got {len(data)} bytes")
    policy = Policy.from_buffer_copy(data)
    if policy.header.magic != POLICY_MAGIC or policy.header.device_count < 1:
        raise ValueError(f"{directory / POLICY_FILE}: expected a grant's region")
    return policy.dev[0].memory_limit_bytes, policy.dev[0].share_ppm


def judge(found: Found, memory: MemoryAsk | None, cores_ppm: int | None) -> list[str]:
    """Lists the differences from what was requested; empty if there are none."""
    wrong = []
    asked = None if memory is None else memory.amount_bytes
    if asked is not None and found.memory_limit_bytes != asked:
        wrong.append(
            f"the cap is {found.memory_limit_bytes // MIB} MiB, {asked // MIB} were requested"
        )
    if cores_ppm is not None and found.share_ppm != cores_ppm:
        wrong.append(
            f"the share is {found.share_ppm / 1e4:g} %, {cores_ppm / 1e4:g} were requested"
        )
    if found.total_bytes != found.memory_limit_bytes:
        wrong.append(
            f"the driver shows {found.total_bytes // MIB} MiB: this program's CUDA is not ours"
        )
    if found.over_result != OUT_OF_MEMORY:
        wrong.append(f"an allocation over the cap ended with {found.over_result} and not with 2")
    if found.below_result != 0:
        wrong.append(f"an allocation of half the cap was refused with {found.below_result}")
    share, wanted = found.share_ratio, wanted_share(found.share_ppm)
    if share is not None and wanted is not None and not is_close(share, wanted):
        wrong.append(f"{share:.3f} of the GPU's time instead of {wanted:.3f}")
    return wrong


def wanted_share(share_ppm: int) -> float | None:
    """The ratio of the GPU's time that a measurement must show; None without a cap on it."""
    return share_ppm / 1e6 if 0 < share_ppm < 1_000_000 else None


def is_close(share: float, wanted: float) -> bool:
    return abs(share - wanted) <= TOLERANCE


def closest(measure: Callable[[float], float], wanted: float | None, seconds: float) -> float:
    """Measure a share for so many seconds, and again while it is not the wanted one; return the
    closest. Without a wanted one it is measured once."""
    if wanted is None:
        return measure(seconds)
    found: list[float] = []
    for number in range(TRIES):
        found.append(measure(seconds * 2**number))
        if is_close(found[-1], wanted):
            break
    return min(found, key=lambda share: abs(share - wanted))


def _drive(limit: int, wanted: float | None, seconds: float) -> tuple[int, int, int, float | None]:
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: Any) -> None:
        result = int(getattr(cuda, name)(*arguments))
        if result != 0:
            raise CudaError(f"{name}: CUDA error {result}")

    device, context = ctypes.c_int(), ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))

    def allocation(size: int) -> int:
        pointer = ctypes.c_uint64()
        result = int(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)))
        if result == 0:
            call("cuMemFree_v2", pointer)
        return result

    over, below = allocation(limit + MIB), allocation(min(limit // 2, max(free.value - MIB, 1)))
    share = _measured(cuda, call, wanted, seconds) if seconds > 0 else None
    return total.value, over, below, share


def _measured(cuda: Any, call: Any, wanted: float | None, seconds: float) -> float:
    """GPU time of this program's kernels over the clock's. Each takes as long as the one that the
    driver's events say was shortest: around the others a launch waited for its turn."""
    module, kernel, stream = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    first, last = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuModuleLoadData", ctypes.byref(module), PTX)
    call("cuModuleGetFunction", ctypes.byref(kernel), module, b"sim_busy_ns")
    call("cuStreamCreate", ctypes.byref(stream), 1)
    for event in (first, last):
        call("cuEventCreate", ctypes.byref(event), 0)
    steps = ctypes.c_uint64(KERNEL_STEPS)
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(steps))
    milliseconds = ctypes.c_float()
    launch = (kernel, 64, 1, 1, 256, 1, 1, 0, stream, parameters, None)
    warm_end, shortest_s = time.monotonic() + WARM_S, float("inf")
    while time.monotonic() < warm_end:
        call("cuEventRecord", first, stream)
        call("cuLaunchKernel", *launch)
        call("cuEventRecord", last, stream)
        call("cuStreamSynchronize", stream)
        call("cuEventElapsedTime", ctypes.byref(milliseconds), first, last)
        shortest_s = min(shortest_s, milliseconds.value / 1e3)

    def measure(during_s: float) -> float:
        # Without a gap of our own: the gate alone holds us up.
        launches, began = 0, time.monotonic()
        while time.monotonic() < began + during_s:
            call("cuLaunchKernel", *launch)
            launches += 1
        call("cuStreamSynchronize", stream)
        return launches * shortest_s / (time.monotonic() - began)

    return closest(measure, wanted, seconds)
