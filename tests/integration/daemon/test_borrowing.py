"""Borrowed memory on a simulated node: programs get it, are stopped at it, and a newcomer has what they do not hold."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kit.node import Node, running, until
from tests.kit.workplace import workplace

GIB = 1 << 30
TAKE = """
import ctypes, json, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, p = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
for line in sys.stdin:
    code = cuda.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(int(line) << 30))
    print(json.dumps(code), flush=True)
"""


class Taker:
    """A program in a grant that takes memory on command."""

    def __init__(self, node: Node, name: str, *flags: str) -> None:
        self.name, self._node = name, node
        self.process = subprocess.Popen(
            [
                *_sluice(),
                "run",
                "--name",
                name,
                "--cores",
                "30",
                *flags,
                "--",
                sys.executable,
                "-c",
                TAKE,
            ],
            env=node.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def take(self, gib: int) -> int:
        """CUDA's answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{gib}\n")
        self.process.stdin.flush()
        return int(json.loads(self.process.stdout.readline()))

    def device(self) -> dict[str, Any]:
        grant = self._node.grant(self.name)
        assert grant is not None
        found: dict[str, Any] = grant["devices"][0]
        return found

    def has(self) -> int:
        """GiB; 0 before it has a grant."""
        grant = self._node.grant(self.name)
        return 0 if grant is None else int(grant["devices"][0]["memory_limit_bytes"]) // GIB

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def _sluice() -> tuple[str, ...]:
    return (sys.executable, "-I", "-m", "nodeagent.cli")


@pytest.fixture
def node() -> Iterator[Node]:
    settings = "[grants]\nlending_pause_s = 0\n"
    with (
        workplace() as directory,
        running(directory, gpus="1xh100-80gb", settings=settings) as it,
    ):
        yield it


def test_a_borrower_has_what_is_free_and_gives_back_what_it_does_not_hold(node: Node) -> None:
    lends = Taker(node, "borrows", "--gpumem", "70Gi", "--gpumem-request", "10Gi")
    try:
        until("it has borrowed", lambda: lends.has() == 70)
        device = lends.device()
        assert (device["memory_request_bytes"], device["memory_most_bytes"]) == (10 * GIB, 70 * GIB)
        assert lends.take(20) == 0, "more than its request"
        other = Taker(node, "comes", "--gpumem", "50Gi")
        try:
            until("the newcomer has its grant", lambda: node.grant("comes"))
            assert 20 <= lends.has() <= 29, (
                "what it holds, and what is free: 79 GiB less the other's"
            )
            assert lends.take(20) == 2, "out of memory: the card is the other's"
            assert other.take(48) == 0, "what is guaranteed can be had"
            done = node.cli("run", "--gpumem", "20Gi", "--cores", "10", "--", "true", check=False)
            assert done.returncode == 125
            assert "more is lent)" in done.stderr
        finally:
            other.end()
        until("it is lent again", lambda: lends.has() == 70)
        assert lends.take(20) == 0
    finally:
        lends.end()


def test_what_was_lent_is_known_after_a_restart(node: Node) -> None:
    lends = Taker(node, "borrows", "--gpumem", "70Gi", "--gpumem-request", "10Gi")
    try:
        until("it has borrowed", lambda: lends.has() == 70)
        assert lends.take(30) == 0
        node.kill_daemon()
        node.start()
        until("its grant is there again", lambda: node.grant("borrows"))
        assert lends.device()["memory_request_bytes"] == 10 * GIB
        done = node.cli("run", "--gpumem", "60Gi", "--cores", "10", "--", "true", check=False)
        assert done.returncode == 125, "what it holds goes to no other"
        assert node.cli("run", "--gpumem", "40Gi", "--cores", "10", "--", "true").returncode == 0
    finally:
        lends.end()


def test_memory_does_not_change_while_a_process_is_new() -> None:
    """A program finds all that is free when it starts; then its total stays as it is, whatever comes and goes."""
    with workplace() as directory, running(directory, gpus="1xh100-80gb") as node:
        beside = Taker(node, "beside", "--gpumem", "30Gi")
        new = None
        try:
            assert beside.take(1) == 0
            new = Taker(node, "new", "--gpumem", "70Gi", "--gpumem-request", "10Gi")
            assert new.take(1) == 0
            until("it has what is free", lambda: new.has() == 49)
            beside.end()
            until("its neighbour is gone", lambda: node.grant("beside") is None)
            done = node.cli("run", "--gpumem", "60Gi", "--cores", "10", "--", "true", check=False)
            assert done.returncode == 125
            assert "more is lent)" in done.stderr
            looks = 3
            for _ in range(looks):
                time.sleep(1)  # the daemon lends once a second
                assert new.has() == 49
        finally:
            beside.end()
            if new is not None:
                new.end()


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--gpumem", "10Gi", "--gpumem-request", "20Gi"), "is more than --gpumem"),
        (("--queue", "q", "--gpumem-request", "1Gi"), "leave --gpumem-request out"),
    ],
)
def test_what_cannot_be_meant_is_refused(node: Node, flags: tuple[str, ...], why: str) -> None:
    done = node.cli("run", *flags, "--", "true", check=False)
    assert done.returncode != 0
    assert why in done.stderr
