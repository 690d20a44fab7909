"""The listeners: who is closed without a call, and a Python that reads a transport once although it was paused as it began
(before 3.11.3, Debian 12's)."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from queuecontroller.server.api import server
from queuecontroller.server.callers.listeners import (
    LOCAL_WITHIN_S,
    PROVE_WITHIN_S,
    Connection,
    Listeners,
)
from queuecontroller.server.config import Settings
from queuecontroller.state.access import Caller
from sluicecommon import grpc_relay


def _admin(uid: int) -> Caller:
    return Caller(user=f"uid-{uid}", admin=True)


@pytest.fixture
def old_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is paused while the way inside is looked for, and that takes a while."""
    stop, connect = Connection.stop, Connection.open

    def not_at_once(self: Connection, why: str) -> None:
        if why != "connecting":
            stop(self, why)

    async def slowly(self: Connection) -> None:
        await asyncio.sleep(0.1)
        await connect(self)

    monkeypatch.setattr(Connection, "stop", not_at_once)
    monkeypatch.setattr(Connection, "open", slowly)


async def _through(directory: Path, sent: bytes) -> bytes:
    """Reply of an echo server behind the listeners to bytes that are sent in two pieces as soon as
    one is connected."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    private = directory / "private"
    private.mkdir()
    here = Listeners(64, private, _admin)
    inside = await asyncio.start_unix_server(echo, here.plain_target.removeprefix("unix:"))
    await here.listen_unix(directory / "queue.sock")
    reader, writer = await asyncio.open_unix_connection(str(directory / "queue.sock"))
    answer = b""
    try:
        half = len(sent) // 2
        writer.write(sent[:half])
        await asyncio.sleep(0.02)
        writer.write(sent[half:])
        while len(answer) < len(sent):
            data = await asyncio.wait_for(reader.read(65536), 10)
            if not data:
                break
            answer += data
    except ConnectionError:
        pass
    finally:
        writer.close()
        await here.close()
        inside.close()
    return answer


def test_what_comes_before_there_is_a_way_inside_is_kept(tmp_path: Path, old_python: None) -> None:
    sent = bytes(range(256)) * 40
    assert asyncio.run(_through(tmp_path, sent)) == sent


def test_who_sends_a_heap_before_it_is_let_in_is_cut_off(
    tmp_path: Path, old_python: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_relay, "MAX_EARLY_BYTES", 4096)
    assert asyncio.run(_through(tmp_path, b"x" * 10_000)) == b""


@pytest.mark.parametrize(
    ("sends", "tls", "late_s"),
    [
        *((False, False, PROVE_WITHIN_S), (True, False, LOCAL_WITHIN_S)),
        *((False, True, PROVE_WITHIN_S), (True, True, PROVE_WITHIN_S)),
    ],
)
def test_a_local_call_may_wait_for_a_busy_process(sends: bool, tls: bool, late_s: float) -> None:
    """The client has done its part, and has a deadline of its own."""

    async def lateness() -> float:
        kernel = None if tls else _admin(0)
        began_s = asyncio.get_running_loop().time()
        one = Connection("here", began_s, tls, kernel=kernel, own=Path("a"), target=Path("b"))
        if sends:
            one.received(4096)
        return next(s for s in range(1000) if one.is_late(began_s + s + 0.5)) + 0.5

    assert asyncio.run(lateness()) == late_s + 0.5


@pytest.mark.parametrize(("waits_s", "cancelled"), [(1, True), (server.WAITS_S, False)])
def test_a_call_waits_while_the_controller_is_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits_s: int, cancelled: bool
) -> None:
    """gRPC itself cancels a call that was not taken for 30 s: an `apply` beside 1,000 nodes that connect ended with CANCELLED."""
    monkeypatch.setattr(server, "WAITS_S", waits_s)

    async def answer(request: bytes, context: object) -> bytes:
        return b"done"

    def outcome(call: Any) -> str:
        try:
            return str(call.result(60).decode())
        except grpc.RpcError as error:
            return str(error.code().name)  # type: ignore[attr-defined]

    async def play() -> set[str]:
        method = grpc.unary_unary_rpc_method_handler(answer)
        handler = grpc.method_handlers_generic_handler("busy", {"Call": method})
        here = Listeners(64, tmp_path, _admin)
        service = server.GrpcServer(Settings(), here, [handler])
        await service.start()
        try:
            with grpc.insecure_channel(here.plain_target) as channel:
                calls = [channel.unary_unary("/busy/Call").future(b"") for _ in range(8)]
                time.sleep(4)  # no call is taken meanwhile
                return set(await asyncio.to_thread(lambda: {outcome(one) for one in calls}))
        finally:
            await service.close()
            await here.close()

    assert ("CANCELLED" in asyncio.run(play())) is cancelled
