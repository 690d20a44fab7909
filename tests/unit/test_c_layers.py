"""The check of the C's layers finds what it is for: packaging/development/c_layers.py."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.kit.places import REPO

CHECK: dict[str, Any] = runpy.run_path(str(REPO / "packaging" / "development" / "c_layers.py"))


def edges(*pairs: tuple[str, str]) -> dict[tuple[Path, Path], str]:
    return {(placed(a), placed(b)): "takes()" for a, b in pairs}


def placed(name: str) -> Path:
    """A file of interpose/, unless the name begins with another top-level folder."""
    return (
        Path(name)
        if name.startswith(("simgpu/", "proto/", "nativecommon/"))
        else Path("interpose", name)
    )


@pytest.mark.parametrize(
    ("user", "used", "wrong"),
    [
        ("memory/charge.c", "tenant/guest.h", False),
        ("memory/pool.c", "memory/charge.h", False),
        ("resolve.c", "compute/throttle.h", False),
        ("tenant/guest.c", "memory/pool.h", True),
        ("memory/memory.c", "compute/throttle.h", True),
        ("compute/rules/fair.c", "tenant/guest.h", False),
        ("compute/rules/fair.c", "compute/timing/siblings.h", True),
        ("driver/driver.c", "resolve.c", True),
        ("memory/memory.c", "simgpu/node/state.h", True),
        ("simgpu/node/state.c", "nativecommon/cuda_abi.h", False),
        ("nativecommon/footprint.h", "driver/driver.h", True),
        ("simgpu/node/state.c", "driver/location.h", True),
        ("simgpu/cuda/context.c", "tenant/guest.h", True),
        ("simgpu/cuda/context.c", "attach/region.h", True),
        ("simgpu/cuda/context.c", "driver/driver.h", True),
        ("simgpu/node/state.c", "proto/region.h", True),
    ],
)
def test_a_file_may_use_what_lies_below_it(user: str, used: str, wrong: bool) -> None:
    assert bool(list(CHECK["upwards"](edges((user, used))))) == wrong


def test_files_that_need_each_other_are_named_a_source_and_its_header_being_one() -> None:
    found = CHECK["cycles"](
        edges(("a/x.c", "a/y.h"), ("a/y.c", "a/z.h"), ("a/z.h", "a/x.h"), ("b/v.c", "b/v.h"))
    )
    assert list(found) == [["interpose/a/x", "interpose/a/y", "interpose/a/z"]]


def test_the_includes_of_the_interposer_lead_downwards() -> None:
    assert list(CHECK["upwards"](CHECK["includes"]())) == []
    assert list(CHECK["cycles"](CHECK["includes"]())) == []
