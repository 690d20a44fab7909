"""A kernel that never ends: reported as a runaway, its grant held or ended as the policy says, and the others go on."""

from __future__ import annotations

import sys
import time

import psutil
import pytest

from tests.kit.node import Node, running, until
from tests.kit.workplace import workplace

ENDLESS = """
import ctypes, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
context, module, function = (ctypes.c_void_p() for _ in range(3))
ref = ctypes.byref
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ref(context), 0) == 0 and cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuModuleLoadData(ref(module), b"any") == 0
assert cuda.cuModuleGetFunction(ref(function), module, b"sim_busy_forever") == 0
one = (ctypes.c_uint(1),) * 6
assert cuda.cuLaunchKernel(function, *one, ctypes.c_uint(0), None, None, None) == 0
print("launched", flush=True)
time.sleep(3600)
"""
RUNAWAY_S = 2.0
SLACK = 4.0
"""The promise is for a machine with room."""
FLAGS = ("--gpumem", "2Gi", "--cores", "30")


@pytest.mark.faults
@pytest.mark.parametrize("policy", ["contain", "kill"])
def test_f6_work_that_never_ends_is_a_runaway_and_the_others_go_on(policy: str) -> None:
    settings = f'[detection]\nrunaway_kernel_s = {RUNAWAY_S}\ngrants = "{policy}"\nrules = "runaway_kernel={policy}"\n'
    with (
        workplace() as directory,
        running(directory, gpus="1xh100-80gb", settings=settings) as node,
    ):
        beside = node.run_tenant(
            "beside", "--warm", "0", "--seconds", "3600", "--report", "0.5", flags=FLAGS
        )
        until("it runs", lambda: (node.grant("beside") or {}).get("processes"))
        job = node.run("endless", sys.executable, "-c", ENDLESS, flags=FLAGS)
        assert job.process.stdout is not None
        assert job.process.stdout.readline() == "launched\n"
        launched_unix_s = time.time()
        mine = node.grant("endless") or {}
        (event,) = until("it is told", lambda: runaways(node), 60)
        assert float(str(event["at_unix_s"])) - launched_unix_s < (RUNAWAY_S + 1) * SLACK
        assert event["grant"] == mine["grant"]
        if policy == "kill":
            assert job.process.wait(60) != 0
            until("its grant is over", lambda: node.grant("endless") is None)
        else:
            until("it is held", lambda: psutil.Process(job.process.pid).status() == "stopped")
            assert "runaway_kernel" in node.cli("contained").stdout
            assert job.process.poll() is None
        assert beside.report(time.monotonic_ns()) > 0.05
        assert (node.grant("beside") or {})["state"] == "active"


def runaways(node: Node) -> list[dict[str, object]]:
    found: list[dict[str, object]] = node.cli_json("events", "--kind", "runaway_kernel")
    return found
