"""Programs that ask the simulated libraries, each in a process of its own, and answer in JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from tests.kit.places import SIM
from tests.kit.simulator.clients import Card

MS = 1_000_000
GPUS = "2xh100-80gb,a100-40gb,rtx4090-24gb"
PRELUDE = """
import json, sys, time
import pynvml as n
def ask(call):
    try:
        return call()
    except n.NVMLError as error:
        return {"error": error.value}
def answer(value):
    print(json.dumps(value), flush=True)
"""
CUDA = """
import ctypes, json, sys
cuda = ctypes.CDLL("libcuda.so.1")
out = {"init": cuda.cuInit(0)}
count, total, p, context = ctypes.c_int(), ctypes.c_size_t(), ctypes.c_uint64(), ctypes.c_void_p()
cuda.cuDeviceGetCount(ctypes.byref(count))
out["devices"] = []
for i in range(count.value):
    name, uuid = ctypes.create_string_buffer(96), (ctypes.c_uint8 * 16)()
    cuda.cuDeviceGetName(name, 96, i)
    cuda.cuDeviceGetUuid_v2(uuid, i)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(total), i)
    out["devices"].append([name.value.decode(), bytes(uuid).hex(), total.value])
if len(sys.argv) > 1:
    cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0)
    out["alloc"] = cuda.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(int(sys.argv[1])))
print(json.dumps(out), flush=True)
sys.stdin.read()
"""


def start(gpus: Card, script: str, **more: str) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        **more,
        "SLUICE_SIM_DIR": str(gpus.directory),
        "SLUICE_SIM_GPUS": GPUS,
        "LD_LIBRARY_PATH": str(SIM),
    }
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + script],
        env=environment,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def nvml(gpus: Card, script: str, timeout_s: float = 120) -> Any:
    """Answer of the script, run after nvmlInit, with `gpu(i)` a handle."""
    process = start(gpus, "n.nvmlInit()\ngpu = n.nvmlDeviceGetHandleByIndex\n" + script)
    out, _ = process.communicate(timeout=timeout_s)
    assert process.returncode == 0
    return json.loads(out)


def run(gpus: Card, script: str, *arguments: str, cards: str, visible: str | None = None) -> Any:
    environment = {**os.environ, "SLUICE_SIM_DIR": str(gpus.directory), "SLUICE_SIM_GPUS": cards}
    environment["LD_LIBRARY_PATH"] = str(SIM)
    if visible is not None:
        environment["CUDA_VISIBLE_DEVICES"] = visible
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=environment,
        text=True,
        capture_output=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
