"""A viewer who does not read: it holds little, is disconnected after a while with a reason, and goes on where it was."""

from __future__ import annotations

import asyncio
import json
import socket
import tracemalloc
from typing import Any

import pytest

from sluicecommon.web import page
from sluicecommon.web.page import PageServer
from tests.unit.page.shown import Shown, serving

DOCUMENTS = 20_000
DOCUMENT = {"text": "x" * 400}
WINDOWS = 32


async def follow(server: PageServer, after: str = "", buffer: int = 4096) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:  # fmt: skip
    """A window with the smallest buffers that a kernel gives."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", server.port))
    reader, writer = await asyncio.open_connection(sock=raw, limit=1 << 16)
    again = f"Last-Event-ID: {after}\r\n" if after else ""
    writer.write(f"GET /api/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ann\r\n{again}\r\n".encode())  # fmt: skip
    await writer.drain()
    return reader, writer


async def until(condition: Any, what: str) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)


def test_windows_that_nobody_reads_hold_a_frame_each_and_not_the_whole_picture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(page, "WRITE_S", 120.0)

    async def scene() -> int:
        shown = Shown()
        for number in range(DOCUMENTS):
            shown.board.put(("Node", "", str(number)), dict(DOCUMENT))
        async with serving(shown) as server:
            tracemalloc.start()
            windows = [await follow(server) for _ in range(WINDOWS)]
            await until(lambda: server.viewers == WINDOWS, "all are let in")
            for number in range(200):  # the world goes on
                shown.board.put(("Node", "", str(number)), {"text": f"now {number}"})
                await asyncio.sleep(0.005)
            held, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            for _, writer in windows:
                writer.transport.abort()
            await until(lambda: server.viewers == 0, "all are gone")
        return held

    whole = DOCUMENTS * len(json.dumps(DOCUMENT))
    held = asyncio.run(scene())
    assert held < WINDOWS * (2 << 20), f"{held >> 20} MiB for {WINDOWS} windows"
    assert held < WINDOWS * whole / 4, "the bound would hold without a frame at a time"


async def read_until(reader: asyncio.StreamReader, wanted: bytes) -> bytes:
    """All of the stream up to there."""
    found = bytearray()
    async with asyncio.timeout(120):
        while found.find(wanted, max(0, len(found) - (1 << 17))) < 0:
            some = await reader.read(1 << 16)
            assert some, "the stream ended"
            found += some
            await asyncio.sleep(0)
    return bytes(found)


def test_who_takes_nothing_is_cut_told_why_and_resumes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        shown = Shown()
        shown.board.put(("Node", "", "first"), dict(DOCUMENT))
        known = shown.board.stamp()
        for number in range(DOCUMENTS):
            shown.board.put(("Node", "", str(number)), dict(DOCUMENT))
        async with serving(shown) as server:
            monkeypatch.setattr(page, "WRITE_S", 0.5)
            reader, writer = await follow(server, known)
            await until(lambda: server.slow_total == 1 and server.viewers == 0, "cut")
            writer.transport.abort()
            monkeypatch.setattr(page, "WRITE_S", 60.0)
            reader, writer = await follow(server, known, 1 << 16)
            text = await read_until(reader, f"id: {shown.board.stamp()}\n".encode())
            assert b"event: cut" in text
            assert b"read nothing for " in text
            assert b"event: reset" not in text, "it goes on where it was"
            writer.transport.abort()
            await until(lambda: server.viewers == 0, "gone")
            reader, writer = await follow(server, shown.board.stamp())
            await until(lambda: server.viewers == 1, "let in")
            shown.board.put(("Node", "", "last"), dict(DOCUMENT))
            assert b"event: cut" not in await read_until(reader, b'"last"'), "told once"
            writer.transport.abort()
        assert server.slow_total == 1

    asyncio.run(scene())


def test_who_reads_slowly_but_reads_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame has its time; one that arrives in it is no reason to cut."""
    monkeypatch.setattr(page, "WRITE_S", 30.0)

    async def scene() -> None:
        shown = Shown()
        for number in range(2_000):
            shown.board.put(("Node", "", str(number)), dict(DOCUMENT))
        async with serving(shown) as server:
            reader, writer = await follow(server)
            await read_until(reader, b"event: synced")
            assert server.slow_total == 0
            writer.transport.abort()

    asyncio.run(scene())


def test_rights_that_end_while_many_frames_are_taken_end_the_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(page, "BEAT_S", 0.0)

    async def scene() -> None:
        shown = Shown()
        for number in range(DOCUMENTS):
            shown.board.put(("Node", "", str(number)), dict(DOCUMENT))
        async with serving(shown) as server:
            reader, writer = await follow(server)
            await read_until(reader, b"event: delta")
            shown.ended = True
            text = await read_until(reader, b"event: bye")
            assert b"event: synced" not in text
            writer.transport.abort()

    asyncio.run(scene())
