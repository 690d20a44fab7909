"""Grants for tests: a region made through libsluice_region.so, and processes run inside it.

There is no daemon here. A test that needs the daemon's side (own a slot, resize, reap) does it
through the same C functions the daemon calls.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nodeagent.adapters.region import layout as c
from tests.kit import places

BUILD = Path(os.environ.get("SLUICE_TEST_BUILD", places.BUILD))
"""Where the shim and the region library are; another build (sanitizers, clang) may be named."""
MESON_DIR = Path(os.environ.get("SLUICE_TEST_MESON", places.MESON))
MESON = MESON_DIR / "tests" / "interpose"
SHIM = BUILD / "shim" / "libcuda.so.1"
NVML_SHIM = BUILD / "shim" / "libnvidia-ml.so.1"
SIM = BUILD / "sim" / "libcuda.so.1"
SIM_NVML = BUILD / "sim" / "libnvidia-ml.so.1"
STUB = MESON / "libstub_driver.so"

MIB = 1 << 20
GIB = 1 << 30


def build(*names: str) -> list[Path]:
    """Build targets of tests/interpose/meson.build that `make build` leaves out."""
    ninja = Path(sys.executable).with_name("ninja")
    targets = [f"tests/interpose/{name}" for name in names]
    done = subprocess.run(
        [ninja if ninja.exists() else "ninja", "-C", MESON_DIR, "--quiet", *targets],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [MESON / name for name in names]


def library() -> ctypes.CDLL:
    lib = ctypes.CDLL(str(BUILD / "libsluice_region.so"))
    lib.sluice_memory_charged.restype = ctypes.c_uint64
    return lib


def stub_uuid(device: int) -> bytes:
    """UUID that the stub driver answers for its device number `device`."""
    return bytes([0xD0 + device]) * 16


def boot_id() -> bytes:
    text = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return bytes.fromhex(text.replace("-", ""))


class Region:
    """A published region in `path`, with both files mapped (a test may look at everything)."""

    def __init__(
        self,
        path: Path,
        *,
        limits: tuple[int, ...] = (GIB,),
        uuids: tuple[bytes, ...] | None = None,
        driver: Path | None = None,
        nvml: Path | None = None,
        physical: int = 16 * GIB,
        flags: int = c.FLAG_ENFORCE_MEMORY,
    ) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.lib = library()
        self._maps = [
            self._map(path / c.POLICY_FILE, c.POLICY_BYTES),
            self._map(path / c.USAGE_FILE, c.USAGE_BYTES),
        ]
        self.policy = c.Policy.from_buffer(self._maps[0])
        self.usage = c.Usage.from_buffer(self._maps[1])
        draft = c.Policy()
        draft.header.device_count = len(limits)
        draft.header.boot_id[:] = boot_id()
        for i, limit in enumerate(limits):
            device = draft.dev[i]
            device.memory_limit_bytes = limit
            device.physical_bytes = physical
            device.flags = flags
            device.burst_ns = 10_000_000
            device.inflight_ns = 4_000_000
            device.chunk_ns = 200_000
            device.gpu_uuid[:] = (uuids or tuple(stub_uuid(j) for j in range(16)))[i]
        for field, value in (("driver_path", driver or STUB), ("nvml_path", nvml)):
            if value:
                raw = os.fsencode(value)
                getattr(draft, field)[: len(raw)] = raw
        self.lib.sluice_usage_format(ctypes.byref(self.usage))
        assert self.lib.sluice_policy_publish(ctypes.byref(self.policy), ctypes.byref(draft)) == 0

    @staticmethod
    def _map(path: Path, size: int) -> mmap.mmap:
        path.write_bytes(bytes(size))
        fd = os.open(path, os.O_RDWR)
        try:
            return mmap.mmap(fd, size)
        finally:
            os.close(fd)

    def set_limit(self, limit: int, device: int = 0, flags: int | None = None) -> None:
        new = c.PolicyDevice.from_buffer_copy(self.policy.dev[device])
        new.memory_limit_bytes = limit
        if flags is not None:
            new.flags = flags
        assert (
            self.lib.sluice_policy_set_limits(ctypes.byref(self.policy), device, ctypes.byref(new))
            == 0
        )

    def charged(self, device: int = 0) -> int:
        return int(
            self.lib.sluice_memory_charged(
                ctypes.byref(self.policy), ctypes.byref(self.usage), device
            )
        )

    def total(self, field: str, device: int = 0) -> int:
        return sum(getattr(slot.dev[device], field) for slot in self.usage.slot)

    def clear_slot(self, slot: int) -> None:
        """Clear a slot as the daemon does once it knows that the owner is dead."""
        ctypes.memset(ctypes.byref(self.usage.slot[slot]), 0, ctypes.sizeof(c.UsageSlot))

    def environment(self, **more: str) -> dict[str, str]:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("STUB_", "SLUICE_GRANT"))}
        return {**env, "SLUICE_GRANT_DIR": str(self.path), **more}


PRELUDE = f"""
import ctypes, json, os, sys
SHIM = os.environ.get("TEST_SHIM", {str(SHIM)!r})
cuda = ctypes.CDLL(SHIM)
u64, i32, byref = ctypes.c_uint64, ctypes.c_int, ctypes.byref
def init(device=0):
    assert cuda.cuInit(0) == 0
    context = ctypes.c_void_p()
    assert cuda.cuDevicePrimaryCtxRetain(byref(context), device) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    return context
def alloc(size):
    p = u64()
    return cuda.cuMemAlloc_v2(byref(p), ctypes.c_size_t(size)), p.value
def free(p):
    return cuda.cuMemFree_v2(u64(p))
def info():
    a, b = ctypes.c_size_t(), ctypes.c_size_t()
    assert cuda.cuMemGetInfo_v2(byref(a), byref(b)) == 0
    return a.value, b.value
def stub():
    with open("/proc/self/maps") as f:
        path = next(line.split(maxsplit=5)[5].strip() for line in f if "stub_driver" in line)
    lib = ctypes.CDLL(path)
    lib.stub_used.restype = lib.stub_peak.restype = lib.stub_launches.restype = u64
    return lib
def answer(**values):
    print(json.dumps(values))
"""


def tenant(
    region: Region,
    code: str,
    env: dict[str, str] | None = None,
    *,
    check: bool = True,
    timeout: float = 60,
    **more: str,
) -> dict[str, Any]:
    """Run `code` in a Python process of the grant. It calls answer(...) once; stderr comes too."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(code)],
        env=region.environment(**(env or {}), **more),
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=places.REPO,
    )
    if check:
        assert done.returncode == 0, done.stderr
    lines = done.stdout.strip().splitlines()
    answer: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    return {**answer, "stderr": done.stderr, "status": done.returncode}


@contextmanager
def running(region: Region, *argv: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    """A process of the grant, killed at the end whatever happens."""
    process = subprocess.Popen(
        argv,
        env=region.environment(**env),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
