"""A grant on a simulated machine of one GPU, and programs in it that ask for memory of graphs and pools."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.interpose import regions
from tests.interpose.regions import GIB, Region

Ask = Callable[[str], dict[str, Any]]
PROGRAM = """
import ctypes as c
GIB, MIB = 1 << 30, 1 << 20
OUT_OF_MEMORY, AUTO_FREE, UPLOAD = 2, 1, 2
size, pointer = c.c_size_t, c.c_void_p
class Location(c.Structure):
    _fields_ = [("type", c.c_int), ("id", c.c_int)]
class Props(c.Structure):
    _fields_ = [("type", c.c_int), ("handles", c.c_int), ("location", Location), ("win32", pointer),
                ("max", size), ("usage", c.c_ushort), ("reserved", c.c_ubyte * 54)]
class Alloc(c.Structure):
    _fields_ = [("props", Props), ("access", pointer), ("accesses", size), ("bytes", size), ("at", u64)]
class Node(c.Structure):
    _fields_ = [("type", c.c_int), ("zero", c.c_int * 3), ("alloc", Alloc), ("rest", c.c_ubyte * 160)]
class Params(c.Structure):
    _fields_ = [("flags", u64), ("stream", pointer), ("node", pointer), ("result", c.c_int)]
def ok(r):
    assert r == 0, r
def graph():
    g = pointer()
    ok(cuda.cuGraphCreate(byref(g), 0))
    return g
def after(*nodes):
    return ((pointer * len(nodes))(*nodes) if nodes else None, size(len(nodes)))
def alloc(g, n, *before):
    node, p = pointer(), Alloc()
    p.props.type, p.props.location, p.bytes = 1, Location(1, 0), n
    ok(cuda.cuGraphAddMemAllocNode(byref(node), g, *after(*before), byref(p)))
    return node, p.at
def free(g, at, *before):
    node = pointer()
    ok(cuda.cuGraphAddMemFreeNode(byref(node), g, *after(*before), u64(at)))
    return node
def instantiate(g, flags=0):
    e = pointer()
    ok(cuda.cuGraphInstantiateWithFlags(byref(e), g, u64(flags)))
    return e
def stream():
    s = pointer()
    ok(cuda.cuStreamCreate(byref(s), 1))
    return s
def attribute(which):
    value = u64()
    ok(cuda.cuDeviceGetGraphMemAttribute(0, which, byref(value)))
    return value.value
def reserved():
    return attribute(2)
def charged():
    free_bytes, total = info()
    return total - free_bytes - context
def plain(n):
    at = u64()
    return cuda.cuMemAlloc_v2(byref(at), size(n))
init()
context = 0
context = charged()
"""

UUID = """
import ctypes, sys
cuda = ctypes.CDLL(sys.argv[1])
assert cuda.cuInit(0) == 0
raw = (ctypes.c_ubyte * 16)()
assert cuda.cuDeviceGetUuid_v2(raw, 0) == 0
print(bytes(raw).hex())
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {
        "SLUICE_SIM_DIR": str(tmp_path_factory.mktemp("sim")),
        "SLUICE_SIM_GPUS": "a100-40gb",
    }


@pytest.fixture
def region(tmp_path: Path, machine: dict[str, str]) -> Region:
    done = subprocess.run(
        [sys.executable, "-c", UUID, regions.SIM],
        env={**os.environ, **machine},
        capture_output=True,
        text=True,
        check=True,
    )
    uuid = bytes.fromhex(done.stdout.strip())
    return Region(tmp_path / "grant", limits=(4 * GIB,), uuids=(uuid,), driver=regions.SIM)


@pytest.fixture
def ask(region: Region, machine: dict[str, str]) -> Ask:
    """Runs code in the grant and returns what it answered."""

    def run(code: str) -> dict[str, Any]:
        return regions.tenant(region, PROGRAM + code, machine)

    return run
