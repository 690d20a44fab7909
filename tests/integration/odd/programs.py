"""A program in a grant that calls the driver and NVML by name, as a stranger's does, and prints one JSON object."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from typing import Any

from nodeagent.adapters.containers import injection
from tests.kit.node import Node
from tests.kit.places import SLUICE

MIB, GIB = 1 << 20, 1 << 30
BY_MOUNT = injection.possible() is None

PRELUDE = """
import ctypes as c, json, os, signal, subprocess, sys, threading, time
MIB, GIB = 1 << 20, 1 << 30
cuda = c.CDLL("libcuda.so.1")
u64, i32, size, pointer, byref = c.c_uint64, c.c_int, c.c_size_t, c.c_void_p, c.byref
def ok(r):
    assert r == 0, r
def device_count():
    n = i32()
    ok(cuda.cuDeviceGetCount(byref(n)))
    return n.value
def name(device):
    text = c.create_string_buffer(64)
    ok(cuda.cuDeviceGetName(text, 64, device))
    return text.value.decode()
def total(device=0):
    n = size()
    ok(cuda.cuDeviceTotalMem_v2(byref(n), device))
    return n.value
def retain(device=0):
    context = pointer()
    ok(cuda.cuDevicePrimaryCtxRetain(byref(context), device))
    ok(cuda.cuCtxSetCurrent(context))
    return context
def init(device=0):
    ok(cuda.cuInit(0))
    return retain(device)
def alloc(n):
    p = u64()
    return cuda.cuMemAlloc_v2(byref(p), size(n)), p.value
def free(p):
    return cuda.cuMemFree_v2(u64(p))
def info():
    a, b = size(), size()
    ok(cuda.cuMemGetInfo_v2(byref(a), byref(b)))
    return a.value, b.value
def stream():
    s = pointer()
    ok(cuda.cuStreamCreate(byref(s), 1))
    return s
def management():
    nvml = c.CDLL("libnvidia-ml.so.1")
    ok(nvml.nvmlInit_v2())
    return nvml
def nvml_names(nvml):
    n, names = c.c_uint(), []
    ok(nvml.nvmlDeviceGetCount_v2(byref(n)))
    for i in range(n.value):
        handle, text = pointer(), c.create_string_buffer(96)
        ok(nvml.nvmlDeviceGetHandleByIndex_v2(i, byref(handle)))
        ok(nvml.nvmlDeviceGetName(handle, text, 96))
        names.append(text.value.decode())
    return names
def answer(**values):
    print(json.dumps(values), flush=True)
"""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", PRELUDE + textwrap.dedent(code)]


def started(
    node: Node, *command: str, flags: tuple[str, ...], env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The command in a grant; it may fail."""
    return subprocess.run(
        [SLUICE, "run", *flags, "--", *command],
        env=node.environment(**(env or {})),
        capture_output=True,
        text=True,
        timeout=120,
    )


def in_grant(
    node: Node, code: str, *, flags: tuple[str, ...], env: dict[str, str] | None = None
) -> dict[str, Any]:
    """The answer of `code` in a grant, with its standard error as "stderr"."""
    done = started(node, *python(code), flags=flags, env=env)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**told, "stderr": done.stderr}
