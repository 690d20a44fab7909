"""Managed memory larger than the grant: refused, unless the daemon lets it be (grants.managed_oversubscription)."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.adapters.region import layout as c
from tests.interpose import regions
from tests.interpose.regions import GIB, Region

LIMIT = 4 * GIB
PROGRAM = """
GIB = 1 << 30
init()
def managed(n):
    at = u64()
    return cuda.cuMemAllocManaged(byref(at), ctypes.c_size_t(n), 1), at.value
def plain(n):
    at = u64()
    return cuda.cuMemAlloc_v2(byref(at), ctypes.c_size_t(n)), at.value
def charged():
    free_bytes, total = info()
    return total - free_bytes
def free(at):
    assert cuda.cuMemFree_v2(u64(at)) == 0
"""


@pytest.fixture
def region(tmp_path: Path) -> Region:
    return Region(tmp_path / "grant", limits=(LIMIT,), physical=80 * GIB)


def allow(region: Region) -> None:
    region.set_limit(LIMIT, flags=c.FLAG_ENFORCE_MEMORY | c.FLAG_MANAGED_BEYOND)


def test_it_is_refused_as_long_as_nobody_allows_it(region: Region) -> None:
    got = regions.tenant(region, PROGRAM + "answer(r=managed(5 * GIB)[0], held=charged())")
    assert (got["r"], got["held"]) == (2, 0)


def test_what_does_not_fit_is_let_in_and_not_charged(region: Region) -> None:
    allow(region)
    got = regions.tenant(
        region,
        PROGRAM
        + """
seen, base = [], charged()
r, kept = plain(GIB); seen.append((r, charged() - base))
r, big = managed(6 * GIB); seen.append((r, charged() - base))
seen.append((plain(GIB)[0], charged() - base))
free(kept); seen.append((0, charged() - base))
seen.append((plain(GIB)[0], charged() - base))
free(big); seen.append((0, charged() - base))
r, again = plain(4 * GIB); seen.append((r, charged() - base))
answer(seen=seen)
""",
    )
    assert got["seen"] == [
        [0, GIB],
        [0, 4 * GIB],  # what was left, of six
        [2, 4 * GIB],  # plain memory stops at the grant
        [0, 4 * GIB],  # what is freed goes to what lies beyond
        [2, 4 * GIB],
        [0, 0],
        [0, 4 * GIB],
    ]


def test_what_fits_is_charged_as_always(region: Region) -> None:
    allow(region)
    got = regions.tenant(
        region,
        PROGRAM
        + """
r, at = managed(3 * GIB)
before = charged()
free(at)
answer(r=r, before=before, after=charged())
""",
    )
    assert (got["r"], got["before"], got["after"]) == (0, 3 * GIB, 0)
