"""One request to a child process that calls the driver, with a timeout.

Apart from `children`, which the children import too: they need no asyncio.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

from nodeagent.adapters.host.children import python_child


class ChildFailed(Exception):
    """The child timed out, ended without an answer, or answered with an error."""

    def __init__(self, reason: str, answer: dict[str, Any] | None = None) -> None:
        super().__init__(reason)
        self.answer = answer or {}


async def ask_child(
    module: str, library: str, request: Any, deadline_s: float, most_bytes: int, called: str
) -> Any:
    """Start the module in a child, send it one request, and return its answer. Raises ChildFailed.

    `library` is the driver's (empty: as the loader finds it), `called` its name in messages.
    """
    child = await asyncio.create_subprocess_exec(
        *python_child(module, *([library] if library else [])),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=most_bytes,
    )
    try:
        async with asyncio.timeout(deadline_s):
            out, _ = await child.communicate(json.dumps(request).encode() + b"\n")
    except TimeoutError:
        raise ChildFailed(f"{called} timed out after {deadline_s:g} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
    try:
        answer = json.loads(out)
    except ValueError:
        raise ChildFailed(
            f"the process that calls {called} exited with status {child.returncode}"
        ) from None
    if "error" in answer:
        raise ChildFailed(answer["error"], answer)
    return answer
