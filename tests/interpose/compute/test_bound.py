"""The bound on work queued on a GPU holds for all processes of a grant together (`inflight_ns` of
proto/region.h).

The stub driver gives each process a GPU of its own, so a tenant that launches at its limit always has its queue full; what the
grant has in flight is read where the daemon reads it.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from nodeagent.adapters.region import layout as c
from tests.interpose import regions
from tests.interpose.regions import Region

KERNEL_US = 200
LOOKS = 2000
INFLIGHT_NS = 4_000_000
"""Value that regions.Region publishes."""
SLACK_NS = 1_400_000
"""Slack per process: two launches that are always allowed, a chunk of credit, and work without a
record yet."""

LAUNCH = f"""
init()
args = [ctypes.c_uint(x) for x in ({KERNEL_US}, 1, 1, 32, 1, 1, 0)]
while True:
    assert cuda.cuLaunchKernel(ctypes.c_void_p(0x77), *args, None, None, None) == 0
"""


def in_flight_ns(region: Region) -> int:
    """Charged and not known to have finished, of all processes."""
    lines = [slot.dev[0] for slot in region.usage.slot[:16]]
    return sum(max(0, line.consumed_ns - line.completed_ns) for line in lines)


def most_in_flight_ns(region: Region, processes: int) -> int:
    with ExitStack() as stack:
        for _ in range(processes):
            command = (sys.executable, "-c", regions.PRELUDE + LAUNCH)
            stack.enter_context(regions.running(region, *command))
        deadline = time.monotonic() + 60
        while sum(slot.dev[0].launches > 1000 for slot in region.usage.slot[:16]) < processes:
            assert time.monotonic() < deadline, "they do not launch"
            time.sleep(0.01)
        most_ns = 0
        for _ in range(LOOKS):
            most_ns = max(most_ns, in_flight_ns(region))
            time.sleep(0.0005)
        return most_ns


@pytest.mark.parametrize("processes", [1, 8])
def test_the_bound_on_queued_work_is_for_all_processes_of_the_grant_together(
    tmp_path: Path, processes: int
) -> None:
    """Each of eight kept to the whole bound: up to 32 ms were queued where 4 are allowed."""
    region = Region(tmp_path / "grant", flags=c.FLAG_ENFORCE_MEMORY)
    most_ns = most_in_flight_ns(region, processes)
    assert INFLIGHT_NS / 2 < most_ns <= INFLIGHT_NS + processes * SLACK_NS
