"""The lists of symbols against the driver's own headers, and what each new call is."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.interpose import headers, symbols


@pytest.fixture(scope="module")
def place() -> Path:
    try:
        return headers.fetched()
    except (headers.NoHeaders, subprocess.TimeoutExpired) as error:
        pytest.skip(f"the headers are on PyPI, which cannot be reached: {error}")


def test_every_symbol_of_the_newest_headers_is_listed_with_its_version(place: Path) -> None:
    declared = headers.driver_api(place)
    assert len(declared) > 700
    ours = symbols.driver_symbols()
    assert headers.news(place) == [], "run python -m tests.interpose.headers"
    only_ours = set(ours) - set(declared)
    newest = max(one.since for one in ours.values())
    assert (
        f"#define CUDA_NEWEST_LISTED {newest}\n"
        in (symbols.INTERPOSE / "driver" / "driver.h").read_text()
    )
    assert only_ours == {"cuGetProcAddress_v2_ptsz"}, (
        "declared by a macro of its own, without typedef"
    )


def test_every_function_of_the_newest_management_header_is_exported(place: Path) -> None:
    declared = headers.nvml_api(place)
    assert len(declared) > 400
    assert declared <= headers.our_nvml()


def test_every_copy_of_the_newest_headers_is_charged(place: Path) -> None:
    """The check goes by name: every function that moves bytes or launches is a hook."""
    work = {
        name
        for name, one in headers.driver_api(place).items()
        if one.base.startswith(("cuMemcpy", "cuMemset", "cuFabricCpy", "cuLaunch", "cuGraphLaunch"))
    }
    not_work = {"cuLaunchHostFunc"}  # runs on the host
    unhooked = {
        n for n in work - set(symbols.hooks()) if symbols.driver_symbols()[n].base not in not_work
    }
    assert not unhooked
    assert len(work) > 120
