"""Chooses the loader of the programs: the prebuilt object if it exists and the kernel accepts it,
otherwise bcc, each in a short-lived process of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nodeagent.adapters.ebpf.loaders.programs import MAPS, PROGRAMS
from nodeagent.adapters.host.children import python_child

PREBUILT: Final = "prebuilt"
BCC: Final = "bcc"
AUTO: Final = "auto"
DEADLINES_S: Final = {PREBUILT: 15.0, BCC: 60.0}
"""Seconds. On an idle machine the first takes a tenth of a second, the other compiles for 1 to 3 s.
Together they stay below the time that the daemon gives its child to start (watch.py)."""
MAX_OUTPUT_CHARACTERS: Final = 2000
"""Characters kept of a loader's output: the end, where compilers and the verifier give the
reason."""
NOT_BUILT: Final = "the prebuilt programs are not at {path}"


class LoadFailed(Exception):
    """No loader succeeded; the text gives the reasons."""


@dataclass(frozen=True, slots=True)
class Programs:
    fds: dict[str, int]
    """Descriptors of programs and maps, by name."""
    loader: str
    """PREBUILT or BCC."""
    instead: str = ""
    """Reason why the prebuilt programs were not used although they were preferred."""


async def load(loader: str, prebuilt: Path) -> Programs:
    """Load the programs. `loader` is the setting: AUTO, PREBUILT or BCC. Raises LoadFailed."""
    if loader == BCC:
        return await load_with_bcc()
    try:
        return await load_prebuilt(prebuilt)
    except LoadFailed as error:
        if loader == PREBUILT:
            raise
        instead = str(error)
    try:
        programs = await load_with_bcc()
    except LoadFailed as error:
        raise LoadFailed(f"{instead}; and with bcc: {error}") from error
    return Programs(programs.fds, programs.loader, instead)


async def load_prebuilt(file: Path) -> Programs:
    """Raises LoadFailed."""
    if not file.is_file():
        raise LoadFailed(NOT_BUILT.format(path=file))
    return Programs(
        await _run(PREBUILT, "nodeagent.adapters.ebpf.loaders.prebuilt", [str(file)]), PREBUILT
    )


async def load_with_bcc() -> Programs:
    """Raises LoadFailed."""
    return Programs(await _run(BCC, "nodeagent.adapters.ebpf.loaders.bcc", []), BCC)


async def _run(loader: str, module: str, arguments: Sequence[str]) -> dict[str, int]:
    """Raises LoadFailed."""
    deadline_s = DEADLINES_S[loader]
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *python_child(module, *arguments),
                stdin=theirs.fileno(),
                stderr=asyncio.subprocess.PIPE,
            )
        assert process.stderr is not None
        errors = asyncio.create_task(process.stderr.read())
        try:
            async with asyncio.timeout(deadline_s):
                text, fds = await asyncio.to_thread(_receive, ours, deadline_s)
                await process.wait()
        except TimeoutError:
            raise LoadFailed(f"{loader} timed out after {deadline_s:g} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        output = (await errors).decode("utf-8", "replace").strip()[-MAX_OUTPUT_CHARACTERS:]
    try:
        answer = json.loads(text)
    except ValueError:
        raise LoadFailed(f"{loader} ended without an answer: {output}") from None
    if "error" in answer:
        raise LoadFailed(f"{answer['error']}: {output}" if output else answer["error"])
    return dict(zip(answer["names"], fds, strict=True))


def _receive(connection: socket.socket, deadline_s: float) -> tuple[bytes, list[int]]:
    connection.settimeout(deadline_s)
    try:
        text, fds, _, _ = socket.recv_fds(connection, 64 << 10, len(PROGRAMS) + len(MAPS))
    except OSError as error:
        return str(error).encode(), []
    return text, fds
