"""cuGetProcAddress of the simulated driver: exact about versions and the flavour of the default stream."""

from __future__ import annotations

import ctypes as c
from collections.abc import Iterator

import pytest

from simgpu.tests.driver.resolving import ROWS, resolve
from tests.kit.simulator.clients import PER_THREAD, Card, Cuda, card

NOT_FOUND = 500
FOUND, SYMBOL_NOT_FOUND, VERSION_NOT_SUFFICIENT = 0, 1, 2
DRIVER_VERSION = 13000
"""CUDA version of the simulated driver; it exports later functions, but does not find them by
name."""


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Card]:
    with card(tmp_path_factory.mktemp("sim")) as it:
        yield it


@pytest.mark.parametrize(
    ("name", "version", "flags", "symbol"),
    [
        ("cuMemAlloc", 13000, 0, "cuMemAlloc_v2"),
        ("cuMemGetInfo", 3020, 0, "cuMemGetInfo_v2"),
        ("cuLaunchKernel", 4000, 0, "cuLaunchKernel"),
        ("cuLaunchKernel", 13000, PER_THREAD, "cuLaunchKernel_ptsz"),
        ("cuLaunchKernel", 4000, PER_THREAD, "cuLaunchKernel"),
        ("cuMemcpyHtoD", 12000, PER_THREAD, "cuMemcpyHtoD_v2_ptds"),
        ("cuStreamBeginCapture", 13000, PER_THREAD, "cuStreamBeginCapture_v2_ptsz"),
        ("cuEventElapsedTime", 12000, 0, "cuEventElapsedTime"),
        ("cuEventElapsedTime", 12080, 0, "cuEventElapsedTime_v2"),
    ],
)
def test_the_right_symbol_for_name_version_and_flavour(
    gpu: Card, name: str, version: int, flags: int, symbol: str
) -> None:
    assert gpu.client().call(resolve, [(name, version, flags)]) == [(0, FOUND, symbol)]


def test_what_is_not_there(gpu: Card) -> None:
    got = gpu.client().call(resolve, [("cuNoSuchCall", 13000, 0), ("cuMemCreate", 10000, 0)])
    assert got == [(0, SYMBOL_NOT_FOUND, None), (0, VERSION_NOT_SUFFICIENT, None)]


def exported(cuda: Cuda) -> list[str]:
    return [symbol for symbol, _, _ in ROWS if hasattr(cuda.library, symbol)]


def test_every_exported_call_can_be_resolved_at_its_first_version(gpu: Card) -> None:
    client = gpu.client()
    there = set(client.call(exported))
    assert len(there) > 250
    rows = [row for row in ROWS if row[0] in there and int(row[1]) <= DRIVER_VERSION]
    wanted = [
        (name, int(since), PER_THREAD if symbol.endswith(("_ptsz", "_ptds")) else 0)
        for symbol, since, name in rows
    ]
    answers = client.call(resolve, wanted)
    wrong = [
        (row, answer) for row, answer in zip(rows, answers, strict=True) if answer[2] != row[0]
    ]
    # two symbols of one name and version: either is right
    twins = {
        (name, since)
        for symbol, since, name in rows
        if [r[1:] for r in rows].count([since, name]) > 1
    }
    assert [w for w in wrong if (w[0][2], w[0][1]) not in twins] == []


def export_table(cuda: Cuda) -> int:
    table, uuid = c.c_void_p(), (c.c_ubyte * 16)()
    return cuda.try_("cuGetExportTable", c.byref(table), uuid)


def test_undocumented_tables_are_no_valid_question(gpu: Card) -> None:
    assert gpu.client().call(export_table) == 1
