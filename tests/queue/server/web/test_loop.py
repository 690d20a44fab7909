"""Wakes from gRPC are handled in the pass of the loop in which they arrive."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from queuecontroller.server.api import loop as module
from queuecontroller.server.api.loop import GrpcLoop


class Handler:
    """Fake of gRPC's handler: one byte a call."""

    def __init__(self, wakes: socket.socket) -> None:
        self.wakes = wakes
        self.calls = 0

    def hear(self) -> None:
        self.wakes.recv(1)
        self.calls += 1


@pytest.mark.parametrize(("of_grpc", "heard"), [(True, 100), (False, 1)])
def test_all_wakes_of_grpc_are_taken_in_one_pass(
    monkeypatch: pytest.MonkeyPatch, of_grpc: bool, heard: int
) -> None:
    monkeypatch.setattr(module, "_is_grpc", lambda callback: of_grpc)

    async def run() -> int:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            handler = Handler(ours)
            loop = asyncio.get_running_loop()
            loop.add_reader(ours, handler.hear)
            theirs.send(b"1" * 100)
            while not handler.calls:
                await asyncio.sleep(0)
            calls = handler.calls
            loop.remove_reader(ours)
            return calls

    with asyncio.Runner(loop_factory=GrpcLoop) as runner:
        assert runner.run(run()) == heard


def test_grpcs_own_handler_is_known_by_its_class() -> None:
    """A release of grpcio that registers it in another way is to be looked at."""
    seen = []

    class Loop(GrpcLoop):
        def add_reader(
            self, fd: Any, callback: Callable[[*module.Ts], Any], *args: *module.Ts
        ) -> None:
            seen.append(module._is_grpc(callback))
            super().add_reader(fd, callback, *args)

    async def run() -> None:
        server = grpc.aio.server()
        await server.start()
        await server.stop(0)

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(run())
    assert seen == [True]
