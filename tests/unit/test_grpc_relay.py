"""The relay before gRPC's socket: every byte and the end pass, each connection has its own name."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from sluicecommon.grpc_relay import CallerEnd, Relay

Scene = Callable[["Stage"], Awaitable[None]]


class Stage:
    """An echo server in the place of gRPC's, behind a listener that admits every connection."""

    def __init__(self, directory: Path) -> None:
        self.public, self.target = directory / "public", directory / "grpc"
        self.relays: list[Relay] = []
        self.peers: list[object] = []
        self.refuse = False

    def admit(self, transport: asyncio.Transport) -> Relay | None:
        if self.refuse:
            transport.abort()
            return None
        made = Relay(own=self.target.parent / f"c{len(self.relays)}", target=self.target)
        self.relays.append(made)
        return made

    async def echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.peers.append(writer.get_extra_info("peername"))
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def caller(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_unix_connection(str(self.public))


def play(directory: Path, scene: Scene) -> None:
    async def played() -> None:
        stage = Stage(directory)
        loop = asyncio.get_running_loop()
        inside = await asyncio.start_unix_server(stage.echo, str(stage.target))
        outside = await loop.create_unix_server(lambda: CallerEnd(stage.admit), str(stage.public))
        try:
            await asyncio.wait_for(scene(stage), 60)
        finally:
            outside.close()
            inside.close()
            for relay in stage.relays:
                relay.abort()

    asyncio.run(played())


async def sent(stage: Stage, data: bytes) -> bytes:
    """Send data and the end of the stream; returns all that is echoed."""
    reader, writer = await stage.caller()
    writer.write(data)
    writer.write_eof()
    found = await reader.read(-1)
    writer.close()
    return found


def test_bytes_and_the_end_pass_and_each_connection_has_a_name(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        texts = [bytes([number]) * (300_000 + number) for number in range(8)]
        assert await asyncio.gather(*(sent(stage, text) for text in texts)) == texts
        assert {f"unix:{peer}" for peer in stage.peers} == {one.name for one in stage.relays}
        assert len(stage.peers) == 8
        assert not list(tmp_path.glob("c*")), "a name's file is gone as soon as both ends know it"

    play(tmp_path, scene)


def test_an_end_that_came_before_the_connection_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transport that reads although it was paused as it began (Python before 3.11.3)."""
    connect = Relay.open
    came = asyncio.Event()

    async def later(self: Relay) -> None:
        await came.wait()
        await connect(self)

    def unpaused(self: Relay, why: str) -> None:
        self.stopped_for.add(why)

    monkeypatch.setattr(Relay, "open", later)
    monkeypatch.setattr(Relay, "stop", unpaused)

    async def scene(stage: Stage) -> None:
        answer = asyncio.create_task(sent(stage, b"early"))
        while not (stage.relays and stage.relays[0].is_at_end):
            await asyncio.sleep(0.001)
        came.set()
        assert await answer == b"early"

    play(tmp_path, scene)


def test_without_the_inner_socket_the_caller_is_closed(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        stage.target = tmp_path / "nothing"
        try:
            found = await sent(stage, b"x")
        except ConnectionError:
            found = b""
        assert found == b""
        assert stage.relays[0].fileno() == -1
        assert not list(tmp_path.glob("c*"))

    play(tmp_path, scene)


def test_one_that_is_refused_or_aborted_gets_nothing(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        stage.refuse = True
        reader, writer = await stage.caller()
        assert await reader.read(-1) == b""
        writer.close()
        stage.refuse = False
        reader, writer = await stage.caller()
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        stage.relays[0].abort()
        assert await reader.read(-1) == b""
        writer.close()
        assert len(stage.peers) == 1

    play(tmp_path, scene)
