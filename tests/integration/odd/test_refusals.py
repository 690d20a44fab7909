"""Refusals of a program in a grant say why: no room for a context, another user, too many processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.integration.odd.programs import BY_MOUNT, in_grant, python, started
from tests.kit.node import Node, running


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    directory = tmp_path_factory.mktemp("refusals")
    os.chmod(directory, 0o755)
    with running(directory, gpus="h100-80gb") as started:
        yield started


@pytest.mark.parametrize("make", ["cuDevicePrimaryCtxRetain", "cuCtxCreate_v2"])
def test_a_limit_below_a_context_is_named_and_leaves_no_handle(node: Node, make: str) -> None:
    code = f"""
    ok(cuda.cuInit(0))
    context, other = pointer(), pointer(0)
    make = dict(
        cuDevicePrimaryCtxRetain=lambda: cuda.cuDevicePrimaryCtxRetain(byref(context), 0),
        cuCtxCreate_v2=lambda: cuda.cuCtxCreate_v2(byref(context), 0, 0),
    )[{make!r}]
    codes = [make() for _ in range(3)]
    current = cuda.cuCtxSetCurrent(context)
    answer(codes=codes, handle=context.value, current=current, then=alloc(1 << 20)[0],
           total=total())
    """
    got = in_grant(node, code, flags=("--gpumem", "345Mi"))
    assert got["codes"] == [2, 2, 2]
    assert got["handle"] is None
    assert (got["current"], got["then"]) == (0, 201)
    assert got["total"] == 345 << 20
    notes = [line for line in got["stderr"].splitlines() if "no CUDA context for process" in line]
    assert len(notes) == 1, got["stderr"]
    assert notes[0].endswith("it takes 520 MiB of GPU memory, and 345 MiB of the grant are free")
    before = next(line for line in got["stderr"].splitlines() if "the grant has 345Mi" in line)
    assert "up to 1050 MiB for each process" in before


def test_the_smallest_grant_that_the_note_names_works(node: Node) -> None:
    code = "init()\nanswer(free=info()[0], one=alloc(1 << 20)[0])"
    got = in_grant(node, code, flags=("--gpumem", "1050Mi"))
    assert got["one"] == 0
    assert "sluice:" not in got["stderr"]


@pytest.mark.skipif(
    not BY_MOUNT or not shutil.which("setpriv"), reason="root mounts and changes its user"
)
def test_another_user_inside_of_roots_grant_is_named_as_the_reason(node: Node) -> None:
    program = python("print(cuda.cuInit(0))")
    other = ("setpriv", "--reuid=65534", "--clear-groups", "/usr/bin/python3", *program[1:])
    done = started(node, *other, flags=("--gpumem", "2Gi"))
    assert done.stdout == "802\n", done.stderr
    assert (
        "the grant belongs to user 0 and this process runs as user 65534;"
        " start `sluice run` as that user"
    ) in done.stderr


def test_more_processes_than_one_grant_may_have_start_on_a_simulated_node(node: Node) -> None:
    child = "import ctypes, sys; print(ctypes.CDLL('libcuda.so.1').cuInit(0), flush=True)"
    with contextlib.ExitStack() as ends:
        children = []
        while len(children) < 264:
            more = [
                subprocess.Popen(
                    [sys.executable, "-S", "-E", "-c", f"{child}; sys.stdin.read()"],
                    env=node.on_the_driver(),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                for _ in range(12)
            ]
            for one in more:
                ends.callback(one.communicate)
                ends.callback(one.kill)
            children += more
            assert {one.stdout.readline() for one in more if one.stdout} == {"0\n"}
