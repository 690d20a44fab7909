"""Launches of ever new shapes, on streams of other contexts, and without events: none waits without need, none is free.

Over the simulated driver, without a daemon.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nodeagent.adapters.region import layout as c
from tests.interpose import regions
from tests.interpose.regions import GIB, Region
from tests.interpose.simulated import UUID

MS = 1_000_000
PROGRAM = """
import threading, time
def kernel():
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    assert cuda.cuModuleLoadData(byref(module), b"any") == 0
    assert cuda.cuModuleGetFunction(byref(function), module, b"sim_busy_ns") == 0
    return function
def launch(function, ns, grid=1, stream=None):
    duration = u64(ns)
    params = (ctypes.c_void_p * 1)(ctypes.addressof(duration))
    assert cuda.cuLaunchKernel(function, grid, 1, 1, 32, 1, 1, 0, stream, params, None) == 0
def stream():
    made = ctypes.c_void_p()
    assert cuda.cuStreamCreate(byref(made), 1) == 0
    return made
context = init()
"""


@pytest.fixture
def region(tmp_path: Path) -> Region:
    environment = {"SLUICE_SIM_DIR": str(tmp_path / "sim"), "SLUICE_SIM_GPUS": "a100-40gb"}
    done = subprocess.run(
        [sys.executable, "-c", UUID, regions.SIM],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return Region(
        tmp_path / "grant",
        limits=(GIB,),
        uuids=(bytes.fromhex(done.stdout.strip()),),
        driver=regions.SIM,
        flags=c.FLAG_ENFORCE_MEMORY,
    )


def ask(region: Region, code: str, **more: str) -> dict[str, Any]:
    return regions.tenant(
        region,
        PROGRAM + code,
        {
            "SLUICE_SIM_DIR": str(region.path.parent / "sim"),
            "SLUICE_SIM_GPUS": "a100-40gb",
            **more,
        },
    )


FOREIGN = """
other = ctypes.c_void_p()
assert cuda.cuCtxCreate_v2(byref(other), 0, 0) == 0
work, on = kernel(), stream()
assert cuda.cuCtxSetCurrent(context) == 0
for _ in range(40):
    launch(work, 1_000_000, stream=on)
assert cuda.cuStreamSynchronize(on) == 0
answer()
"""


def test_work_on_a_stream_of_another_context_than_the_current_one_is_timed(region: Region) -> None:
    """Events of the current context cannot be recorded there: each launch cost 20 us for ever."""
    ask(region, FOREIGN)
    used = region.usage.slot[0]
    assert 30 * MS < used.dev[0].consumed_ns < 80 * MS
    assert used.failed_records == 0


def test_a_driver_that_refuses_events_gives_no_free_ride(region: Region) -> None:
    code = "work = kernel()\nfor _ in range(40): launch(work, 1_000_000)\nanswer()"
    ask(region, code, SLUICE_SIM_FAIL="cuEventRecordWithFlags:0:400")
    used = region.usage.slot[0]
    # By the host's clock, whatever else it does.
    assert 30 * MS < used.dev[0].consumed_ns < 400 * MS
    assert used.failed_records > 0


POLLS = """
work, event = kernel(), ctypes.c_void_p()
assert cuda.cuEventCreate(byref(event), 0) == 0
launch(work, 5_000_000)
launch(work, 5_000_000)
assert cuda.cuEventRecord(event, None) == 0
def poll():
    assert cuda.cuCtxSetCurrent(context) == 0
    while cuda.{poll} != 0:
        time.sleep(0.001)
{how}
answer()
"""


@pytest.mark.parametrize("poll", ["cuEventQuery(event)", "cuStreamQuery(None)"])
@pytest.mark.parametrize(
    "how", ["poll()", "t = threading.Thread(target=poll); t.start(); t.join()"]
)
def test_a_program_that_polls_does_not_look_busy(region: Region, poll: str, how: str) -> None:
    ask(region, POLLS.format(poll=poll, how=how))
    used = region.usage.slot[0].dev[0]
    assert used.completed_ns >= 9 * MS
    assert used.consumed_ns - used.completed_ns <= region.policy.dev[0].chunk_ns


CAPTURES = """
work, captured, graph = kernel(), stream(), ctypes.c_void_p()
done = False
def run():
    assert cuda.cuCtxSetCurrent(context) == 0
    own, grid = stream(), 1
    while not done:
        launch(work, 200_000, grid=grid, stream=own)  # a new shape each time, so that each is timed
        grid += 1
threads = [threading.Thread(target=run) for _ in range(2)]
for t in threads:
    t.start()
results = set()
for _ in range(300):
    assert cuda.cuStreamBeginCapture_v2(captured, 0) == 0  # global: unsafe calls of any thread end it
    launch(work, 1000, stream=captured)
    results.add(cuda.cuStreamEndCapture(captured, byref(graph)))
done = True
for t in threads:
    t.join()
answer(results=sorted(results))
"""


def test_our_own_calls_end_no_capture_that_begins_in_between(region: Region) -> None:
    assert ask(region, CAPTURES, SLUICE_SIM_CALL_LATENCY_NS="20000")["results"] == [0]


SHAPES = """
work, used = kernel(), 0
def wall(every):
    global used
    began = time.perf_counter()
    for i in range(4000):
        launch(work, 50_000, grid=1 + used + i // every)
    used += 4000 // every  # never the same again
    assert cuda.cuCtxSynchronize() == 0
    return time.perf_counter() - began
wall(4000)
answer(ratio=min(wall(8) / wall(4000) for _ in range(3)))
"""


def test_new_shapes_of_a_known_function_are_queued_as_known_ones(region: Region) -> None:
    """The second launch of each waited for the first, and up to the eighth two were queued: 1.6
    times as long."""
    assert ask(region, SHAPES)["ratio"] < 1.3
