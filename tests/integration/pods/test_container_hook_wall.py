"""The hook a runtime starts once a container's cgroup is there: asks the daemon for the driver's wall, and knows nothing
itself."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from nodeagent.adapters.containers.hook_listener import LINE_BYTES, SOCKET_NAME, HookListener
from nodeagent.ports.clients import RefusalKind, Refused
from nodeagent.units import GrantId
from tests.kit.places import CONTAINER_HOOK

Enclose = Callable[[GrantId, int], Awaitable[None]]
STATE = json.dumps({"ociVersion": "1.1.0", "id": "c", "pid": 4242, "bundle": "/b"})


async def ask(
    path: Path, must: str = "optional", state: str = STATE, grant: str = "g1"
) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *(CONTAINER_HOOK, "wall", path, grant, must),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    _, said = await process.communicate(state.encode())
    assert process.returncode is not None
    return process.returncode, said.decode()


def with_door(directory: Path, enclose: Enclose, act: Callable[[Path], Awaitable[None]]) -> None:
    async def scene() -> None:
        door = HookListener(directory, os.geteuid(), enclose)
        await door.start()
        try:
            await act(directory / SOCKET_NAME)
        finally:
            await door.close()

    asyncio.run(scene())


def test_the_daemon_hears_of_the_grant_and_the_first_process(tmp_path: Path) -> None:
    heard: list[tuple[str, int]] = []

    async def enclose(grant: GrantId, pid: int) -> None:
        heard.append((grant, pid))

    async def act(path: Path) -> None:
        assert path.stat().st_mode & 0o077 == 0
        assert await ask(path, "required") == (0, "")

    with_door(tmp_path, enclose, act)
    assert heard == [("g1", 4242)]
    assert not (tmp_path / SOCKET_NAME).exists()


@pytest.mark.parametrize(("must", "status"), [("required", 1), ("optional", 0)])
def test_a_wall_that_must_stand_ends_the_start_with_the_reason(
    tmp_path: Path, must: str, status: int
) -> None:
    async def enclose(grant: GrantId, pid: int) -> None:
        raise Refused(RefusalKind.UNAVAILABLE, "its driver has no memory limits")

    async def act(path: Path) -> None:
        code, said = await ask(path, must)
        assert code == status
        assert said.endswith(": its driver has no memory limits\n")

    with_door(tmp_path, enclose, act)


@pytest.mark.parametrize(("must", "status"), [("required", 1), ("optional", 0)])
def test_without_a_daemon_only_a_wall_that_must_stand_is_missed(
    tmp_path: Path, must: str, status: int
) -> None:
    code, said = asyncio.run(ask(tmp_path / "none.sock", must))
    assert (code, "No such file" in said) == (status, True)


@pytest.mark.parametrize("state", ["{}", '{"pid": 0}', '{"pid": "x"}', "nonsense"])
def test_a_state_without_a_process_is_refused(tmp_path: Path, state: str) -> None:
    code, said = asyncio.run(ask(tmp_path / "none.sock", state=state))
    assert code == 1
    assert 'no "pid"' in said


@pytest.mark.parametrize(
    "words",
    [(), ("wall",), ("wall", "relative", "g", "required"), ("wall", "/s", "g", "perhaps")],
)
def test_wrong_words_are_told_what_is_right(words: tuple[str, ...]) -> None:
    done = subprocess.run(
        [CONTAINER_HOOK, *words], input=STATE, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, "usage: " in done.stderr) == (2, True)


@pytest.mark.parametrize(
    "line",
    [b"", b"wall g1 0\n", b"wall ../g 7\n", b"wall g1 7 8\n", b"x" * (2 * LINE_BYTES) + b"\n"],
    ids=["nothing", "no process", "a path", "too many words", "too long"],
)
def test_what_is_no_question_is_not_asked_further(tmp_path: Path, line: bytes) -> None:
    async def enclose(grant: GrantId, pid: int) -> None:
        raise AssertionError("it was asked")

    async def act(path: Path) -> None:
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(line)
        writer.write_eof()
        assert (await reader.readline()).startswith(b"no ")
        writer.close()

    with_door(tmp_path, enclose, act)
