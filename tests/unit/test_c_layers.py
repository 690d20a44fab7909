"""The check of the C's layers finds what it is for: packaging/development/c_layers.py."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.kit.places import REPO

CHECK: dict[str, Any] = runpy.run_path(str(REPO / "packaging" / "development" / "c_layers.py"))


def edges(*pairs: tuple[str, str]) -> dict[tuple[Path, Path], str]:
    return {(Path("interpose", a), Path("interpose", b)): "takes()" for a, b in pairs}


@pytest.mark.parametrize(
    ("user", "used", "wrong"),
    [
        ("memory/charge.c", "tenant/guest.h", False),
        ("memory/pool.c", "memory/charge.h", False),
        ("resolve.c", "compute/throttle.h", False),
        ("tenant/guest.c", "memory/pool.h", True),
        ("memory/memory.c", "compute/throttle.h", True),
        ("compute/rules/fair.c", "tenant/guest.h", False),
        ("compute/rules/fair.c", "compute/siblings.h", True),
        ("driver/driver.c", "resolve.c", True),
        ("memory/memory.c", "sim/node/state.h", True),
        ("sim/node/state.c", "driver/cuda_abi.h", False),
        ("sim/cuda/context.c", "tenant/guest.h", True),
    ],
)
def test_a_file_may_use_what_lies_below_it(user: str, used: str, wrong: bool) -> None:
    assert bool(list(CHECK["upwards"](edges((user, used))))) == wrong


def test_files_that_need_each_other_are_named_a_source_and_its_header_being_one() -> None:
    found = CHECK["circles"](
        edges(("a/x.c", "a/y.h"), ("a/y.c", "a/z.h"), ("a/z.h", "a/x.h"), ("b/v.c", "b/v.h"))
    )
    assert list(found) == [["interpose/a/x", "interpose/a/y", "interpose/a/z"]]


def test_the_includes_of_the_interposer_lead_downwards() -> None:
    assert list(CHECK["upwards"](CHECK["includes"]())) == []
    assert list(CHECK["circles"](CHECK["includes"]())) == []
