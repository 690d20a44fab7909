"""Whatever changes an executable graph has its launches timed anew, at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.adapters.region import layout as c
from tests.interpose import regions
from tests.interpose.regions import GIB, Region

CHANGES = (
    "cuGraphExecUpdate",
    "cuGraphExecUpdate_v2",
    "cuGraphExecKernelNodeSetParams",
    "cuGraphExecKernelNodeSetParams_v2",
    "cuGraphExecMemcpyNodeSetParams",
    "cuGraphExecMemsetNodeSetParams",
    "cuGraphExecHostNodeSetParams",
    "cuGraphExecChildGraphNodeSetParams",
    "cuGraphExecBatchMemOpNodeSetParams",
    "cuGraphExecNodeSetParams",
    "cuGraphNodeSetEnabled",
    "cuGraphExecDestroy",
)
LONG_MS = 20
PROGRAM = f"""
init()
driver, exec = stub(), ctypes.c_void_p(0x4000)
def launch(n):
    for _ in range(n):
        assert cuda.cuGraphLaunch(exec, None) == 0
        assert cuda.cuStreamSynchronize(None) == 0
launch(300)  # 10 us each, known by now
before = driver.stub_busy_ns(0)
%s
driver.stub_set_graph_us({LONG_MS * 1000})
launch(2)
answer(done=driver.stub_busy_ns(0) - before)
"""


def charged_ms(tmp_path: Path, change: str) -> float:
    """GPU time in ms that two launches of 20 ms cost a grant that knows this graph as one of 10
    us."""
    flags = c.FLAG_ENFORCE_MEMORY | c.FLAG_ENFORCE_SM
    region = Region(tmp_path / "grant", limits=(GIB,), flags=flags)
    region.policy.dev[0].chunk_ns = 1_000_000_000  # so that nothing has the thread look again
    got = regions.tenant(region, "import time\n" + PROGRAM % change)
    assert got["done"] == 2 * LONG_MS * 1_000_000
    used = region.usage.slot[0].dev[0]
    return float(used.completed_ns) / 1e6


@pytest.mark.parametrize("call", CHANGES)
def test_a_change_has_the_next_launches_timed(tmp_path: Path, call: str) -> None:
    more = ", None" * {
        "cuGraphExecMemcpyNodeSetParams": 3,
        "cuGraphExecMemsetNodeSetParams": 3,
        "cuGraphExecUpdate": 3,
        "cuGraphExecDestroy": 0,
        "cuGraphExecUpdate_v2": 2,
    }.get(call, 2)
    timed = charged_ms(tmp_path, f"assert cuda.{call}(exec{more}) == 0")
    assert 1.6 * LONG_MS < timed < 2.6 * LONG_MS + 20


def test_without_a_change_it_takes_a_while(tmp_path: Path) -> None:
    """The measure of this file: it sees the difference."""
    assert charged_ms(tmp_path, "") < 1.5 * LONG_MS
