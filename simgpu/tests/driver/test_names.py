"""Both simulated libraries show the loader what a driver's show: every name, under the names of its files."""

from __future__ import annotations

import ctypes as c
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from simgpu.tests.driver.resolving import resolve
from tests.interpose import symbols
from tests.kit.places import SIM
from tests.kit.simulator.clients import Card, Cuda, card

NOT_INITIALISED, NOT_SUPPORTED = 3, 801
NVML_UNINITIALISED, NVML_NOT_SUPPORTED = 1, 3


@pytest.fixture
def gpu(tmp_path: Path) -> Iterator[Card]:
    with card(tmp_path / "sim") as it:
        yield it


def nvml_symbols() -> set[str]:
    return {
        *symbols.listed("nvml/hooks.def", "HOOK"),
        *symbols.listed("nvml/hooks.def", "DRIVER_ONLY"),
        *symbols.listed("nvml/forward.def", "FORWARD"),
    }


@pytest.mark.parametrize(
    ("library", "names"),
    [("libcuda.so.1", set(symbols.driver_symbols())), ("libnvidia-ml.so.1", nvml_symbols())],
    ids=["driver", "NVML"],
)
def test_every_name_of_the_real_library_is_exported_and_nothing_else(
    library: str, names: set[str]
) -> None:
    out = subprocess.run(
        ["nm", "-D", "--defined-only", SIM / library], capture_output=True, text=True, check=True
    ).stdout
    exported = {line.split()[-1] for line in out.splitlines()}
    assert len(names) > 400
    assert names - exported == set()
    assert {name for name in exported if not name.startswith(("cu", "nvml"))} == set()


@pytest.mark.parametrize("name", ["libcuda.so", "libnvidia-ml.so"])
def test_the_file_has_the_drivers_version_in_its_name_and_the_soname_leads_to_it(name: str) -> None:
    link = SIM / f"{name}.1"
    assert link.is_symlink()
    file = link.resolve()
    assert file.parent == SIM
    assert file.name == f"{name}.{driver_version()}"


def driver_version() -> str:
    """Driver version in NVML, on a node without any setup."""
    text = c.create_string_buffer(80)
    nvml = c.CDLL(str(SIM / "libnvidia-ml.so.1"))
    assert nvml.nvmlInit_v2() == 0
    assert nvml.nvmlSystemGetDriverVersion(text, 80) == 0
    return text.value.decode()


def unmodelled(cuda: Cuda) -> tuple[int, int]:
    """cuGraphicsMapResources, which no model of a card without a display has: before cuInit, and after."""
    before = cuda.try_("cuGraphicsMapResources", 0, None, None)
    cuda.cuInit(0)
    return before, cuda.try_("cuGraphicsMapResources", 0, None, None)


def test_what_is_not_modelled_says_so(gpu: Card) -> None:
    assert gpu.client().call(unmodelled) == (NOT_INITIALISED, NOT_SUPPORTED)


def unmodelled_nvml(_cuda: Cuda) -> tuple[int, int]:
    nvml = c.CDLL(str(SIM / "libnvidia-ml.so.1"))
    count = c.c_uint()
    before = nvml.nvmlUnitGetUnitInfo(None, None)
    nvml.nvmlInit_v2()
    assert nvml.nvmlDeviceGetCount_v2(c.byref(count)) == 0
    return before, int(nvml.nvmlUnitGetUnitInfo(None, None))


def test_what_is_not_modelled_of_nvml_says_so(gpu: Card) -> None:
    assert gpu.client().call(unmodelled_nvml) == (NVML_UNINITIALISED, NVML_NOT_SUPPORTED)


def test_a_driver_that_says_it_is_older_lacks_what_came_later(gpu: Card) -> None:
    wanted = [("cuGreenCtxCreate", 13000, 0), ("cuMemAlloc", 13000, 0)]
    new = gpu.client().call(resolve, wanted)
    old = gpu.client(SLUICE_SIM_CUDA_VERSION="12020").call(resolve, wanted)
    assert [symbol for _, _, symbol in new] == ["cuGreenCtxCreate", "cuMemAlloc_v2"]
    assert [symbol for _, _, symbol in old] == [None, "cuMemAlloc_v2"]


TABLES = """
#include <string.h>
static const void *const table[2] = { (void *)16, (void *)42 };
int cuGetExportTable(const void **ret_table, const unsigned char *id);
int cuGetExportTable(const void **ret_table, const unsigned char *id)
{
	if (id[0] != 0x6b)
		return 500;
	*ret_table = table;
	return 0;
}
"""


def export_tables(cuda: Cuda) -> tuple[int, int | None, int]:
    cuda.cuInit(0)
    known, unknown = (c.c_ubyte * 16)(0x6B), (c.c_ubyte * 16)(0x01)
    table = c.POINTER(c.c_void_p)()
    first = cuda.try_("cuGetExportTable", c.byref(table), known)
    other = c.c_void_p()
    return (
        first,
        table[1] if first == 0 else None,
        cuda.try_("cuGetExportTable", c.byref(other), unknown),
    )


def test_private_tables_come_from_a_provider_and_none_is_ours(gpu: Card, tmp_path: Path) -> None:
    source, library = tmp_path / "tables.c", tmp_path / "tables.so"
    source.write_text(TABLES)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    assert gpu.client(SLUICE_SIM_TABLES=str(library)).call(export_tables) == (0, 42, 500)
    assert gpu.client().call(export_tables)[0] != 0
    assert gpu.client(SLUICE_SIM_TABLES="/nonexistent.so").call(export_tables)[0] != 0
